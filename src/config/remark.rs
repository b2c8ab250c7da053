//! What a configuration says that cannot hold: allowed, and without the effect that it seems to have.

use crate::model::Kind;
use crate::rules::keep::Keep;
use crate::rules::rule::Rule;
use crate::rules::scope::{self, Scope};
use crate::rules::setting::Value;
use crate::units::Span;

/// No growth is judged on less; see [`crate::history::growth`].
const SHORTEST_LEAK_SECONDS: f64 = 900.0;

/// What of a rule's settings, overrides and scope cannot hold, each in a line.
pub fn of_rule(rule: &dyn Rule) -> Vec<String> {
    let settings: Vec<(&str, Value)> = rule
        .settings()
        .into_iter()
        .map(|setting| (setting.name, setting.value))
        .collect();
    let mut remarks: Vec<String> = of_scope(rule.scope()).into_iter().collect();
    remarks.extend(of_settings(rule.kind(), &settings));
    for (scope, changes) in rule.overrides() {
        let mut changed = settings.clone();
        for (name, value) in changes {
            for setting in changed.iter_mut().filter(|(known, _)| known == name) {
                setting.1 = *value;
            }
        }
        let wrong = of_scope(scope)
            .into_iter()
            .chain(of_settings(rule.kind(), &changed));
        for remark in wrong {
            // What it shares with the rule is said once.
            let remark = format!("override for {scope}: {remark}");
            if !remarks.iter().any(|known| remark.ends_with(&**known)) {
                remarks.push(remark);
            }
        }
    }
    remarks
}

/// What of an exemption cannot hold.
pub fn of_keep(keep: &Keep) -> Option<String> {
    of_scope(&keep.scope)
}

fn of_scope(of: &Scope) -> Option<String> {
    let name = of.framework.as_deref()?;
    (!scope::is_framework(name)).then(|| {
        let known: Vec<&str> = scope::frameworks().collect();
        format!(
            "framework {name:?} is none that gpumem recognises, so that this is for no process; it \
             recognises {}",
            known.join(", ")
        )
    })
}

fn of_settings(kind: Kind, settings: &[(&str, Value)]) -> Option<String> {
    let span = |name: &str| {
        settings.iter().find_map(|(known, value)| match value {
            Value::Span(span) if *known == name => Some(*span),
            _ => None,
        })
    };
    match kind {
        Kind::Leak => {
            let window = span("window").filter(|it| it.seconds() < SHORTEST_LEAK_SECONDS)?;
            let shortest = Span::from_seconds(SHORTEST_LEAK_SECONDS);
            Some(format!(
                "window {window} is taken for {shortest}: growth is not told from warm-up sooner"
            ))
        }
        Kind::Idle => {
            let (busy, duration) = (span("max_busy")?, span("duration")?);
            (busy.seconds() < duration.seconds()).then(|| {
                format!(
                    "max_busy {busy} is taken for {duration}: nothing is idle before its duration"
                )
            })
        }
        _ => None,
    }
}
