//! `gpumem watch` shows the same text as other commands, writes little output, keeps columns in place, and restores
//! the terminal.

use std::collections::BTreeMap;

use mock_nvml::scene::{Fault, Gpu, Process, Scene};

use crate::machine::{GIB, Machine, Running};
use crate::pty::Terminal;
use crate::support::{self, command, finish, run};

const RECORDINGS: [&str; 3] = [
    "tests/data/corpus/leak_linear-100.jsonl",
    "tests/data/corpus/orphan_dataloader_workers-101.jsonl",
    "tests/data/corpus/stopped_trainer-100.jsonl",
];

/// Returns the screen at the end of a recording, after pressing `keys`.
fn screen_after(recording: &str, size: &str, keys: &str) -> String {
    let watch = ["watch", "--once", "--replay", recording];
    let output = run(&[&watch[..], &["--size", size, "--keys", keys]].concat());
    assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{output:?}");
    output.stdout
}

/// Returns a pid for each kind of finding.
fn pids_with_findings(recording: &str) -> Vec<u64> {
    let document = run(&["check", "--json", "--replay", recording]).json();
    let findings = document["findings"].as_array().unwrap().iter();
    let pids = findings.filter_map(|finding| {
        Some((finding["kind"].to_string(), finding["process"]["pid"].as_u64()?))
    });
    pids.collect::<BTreeMap<_, _>>().into_values().collect()
}

#[test]
fn the_page_is_the_text_of_explain() {
    let (mut forecasts, mut commands) = (0, 0);
    for recording in RECORDINGS.into_iter().chain([support::short_demo()]) {
        let pids = pids_with_findings(recording);
        assert!(!pids.is_empty(), "{recording}");
        for pid in pids {
            // On the screen, the page has a margin of one column on each side.
            let pid = pid.to_string();
            let mut explain = command(&["explain", "--replay", recording, &pid]);
            let explained = finish(explain.env("COLUMNS", "98")).exits(0);
            let page = screen_after(recording, "100x200", &format!("/pid:{pid}<Enter>j<Enter>"));
            let lines: Vec<&str> = page.lines().collect();
            let lines = lines[..lines.len() - 1].iter();
            // Charts precede the page.
            let first = explained.stdout.lines().next().unwrap();
            let page: Vec<&str> = lines
                .skip_while(|line| line.trim() != first)
                .map(|line| line.strip_prefix(' ').unwrap_or(line))
                .collect();
            commands += usize::from(explained.stdout.contains("\nCommands\n"));
            assert_eq!(
                page.join("\n").trim_end(),
                explained.stdout.trim_end(),
                "{recording} {pid}"
            );
            forecasts += usize::from(explained.stdout.contains("leak:"));
        }
    }
    assert!(forecasts > 0, "no page has the forecast of a leak");
    assert!(commands > 0, "no page has a command");
}

/// Returns the words of the plan on the screen.
fn plan_words(screen: &str) -> Vec<&str> {
    let lines = screen.lines().skip_while(|line| !line.starts_with("── kill"));
    let lines = lines.skip(1);
    let lines = lines.take_while(|line| !line.starts_with("a recording: nothing will be sent"));
    lines.filter(|line| !line.starts_with("──")).flat_map(str::split_whitespace).collect()
}

#[test]
fn a_plan_is_the_text_of_reap() {
    let mut ends = 0;
    for recording in RECORDINGS.into_iter().chain([support::short_demo()]) {
        let mut plans = vec![("X".to_owned(), vec![])];
        for pid in pids_with_findings(recording).into_iter().take(2) {
            let pid = pid.to_string();
            plans.push((format!("/pid:{pid}<Enter>jx"), vec!["--pid".to_owned(), pid]));
        }
        for (keys, selection) in plans {
            let mut arguments = vec!["reap", "--dry-run", "--replay", recording];
            arguments.extend(selection.iter().map(String::as_str));
            let printed = run(&arguments);
            let screen = screen_after(recording, "80x200", &keys);
            assert!(screen.contains("a recording: nothing will be sent"), "{screen}");
            // The screen suggests keys, and `reap` suggests options.
            let mut printed_words = printed.stdout.clone();
            for kind in ["leak", "hung"] {
                let key = "select it and press x to kill it by name";
                printed_words = printed_words.replace(&format!("add --kind {kind}"), key);
            }
            let direct = ["add --direct to", "press d to"];
            let graphics = ["add --graphics", "gpumem kill --graphics kills it"];
            let servers = ["add --servers", "select it and press x to kill it by name"];
            let named = ["name it with --pid", "select it and press x to kill it by name"];
            let family = ["name them with --pid", named[1]];
            for [flag, key] in [direct, graphics, servers, named, family] {
                printed_words = printed_words.replace(flag, key);
            }
            let words: Vec<&str> = printed_words.split_whitespace().collect();
            assert_eq!(plan_words(&screen), words, "{recording} {keys}\n{screen}");
            ends += usize::from(printed.stdout.contains("SIGTERM to"));
        }
    }
    assert!(ends > 0, "no plan ends a process");
}

fn two_processes(first: u32, second: u32) -> Scene {
    let gpu = Gpu::new("NVIDIA L40S").total(48 * GIB);
    let gpu = gpu.process(Process::compute(first, 4 * GIB));
    Scene::new().gpu(gpu.process(Process::compute(second, 2 * GIB)))
}

#[test]
fn an_unchanged_screen_writes_only_clocks() {
    let (first, second) = (Running::sleep(), Running::sleep());
    let machine = Machine::new(&two_processes(first.pid(), second.pid()));
    let watch = ["watch", "--no-store", "--interval", "250ms"];
    // 14 lines have no room for charts and for the load of the host, which change.
    let mut terminal = Terminal::start(&[], &machine.command(&watch), 14, 160);
    terminal.wait_for("both processes", |text| text.contains("2.0 GiB"));
    terminal.press("op");
    let text = terminal.wait_for("order by pid, and a wait under ten minutes", |text| {
        text.contains("PID▲") && text.contains("9m 5")
    });
    let before = terminal.bytes_written();
    let clock = |text: &str| {
        let line = text.lines().next()?;
        Some(line[line.find(" UTC")? - 8..].to_owned())
    };
    // Wait for about eight samples, during which the clock changes twice.
    let first = clock(&text);
    terminal.wait_for("a second", |text| clock(text) != first);
    let second = clock(&terminal.text());
    terminal.wait_for("another second", |text| clock(text) != second);
    let cells = terminal.written_since(before, 14, 160);
    let is_clock = |c: char| c.is_ascii_digit() || matches!(c, 'h' | 'm' | 's');
    // Charts scroll to the left.
    let is_chart = |c: char| matches!(c, '\u{2580}'..='\u{259f}' | '\u{2800}'..='\u{28ff}');
    assert!(cells.chars().all(|c| c.is_whitespace() || is_clock(c) || is_chart(c)), "{cells}");
    assert!(cells.lines().count() < 14, "the key bar was written again:\n{cells}");
    terminal.quit();
}

#[test]
fn the_linux_console_gets_only_ascii() {
    let once = |term| {
        let mut command = command(&["watch", "--replay", support::short_demo(), "--once"]);
        finish(command.env("TERM", term)).exits(0).stdout
    };
    assert!(once("linux").is_ascii() && !once("xterm").is_ascii());
}

#[test]
fn the_screen_stays_responsive_while_the_driver_hangs() {
    let (first, second) = (Running::sleep(), Running::sleep());
    let scene = two_processes(first.pid(), second.pid());
    let machine = Machine::new(&scene);
    let watch = ["watch", "--no-store", "--interval", "200ms"];
    let mut terminal = Terminal::start(&[], &machine.command(&watch), 24, 100);
    terminal.wait_for("both processes", |text| text.contains("2.0 GiB"));
    machine.play(&scene.fault(Fault::hang("*")));
    terminal.wait_for("age or mark", |text| {
        text.contains("stale") || text.contains("no answer") || text.contains(" old")
    });
    for (keys, answer) in [
        ("op", "PID▲"),
        ("r", "PID▼"),
        ("/pid:1", "filter: pid:1"),
        ("\x1b", "F10 Quit"),
        ("?", "select the next process"),
    ] {
        terminal.press(keys);
        terminal.wait_for(answer, |text| text.contains(answer));
    }
    assert_eq!(terminal.interrupt_until_exit().code(), Some(0));
    terminal.assert_restored();
}
