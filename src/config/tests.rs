//! What is read, what is refused and how, and that what is written reads back.

use std::fs;
use std::sync::Arc;

use super::*;
use crate::rules::rule::{Override, Rule};
use crate::rules::testing::scope;
use crate::rules::testing::written;
use crate::rules::{self, idle};
use crate::units::{Bytes, MIB, Percent};

fn parse(text: &str) -> Result<Config, ConfigError> {
    let mut config = Config::default();
    read::layer(&mut config, text, Path::new("config.toml"))?;
    Ok(config)
}

fn rule<'a>(config: &'a Config, name: &str) -> &'a Rule {
    let mut rules = config.rules.rules().iter();
    rules.find(|rule| &*rule.name == name).unwrap()
}

#[track_caller]
fn refused(text: &str) -> String {
    match parse(text) {
        Ok(config) => panic!("taken as {config:?}"),
        Err(error) => error.to_string(),
    }
}

/// Each text, and how its error begins behind the file's name.
#[track_caller]
fn are_refused(rows: &[(&str, &str)]) {
    for (text, start) in rows {
        let error = refused(text);
        assert!(error.starts_with(&format!("config.toml:{start}")), "{text}: {error}");
    }
}

const WHOLE: &str = r#"
[sample]
interval = "500ms"

[rules.idle]
enabled = false
min_memory = "512MiB"
duration = "1h30m"
max_cpu_percent = 12.5
severity = "critical"

[[override]]
rule = "idle"
where = 'user="ann 日本" command:train gpu:3'
duration = "2h"
enabled = true

[[override]]
where = "gpu:GPU-89d1f0e5"
max_cpu_percent = 200
rule = "idle"
"#;

#[test]
fn everything_that_may_be_written_is_read() {
    let config = parse(WHOLE).unwrap();
    let mut idle = Rule::new(&idle::KIND);
    for (name, value) in [
        ("enabled", written(false)),
        ("min_memory", written(Bytes(512 * MIB))),
        ("duration", written(Span::from_seconds(5_400.0))),
        ("max_cpu_percent", written(Percent(12.5))),
        ("severity", written(crate::model::Severity::Critical)),
    ] {
        assert!(idle.set(name, &value).is_ok(), "{name}");
    }
    for (terms, changes) in [
        ("user=\"ann 日本\" command:train gpu:3", "duration = \"2h\"\nenabled = true"),
        ("gpu:GPU-89d1f0e5", "max_cpu_percent = 200"),
    ] {
        let changes = changes.parse().unwrap();
        idle.overrides.push(Override { scope: scope(terms), changes });
    }
    assert_eq!(config.sample.interval, Span::from_seconds(0.5));
    assert_eq!(*rule(&config, "idle"), idle);
    assert_ne!(config, Config::default());
}

#[test]
fn what_is_in_force_reads_back_as_the_same() {
    for text in ["", WHOLE, "[rules.idle]\nmin_memory = \"1000001B\""] {
        let config = parse(text).unwrap();
        let written = config.to_toml();
        assert_eq!(parse(&written).unwrap(), config, "{written}");
    }
    let written = parse(WHOLE).unwrap().to_toml();
    assert!(written.contains("duration = \"1h30m\" # config.toml:8\n"), "{written}");
    assert!(written.contains("[[override]] # config.toml:12\n"), "{written}");
    let defaults = Config::default().to_toml();
    assert!(defaults.contains("min_memory = \"1GiB\" # default\n"), "{defaults}");
}

#[test]
fn a_path_in_a_comment_breaks_no_line() {
    let mut config = Config::default();
    let path = Path::new("a\nenabled = maybe");
    read::layer(&mut config, "sample.interval = \"2s\"", path).unwrap();
    assert_eq!(parse(&config.to_toml()).unwrap(), config);
}

#[test]
fn a_mistake_is_reported_with_file_line_key_and_what_is_allowed() {
    let rules = rules::KINDS.map(|it| it.kind.name()).join(", ");
    let whole = "config.toml:2: rules.idel: is not known; did you mean \"idle\"?; allowed: ";
    assert_eq!(refused("\n[rules.idel]"), format!("{whole}{rules}"));
    let idle = "[[override]]\nrule = 'idle'";
    let named = |rest: &str| format!("{idle}\n{rest}");
    are_refused(&[
        ("[rules.idle]\nduratoin = '1m'", "2: rules.idle.duratoin: is not known; did you mean"),
        ("ruls = 1", "1: ruls: is not known; did you mean \"rules\"?; allowed: sample, reap"),
        ("[sample]\nx = 1", "2: sample.x: is not known; allowed: interval"),
        ("[rules.idle]\nduration = 10", "2: rules.idle.duration: 10 is not allowed; write"),
        ("rules.idle.duration = '9 apples'", "1: rules.idle.duration: \"9 apples\" is not allowed"),
        ("rules = 3", "1: rules: has to be a table; write [rules]"),
        ("rules.idle = [1]", "1: rules.idle: has to be a table; write [rules.idle]"),
        ("[sample]\ninterval = '1ms'", "2: sample.interval: \"1ms\" is not allowed; write"),
        ("[override]\nrule = 'idle'", "1: override: has to be a list of tables; begin each with"),
        ("\n[[override]]\nwhere = 'user=ann'", "2: override: names no rule; add rule = NAME"),
        ("[[override]]\nrule = 'idl'", "2: override.rule: \"idl\" is no rule; did you mean"),
        (&named("duration = '1h'"), "1: override: matches every process; add where = TERMS"),
        (&named("where = 'user=ann'"), "1: override: changes nothing; add one of enabled"),
        (&named("were = 'user:ann'"), "3: override.were: is not known; did you mean \"where\"?"),
        // Values without sense.
        ("rules.idle.duration = '0s'", "1: "),
        ("rules.idle.duration = '2d'", "1: "),
        ("rules.idle.max_cpu_percent = -20", "1: "),
        ("rules.idle.max_cpu_percent = 0", "1: "),
        ("rules.idle.max_cpu_percent = nan", "1: "),
        ("rules.idle.max_cpu_percent = inf", "1: "),
        ("rules.idle.max_cpu_percent = 99999999999999999999999", "1: "),
        ("rules.idle.min_memory = 1024", "1: "),
        ("rules.idle.min_memory = '8GB'", "1: "),
        ("rules.idle.min_memory = '8'", "1: "),
        ("rules.idle.severity = 'bad'", "1: "),
        ("rules.idle.enabled = 'yes'", "1: "),
        ("rules.idle.enabled = 1979-05-27", "1: "),
        ("sample.interval = '0'", "1: "),
    ]);
}

#[test]
fn what_is_no_toml_is_reported_by_line_and_column() {
    let error = refused("[sample]\ninterval = \n");
    assert!(error.starts_with("config.toml:2:12: not TOML: "), "{error}");
    assert!(!error.contains('\n'), "{error}");
    for text in ["[", "a = 1\na = 2", "\u{0}", "é = é", &"[".repeat(100_000)] {
        assert!(refused(text).contains("not TOML"), "{text:.20}");
    }
}

#[test]
fn a_later_layer_wins_setting_by_setting_and_adds_its_overrides() {
    let folder = tempfile::tempdir().unwrap();
    let (system, user) = (folder.path().join("system.toml"), folder.path().join("user.toml"));
    let override_of = |user: &str| {
        format!("[[override]]\nrule=\"idle\"\nwhere=\"user={user}\"\nduration=\"1h\"\n")
    };
    fs::write(
        &system,
        format!("[rules.idle]\nduration=\"20m\"\nseverity=\"info\"\n{}", override_of("ann")),
    )
    .unwrap();
    fs::write(&user, format!("[rules.idle]\nduration=\"30m\"\n{}", override_of("bob"))).unwrap();
    let config = load(&[system.clone(), user], false).unwrap();
    let idle = rule(&config, "idle");
    assert_eq!(idle.settings.duration, Span::from_seconds(1_800.0));
    assert_eq!(idle.settings.severity, crate::model::Severity::Info);
    let users: Vec<_> = idle.overrides.iter().map(|change| change.scope.to_string()).collect();
    assert_eq!(users, ["\"user=ann\"", "\"user=bob\""]);
    let origin = format!("severity = \"info\" # {}:3", system.display());
    assert!(config.to_toml().contains(&origin), "{}", config.to_toml());
}

#[test]
fn what_cannot_be_read_is_reported_plainly_and_what_is_absent_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("absent.toml");
    assert_eq!(load(std::slice::from_ref(&absent), false).unwrap(), Config::default());
    assert_eq!(load(&[absent.join("x")], false).unwrap(), Config::default());
    let failed = |path: &Path, is_chosen| load(&[path.to_owned()], is_chosen).unwrap_err();
    assert!(matches!(failed(&absent, true), ConfigError::Unreadable { .. }));
    assert!(matches!(failed(folder.path(), false), ConfigError::Directory { .. }));
    let file = folder.path().join("config.toml");
    fs::write(&file, b"# fine\n# \xff\n").unwrap();
    assert!(matches!(failed(&file, true), ConfigError::NotText { line: 2, .. }));
    fs::write(&file, vec![b'\n'; (MOST_BYTES + 1) as usize]).unwrap();
    assert!(matches!(failed(&file, true), ConfigError::TooLarge { .. }));
}

#[test]
fn the_chosen_file_is_read_alone_and_relative_folders_are_ignored() {
    let listed = |chosen: Option<&str>, xdg: Option<&str>, home: Option<&str>| -> Vec<String> {
        paths(chosen.map(Path::new), xdg.map(OsStr::new), home.map(OsStr::new))
            .iter()
            .map(|path| path.display().to_string())
            .collect()
    };
    let system = "/etc/gpumem/config.toml";
    assert_eq!(listed(Some("x.toml"), Some("/c"), Some("/h")), ["x.toml"]);
    assert_eq!(listed(None, Some("/c"), Some("/h")), [system, "/c/gpumem/config.toml"]);
    assert_eq!(listed(None, None, Some("/h")), [system, "/h/.config/gpumem/config.toml"]);
    assert_eq!(listed(None, Some("c"), Some("/h")), [system, "/h/.config/gpumem/config.toml"]);
    assert_eq!(listed(None, Some(""), Some("h")), [system]);
}

mod entries;
mod reap;
