//! Evidence: the facts that a rule observed, as each kind of finding has them.
//!
//! Numbers as observed or computed, with units in their names; unknown ones are `null`. Each kind's facts are a
//! struct in its file in `rules`, with the words for them. This file has what they share, so that a finding is
//! plain data for rooms that know no rule.

use std::borrow::Cow;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::Value;

use crate::units::number_of;

/// The facts of one kind; its fields are those of `evidence` in JSON.
pub trait KindEvidence: Serialize + JsonSchema {
    /// The facts in one line. Contains names that a process chose: escape it for a terminal.
    fn words(&self) -> String;

    /// When a GPU's memory will be used up, if the facts show that.
    fn forecast(&self) -> Option<Exhaustion> {
        None
    }
}

/// When a GPU's memory will be used up, if growth continues.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Exhaustion {
    /// Bytes still free.
    pub free_bytes: u64,
    /// Until they are used up.
    pub seconds: f64,
}

/// The evidence of any kind.
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
