//! Named rules, scopes and exemptions: what is read, what is refused, and that it reads back.

use super::*;
use crate::model::{Kind, Severity, Time};
use crate::rules::rule::Rule;
use crate::units::{GIB, Percent};

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
    let (_, value) = settings.iter().find(|it| it.0 == name).unwrap();
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
    assert_eq!(change.scope, super::scope("user=1000"));
    let everybody = rule(&config, "everybody");
    assert!(everybody.scope.is_empty() && !everybody.is_run());
    assert_eq!(value(rule(&config, "idle"), "enabled"), written(false));
}

#[test]
fn entries_in_force_read_back_as_the_same() {
    let selected =
        "[[rule]]\nname = \"x\"\nkind = \"idle\"\nwhere = 'user=ann,\"b c\" !gpu:0 mem>50%'";
    for text in [ENTRIES, selected] {
        let config = parse(text).unwrap();
        let written = config.to_toml();
        assert_eq!(parse(&written).unwrap(), config, "{written}");
    }
    let written = parse(ENTRIES).unwrap().to_toml();
    for line in [
        "[[rule]] # config.toml:13\nname = \"idle-notebooks\"\n",
        "[[keep]] # config.toml:2\n",
        "until = 2026-12-31T17:00:00.000Z\n",
        "where = \"notebook:course/ mem>4GiB\"\n",
    ] {
        assert!(written.contains(line), "{line}: {written}");
    }
}

#[test]
fn an_exemption_lasts_to_the_end_of_the_day_that_is_named() {
    let until = |written: &str| -> Option<Time> {
        let text = format!("[[keep]]\nwhere = \"user=ann\"\nreason = \"x\"\nuntil = {written}");
        parse(&text).unwrap().rules.keeps()[0].until
    };
    for (written, expected) in [
        ("2026-12-31T18:00:00-02:00", "2026-12-31T20:00:00Z"),
        // Long past: it has no effect, and that is no mistake.
        ("1999-12-31T00:00:00Z", "1999-12-31T00:00:00Z"),
    ] {
        assert_eq!(until(written), Some(expected.parse().unwrap()), "{written}");
    }
    // By this machine's clock.
    let next = until("2027-01-01T00:00:00");
    assert!(next.is_some());
    for whole_day in ["2026-12-31", "\"2026-12-31\""] {
        assert_eq!(until(whole_day), next, "{whole_day}");
    }
}

#[test]
fn a_mistake_in_an_entry_is_reported_with_its_line_and_key() {
    const RULE: &str = "[[rule]]\nname = 'x'\nkind = 'idle'";
    are_refused(&[
        (&format!("{RULE}\n{RULE}"), "5: rule.name: there is a rule \"x\" already"),
        ("rule = 1", "1: rule: has to be a list of tables; begin each with [[rule]]"),
        ("[[rule]]\nkind = 'idle'", "1: rule: has no name; add name = NAME"),
        ("[[rule]]\nname = 'x'", "1: rule: has no kind; add kind = KIND, one of: "),
        ("[[rule]]\nname = 'x'\nkind = 'idel'", "3: rule.kind: \"idel\" is no kind; did you"),
        ("[[rule]]\nname = 'idle'\nkind = 'idle'", "2: rule.name: \"idle\" is a kind, whose"),
        ("[[rule]]\nname = 'Idle Ones'\nkind = 'idle'", "2: rule.name: \"Idle Ones\" is not"),
        ("[[keep]]\nreason = 'x'", "1: keep: matches every process; add where"),
        ("[[keep]]\nwhere = 'user=ann'", "1: keep: gives no reason; add reason ="),
        ("[[keep]]\nwhere = 'user=ann'\nreason = ' '", "3: keep.reason: \" \" is not allowed"),
        ("[[keep]]\nreason = 'x'\nwhere = 'is:mine'", "3: keep.where: \"is:mine\" uses idle"),
    ]);
    for (rest, start) in [
        (
            "duratoin = '1m'",
            "rule.duratoin: is not known; did you mean \"duration\"?; allowed: name",
        ),
        ("duration = '2d'", "rule.duration: \"2d\" is not allowed; write a duration"),
        ("where = 'usr:ann'", "rule.where: no term is called \"usr\"; did you mean user?"),
        ("where = 'mem>4'", "rule.where: mem: \"4\" has no unit"),
        ("where = 3", "rule.where: 3 is not allowed; write terms such as"),
        ("where = ' '", "rule.where: \" \" is not allowed; write terms such as"),
        ("where = 'gpu:0 train.py'", "rule.where: \"gpu:0 train.py\" has a word that names"),
        ("where = 'user=ann idle>10m'", "rule.where: \"user=ann idle>10m\" uses idle"),
        ("where = 'gpu:0 user:ann'", "rule.where: \"gpu:0 user:ann\" has user: with a part"),
        ("where = 'command:a[0-9]'", "rule.where: command: '[' is no wildcard; use *"),
        ("where = 'user=ann|bob'", "rule.where: user: '|' is no wildcard; use *"),
        ("where = 'user:st*'", "rule.where: \"user:st*\" has user: with a part of a name"),
        ("where = '!job:81'", "rule.where: \"!job:81\" has job: with a part of a name"),
        ("until = 'soon'", "keep.until: \"soon\" is not allowed; write a date"),
        ("until = 12:00:00", "keep.until: the date is not allowed; write a date"),
        ("kinds = ['idl']", "keep.kinds: \"idl\" is no kind; did you mean \"idle\"?"),
        ("rules = ['idl']", "keep.rules: \"idl\" is no rule; did you mean \"idle\"?"),
        ("kinds = []", "keep.kinds: is empty; write a list of kinds"),
        ("reasn = 'x'", "keep.reasn: is not known; did you mean \"reason\"?"),
        ("duration = '1h'", "keep.duration: is not known; allowed: where, "),
    ] {
        let head = match start.starts_with("rule") {
            true => RULE,
            false => "[[keep]]\nwhere = 'user=ann'\nreason = 'x'",
        };
        are_refused(&[(&format!("{head}\n{rest}"), &format!("4: {start}"))]);
    }
}

#[test]
fn no_setting_is_called_as_a_key_of_an_entry() {
    for kind in rules::KINDS {
        for setting in kind.setting_names() {
            let taken = ["where", "name", "kind", "rule"].contains(&setting);
            assert!(!taken, "{}: {}", kind.kind, setting);
        }
    }
}

#[test]
fn thresholds_that_contradict_each_other_are_reported_where_they_meet() {
    let rule = "name = \"x\"\nkind = \"pressure\"";
    let pressure = "[rules.pressure]\nenabled = true\nmin_free_warning = '3GiB'";
    let change = "[[override]]\nrule = 'pressure'\nwhere = 'gpu:0'\nmin_free_warning = '3GiB'";
    are_refused(&[
        (pressure, "3: rules.pressure: min_free_warning ("),
        ("[rules.pressure]\nmin_free_warning = '1GiB'", "2: rules.pressure: min_free_warning ("),
        (&format!("\n[[rule]]\n{rule}\nmin_free_warning = '2GiB'"), "2: rule: min_free_warning ("),
        (change, "1: override: min_free_warning ("),
    ]);
    parse("[rules.pressure]\nmin_free_warning = \"3GiB\"\nmin_free = \"4GiB\"").unwrap();
}

#[test]
fn a_rule_about_gpus_can_be_asked_about_no_process() {
    let named = "[[rule]]\nname = \"x\"\nkind = \"pressure\"\n";
    let change = "[[override]]\nrule = \"pressure\"\nmin_free = \"512MiB\"\n";
    let keep = "[[keep]]\nreason = \"x\"\nkinds = [\"pressure\"]\n";
    for (entry, prefix) in [(named, "rule"), (change, "override"), (keep, "keep")] {
        let start = format!("1: {prefix}.where: pressure is about a GPU");
        are_refused(&[(&format!("{entry}where = \"gpu:0 user=ann\""), &start)]);
        parse(&format!("{entry}where = \"gpu:0,1\"")).unwrap();
    }
}
