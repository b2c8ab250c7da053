//! Text output contains times in the user's time zone, with the name of the zone. Machine-readable output uses UTC.

use std::path::Path;

use crate::support::{self, Output, short_demo};

/// Runs a command on the short demo in a time zone. Its idle finding began on 20 November at 13:35:30 UTC, in winter.
fn demo(arguments: &[&str], zone: &str) -> Output {
    let mut command = support::command(arguments);
    support::finish(command.args(["--replay", short_demo()]).env("TZ", zone))
}

const CHECK: [&str; 3] = ["check", "--kind", "idle"];

/// Returns whether the time zone database is installed, as it is in CI.
fn has_zones() -> bool {
    let is_installed = Path::new("/usr/share/zoneinfo/Europe/Berlin").exists();
    if !is_installed {
        support::skip("/usr/share/zoneinfo", "install tzdata");
    }
    is_installed
}

#[test]
fn text_output_uses_the_zone_of_tz() {
    if !has_zones() {
        return;
    }
    for (zone, since) in [
        (":Europe/Berlin", "since 2026-11-20 14:35:30 CET,"),
        ("Asia/Kathmandu", "since 2026-11-20 19:20:30 +0545,"),
        ("XYZ-3ABC,M3.5.0,M10.5.0/3", "since 2026-11-20 16:35:30 XYZ,"),
        ("", "since 2026-11-20 13:35:30 UTC,"),
    ] {
        let output = demo(&CHECK, zone);
        assert!(output.stdout.contains(since), "{zone}: {output:?}");
        assert!(!output.stdout.contains("000Z"), "{output:?}");
    }
    let page = ["explain", "398120"];
    let page = demo(&page, "Europe/Berlin").stdout;
    assert!(page.contains("since 2026-11-20 14:35:30 CET"), "{page}");
    let plan = ["reap", "--dry-run"];
    let plan = demo(&plan, "Europe/Berlin").stdout;
    assert!(plan.contains("since 2026-11-20 14:35:30 CET"), "{plan}");
    let screen = ["watch", "--once", "--size", "160x40"];
    let screen = demo(&screen, "Europe/Berlin").stdout;
    assert!(screen.contains(" CET") && !screen.contains("UTC"), "{screen}");
}

#[test]
fn the_option_utc_and_json_give_utc() {
    let text = [&CHECK[..], &["--utc"]].concat();
    let text = demo(&text, "Asia/Kathmandu").stdout;
    assert!(text.contains("since 2026-11-20 13:35:30 UTC,"), "{text}");
    for arguments in [&["explain", "398120", "--json"][..], &["reap", "--json"]] {
        let kathmandu = demo(arguments, "Asia/Kathmandu");
        let utc = demo(arguments, "UTC");
        assert_eq!(kathmandu.stdout, utc.stdout, "{arguments:?}");
    }
}

#[test]
fn the_readmes_example_is_the_output_of_check() {
    const COMMAND: [&str; 4] = ["check", "--demo", "--user", "ben"];
    if !has_zones() {
        return;
    }
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let (_, after) = readme.split_once(&format!("$ gpumem {}\n", COMMAND.join(" "))).unwrap();
    let (example, _) = after.split_once("```").unwrap();
    let mut command = support::command(&COMMAND);
    assert_eq!(support::finish(command.env("TZ", "Europe/Berlin")).stdout, example);
}
