//! Files that are generated and committed: completions, manual pages, the README's usage.

use std::fs;
use std::path::Path;

use gpumem::cli::generate;

use crate::support::{compare_or_bless, run};

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
