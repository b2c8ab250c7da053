//! `gpumem.release/1`: a document in which every field stands, and those that are printed.

use gpumem::api::cli::reap::ReapStatus;
use gpumem::api::cli::release::{ProbedTarget, ReleaseDocument, SCHEMA};
use gpumem::api::model::{ReadError, Time};
use gpumem::api::report::schema;
use serde_json::{Value, json};

use super::documents::text;
use super::reap::{outcomes, refusals, release_outcomes, release_target, target};
use super::{valid, validator};
use crate::support::run;

/// A document in which nothing is unknown.
pub fn document() -> Value {
    let document = ReleaseDocument {
        schema: SCHEMA,
        time: Some(Time::default()),
        status: ReapStatus::Incomplete,
        released_bytes: Some(1),
        targets: release_outcomes()
            .into_iter()
            .map(|outcome| (release_target(), outcome))
            .chain(outcomes().into_iter().map(|outcome| (target(), outcome)))
            .map(|(target, outcome)| ProbedTarget {
                target,
                proved: text("idle since noon"),
                outcome: Some(outcome),
            })
            .collect(),
        refused: refusals(),
        errors: vec![ReadError { gpu: Some(0), call: "release".into(), error: "lost".into() }],
    };
    serde_json::to_value(document).unwrap()
}

#[test]
fn every_release_is_valid() {
    let validator = validator(schema::RELEASE);
    valid(&validator, &document());
    for (more, code) in [
        (&["4242"][..], 3),
        (&["4242", "--wait", "0s"], 2),
        (&["4242", "--wiat", "1s"], 2),
        (&[], 2),
    ] {
        let driver = ["--nvml-library", "/nonexistent/libnvidia-ml.so.1"];
        let output = run(&[&["release", "--json"], &driver[..], more].concat());
        assert_eq!(output.code, code, "{output:?}");
        valid(&validator, &output.json());
    }
}

#[test]
fn what_is_broken_is_no_release() {
    let validator = validator(schema::RELEASE);
    let whole = document();
    for (pointer, wrong) in [
        ("/schema", json!("gpumem.reap/1")),
        ("/status", json!("fine")),
        ("/released_bytes", json!("1 GiB")),
        ("/targets/0/outcome/outcome", json!("freed_some")),
        ("/targets/0/outcome/bytes", json!(-1)),
        ("/targets/0/steps/0/way/by", json!("force")),
        ("/targets/0/steps/3/way/signal", json!("SEGV")),
        ("/refused/0/why/why", json!("because")),
    ] {
        let mut broken = whole.clone();
        *broken.pointer_mut(pointer).unwrap() = wrong.clone();
        assert!(!validator.is_valid(&broken), "{pointer} = {wrong}");
    }
}
