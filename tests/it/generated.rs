//! The committed generated files are current: completions, manual pages, schemas, pictures and the usage in the README.

use std::fs;
use std::path::Path;

use clap::ValueEnum as _;
use gpumem::api::report::SCHEMAS;
use gpumem::api::rules::RuleSet;

use crate::generate;
use crate::schema::derived;
use crate::support::{command, compare_or_bless, finish, run};

fn committed(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

#[test]
fn completions_are_current() {
    for (shell, file) in generate::SHELLS {
        let file = format!("completions/{file}");
        let name = shell.to_possible_value().unwrap();
        assert_eq!(run(&["completions", name.get_name()]).exits(0).stdout, committed(&file));
        compare_or_bless(&file, &generate::completions(shell));
    }
}

#[test]
fn schemas_are_current() {
    for (name, ..) in SCHEMAS {
        compare_or_bless(&format!("src/report/schema/{name}.json"), &derived::schema(name));
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/report/schema");
    let committed = fs::read_dir(folder).unwrap().count();
    assert_eq!(committed, SCHEMAS.len());
}

/// Names, labels and values of the metrics are a public interface.
#[test]
fn the_demos_metrics_are_current() {
    let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
    let page = run(&["metrics", "--demo"]).exits(0).stdout;
    compare_or_bless("tests/data/metrics.prom", &page.replace(&version, "version=\"\""));
}

#[test]
fn manual_pages_are_current_and_complete() {
    let pages = generate::man_pages();
    for (file, page) in &pages {
        let name = file.rsplit_once('.').unwrap().0;
        let printed = match name.strip_prefix("gpumem-") {
            Some(command) => run(&["man", command]),
            None => run(&["man"]),
        };
        let file = format!("man/{file}");
        assert_eq!(printed.exits(0).stdout, committed(&file), "{file}");
        compare_or_bless(&file, page);
        if file.ends_with(".7") {
            continue;
        }
        // These commands only print built-in text, so exit codes 1 and 3 are impossible.
        let built_in = ["gpumem-completions", "gpumem-man", "gpumem-schema"];
        let only_prints = built_in.contains(&name);
        let status = page.split(".SH \"EXIT STATUS\"\n").nth(1).unwrap();
        let status = status.split(".SH").next().unwrap();
        let could_not = ".B 3\ncould not measure";
        assert_eq!(status.contains(could_not), !only_prints, "{file}: {status}");
        let mut sections = vec!["EXAMPLES"];
        if !only_prints {
            sections.extend(["FILES", "ENVIRONMENT"]);
        }
        for section in sections {
            assert!(page.contains(&format!("\n.SH {section}\n")), "{file}: {section}");
        }
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("man");
    let committed = fs::read_dir(folder).unwrap().count();
    assert_eq!(committed, pages.len(), "the folder man has other pages");
    let every: String = pages.iter().map(|(_, page)| page.replace('\\', "")).collect();
    for (offset, _) in every.match_indices("fBgpumem") {
        let named = &every[offset + 2..];
        let Some((name, rest)) = named.split_once("fR(") else {
            continue;
        };
        if name.contains([' ', '\n']) {
            continue;
        }
        let file = format!("{name}.{}", &rest[..1]);
        assert!(pages.iter().any(|page| page.0 == file), "there is no page {file}");
    }
    assert_eq!(run(&["man", "chekc"]).code, 2);
}

#[test]
fn the_readme_lists_every_kind_of_finding() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let begin = "<!-- kinds -->\n";
    let end = "<!-- end of kinds -->";
    let (before, rest) = readme.split_once(begin).expect("the README marks its kinds");
    let (_, after) = rest.split_once(end).expect("the README marks the end of its kinds");
    let mut table = "| kind | severity | |\n|---|---|---|\n".to_owned();
    for rule in RuleSet::default().rules() {
        let (kind, severity, meaning) = (rule.kind(), rule.settings.severity, rule.made_of.meaning);
        table.push_str(&format!("| {kind} | {severity} | {meaning} |\n"));
    }
    compare_or_bless("README.md", &format!("{before}{begin}{table}{end}{after}"));
    assert!(readme.lines().count() <= 280, "{} lines", readme.lines().count());
}

/// The pictures in the README: name, size and pressed keys.
const PICTURES: &[(&str, &str, &str)] =
    &[("watch", "160x50", "j"), ("leak", "120x40", "jjjj<Enter>")];
/// Limit for quick loading of the README.
const MAX_PICTURE_BYTES: usize = 300_000;

#[test]
fn pictures_are_current_and_shown() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    for (name, size, keys) in PICTURES {
        let mut watch = command(&["watch", "--demo", "--once=svg", "--size", size]);
        // The picture must not depend on the user's name and terminal theme.
        watch.args(["--theme", "terminal", "--keys", keys]).env_remove("USER");
        let picture = finish(&mut watch);
        assert_eq!((picture.code, picture.stderr.as_str()), (0, ""));
        assert!(picture.stdout.len() < MAX_PICTURE_BYTES, "{name}");
        let path = format!("tests/data/pictures/{name}.svg");
        compare_or_bless(&path, &picture.stdout);
        assert!(readme.contains(&format!("]({path})")), "the README does not show {path}");
    }
    let committed = fs::read_dir(root.join("tests/data/pictures")).unwrap();
    assert_eq!(committed.count(), PICTURES.len(), "the folder has other pictures");
}

#[test]
fn the_readme_installs_the_program_and_every_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let installs: Vec<&str> = readme.lines().filter(|line| line.contains("install ")).collect();
    let installs = installs.join("\n");
    let packaging = fs::read_dir(root.join("packaging")).unwrap().map(|file| file.unwrap().path());
    let is_service =
        |path: &std::path::PathBuf| path.extension().is_some_and(|name| name == "service");
    for unit in packaging.filter(is_service) {
        let unit = fs::read_to_string(unit).unwrap();
        let starts = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        let program = starts.split(' ').next().unwrap();
        assert!(installs.contains(&format!(" target/release/gpumem {program}\n")), "{program}");
    }
    for page in fs::read_dir(root.join("man")).unwrap() {
        let section = page.unwrap().path().extension().unwrap().to_str().unwrap().to_owned();
        assert!(installs.contains(&format!("man{section} man/*.{section}")), "{section}");
    }
}
