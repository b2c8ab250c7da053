//! What a verdict rests on: facts that a rule saw, as its kind of finding has them.
//!
//! Numbers as they were seen or worked out, with their units in their names; what is not known is
//! `null`. Each kind's facts are a plain struct in its file in `rules`, with the words for them; here is
//! what all of them have in common, so that a finding is plain data for those who know no rule.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::ser::Error as _;
use serde::{Serialize, Serializer};

use crate::units::number_of;

/// What a kind's verdict rests on; its fields are those of `evidence` in JSON.
pub trait KindEvidence:
    fmt::Debug + PartialEq + Serialize + JsonSchema + Send + Sync + 'static
{
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
#[derive(Clone)]
pub struct Evidence(Arc<dyn AnyEvidence>);

impl Evidence {
    /// Of a kind's facts.
    pub fn new(facts: impl KindEvidence) -> Self {
        Self(Arc::new(facts))
    }

    /// The facts, where they are of this kind.
    pub fn of<F: KindEvidence>(&self) -> Option<&F> {
        self.0.any().downcast_ref()
    }

    /// As [`KindEvidence::words`].
    pub fn words(&self) -> String {
        self.0.words()
    }

    /// As [`KindEvidence::forecast`].
    pub fn forecast(&self) -> Option<Exhaustion> {
        self.0.forecast()
    }
}

impl PartialEq for Evidence {
    fn eq(&self, other: &Self) -> bool {
        self.0.equals(other.0.any())
    }
}

impl fmt::Debug for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Serialize for Evidence {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.to_json().map_err(S::Error::custom)?.serialize(serializer)
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

/// [`KindEvidence`] of a kind that is not known.
trait AnyEvidence: fmt::Debug + Send + Sync {
    fn to_json(&self) -> serde_json::Result<serde_json::Value>;
    fn any(&self) -> &dyn Any;
    fn equals(&self, other: &dyn Any) -> bool;
    fn words(&self) -> String;
    fn forecast(&self) -> Option<Exhaustion>;
}

impl<F: KindEvidence> AnyEvidence for F {
    fn to_json(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(self)
    }

    fn any(&self) -> &dyn Any {
        self
    }

    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref().is_some_and(|other: &F| other == self)
    }

    fn words(&self) -> String {
        KindEvidence::words(self)
    }

    fn forecast(&self) -> Option<Exhaustion> {
        KindEvidence::forecast(self)
    }
}

/// A number of samples in words.
pub fn samples(count: u64) -> String {
    number_of(count, "sample")
}
