//! The JSON document with the answers of several machines.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

pub const SCHEMA: &str = "gpumem.hosts/1";

/// The output of `ps --json` and `check --json` for other machines: one answer per machine, in the order of the
/// command line. Readers must ignore unknown fields.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct HostsReport {
    /// Format and major version.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// The answers, one per machine.
    pub hosts: Vec<HostAnswer>,
}

/// Answer of one machine.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct HostAnswer {
    /// Name of the machine, as given on the command line.
    pub host: Arc<str>,
    /// Why the answer is missing or incomplete; `null` if it is complete.
    pub error: Option<String>,
    /// The document that the command printed on the machine, in the format given by the document's `schema`; `null`
    /// if none arrived.
    pub document: Option<Value>,
}

impl HostsReport {
    pub fn new(hosts: Vec<HostAnswer>) -> Self {
        Self { schema: SCHEMA, hosts }
    }
}
