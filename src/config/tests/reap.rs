//! `[reap]` and the actions of rules.

use super::*;
use crate::config::reap::Response;

const WHOLE: &str = r#"
[reap]
warn = "30m"
grace = "2m"
settle = "20s"
most = 1
within = "1h"
notify = ["/usr/local/bin/notify-owner", "--mail", "a \"word\"\n"]
never = ["tensorboard", "Xorg"]

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
fn everything_of_it_is_read_and_reads_back() {
    let config = parse(WHOLE).unwrap();
    let reap = &config.reap;
    assert_eq!(reap.warn, Span::from_seconds(1800.0));
    assert_eq!(reap.grace, Span::from_seconds(120.0));
    assert_eq!(reap.settle, Span::from_seconds(20.0));
    assert_eq!((reap.most, reap.within), (1, Span::from_seconds(3600.0)));
    let notify = ["/usr/local/bin/notify-owner", "--mail", "a \"word\"\n"];
    assert_eq!(reap.notify, notify.map(Arc::from));
    assert_eq!(reap.never, ["tensorboard", "Xorg"].map(Arc::from));
    let reaping: Vec<&str> = reap.reaping().map(|rule| &**rule).collect();
    assert_eq!(reaping, ["idle-notebooks", "orphan"]);
    assert_eq!(reap.response("idle-others"), Response::Notify);
    let written = config.to_toml();
    assert_eq!(parse(&written).unwrap(), config, "{written}");
    for line in [
        "action = \"reap\" # config.toml:12",
        "never = [\"tensorboard\", \"Xorg\"] # config.toml:9",
        "action = \"notify\" # default",
    ] {
        assert!(written.lines().any(|it| it == line), "{line}: {written}");
    }
}

#[test]
fn nothing_is_killed_unless_a_rule_has_that_action() {
    let config = parse("").unwrap();
    assert_eq!(config.reap.reaping().count(), 0);
    // What its kind does a rule does not take over: it may be for others.
    let config = parse(
        "[reap]\nnotify = [\"/bin/true\"]\n[rules.idle]\naction = \"reap\"\n[[rule]]\nname = \"mine\"\nkind = \"idle\"\nwhere = \"user=ann\"",
    )
    .unwrap();
    assert_eq!(config.reap.response("idle"), Response::Reap);
    assert_eq!(config.reap.response("mine"), Response::Notify);
}

#[test]
fn a_rule_may_ask_for_memory_and_kill_nothing() {
    let text = "[[rule]]\nname = \"caches\"\nkind = \"idle\"\nmin_memory = \"8GiB\"\naction = \"release\"\n\
                [rules.server-idle]\naction = \"release\"";
    // No one has to be warned.
    let config = parse(text).unwrap();
    let releasing: Vec<&str> = config.reap.releasing().map(|rule| &**rule).collect();
    assert_eq!(releasing, ["caches", "server-idle"]);
    assert_eq!(config.reap.reaping().count(), 0);
    assert_eq!(parse(&config.to_toml()).unwrap(), config);
}

#[test]
fn a_later_layer_changes_an_earlier_one_and_takes_no_protection_away() {
    let mut config = parse(WHOLE).unwrap();
    let user = "[reap]\nwarn = \"1h\"\nnever = [\"Xorg\", \"blender\"]\n\
                [rules.orphan]\naction = \"notify\"";
    read::layer(&mut config, user, Path::new("user.toml")).unwrap();
    assert_eq!(config.reap.warn, Span::from_seconds(3600.0));
    assert_eq!(config.reap.grace, Span::from_seconds(120.0));
    assert_eq!(config.reap.response("orphan"), Response::Notify);
    let never = ["tensorboard", "Xorg", "blender"];
    assert_eq!(config.reap.never, never.map(Arc::from));
}

#[test]
fn mistakes_are_reported_with_line_and_key() {
    for (text, message) in [
        (
            "[reap]\nwarm = \"1m\"",
            "config.toml:2: reap.warm: is not known; did you mean \"warn\"?; allowed: warn, grace, \
             settle, most, within, notify, never",
        ),
        (
            "[reap]\nwarn = \"0s\"",
            "config.toml:2: reap.warn: \"0s\" is not allowed; write a duration such as \"30s\", \
             \"10m\" or \"2h\", from 1s to 1d",
        ),
        (
            "[reap]\nmost = 1.5",
            "config.toml:2: reap.most: 1.5 is not allowed; write a number of acts such as 3, up to 1000",
        ),
        (
            "[reap]\nnotify = \"mail ann\"",
            "config.toml:2: reap.notify: \"mail ann\" is not allowed; write a program by its whole \
             path and its arguments, such as [\"/usr/local/bin/notify-owner\", \"--mail\"]",
        ),
        (
            "[reap]\nnotify = [\"tell\"]",
            "config.toml:2: reap.notify: the list is not allowed; write a program by its whole path \
             and its arguments, such as [\"/usr/local/bin/notify-owner\", \"--mail\"]",
        ),
        (
            "[reap]\nnever = [\"/usr/bin/x\"]",
            "config.toml:2: reap.never: the list is not allowed; write a list of programs' file \
             names such as [\"tensorboard\"]",
        ),
        (
            "[rules.idle]\naction = \"kill\"",
            "config.toml:2: rules.idle.action: unknown variant `kill`, expected one of `notify`, `release`, `reap`",
        ),
        (
            "[rules.dead]\naction = \"reap\"",
            "config.toml:2: rules.dead.action: what dead finds is never killed unattended; \
             write \"notify\"",
        ),
        (
            "[rules.orphan]\naction = \"release\"",
            "config.toml:2: rules.orphan.action: what orphan finds is not asked to release memory; \
             write \"notify\", or let a rule of idle or server-idle have this action",
        ),
        (
            "[[rule]]\nname = \"mine\"\nkind = \"server-idle\"\naction = \"reap\"",
            "config.toml:4: rule.action: what server-idle finds is never killed unattended; \
             write \"notify\"",
        ),
        (
            "[rules.idle]\naction = \"reap\"\n\n[reap]\nwarn = \"1m\"",
            "config.toml:4: reap: a rule has action = \"reap\", but no owner could be warned; give a \
             notify command",
        ),
        (
            "[[override]]\nrule = \"idle\"\nwhere = \"user=ann\"\naction = \"reap\"",
            "config.toml:4: override.action: is not known; allowed: where, enabled, \
             min_memory, duration, max_cpu_percent, max_busy, severity",
        ),
    ] {
        assert_eq!(refused(text), message);
    }
}
