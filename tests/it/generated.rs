//! Files that are generated and committed: completions, manual pages, schemas, pictures, the README's usage.

use std::fs;
use std::path::Path;

use clap::ValueEnum as _;
use gpumem::api::cli::SchemaName;

use crate::generate;
use crate::schema::derived;
use crate::support::{command, compare_or_bless, finish, run};

/// What the binary includes: the file as it was built with, before it is rewritten.
fn committed(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

#[test]
fn completions_are_fresh() {
    for (shell, file) in generate::SHELLS {
        let file = format!("completions/{file}");
        let name = shell.to_possible_value().unwrap();
        assert_eq!(run(&["completions", name.get_name()]).exits(0).stdout, committed(&file));
        compare_or_bless(&file, &generate::completions(shell));
    }
}

#[test]
fn schemas_are_fresh() {
    for name in SchemaName::value_variants() {
        let file = name.to_possible_value().unwrap();
        let path = format!("src/report/schema/{}.json", file.get_name());
        compare_or_bless(&path, &derived::schema(*name));
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/report/schema");
    let committed = fs::read_dir(folder).unwrap().count();
    assert_eq!(committed, SchemaName::value_variants().len());
}

/// Names, labels and values are a public format, and rules and the dashboard are tried on this page.
#[test]
fn the_demos_page_for_prometheus_is_fresh() {
    let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
    let page = run(&["metrics", "--demo"]).exits(0).stdout;
    compare_or_bless("tests/data/metrics.prom", &page.replace(&version, "version=\"\""));
}

#[test]
fn manual_pages_are_fresh_and_complete() {
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
        // Those that only print what is built in can neither find nor fail to measure.
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
    assert_eq!(committed, pages.len(), "these pages and no others");
    let every: String = pages.iter().map(|(_, page)| page.replace('\\', "")).collect();
    for (at, _) in every.match_indices("fBgpumem") {
        let named = &every[at + 2..];
        let Some((name, rest)) = named.split_once("fR(") else {
            continue;
        };
        if name.contains([' ', '\n']) {
            continue;
        }
        let file = format!("{name}.{}", &rest[..1]);
        assert!(pages.iter().any(|page| page.0 == file), "there is no page {file}");
    }
    let unknown = run(&["man", "chekc"]);
    assert_eq!(unknown.code, 2);
    assert!(
        unknown.stderr.starts_with(
            "gpumem: no manual page named chekc; pages: check, ci, completions, config,"
        ) && unknown.stderr.ends_with(" release, rules, run, schema, serve, slurm, watch\n"),
        "{unknown:?}"
    );
}

#[test]
fn the_readme_lists_every_kind_as_its_rule_has_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let begin = "<!-- kinds -->\n";
    let end = "<!-- end of kinds -->";
    let (before, rest) = readme.split_once(begin).expect("the README marks its kinds");
    let (_, after) = rest.split_once(end).expect("the README marks the end of its kinds");
    let folder = tempfile::tempdir().unwrap();
    let mut rules = command(&["rules", "--json"]);
    let rules = finish(rules.env("XDG_CONFIG_HOME", folder.path())).json();
    let mut table = "| kind | severity | |\n|---|---|---|\n".to_owned();
    for rule in rules["rules"].as_array().unwrap() {
        let mut settings = rule["settings"].as_array().unwrap().iter();
        let severity = settings.find(|setting| setting["name"] == "severity");
        let severity = severity.map_or("", |it| it["default"].as_str().unwrap());
        let (kind, meaning) = (rule["kind"].as_str().unwrap(), rule["meaning"].as_str().unwrap());
        table.push_str(&format!("| {kind} | {severity} | {meaning} |\n"));
    }
    compare_or_bless("README.md", &format!("{before}{begin}{table}{end}{after}"));
    assert!(readme.lines().count() <= 280, "{} lines", readme.lines().count());
}

/// The pictures in the README: the size, and the keys that are pressed before each is taken.
const PICTURES: &[(&str, &str, &str)] =
    &[("watch", "120x40", "j"), ("leak", "120x40", "jjjj<Enter>")];
/// A page with a larger one takes its time to come up.
const PICTURE_BYTES_MOST: usize = 300_000;

#[test]
fn pictures_are_fresh_and_shown() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    for (name, size, keys) in PICTURES {
        let mut watch = command(&["watch", "--demo", "--once=svg", "--size", size]);
        // Nobody's own rows, and nobody's terminal.
        watch.args(["--theme", "terminal", "--keys", keys]).env_remove("USER");
        let picture = finish(&mut watch);
        assert_eq!((picture.code, picture.stderr.as_str()), (0, ""));
        assert!(picture.stdout.len() < PICTURE_BYTES_MOST, "{name}");
        let path = format!("tests/data/pictures/{name}.svg");
        compare_or_bless(&path, &picture.stdout);
        assert!(readme.contains(&format!("]({path})")), "the README shows {path}");
    }
    let committed = fs::read_dir(root.join("tests/data/pictures")).unwrap();
    assert_eq!(committed.count(), PICTURES.len(), "these pictures and no others");
}

#[test]
fn readme_installs_what_the_services_run_and_every_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let installs: Vec<&str> = readme.lines().filter(|line| line.contains("install ")).collect();
    let installs = installs.join("\n");
    let packaging = fs::read_dir(root.join("packaging")).unwrap().map(|file| file.unwrap().path());
    for unit in packaging.filter(|it| it.extension().is_some_and(|it| it == "service")) {
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
