//! What a configuration says that cannot hold: allowed, and without the effect that it seems to have.

use crate::rules::rule::Rule;

/// What of a rule's settings and overrides cannot hold, each in a line.
pub fn of_rule(rule: &dyn Rule) -> Vec<String> {
    let mut own = rule.remarks().into_iter();
    let mut remarks: Vec<String> = own.next().into_iter().flatten().collect();
    for (change, of_settings) in rule.overrides().iter().zip(own) {
        if let Some(remark) = of_settings {
            // What it shares with the rule is said once.
            let remark = format!("override for {}: {remark}", change.scope);
            if !remarks.iter().any(|known| remark.ends_with(&**known)) {
                remarks.push(remark);
            }
        }
    }
    remarks
}
