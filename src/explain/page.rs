//! A page as a value: sections of rows, which [`crate::report::explain`] prints and `--json` serialises.

use schemars::JsonSchema;
use serde::Serialize;

use crate::history::memory_series::MemoryBucket;
use crate::model::finding::Finding;
use crate::model::snapshot::ReadError;
use crate::model::{Gpu, Process, Severity, Time};
use crate::report::table::Table;

/// The `schema` that this version writes.
pub const SCHEMA: &str = "gpumem.explain/1";

/// What another format describes: a snapshot, or a verdict.
type Object = serde_json::Map<String, serde_json::Value>;

/// The page that `gpumem explain --json` prints: sections of rows, in the order of the printed page. What is not
/// known is absent or `null`, never 0. A reader ignores fields and rows that it does not know.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct ExplainPage {
    /// Format and major version.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Time of the last snapshot: RFC 3339, UTC; `null` where none was needed.
    pub time: Option<Time>,
    /// The span of history that the page rests on, in seconds.
    pub window_seconds: f64,
    /// What the page is about. Holds names that a process chose: escape it for a terminal.
    pub title: String,
    /// The process that was asked about, as in gpumem.snapshot/1; of an unresolved one, the pid and the reason
    /// only.
    #[schemars(with = "Option<Object>")]
    pub process: Option<Process>,
    /// The GPU that was asked about, as in gpumem.snapshot/1.
    #[schemars(with = "Option<Object>")]
    pub gpu: Option<Gpu>,
    /// What the rules find, as in gpumem.check/1: the one that was asked about first; also what ceased within the
    /// history.
    #[schemars(with = "Vec<Object>")]
    pub findings: Vec<Finding>,
    /// What there is to say, section by section.
    pub sections: Vec<Section>,
    /// What the page lacks, and what would add it.
    pub notes: Vec<String>,
    /// What could not be read; each as in gpumem.check/1.
    #[schemars(with = "Vec<Object>")]
    pub errors: Vec<ReadError>,
}

impl ExplainPage {
    /// A page without anything on it yet.
    pub fn new(title: String, time: Option<Time>, window_seconds: f64) -> Self {
        Self {
            schema: SCHEMA,
            time,
            window_seconds,
            title,
            process: None,
            gpu: None,
            findings: Vec::new(),
            sections: Vec::new(),
            notes: Vec::new(),
            errors: Vec::new(),
        }
    }
}

/// Rows that belong together.
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize)]
pub struct Section {
    /// What they are about; empty at the top of the page.
    pub heading: String,
    /// The rows, from top to bottom.
    #[schemars(with = "Vec<Object>")]
    pub rows: Vec<Row>,
}

/// A row of the page. Its text may hold names that a process chose: escape it for a terminal.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Row {
    /// A text beside a label; where the label is empty, it goes on with the one above.
    Entry { label: String, text: String },
    /// An item of a list behind its mark.
    Item {
        mark: String,
        text: String,
        /// How bad what it says is.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "String")]
        severity: Option<Severity>,
    },
    /// Columns and lines of cells.
    Table(Table),
    /// How memory moved, to be drawn.
    Curve(MemoryCurve),
}

/// How memory moved over the history.
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize)]
pub struct MemoryCurve {
    /// Stretches of time, oldest first; 240 at most.
    pub points: Vec<MemoryBucket>,
    /// Of how many milliseconds after it a sample tells.
    #[serde(skip)]
    pub vouched_milliseconds: i64,
    /// What is to come.
    #[serde(skip)]
    pub forecast: Option<ForecastLine>,
    /// Lines of the chart.
    #[serde(skip)]
    pub lines: usize,
}

/// Growth that goes on as it is, to the end.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ForecastLine {
    /// From the last point until nothing is left.
    pub seconds: f64,
    /// What will be held then.
    pub full_bytes: u64,
}

impl Section {
    /// A section without rows.
    pub fn new(heading: &str) -> Self {
        Self { heading: heading.to_owned(), rows: Vec::new() }
    }

    /// Adds a text beside a label.
    pub fn entry(&mut self, label: &str, text: impl Into<String>) {
        self.rows.push(Row::Entry { label: label.to_owned(), text: text.into() });
    }

    /// Adds facts in a line beside a label; nothing where there are none.
    pub fn facts(&mut self, label: &str, facts: &[String]) {
        if !facts.is_empty() {
            self.entry(label, facts.join(", "));
        }
    }

    /// Adds an item of a list.
    pub fn item(&mut self, mark: &str, text: impl Into<String>) {
        self.rows.push(Row::Item { mark: mark.to_owned(), text: text.into(), severity: None });
    }
}
