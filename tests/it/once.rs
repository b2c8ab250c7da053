//! `gpumem watch --once`: screens as text and SVG, without a terminal.

use mock_nvml::scene::{Gpu, Process, Scene};
use unicode_width::UnicodeWidthStr as _;

use crate::machine::{GIB, Machine, Running};
use crate::support::{self, command, finish, run};

#[test]
fn the_size_comes_from_the_option_or_the_environment() {
    // Reading this recording takes little time.
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/corpus/idle_shared_gpu-100.jsonl");
    let watch = ["watch", "--once", "--replay", file];
    let sized = |size: &str| run(&[&watch[..], &["--size", size]].concat());
    for (size, columns, rows) in [("40x10", 40, 10), ("1x1", 1, 1), ("200x60", 200, 60)] {
        let output = sized(size).exits(0);
        assert_eq!(output.stdout.lines().count(), rows, "{size}");
        let is_plain = |line: &str| line.width() <= columns && line == line.trim_end();
        assert!(output.stdout.lines().all(is_plain), "{size}");
    }
    for (columns, lines, size) in [("132", "43", "132x43"), ("0", "many", "80x24")] {
        let by_environment = finish(command(&watch).env("COLUMNS", columns).env("LINES", lines));
        assert_eq!(by_environment.stdout, sized(size).stdout);
    }
}

#[test]
fn invalid_sizes_keys_and_themes_are_usage_errors() {
    for (arguments, hint) in [
        (&["--size", "120"][..], "120x40"),
        (&["--size", "0x40"], "120x40"),
        (&["--size", "9999x9999"], "1000"),
        (&["--keys", "<Entr>"], "<Enter>"),
        (&["--keys", "q"], "q leaves the screen"),
        (&["--keys", "<Ctrl-Z>"], "<Ctrl-Z> has no effect on a still frame"),
        (&["--theme", "pink"], "colour-blind"),
    ] {
        let watch = ["watch", "--replay", support::short_demo(), "--once"];
        let output = run(&[&watch, arguments].concat());
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{arguments:?}");
        assert!(output.stderr.contains(hint), "{arguments:?}: {output:?}");
    }
    for arguments in [["--keys", "j"], ["--size", "80x24"]] {
        let output = run(&[&["watch", "--demo"][..], &arguments].concat());
        assert_eq!(output.code, 2);
    }
    let format = run(&["watch", "--demo", "--once=png"]);
    assert!(format.code == 2 && format.stderr.contains("svg"), "{format:?}");
}

#[test]
fn once_takes_two_samples_of_a_machine() {
    let child = Running::sleep();
    let gpu = Gpu::new("NVIDIA <A&B> \"GPU\"")
        .total(40 * GIB)
        .process(Process::compute(child.pid(), 5 * GIB).sm(87));
    let machine = Machine::new(&Scene::new().gpu(gpu));
    // In 1 s, the mock driver collects several utilization samples of the process.
    let watch = ["watch", "--once", "--interval", "1s", "--no-store"];
    let text = machine.run(&[&watch[..], &["--size", "120x30"]].concat());
    assert_eq!((text.code, text.stderr.as_str()), (0, ""), "{text:?}");
    let row = text.stdout.lines().find(|line| line.contains(&child.pid().to_string()));
    let row = row.unwrap_or_else(|| panic!("{text:?}"));
    assert!(row.contains("5.0 GiB") && row.contains("87"), "{row}");
    assert!(!text.stdout.contains("REPLAY"), "{text:?}");
    let svg = machine.run(&["watch", "--once=svg", "--interval", "100ms", "--no-store"]);
    assert!(svg.stdout.contains("&lt;A&amp;B&gt; &quot;GPU&quot;"), "{svg:?}");
}
