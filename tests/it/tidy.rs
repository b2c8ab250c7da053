//! Holds the table of rooms: who may use whom, and what stands in one place only.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A room, what it may use of the crate, and what of other crates it alone may use.
const ROOMS: &[(&str, &[&str])] = &[
    ("main", &[]),
    ("units", &[]),
    ("deadline", &[]),
    ("model", &["units"]),
    ("source", &["deadline", "host", "recording", "model", "units"]),
    ("host", &["deadline", "model", "units"]),
    ("recording", &["model", "units"]),
    ("history", &["model", "units"]),
    ("rules", &["history", "model", "advice", "units"]),
    ("advice", &["model"]),
    ("config", &["rules", "model", "units"]),
    ("reclaim", &["deadline", "model", "host", "advice", "units"]),
    ("report", &["model", "units"]),
    ("explain", &["model", "history", "rules", "advice", "report", "units"]),
    (
        "watch",
        &[
            "deadline", "model", "history", "rules", "explain", "reclaim", "report", "units",
            "source",
        ],
    ),
    (
        "cli",
        &[
            "units",
            "deadline",
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
    ("lib", &["cli"]),
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
    ("Instant::now", &["cli/", "deadline.rs", "source/", "watch/mod.rs", "watch/output.rs"]),
    ("SystemTime::now", &["source/"]),
    (
        "pidfd_send_signal",
        // And what gpumem has started itself.
        &["reclaim/process_control.rs", "cli/reap/unattended/notify_command.rs"],
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
    let first = path.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

/// A file of tests only, declared so by its parent, or the list of what they use.
fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str().to_string_lossy().starts_with("test"))
        || path == Path::new("api.rs")
        || path.with_extension("").starts_with("watch/sample")
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
fn what_belongs_in_one_place_is_there_only() {
    for (path, text) in sources().iter().filter(|(path, _)| !is_test(path)) {
        let code = code(text);
        for (word, places) in ONLY_IN {
            let allowed = places.iter().any(|place| path.to_str().unwrap().starts_with(place));
            assert!(
                allowed || !code.contains(word),
                "src/{}: `{word}` may stand only in {places:?}",
                path.display()
            );
        }
    }
}

#[test]
fn every_file_describes_what_lives_in_it() {
    for (path, text) in sources() {
        assert!(text.starts_with("//! "), "src/{}: no module documentation", path.display());
    }
}

/// A file that is longer holds more than one thing. One of tests only is a list, of whatever length.
#[test]
fn no_file_has_more_than_600_lines() {
    let long: Vec<String> = sources()
        .iter()
        .filter(|(path, _)| !is_test(path))
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > 600)
        .map(|(path, lines)| format!("src/{}: {lines}", path.display()))
        .collect();
    assert!(long.is_empty(), "{long:#?}");
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
/// file, in the list of steps and in the data of a target, and nothing else knows it.
#[test]
fn a_way_to_reclaim_is_one_file_and_its_entry_in_the_list() {
    let naming = files_that_name(&["shutkernel", "shut_kernel"]);
    assert_eq!(naming, ["reclaim/step/mod.rs", "reclaim/step/shut_kernel.rs", "reclaim/target.rs"]);
}

/// A column of `ps` and of the screen is its lines in the table of fields; what fills it, sorts by it and
/// writes it reads that.
#[test]
fn a_column_stands_in_the_table_of_fields() {
    let files = files_that_name(&["hostmemory"]);
    assert_eq!(files, ["model/field.rs"]);
}

/// What NVML gives of a GPU is a call, a field of the snapshot, and a line in the table of GPUs' values, which
/// `ps` and the screen show.
#[test]
fn an_nvml_field_is_its_call_its_option_and_its_line() {
    let files = files_that_name(&["performance_state", "performancestate", "p{state}"]);
    assert_eq!(files, ["model/field/gpu.rs", "model/snapshot.rs", "source/nvml/device.rs"]);
}

#[test]
fn a_kind_of_finding_is_its_file_and_two_lines() {
    // In the table of names, and in the list of rules.
    let files = files_that_name(&["hoard"]);
    assert_eq!(files, ["model/finding.rs", "rules/hoard.rs", "rules/mod.rs"]);
}

/// What is shown is made from the state, never the other way round; the layout is between them.
#[test]
fn the_screens_state_does_not_know_its_view() {
    let imports = Imports::read();
    let watch = |room: &str| ["watch".to_owned(), room.to_owned()];
    for (user, used) in [
        ("state", "view"),
        ("state", "update"),
        ("layout", "view"),
        ("layout", "update"),
        ("update", "view"),
        ("view", "update"),
    ] {
        let (user, used) = (watch(user), watch(used));
        for (file, to) in imports.arrows() {
            let known = to.iter().find(|to| to.starts_with(&used));
            assert!(
                !file.starts_with(&user) || known.is_none(),
                "{file:?} must not know {known:?}"
            );
        }
    }
}

/// A file's module path: `watch/state/mod.rs` and `watch/state.rs` are `watch::state`.
fn module(path: &Path) -> Vec<String> {
    let path = path.with_extension("");
    let mut parts: Vec<String> =
        path.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib")) {
        parts.pop();
    }
    parts
}

/// The paths that a tree of imports names: `a::{b, c::{d}}` is `a::b` and `a::c::d`.
fn leaves(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let path = tree.split(" as ").next().unwrap_or_default().trim();
        return Vec::from_iter((!path.is_empty()).then(|| path.to_owned()));
    };
    let inner = &tree[open + 1..tree.rfind('}').unwrap_or(tree.len())];
    let mut depth = 0;
    let mut parts = vec![String::new()];
    for c in inner.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if c == ',' && depth == 0 {
            parts.push(String::new());
        } else {
            parts.last_mut().unwrap().push(c);
        }
    }
    let head = tree[..open].trim();
    let parts = parts.iter().flat_map(|part| leaves(part));
    parts.map(|part| format!("{head}{part}")).collect()
}

/// A file without its module of tests, which is its last.
fn without_tests(text: &str) -> &str {
    let mut marks = text.match_indices("#[cfg(test)]\n");
    let tests = marks.find(|(at, mark)| {
        let next = text[at + mark.len()..].lines().next();
        next.is_some_and(|line| line.contains("mod tests"))
    });
    tests.map_or(text, |(at, _)| &text[..at])
}

/// What each module imports, by whole paths; and whether it only hands that on.
struct Imports(BTreeMap<Vec<String>, Vec<(Vec<String>, bool)>>);

impl Imports {
    fn read() -> Self {
        let files: Vec<(Vec<String>, String)> = sources()
            .into_iter()
            .filter(|(path, _)| !is_test(path) && path != Path::new("main.rs"))
            .map(|(path, text)| (module(&path), without_tests(&text).to_owned()))
            .collect();
        let known: BTreeSet<_> = files.iter().map(|(module, _)| module.clone()).collect();
        let imports = files.into_iter().map(|(module, text)| {
            let mut paths = Vec::new();
            let mut lines = text.lines().map(str::trim_start);
            while let Some(line) = lines.next() {
                let is_handed_on = line.starts_with("pub");
                let Some(at) = line.find("use ").filter(|at| *at == 0 || is_handed_on) else {
                    continue;
                };
                let mut tree = line[at + "use ".len()..].to_owned();
                while !tree.contains(';') {
                    tree.push_str(lines.next().unwrap_or(";"));
                }
                for leaf in leaves(tree.split(';').next().unwrap_or_default()) {
                    let path = whole(&module, &leaf, &known);
                    paths.extend(path.map(|path| (path, is_handed_on)));
                }
            }
            (module, paths)
        });
        Self(imports.collect())
    }

    /// The file that defines what a path names: a name that a module only hands on is followed.
    fn definer(&self, path: &[String], steps: u8) -> Option<Vec<String>> {
        let depth = (0..=path.len()).rev().find(|&n| self.0.contains_key(&path[..n]))?;
        let (module, rest) = path.split_at(depth);
        let handed_on = rest.first().and_then(|name| {
            let mut imports = self.0[module].iter().map(|(path, _)| path);
            imports.find(|it| it.last() == Some(name) && it[..] != path[..=depth])
        });
        match handed_on {
            Some(from) if steps > 0 => {
                let path: Vec<String> = from.iter().chain(&rest[1..]).cloned().collect();
                self.definer(&path, steps - 1)
            }
            _ => Some(module.to_vec()),
        }
    }

    /// The files that each file imports from; the crate's root is no file here.
    fn arrows(&self) -> BTreeMap<&[String], BTreeSet<Vec<String>>> {
        let arrows = self.0.iter().map(|(module, paths)| {
            // A face of its children imports nothing of them.
            let used = paths
                .iter()
                .filter(|(path, is_handed_on)| !(*is_handed_on && path.starts_with(module)));
            let to = used.filter_map(|(path, _)| self.definer(path, 8));
            let to = to.filter(|to| to != module && !to.is_empty());
            (&module[..], to.collect())
        });
        arrows.collect()
    }
}

/// A path as it is imported in `module`, from the crate's root; `None` where it is of another crate.
fn whole(module: &[String], path: &str, known: &BTreeSet<Vec<String>>) -> Option<Vec<String>> {
    let mut parts: Vec<String> = path.split("::").map(|it| it.trim().to_owned()).collect();
    let mut from = module.to_vec();
    match parts[0].as_str() {
        "crate" => {
            parts.remove(0);
            from.clear();
        }
        "self" => drop(parts.remove(0)),
        "super" => {
            while parts.first().is_some_and(|part| part == "super") {
                from.pop();
                parts.remove(0);
            }
        }
        first => {
            from.push(first.to_owned());
            if !known.contains(&from) {
                return None;
            }
            from.pop();
        }
    }
    // `self` at the end is the module itself, and `*` is all of it.
    parts.retain(|part| part != "self" && part != "*");
    from.extend(parts);
    Some(from)
}

#[test]
fn no_cycle_has_more_than_three_files() {
    let imports = Imports::read();
    let arrows = imports.arrows();
    assert!(arrows.len() > 100, "{}", arrows.len());
    let reached = |from: &[String]| {
        let mut reached: BTreeSet<Vec<String>> = BTreeSet::new();
        let mut next: Vec<Vec<String>> = arrows[from].iter().cloned().collect();
        while let Some(file) = next.pop() {
            if reached.insert(file.clone()) {
                next.extend(arrows[&file[..]].iter().cloned());
            }
        }
        reached
    };
    let reaches: BTreeMap<&[String], _> =
        arrows.keys().map(|file| (*file, reached(file))).collect();
    for (file, reached) in &reaches {
        let cycle = reached.iter().filter(|it| reaches[&it[..]].contains(*file));
        let cycle: Vec<String> = cycle.map(|it| it.join("/")).collect();
        assert!(cycle.len() <= 3, "these import each other in a circle: {cycle:?}");
    }
}

/// Words that name no thing of the field: an identifier is a noun or a verb that a stranger can search for.
const PRIVATE_WORDS: &[&str] = &[
    "whom", "nobody", "nobodies", "say", "says", "said", "saying", "tell", "tells", "told",
    "telling", "untold", "hear", "hears", "heard", "hearing", "stand", "stands", "stood",
    "standing", "desk", "herald", "ghost", "lull", "errand", "puppet", "puppets", "complain",
    "hurry", "hurried", "hurries", "glance", "witness", "spared", "goal", "rung",
];

/// The code of a file without what is in quotes and in comments; lines stay where they are.
fn without_text(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['"', '\'', '/']) {
        let (before, sign) = rest.split_at(at);
        code.push_str(before);
        let hashes = before.len() - before.trim_end_matches('#').len();
        let is_raw = before[..before.len() - hashes].ends_with('r') && sign.starts_with('"');
        let length = if sign.starts_with("//") {
            sign.find('\n')
        } else if is_raw {
            let end = format!("\"{}", "#".repeat(hashes));
            sign[1..].find(&end).map(|at| at + 1 + end.len())
        } else if let Some(quoted) = sign.strip_prefix('"') {
            let mut is_escaped = false;
            let end = quoted.find(|c| {
                let is_end = c == '"' && !is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                is_end
            });
            end.map(|at| at + 2)
        } else if let Some(quoted) =
            ["'\"'", "'\\''", "'\\\\'"].iter().find(|it| sign.starts_with(**it))
        {
            Some(quoted.len())
        } else {
            Some(1)
        };
        let (text, after) = sign.split_at(length.unwrap_or(sign.len()));
        code.extend(text.chars().filter(|c| *c == '\n'));
        code.push(' ');
        rest = after;
    }
    code + rest
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The words of `a_snake_case` or `CamelCase` name, in lower case.
fn parts(identifier: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for c in identifier.chars() {
        if c == '_'
            || (c.is_ascii_uppercase() && identifier.contains(|c: char| c.is_ascii_lowercase()))
        {
            parts.push(String::new());
        }
        if c != '_' {
            parts.last_mut().unwrap().push(c.to_ascii_lowercase());
        }
    }
    parts
}

#[test]
fn identifiers_are_the_fields_words() {
    let mut found = Vec::new();
    for (path, text) in sources() {
        for (line, code) in without_text(&text).lines().enumerate() {
            found.extend(
                words(code)
                    .filter(|name| parts(name).iter().any(|it| PRIVATE_WORDS.contains(&&**it)))
                    .map(|name| format!("src/{}:{}: {name}", path.display(), line + 1)),
            );
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// A type has its name to itself, so that a search finds it; those of tests may be called alike.
#[test]
fn no_two_types_have_one_name() {
    let mut named: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in sources() {
        if is_test(&path) {
            continue;
        }
        for line in code(&text).lines() {
            // An associated type of a trait, or a helper within a function, is indented.
            let line = match line.strip_prefix("pub(") {
                Some(rest) => rest.split_once(") ").map_or(rest, |(_, rest)| rest),
                None => line.strip_prefix("pub ").unwrap_or(line),
            };
            let name = ["struct ", "enum ", "trait ", "union ", "type "]
                .iter()
                .find_map(|keyword| line.strip_prefix(keyword));
            let name = name.and_then(|rest| words(rest).next());
            if let Some(name) = name {
                let files = named.entry(name.to_owned()).or_default();
                files.push(path.display().to_string());
            }
        }
    }
    named.retain(|_, files| files.len() > 1);
    assert!(named.is_empty(), "{named:#?}");
}
