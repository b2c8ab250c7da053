//! Test helpers that apply the rules to a scene and inspect the result.

use std::borrow::Borrow;

use serde::Serialize;
use toml::Value;

pub(super) use self::Expected::{Found, Nothing, Unsure};
use super::{Engine, RuleSet};
use crate::history::testing::Scene;
use crate::model::finding::{Finding, Kind};

pub(super) const PID: u32 = 4242;

pub(super) fn judge(scene: &mut Scene, seconds: f64) -> Engine {
    let mut engine = Engine::new(RuleSet::default());
    scene.play(seconds, |snapshot| engine.observe(snapshot));
    engine
}

pub(super) fn engine_with_rule(rule: &str) -> Engine {
    let mut settings = RuleSet::default();
    settings.select(&[rule]).unwrap();
    Engine::new(settings)
}

pub(super) fn judge_only(rule: &str, scene: &mut Scene, seconds: f64) -> Engine {
    let mut engine = engine_with_rule(rule);
    scene.play(seconds, |snapshot| engine.observe(snapshot));
    engine
}

pub(super) enum Expected {
    Found,
    Nothing,
    Unsure(&'static str),
}

pub(super) type Change = fn(&mut Scene);

pub(super) fn unidentified(scene: &mut Scene) {
    let process = scene.process(PID);
    (process.start_ticks, process.start_time) = (None, None);
}

pub(super) fn cpu_unknown(scene: &mut Scene) {
    let process = scene.process(PID);
    (process.cpu_percent, process.cpu_seconds) = (None, None);
}

pub(super) fn set_executable(scene: &mut Scene, executable: &str) {
    scene.process(PID).executable = Some(executable.into());
}

pub(super) type Case = (&'static str, Expected, Change);

/// Plays a new scene for each case, with the case's change, and checks the result.
#[track_caller]
pub(super) fn check_cases(kind: Kind, scene: impl Fn() -> Scene, seconds: f64, cases: &[Case]) {
    for (case, expected, change) in cases {
        let mut scene = scene();
        change(&mut scene);
        let engine = judge(&mut scene, seconds);
        let (found, reasons) = (count(&engine, kind), reasons(&engine, kind));
        let matches = match expected {
            Found => found == 1 && reasons.is_empty(),
            Nothing => found == 0 && reasons.is_empty(),
            Unsure(words) => found == 0 && reasons.len() == 1 && reasons[0].contains(words),
        };
        assert!(matches, "{case}: {found} found, {reasons:?}");
    }
}

pub(super) fn judge_with(
    rule: &str,
    setting: &str,
    value: impl Borrow<Value>,
    scene: &mut Scene,
    seconds: f64,
) -> Engine {
    let mut settings = RuleSet::default();
    let rule = settings.rule_mut(rule).unwrap();
    rule.set(setting, value.borrow()).unwrap();
    let mut engine = Engine::new(settings);
    scene.play(seconds, |snapshot| engine.observe(snapshot));
    engine
}

pub(super) fn evidence_json(finding: &Finding) -> serde_json::Value {
    serde_json::to_value(&finding.evidence).unwrap()
}

pub(crate) fn written(value: impl Serialize) -> Value {
    Value::try_from(value).unwrap()
}

pub(super) fn count(engine: &Engine, kind: Kind) -> usize {
    let findings = engine.findings().iter();
    findings
        .map(|finding| {
            usize::from(finding.kind == kind)
                + finding.also.iter().filter(|also| also.kind == kind).count()
        })
        .sum()
}

#[track_caller]
pub(super) fn only(engine: &Engine, kind: Kind) -> &Finding {
    let of_kind = engine.findings().iter().filter(|finding| finding.kind == kind);
    let found: Vec<&Finding> = of_kind.collect();
    let [finding] = found[..] else { panic!("{:?}", engine.findings()) };
    finding
}

pub(super) fn reasons(engine: &Engine, kind: Kind) -> Vec<String> {
    let all = engine.undecided().into_iter();
    all.filter(|undecided| *undecided.rule == *kind.name())
        .map(|undecided| undecided.reason)
        .collect()
}

#[track_caller]
pub(super) fn assert_clean(engine: &Engine, kind: Kind) {
    assert_eq!(count(engine, kind), 0, "{:?}", engine.findings());
    assert_eq!(reasons(engine, kind), [""; 0]);
}

pub(crate) fn scope(terms: &str) -> super::scope::Scope {
    let selector = crate::model::selector::Selector::parse(terms).unwrap();
    super::scope::Scope { selector }
}
