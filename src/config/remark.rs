//! What a configuration says that cannot hold: allowed, and without the effect that it seems to have.

use crate::rules::exemption::Exemption;
use crate::rules::rule::Rule;
use crate::rules::scope::{self, Scope};

/// What of a rule's settings, overrides and scope cannot hold, each in a line.
pub fn of_rule(rule: &dyn Rule) -> Vec<String> {
    let mut own = rule.remarks().into_iter();
    let mut remarks: Vec<String> = of_scope(rule.scope()).into_iter().collect();
    remarks.extend(own.next().flatten());
    for (change, of_settings) in rule.overrides().iter().zip(own) {
        for remark in of_scope(&change.scope).into_iter().chain(of_settings) {
            // What it shares with the rule is said once.
            let remark = format!("override for {}: {remark}", change.scope);
            if !remarks.iter().any(|known| remark.ends_with(&**known)) {
                remarks.push(remark);
            }
        }
    }
    remarks
}

/// What of an exemption cannot hold.
pub fn of_keep(keep: &Exemption) -> Option<String> {
    of_scope(&keep.scope)
}

fn of_scope(of: &Scope) -> Option<String> {
    let name = of.framework.as_deref()?;
    (!scope::is_framework(name)).then(|| {
        let known: Vec<&str> = scope::frameworks().collect();
        format!(
            "framework {name:?} is none that gpumem recognises, so this matches no process; it \
             recognises {}",
            known.join(", ")
        )
    })
}
