//! Files that are generated and committed: completions, manual pages, pictures, the README's usage.

use std::fs;
use std::path::Path;

use gpumem::cli::generate;

use crate::support::{command, compare_or_bless, finish, run};

#[test]
fn completions_are_fresh() {
    for (shell, file) in generate::SHELLS {
        compare_or_bless(
            &format!("completions/{file}"),
            &generate::completions(shell),
        );
        let printed = run(&["completions", &shell.to_string()]);
        assert_eq!(
            (printed.code, printed.stdout),
            (0, generate::completions(shell))
        );
    }
}

#[test]
fn manual_pages_are_fresh_and_complete() {
    let pages = generate::man_pages();
    for (file, page) in &pages {
        compare_or_bless(&format!("man/{file}"), page);
        // Those that only print what is built in can neither find nor fail to measure.
        let built_in = ["gpumem-completions.1", "gpumem-man.1", "gpumem-schema.1"];
        let only_prints = built_in.contains(&file.as_str());
        assert_eq!(
            page.contains("3  could not measure"),
            !only_prints,
            "{file}"
        );
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("man");
    let committed = fs::read_dir(folder).unwrap().count();
    assert_eq!(committed, pages.len(), "a page per command, and no others");
    let printed = run(&["man", "check"]);
    let check = &pages
        .iter()
        .find(|(file, _)| file == "gpumem-check.1")
        .unwrap()
        .1;
    assert_eq!((printed.code, &printed.stdout), (0, check));
    let unknown = run(&["man", "chekc"]);
    assert_eq!(unknown.code, 2);
    assert!(
        unknown
            .stderr
            .contains("ps, check, explain, watch, reap, kill, record"),
        "{unknown:?}"
    );
}

#[test]
fn the_readme_shows_the_help_as_it_is() {
    let readme =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let begin = "<!-- usage -->\n```text\n";
    let end = "```\n<!-- end of usage -->";
    let (before, rest) = readme
        .split_once(begin)
        .expect("the README marks its usage");
    let (_, after) = rest
        .split_once(end)
        .expect("the README marks the end of its usage");
    let help = run(&["--help"]);
    assert_eq!(help.code, 0);
    compare_or_bless(
        "README.md",
        &format!("{before}{begin}{}{end}{after}", help.stdout),
    );
}

/// The pictures in the README, and the keys that are pressed before each is taken.
const PICTURES: &[(&str, &str)] = &[("watch", "vjj"), ("leak", "jjjjj<Enter>")];

#[test]
fn pictures_are_fresh_and_shown() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    for (name, keys) in PICTURES {
        let mut watch = command(&["watch", "--demo", "--once=svg", "--size", "120x40"]);
        // Nobody's own rows, and nobody's terminal.
        watch
            .args(["--theme", "dark", "--keys", keys])
            .env_remove("USER");
        let picture = finish(&mut watch);
        assert_eq!((picture.code, picture.stderr.as_str()), (0, ""));
        let path = format!("tests/data/pictures/{name}.svg");
        compare_or_bless(&path, &picture.stdout);
        assert!(
            readme.contains(&format!("]({path})")),
            "the README shows {path}"
        );
    }
    let committed = fs::read_dir(root.join("tests/data/pictures")).unwrap();
    assert_eq!(
        committed.count(),
        PICTURES.len(),
        "these pictures and no others"
    );
}
