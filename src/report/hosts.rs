//! What several machines answered, as one document.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

/// The `schema` that this version writes.
pub const SCHEMA: &str = "gpumem.hosts/1";

/// What `ps --json` and `check --json` print for other machines: one answer each, in the order in which
/// the machines were named. Readers must ignore unknown fields.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct HostsReport {
    /// Format and major version.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// The answers, one for each machine.
    pub hosts: Vec<HostAnswer>,
}

/// Answer of one machine.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct HostAnswer {
    /// Name of the machine, as given on the command line.
    pub host: Arc<str>,
    /// Why there is no answer, or only part of one; `null` if the answer is complete.
    pub error: Option<String>,
    /// The document that the command printed on the machine, in the format that its `schema` names;
    /// `null` if none arrived.
    pub document: Option<Value>,
}

impl HostsReport {
    pub fn new(hosts: Vec<HostAnswer>) -> Self {
        Self { schema: SCHEMA, hosts }
    }
}
