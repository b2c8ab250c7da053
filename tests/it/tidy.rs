//! Holds the table of rooms: who may use whom, and what stands in one place only.

use std::fs;
use std::path::{Path, PathBuf};

/// A room, what it may use of the crate, and what of other crates it alone may use.
const ROOMS: &[(&str, &[&str])] = &[
    ("main", &["cli"]),
    ("units", &[]),
    ("model", &["units"]),
    ("source", &["host", "recording", "model", "units"]),
    ("host", &["model", "units"]),
    ("recording", &["model", "units"]),
    ("history", &["model", "units"]),
    ("rules", &["history", "model", "advice", "units"]),
    ("advice", &["model"]),
    ("config", &["rules", "model", "units"]),
    ("reclaim", &["model", "host", "advice", "units"]),
    ("report", &["model", "units"]),
    (
        "explain",
        &["model", "history", "rules", "advice", "report", "units"],
    ),
    (
        "watch",
        &[
            "model", "history", "rules", "explain", "reclaim", "report", "units", "source",
        ],
    ),
    (
        "cli",
        &[
            "units",
            "model",
            "source",
            "host",
            "recording",
            "history",
            "rules",
            "advice",
            "explain",
            "config",
            "reclaim",
            "report",
            "watch",
        ],
    ),
    ("lib", &[]),
];

/// Words that may stand in these places only (a path's beginning, under `src/`).
const ONLY_IN: &[(&str, &[&str])] = &[
    ("nvml_wrapper", &["source/nvml/"]),
    ("unsafe {", &["source/nvml/ffi.rs"]),
    ("anyhow", &["cli/"]),
    ("clap", &["cli/"]),
    ("ratatui", &["watch/"]),
    ("crossterm", &["watch/"]),
    ("crate::source", &["cli/", "source/", "watch/mod.rs"]),
    ("crate::report::table", &["cli/", "report/"]),
    (
        "Instant::now",
        &["cli/", "source/", "watch/mod.rs", "watch/output.rs"],
    ),
    ("SystemTime::now", &["source/"]),
    (
        "pidfd_send_signal",
        // And what gpumem has started itself.
        &[
            "reclaim/process_control.rs",
            "cli/reap/unattended/notify_command.rs",
        ],
    ),
    ("kill_process", &[]),
    ("/proc/", &["host/", "source/live.rs"]),
];

fn sources() -> Vec<(PathBuf, String)> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    walk(&root, &mut paths);
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            (path.strip_prefix(&root).unwrap().to_owned(), text)
        })
        .collect()
}

/// The code of a file: without comments, and without its tests, which may use what they like.
fn code(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
    text[..end]
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| format!("{line}\n"))
        .collect()
}

fn room(path: &Path) -> String {
    let first = path
        .components()
        .next()
        .unwrap()
        .as_os_str()
        .to_str()
        .unwrap();
    first.trim_end_matches(".rs").to_owned()
}

/// A file of tests only, declared so by its parent.
fn is_test(path: &Path) -> bool {
    path.components()
        .any(|part| part.as_os_str().to_string_lossy().starts_with("test"))
}

#[test]
fn each_room_uses_only_what_it_may() {
    for (path, text) in sources().iter().filter(|(path, _)| !is_test(path)) {
        let room = room(path);
        let (_, may) = ROOMS
            .iter()
            .find(|(name, _)| *name == room)
            .unwrap_or_else(|| panic!("src/{}: no room of this name", path.display()));
        for (at, _) in code(text).match_indices("crate::") {
            let code = code(text);
            let used: String = code[at + "crate::".len()..]
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            assert!(
                used.is_empty() || used == room || may.contains(&used.as_str()),
                "src/{}: {room} must not know {used}",
                path.display()
            );
        }
    }
}

#[test]
fn what_belongs_in_one_place_stands_there_only() {
    for (path, text) in sources().iter().filter(|(path, _)| !is_test(path)) {
        let code = code(text);
        for (word, places) in ONLY_IN {
            let allowed = places
                .iter()
                .any(|place| path.to_str().unwrap().starts_with(place));
            assert!(
                allowed || !code.contains(word),
                "src/{}: `{word}` may stand only in {places:?}",
                path.display()
            );
        }
    }
}

#[test]
fn every_file_says_what_lives_in_it() {
    for (path, text) in sources() {
        assert!(
            text.starts_with("//! "),
            "src/{}: no module documentation",
            path.display()
        );
    }
}

/// The files beside its tests that name an example of something, by any of these names in lower case: they say
/// what it takes to add another.
fn files_that_name(example: &[&str]) -> Vec<String> {
    let sources = sources();
    let named = sources.iter().filter(|(path, text)| {
        let code = code(text).to_lowercase();
        !is_test(path) && example.iter().any(|name| code.contains(name))
    });
    named.map(|(path, _)| path.display().to_string()).collect()
}

/// What a way to reclaim touches, beside its tests and documentation: the notebook servers' is in its own
/// file and in the list of steps, and nothing else knows it.
#[test]
fn a_way_to_reclaim_is_one_file_and_its_entry_in_the_list() {
    let naming = files_that_name(&["shutkernel", "shut_kernel"]);
    assert_eq!(
        naming,
        ["reclaim/step/mod.rs", "reclaim/step/shut_kernel.rs"]
    );
}

#[test]
fn a_kind_of_finding_is_its_file_and_two_lines() {
    // In the table of names, and in the list of rules.
    let files = files_that_name(&["hoard"]);
    assert_eq!(
        files,
        ["model/finding.rs", "rules/hoard.rs", "rules/mod.rs"]
    );
}
