//! Tests of accepted and rejected files, and of written files.

use std::fs;
use std::sync::Arc;

use super::*;
use crate::config::reap::Response;
use crate::model::{Kind, Severity, Time};
use crate::rules::rule::{Override, Rule};
use crate::rules::testing::{scope, written};
use crate::rules::{self, idle};
use crate::units::{Bytes, GIB, MIB, Percent};

fn parse(text: &str) -> Result<Config, ConfigError> {
    let mut config = Config::default();
    layer(&mut config, text, Path::new("config.toml"))?;
    Ok(config)
}

fn rule<'a>(config: &'a Config, name: &str) -> &'a Rule {
    let mut rules = config.rules.rules().iter();
    rules.find(|rule| &*rule.name == name).unwrap()
}

#[track_caller]
fn error_of(text: &str) -> String {
    match parse(text) {
        Ok(config) => panic!("taken as {config:?}"),
        Err(error) => error.to_string(),
    }
}

/// Asserts that each text is rejected with an error that has the given words after the file name.
#[track_caller]
fn assert_refused(rows: &[(&str, &str)]) {
    for (text, start) in rows {
        let error = error_of(text);
        assert!(error.starts_with(&format!("config.toml:{start}")), "{text}: {error}");
    }
}

const WHOLE: &str = r#"
[sample]
interval = "500ms"
serve = "[::1]:9836"

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
fn all_settings_are_read() {
    let config = parse(WHOLE).unwrap();
    let mut idle = Rule::new(&idle::KIND);
    for (name, value) in [
        ("enabled", written(false)),
        ("min_memory", written(Bytes(512 * MIB))),
        ("duration", written(Span::from_seconds(5_400.0))),
        ("max_cpu_percent", written(Percent(12.5))),
        ("severity", written(Severity::Critical)),
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
    assert_eq!(config.sample.serve, Some("[::1]:9836".parse().unwrap()));
    assert_eq!(*rule(&config, "idle"), idle);
    assert_ne!(config, Config::default());
}

#[test]
fn a_written_configuration_reads_back_equal() {
    let selected =
        "[[rule]]\nname = \"x\"\nkind = \"idle\"\nwhere = 'user=ann,\"b c\" !gpu:0 mem>50%'";
    for (text, lines) in [
        ("", &["min_memory = \"1GiB\" # default"][..]),
        ("[rules.idle]\nmin_memory = \"1000001B\"", &[]),
        (selected, &[]),
        (WHOLE, &["duration = \"1h30m\" # config.toml:9", "[[override]] # config.toml:13"]),
        (
            ENTRIES,
            &[
                "[[rule]] # config.toml:13\nname = \"idle-notebooks\"",
                "[[keep]] # config.toml:2",
                "until = \"2026-12-31T17:00:00.000Z\"",
                "where = \"notebook:course/ mem>4GiB\"",
            ],
        ),
        (
            WHOLE_REAP,
            &[
                "action = \"reap\" # config.toml:13",
                "never = [\"tensorboard\", \"Xorg\"] # config.toml:9",
                "action = \"notify\" # default",
            ],
        ),
    ] {
        let config = parse(text).unwrap();
        let written = config.to_toml();
        assert_eq!(parse(&written).unwrap(), config, "{written}");
        for line in lines {
            assert!(written.contains(&format!("{line}\n")), "{line}: {written}");
        }
    }
}

#[test]
fn a_newline_in_a_path_does_not_break_a_comment() {
    let mut config = Config::default();
    let path = Path::new("a\nenabled = maybe");
    layer(&mut config, "sample.interval = \"2s\"", path).unwrap();
    assert_eq!(parse(&config.to_toml()).unwrap(), config);
}

#[test]
fn a_mistake_is_reported_with_file_line_key_and_allowed_values() {
    let rules = rules::KINDS.map(|kind| kind.kind.name()).join(", ");
    let whole = "config.toml:2: rules.idel: unknown key; did you mean \"idle\"?; allowed: ";
    assert_eq!(error_of("\n[rules.idel]"), format!("{whole}{rules}"));
    let idle = "[[override]]\nrule = 'idle'";
    let named = |rest: &str| format!("{idle}\n{rest}");
    assert_refused(&[
        ("[rules.idle]\nduratoin = '1m'", "2: rules.idle.duratoin: unknown key; did you mean"),
        ("ruls = 1", "1: ruls: unknown key; did you mean \"rules\"?; allowed: sample, reap"),
        ("[sample]\nx = 1", "2: sample.x: unknown key; allowed: interval"),
        ("[rules.idle]\nduration = 10", "2: rules.idle.duration: 10 is not allowed; write"),
        ("rules.idle.duration = '9 apples'", "1: rules.idle.duration: \"9 apples\" is not allowed"),
        ("rules = 3", "1: rules: must be a table; write [rules]"),
        ("rules.idle = [1]", "1: rules.idle: must be a table; write [rules.idle]"),
        (
            "[sample]\nserve = 9836",
            "2: sample.serve: 9836 is not allowed; write an IP address and a port",
        ),
        (
            "[sample]\nserve = 'localhost:9836'",
            "2: sample.serve: \"localhost:9836\" is not allowed",
        ),
        ("[sample]\ninterval = '1ms'", "2: sample.interval: \"1ms\" is not allowed; write"),
        ("[override]\nrule = 'idle'", "1: override: must be a list of tables; begin each with"),
        ("\n[[override]]\nwhere = 'user=ann'", "2: override: names no rule; add rule = NAME"),
        ("[[override]]\nrule = 'idl'", "2: override.rule: \"idl\" is not a rule; did you mean"),
        (&named("duration = '1h'"), "1: override: matches every process; add where = TERMS"),
        (&named("where = 'user=ann'"), "1: override: changes nothing; add one of enabled"),
        (&named("were = 'user:ann'"), "3: override.were: unknown key; did you mean \"where\"?"),
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
fn a_syntax_error_is_reported_with_line_and_column() {
    let error = error_of("[sample]\ninterval = \n");
    assert!(error.starts_with("config.toml:2:12: not TOML: "), "{error}");
    assert!(!error.contains('\n'), "{error}");
    for text in ["[", "a = 1\na = 2", "\u{0}", "é = é", &"[".repeat(100_000)] {
        assert!(error_of(text).contains("not TOML"), "{text:.20}");
    }
}

#[test]
fn a_later_layer_overrides_settings_and_adds_overrides() {
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
    assert_eq!(idle.settings.severity, Severity::Info);
    let users: Vec<_> = idle.overrides.iter().map(|change| change.scope.to_string()).collect();
    assert_eq!(users, ["\"user=ann\"", "\"user=bob\""]);
    let origin = format!("severity = \"info\" # {}:3", system.display());
    assert!(config.to_toml().contains(&origin), "{}", config.to_toml());
}

#[test]
fn an_unreadable_file_is_an_error_and_an_absent_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("absent.toml");
    assert_eq!(load(std::slice::from_ref(&absent), false).unwrap(), Config::default());
    assert_eq!(load(&[absent.join("x")], false).unwrap(), Config::default());
    let failed = |path: &Path, is_chosen| load(&[path.to_owned()], is_chosen).unwrap_err();
    assert!(matches!(failed(&absent, true), ConfigError::Unreadable { .. }));
    assert!(matches!(failed(folder.path(), false), ConfigError::Unreadable { .. }));
    let file = folder.path().join("config.toml");
    fs::write(&file, b"# fine\n# \xff\n").unwrap();
    assert!(matches!(failed(&file, true), ConfigError::NotText { line: 2, .. }));
    fs::write(&file, vec![b'\n'; (MOST_BYTES + 1) as usize]).unwrap();
    assert!(matches!(failed(&file, true), ConfigError::TooLarge { .. }));
}

#[test]
fn a_chosen_file_replaces_others_and_relative_paths_are_ignored() {
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

const ENTRIES: &str = r#"
[[keep]]
where = "user=ann gpu:1"
reason = "nightly \"benchmark\"\n日本"
until = 2026-12-31T18:00:00+01:00
kinds = ["idle"]
rules = ["idle-notebooks", "idle"]

[[keep]]
where = "gpu:7"
reason = "maintenance"

[[rule]]
name = "idle-notebooks"
kind = "idle"
where = "notebook:course/ mem>4GiB"
duration = "2h"
severity = "critical"

[[rule]]
name = "everybody"
kind = "idle"
enabled = false

[[override]]
rule = "idle-notebooks"
where = "user=1000"
duration = "3h"

[rules.idle]
enabled = false
max_cpu_percent = 12.5
"#;

fn value(rule: &Rule, name: &str) -> toml::Value {
    let settings = rule.values();
    let (_, value) = settings.iter().find(|setting| setting.0 == name).unwrap();
    value.clone()
}

#[test]
fn a_named_rule_starts_from_its_kind_and_has_a_scope() {
    let config = parse(ENTRIES).unwrap();
    let notebooks = rule(&config, "idle-notebooks");
    assert_eq!(notebooks.kind(), Kind::Idle);
    let scope = scope("notebook:course/ mem>4GiB");
    assert_eq!(notebooks.scope, scope);
    for (name, expected) in [
        ("enabled", written(true)),
        ("duration", written(Span::from_seconds(7200.0))),
        ("severity", written(Severity::Critical)),
        ("max_cpu_percent", written(Percent(12.5))),
        ("min_memory", written(Bytes(GIB))),
    ] {
        assert_eq!(value(notebooks, name), expected, "{name}");
    }
    let [change] = &notebooks.overrides[..] else {
        panic!("{notebooks:?}");
    };
    assert_eq!(change.scope, rules::testing::scope("user=1000"));
    let everybody = rule(&config, "everybody");
    assert!(everybody.scope.is_empty() && !everybody.is_run());
    assert_eq!(value(rule(&config, "idle"), "enabled"), written(false));
}

#[test]
fn an_exemption_until_a_date_includes_that_day() {
    let until = |written: &str| -> Option<Time> {
        let text = format!("[[keep]]\nwhere = \"user=ann\"\nreason = \"x\"\nuntil = {written}");
        parse(&text).unwrap().rules.keeps()[0].until
    };
    for (written, expected) in [
        ("2026-12-31T18:00:00-02:00", "2026-12-31T20:00:00Z"),
        // An exemption that has ended has no effect, but is not an error.
        ("1999-12-31T00:00:00Z", "1999-12-31T00:00:00Z"),
    ] {
        assert_eq!(until(written), Some(expected.parse().unwrap()), "{written}");
    }
    // A time without an offset is in this machine's time zone.
    let next = until("2027-01-01T00:00:00");
    assert!(next.is_some());
    for whole_day in ["2026-12-31", "\"2026-12-31\""] {
        assert_eq!(until(whole_day), next, "{whole_day}");
    }
}

#[test]
fn a_mistake_in_an_entry_is_reported_with_its_line_and_key() {
    const RULE: &str = "[[rule]]\nname = 'x'\nkind = 'idle'";
    assert_refused(&[
        (&format!("{RULE}\n{RULE}"), "5: rule.name: a rule named \"x\" already exists"),
        ("rule = 1", "1: rule: must be a list of tables; begin each with [[rule]]"),
        ("[[rule]]\nkind = 'idle'", "1: rule: has no name; add name = NAME"),
        ("[[rule]]\nname = 'x'", "1: rule: has no kind; add kind = KIND, one of: "),
        ("[[rule]]\nname = 'x'\nkind = 'idel'", "3: rule.kind: \"idel\" is not a kind; did you"),
        ("[[rule]]\nname = 'idle'\nkind = 'idle'", "2: rule.name: \"idle\" is the name of a kind"),
        ("[[rule]]\nname = 'Idle Ones'\nkind = 'idle'", "2: rule.name: \"Idle Ones\" is not"),
        ("[[keep]]\nreason = 'x'", "1: keep: matches every process; add where"),
        ("[[keep]]\nwhere = 'user=ann'", "1: keep: gives no reason; add reason ="),
        ("[[keep]]\nwhere = 'user=ann'\nreason = ' '", "3: keep.reason: \" \" is not allowed"),
        ("[[keep]]\nreason = 'x'\nwhere = 'is:mine'", "3: keep.where: \"is:mine\" uses idle"),
    ]);
    for (rest, start) in [
        (
            "duratoin = '1m'",
            "rule.duratoin: unknown key; did you mean \"duration\"?; allowed: name",
        ),
        ("duration = '2d'", "rule.duration: \"2d\" is not allowed; write a duration"),
        ("where = 'usr:ann'", "rule.where: unknown field \"usr\"; did you mean user?"),
        ("where = 'mem>4'", "rule.where: mem: \"4\" is not a size"),
        ("where = 3", "rule.where: 3 is not allowed; write terms such as"),
        ("where = ' '", "rule.where: \" \" is not allowed; write terms such as"),
        (
            "where = 'gpu:0 train.py'",
            "rule.where: \"gpu:0 train.py\" has a word that is not a field",
        ),
        ("where = 'user=ann idle>10m'", "rule.where: \"user=ann idle>10m\" uses idle"),
        ("where = 'gpu:0 user:ann'", "rule.where: \"gpu:0 user:ann\" uses user: with a part"),
        ("where = 'command:a[0-9]'", "rule.where: command: '[' is not a wildcard; use *"),
        ("where = 'user=ann|bob'", "rule.where: user: '|' is not a wildcard; use *"),
        ("where = 'user:st*'", "rule.where: \"user:st*\" uses user: with a part of a name"),
        ("where = '!job:81'", "rule.where: \"!job:81\" uses job: with a part of a name"),
        ("until = 'soon'", "keep.until: \"soon\" is not allowed; write a date"),
        ("until = 12:00:00", "keep.until: the date is not allowed; write a date"),
        ("kinds = ['idl']", "keep.kinds: \"idl\" is not a kind; did you mean \"idle\"?"),
        ("rules = ['idl']", "keep.rules: \"idl\" is not a rule; did you mean \"idle\"?"),
        ("kinds = []", "keep.kinds: is empty; write a list of kinds"),
        ("reasn = 'x'", "keep.reasn: unknown key; did you mean \"reason\"?"),
        ("duration = '1h'", "keep.duration: unknown key; allowed: where, "),
    ] {
        let head = match start.starts_with("rule") {
            true => RULE,
            false => "[[keep]]\nwhere = 'user=ann'\nreason = 'x'",
        };
        assert_refused(&[(&format!("{head}\n{rest}"), &format!("4: {start}"))]);
    }
}

#[test]
fn no_setting_has_the_name_of_an_entry_key() {
    for kind in rules::KINDS {
        for setting in kind.setting_names() {
            let taken = ["where", "name", "kind", "rule"].contains(&setting);
            assert!(!taken, "{}: {}", kind.kind, setting);
        }
    }
}

#[test]
fn contradicting_thresholds_are_reported_at_their_position() {
    let rule = "name = \"x\"\nkind = \"pressure\"";
    let pressure = "[rules.pressure]\nenabled = true\nmin_free_warning = '3GiB'";
    let change = "[[override]]\nrule = 'pressure'\nwhere = 'gpu:0'\nmin_free_warning = '3GiB'";
    assert_refused(&[
        (pressure, "3: rules.pressure: min_free_warning ("),
        ("[rules.pressure]\nmin_free_warning = '1GiB'", "2: rules.pressure: min_free_warning ("),
        (&format!("\n[[rule]]\n{rule}\nmin_free_warning = '2GiB'"), "2: rule: min_free_warning ("),
        (change, "1: override: min_free_warning ("),
    ]);
    parse("[rules.pressure]\nmin_free_warning = \"3GiB\"\nmin_free = \"4GiB\"").unwrap();
}

#[test]
fn a_rule_about_gpus_cannot_select_processes() {
    let named = "[[rule]]\nname = \"x\"\nkind = \"pressure\"\n";
    let change = "[[override]]\nrule = \"pressure\"\nmin_free = \"512MiB\"\n";
    let keep = "[[keep]]\nreason = \"x\"\nkinds = [\"pressure\"]\n";
    for (entry, prefix) in [(named, "rule"), (change, "override"), (keep, "keep")] {
        let start = format!("1: {prefix}.where: pressure applies to GPUs");
        assert_refused(&[(&format!("{entry}where = \"gpu:0 user=ann\""), &start)]);
        parse(&format!("{entry}where = \"gpu:0,1\"")).unwrap();
    }
}

const WHOLE_REAP: &str = r#"
[reap]
warn = "30m"
grace = "2m"
settle = "20s"
most = 1
within = "1h"
notify = ["/usr/local/bin/notify-owner", "--mail", "a \"word\"\n"]
never = ["tensorboard", "Xorg"]
longest_keep = "7d"

[rules.orphan]
action = "reap"

[[rule]]
name = "idle-notebooks"
kind = "idle"
where = "notebook:.ipynb"
action = "reap"

[[rule]]
name = "idle-others"
kind = "idle"
action = "notify"
"#;

#[test]
fn the_reap_table_is_read() {
    let config = parse(WHOLE_REAP).unwrap();
    let reap = &config.reap;
    assert_eq!(reap.warn, Span::from_seconds(1800.0));
    assert_eq!(reap.grace, Span::from_seconds(120.0));
    assert_eq!(reap.settle, Span::from_seconds(20.0));
    assert_eq!((reap.most, reap.within), (1, Span::from_seconds(3600.0)));
    let notify = ["/usr/local/bin/notify-owner", "--mail", "a \"word\"\n"];
    assert_eq!(reap.notify, notify.map(Arc::from));
    assert_eq!(reap.never, ["tensorboard", "Xorg"].map(Arc::from));
    assert_eq!(reap.longest_keep, Some(Span::from_seconds(7.0 * 86_400.0)));
    assert_eq!(config.rules.longest_keep, reap.longest_keep);
    let reaping: Vec<&str> = reap.reaping().map(|rule| &**rule).collect();
    assert_eq!(reaping, ["idle-notebooks", "orphan"]);
    assert_eq!(reap.response("idle-others"), Response::Notify);
}

#[test]
fn a_rule_kills_only_with_its_own_action() {
    let config = parse("").unwrap();
    assert_eq!(config.reap.reaping().count(), 0);
    // A new rule does not inherit the action of its kind, because the rule may select other processes.
    let config = parse(
        "[reap]\nnotify = [\"/bin/true\"]\n[rules.idle]\naction = \"reap\"\n[[rule]]\nname = \"mine\"\nkind = \"idle\"\nwhere = \"user=ann\"",
    )
    .unwrap();
    assert_eq!(config.reap.response("idle"), Response::Reap);
    assert_eq!(config.reap.response("mine"), Response::Notify);
}

#[test]
fn a_rule_can_release_memory_without_killing() {
    let text = "[[rule]]\nname = \"caches\"\nkind = \"idle\"\nmin_memory = \"8GiB\"\naction = \"release\"\n\
                [rules.server-idle]\naction = \"release\"";
    // Releasing needs no `notify`, because no owner has to be warned.
    let config = parse(text).unwrap();
    let releasing: Vec<&str> = config.reap.releasing().map(|rule| &**rule).collect();
    assert_eq!(releasing, ["caches", "server-idle"]);
    assert_eq!(config.reap.reaping().count(), 0);
    assert_eq!(parse(&config.to_toml()).unwrap(), config);
}

#[test]
fn a_later_layer_overrides_reap_but_keeps_never() {
    let mut config = parse(WHOLE_REAP).unwrap();
    let user = "[reap]\nwarn = \"1h\"\nnever = [\"Xorg\", \"blender\"]\n\
                [rules.orphan]\naction = \"notify\"";
    layer(&mut config, user, Path::new("user.toml")).unwrap();
    assert_eq!(config.reap.warn, Span::from_seconds(3600.0));
    assert_eq!(config.reap.grace, Span::from_seconds(120.0));
    assert_eq!(config.reap.response("orphan"), Response::Notify);
    let never = ["tensorboard", "Xorg", "blender"];
    assert_eq!(config.reap.never, never.map(Arc::from));
}

#[test]
fn a_mistake_in_reap_is_reported_with_line_and_key() {
    let mine = "[[rule]]\nname = 'mine'\nkind = 'server-idle'\naction = 'reap'";
    let change = "[[override]]\nrule = 'idle'\nwhere = 'user=ann'\naction = 'reap'";
    let unwarned = "[rules.idle]\naction = 'reap'\n\n[reap]\nwarn = '1m'";
    assert_refused(&[
        ("[reap]\nwarm = '1m'", "2: reap.warm: unknown key; did you mean \"warn\"?; allowed: warn"),
        ("[reap]\nwarn = '0s'", "2: reap.warn: \"0s\" is not allowed; write a duration such as"),
        ("[reap]\nmost = 1.5", "2: reap.most: 1.5 is not allowed; write a number of kills such as"),
        ("[reap]\nnotify = 'mail ann'", "2: reap.notify: \"mail ann\" is not allowed; write"),
        ("[reap]\nlongest_keep = 7", "2: reap.longest_keep: 7 is not allowed; write a duration"),
        (
            "[reap]\nnever = ['tensor*']",
            "2: reap.never: the list is not allowed; write a list of programs'",
        ),
        (
            "[reap]\nnotify = ['tell']",
            "2: reap.notify: the list is not allowed; write a program by",
        ),
        ("[reap]\nnever = ['/usr/bin/x']", "2: reap.never: the list is not allowed; write"),
        ("[rules.idle]\naction = 'kill'", "2: rules.idle.action: unknown variant `kill`, expected"),
        (
            "[rules.dead]\naction = 'reap'",
            "2: rules.dead.action: processes found by dead are never killed",
        ),
        (
            "[rules.orphan]\naction = 'release'",
            "2: rules.orphan.action: processes found by orphan are",
        ),
        (mine, "4: rule.action: processes found by server-idle are never killed unattended"),
        (unwarned, "4: reap: a rule has action = \"reap\", but owners cannot be warned"),
        (change, "4: override.action: unknown key; allowed: where, "),
    ]);
}
