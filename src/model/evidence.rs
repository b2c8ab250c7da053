//! What a verdict rests on: facts that a rule saw, as its kind of finding has them.
//!
//! Numbers as they were seen or worked out, with their units in their names; what is not known is
//! `null`. Each kind's facts are a plain struct in its file in `rules`, with the words for them; here is
//! what all of them have in common, so that a finding is plain data for those who know no rule.

use std::borrow::Cow;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::Value;

use crate::units::number_of;

/// What a kind's verdict rests on; its fields are those of `evidence` in JSON.
pub trait KindEvidence: Serialize + JsonSchema {
    /// The facts in a line. Holds names that a process chose: escape it for a terminal.
    fn words(&self) -> String;

    /// When a GPU's memory will be used up, where they tell.
    fn forecast(&self) -> Option<Exhaustion> {
        None
    }
}

/// When a GPU's memory will be used up, if what grows on it goes on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Exhaustion {
    /// What is free by now.
    pub free_bytes: u64,
    /// Until that is used up.
    pub seconds: f64,
    /// The soonest and the latest.
    pub between: Option<(f64, f64)>,
}

/// What a verdict rests on, of whatever kind.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(transparent)]
pub struct Evidence {
    facts: Arc<Value>,
    #[serde(skip)]
    words: Arc<str>,
    #[serde(skip)]
    forecast: Option<Exhaustion>,
}

impl Evidence {
    /// Of a kind's facts.
    pub fn new(facts: impl KindEvidence) -> Self {
        Self {
            words: facts.words().into(),
            forecast: facts.forecast(),
            facts: serde_json::to_value(facts).unwrap_or_default().into(),
        }
    }

    /// As [`KindEvidence::words`].
    pub fn words(&self) -> &str {
        &self.words
    }

    /// As [`KindEvidence::forecast`].
    pub fn forecast(&self) -> Option<Exhaustion> {
        self.forecast
    }
}

impl JsonSchema for Evidence {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Evidence".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object" })
    }
}

/// A number of samples in words.
pub fn samples(count: u64) -> String {
    number_of(count, "sample")
}
