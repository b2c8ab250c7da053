//! The data types of a page, which consists of sections with rows.

use schemars::JsonSchema;
use serde::Serialize;

use crate::history::memory_series::Bucket;
use crate::model::finding::{Finding, OwnCommands};
use crate::model::snapshot::ReadError;
use crate::model::{Gpu, Process, Severity, Time};
use crate::report::table::Table;

pub const SCHEMA: &str = "gpumem.explain/1";

/// A JSON object in another format, such as a finding or a part of a snapshot.
type Object = serde_json::Map<String, serde_json::Value>;

/// The page that `gpumem explain --json` prints. It contains sections with rows, in the same order as the printed
/// page. Unknown values are absent or `null`, never 0. Readers must ignore unknown fields and rows.
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize)]
pub struct ExplainPage {
    /// Format and major version.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Time of the last snapshot, in UTC (RFC 3339); `null` if no snapshot was needed.
    pub time: Option<Time>,
    /// Length of the history that the page is based on, in seconds.
    pub window_seconds: f64,
    /// Subject of the page. It can contain untrusted names, so escape it for a terminal.
    pub title: String,
    /// The requested process, as in gpumem.snapshot/1. If the process could not be identified, only its PID, the
    /// reason and its last known details are present.
    #[schemars(with = "Option<Object>")]
    pub process: Option<Process>,
    /// The requested GPU, as in gpumem.snapshot/1.
    #[schemars(with = "Option<Object>")]
    pub gpu: Option<Gpu>,
    /// Findings, as in gpumem.check/1. The requested finding is first. Findings that were resolved within the history
    /// are included.
    #[schemars(with = "Vec<Object>")]
    pub findings: Vec<Finding>,
    /// The sections of the page.
    pub sections: Vec<Section>,
    /// Data that is missing from the page, and how to get it.
    pub notes: Vec<String>,
    /// Commands that free the process's memory.
    #[serde(skip)]
    #[schemars(skip)]
    pub own_commands: OwnCommands,
    /// Read errors, as in gpumem.check/1.
    #[schemars(with = "Vec<Object>")]
    pub errors: Vec<ReadError>,
}

impl ExplainPage {
    pub fn new(title: String, time: Option<Time>, window_seconds: f64) -> Self {
        Self { schema: SCHEMA, time, window_seconds, title, ..Self::default() }
    }
}

/// A group of related rows.
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize)]
pub struct Section {
    /// Heading of the section; empty at the top of the page.
    pub heading: String,
    /// The rows, from top to bottom.
    #[schemars(with = "Vec<Object>")]
    pub rows: Vec<Row>,
}

/// A row of the page. Its text can contain untrusted names, so escape it for a terminal.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Row {
    /// Text beside a label; an empty label continues the entry above.
    Entry { label: String, text: String },
    /// A list item with its bullet or other mark.
    Item {
        mark: String,
        text: String,
        /// Severity of the item.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "String")]
        severity: Option<Severity>,
    },
    /// A table with columns and rows.
    Table(Table),
    /// Memory over time, as a chart.
    Curve(MemoryCurve),
}

/// Memory within a period of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct MemoryPoint {
    /// Time of the first sample in the period.
    pub since: Time,
    /// Time of the last sample in the period.
    pub until: Time,
    pub low_bytes: u64,
    pub high_bytes: u64,
    pub last_bytes: u64,
}

impl From<&Bucket> for MemoryPoint {
    fn from(bucket: &Bucket) -> Self {
        let Bucket { since, until, low, high, last, .. } = *bucket;
        Self { since, until, low_bytes: low, high_bytes: high, last_bytes: last }
    }
}

/// Memory over the time of the history.
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize)]
pub struct MemoryCurve {
    /// Periods of time, oldest first. There are at most 240.
    pub points: Vec<MemoryPoint>,
    /// How long a value is assumed to stay valid after its sample, in milliseconds.
    #[serde(skip)]
    pub vouched_milliseconds: i64,
    #[serde(skip)]
    pub lines: usize,
}

impl Section {
    pub fn new(heading: &str) -> Self {
        Self { heading: heading.to_owned(), rows: Vec::new() }
    }

    pub fn entry(&mut self, label: &str, text: impl Into<String>) {
        self.rows.push(Row::Entry { label: label.to_owned(), text: text.into() });
    }

    /// Adds a label and a line of facts, unless `facts` is empty.
    pub fn facts(&mut self, label: &str, facts: &[String]) {
        if !facts.is_empty() {
            self.entry(label, facts.join(", "));
        }
    }

    pub fn item(&mut self, mark: &str, text: impl Into<String>) {
        self.rows.push(Row::Item { mark: mark.to_owned(), text: text.into(), severity: None });
    }
}
