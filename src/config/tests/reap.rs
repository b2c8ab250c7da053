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
    assert_eq!(reap.longest_keep, Some(Span::from_seconds(7.0 * 86_400.0)));
    assert_eq!(config.rules.longest_keep, reap.longest_keep);
    let reaping: Vec<&str> = reap.reaping().map(|rule| &**rule).collect();
    assert_eq!(reaping, ["idle-notebooks", "orphan"]);
    assert_eq!(reap.response("idle-others"), Response::Notify);
    let written = config.to_toml();
    assert_eq!(parse(&written).unwrap(), config, "{written}");
    for line in [
        "action = \"reap\" # config.toml:13",
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
    let mine = "[[rule]]\nname = 'mine'\nkind = 'server-idle'\naction = 'reap'";
    let change = "[[override]]\nrule = 'idle'\nwhere = 'user=ann'\naction = 'reap'";
    let unwarned = "[rules.idle]\naction = 'reap'\n\n[reap]\nwarn = '1m'";
    are_refused(&[
        (
            "[reap]\nwarm = '1m'",
            "2: reap.warm: is not known; did you mean \"warn\"?; allowed: warn",
        ),
        ("[reap]\nwarn = '0s'", "2: reap.warn: \"0s\" is not allowed; write a duration such as"),
        ("[reap]\nmost = 1.5", "2: reap.most: 1.5 is not allowed; write a number of acts such as"),
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
        ("[rules.dead]\naction = 'reap'", "2: rules.dead.action: what dead finds is never killed"),
        ("[rules.orphan]\naction = 'release'", "2: rules.orphan.action: what orphan finds is"),
        (mine, "4: rule.action: what server-idle finds is never killed unattended"),
        (unwarned, "4: reap: a rule has action = \"reap\", but no owner could be warned"),
        (change, "4: override.action: is not known; allowed: where, "),
    ]);
}
