//! Totals: what each user, job, container or framework holds together, as `gpumem ps --by` prints it and the
//! screen shows it.

use schemars::JsonSchema;
use serde::Serialize;

use super::escape::escape;
use super::style::Style;
use super::table::{Align, Table};
use super::wrap::wrap;
use crate::model::field::{Field, GroupName, UNKNOWN};
use crate::model::label::ranges;
use crate::model::snapshot::ReadError;
use crate::model::totals::Total;
use crate::model::{Snapshot, Time};
use crate::units::Bytes;

/// The `schema` that this version writes.
pub const SCHEMA: &str = "gpumem.totals/1";

/// What stands before a sum that some of what belongs to it is missing from.
const AT_LEAST: &str = ">=";

/// The totals that `gpumem ps --by --json` prints. Units are in the names. What is not known is `null`,
/// never 0. A reader ignores fields that it does not know.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct TotalsReport {
    /// Format and major version.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Time of the snapshot: RFC 3339, UTC.
    pub time: Time,
    /// What the rows are added up by: `user`, `job`, `container` or `framework`.
    pub by: &'static str,
    /// A total each, the most memory first.
    pub totals: Vec<GroupTotal>,
    /// What could not be read.
    pub errors: Vec<ReadError>,
}

/// What the processes of one user, job, container or framework come to.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct GroupTotal {
    /// Its name; `null` of those that belong to none, or of which that is not known. Holds names that
    /// others chose: escape it for a terminal.
    pub name: Option<String>,
    /// Whether it is known to what they belong, none included.
    pub is_known: bool,
    /// What they hold as far as it is known, in bytes; `null` where it is not known of any.
    pub memory_bytes: Option<u64>,
    /// On how many GPUs a process of theirs holds memory of which the amount is not known, each process
    /// counted: where there are any, they hold more than `memory_bytes`.
    pub unknown_rows: usize,
    /// What of it `gpumem reap --all-users` would take by default, in bytes, before its plan asks what
    /// protects a process; `null` where that is not known, as at a first look.
    pub reclaimable_bytes: Option<u64>,
    /// How many processes they are.
    pub processes: usize,
    /// The GPUs that they are on, by NVML's index.
    pub gpus: Vec<u32>,
}

impl TotalsReport {
    /// The totals of a snapshot's rows by this field. Where the rows were not judged, it is not known of any
    /// whether its memory is reclaimable.
    pub fn new(snapshot: &Snapshot, by: Field, totals: Vec<Total>, is_judged: bool) -> Self {
        let total = |total: Total| GroupTotal {
            is_known: total.of != GroupName::Unknown,
            name: match total.of {
                GroupName::Named(name) => Some(name),
                GroupName::None | GroupName::Unknown => None,
            },
            memory_bytes: total.used_bytes,
            unknown_rows: total.unknown_rows,
            reclaimable_bytes: total.reclaimable_bytes.filter(|_| is_judged),
            processes: total.processes,
            gpus: total.gpus.into_iter().collect(),
        };
        Self {
            schema: SCHEMA,
            time: snapshot.time,
            by: by.spec().names.first().copied().unwrap_or_default(),
            totals: totals.into_iter().map(total).collect(),
            errors: snapshot.errors.clone(),
        }
    }
}

/// One line for each total, in their order, at most `width` columns wide where one is given; without
/// any, an empty text. Whoever has not judged the rows leaves out what can be reclaimed.
pub fn table(
    by: Field,
    totals: &[Total],
    is_judged: bool,
    width: Option<usize>,
    style: Style,
) -> String {
    let mut table = Table::new(&[
        ("MEMORY", Align::Right),
        ("RECLAIMABLE", Align::Right),
        ("PROCESSES", Align::Right),
        ("GPU", Align::Left),
        (heading(by), Align::Left),
    ])
    .giving_way(&["GPU", "PROCESSES"]);
    for total in totals {
        let memory = bytes(total.used_bytes);
        table.row(vec![
            match (total.used_bytes, total.unknown_rows) {
                (Some(_), 1..) => format!("{AT_LEAST} {memory}"),
                _ => memory,
            },
            match is_judged {
                true => bytes(total.reclaimable_bytes),
                // A column without any text is left out.
                false => String::new(),
            },
            total.processes.to_string(),
            ranges(total.gpus.iter().copied()),
            name(by, &total.of),
        ]);
    }
    match table.is_empty() {
        true => String::new(),
        false => table.render(width, |text| style.heading(text)),
    }
}

/// A page of totals by several fields; of what no row has, nothing is said.
pub fn page(title: &str, groups: &[(Field, Vec<Total>)], width: usize, style: Style) -> String {
    let mut out = String::new();
    for line in wrap(&escape(title), (width, width), 2) {
        out.push_str(&style.heading(&line));
        out.push('\n');
    }
    for (by, totals) in groups {
        let has_names = totals.iter().any(|total| matches!(total.of, GroupName::Named(_)));
        if has_names {
            out.push('\n');
            out.push_str(&table(*by, totals, true, Some(width), style));
        }
    }
    if groups.iter().all(|(_, totals)| totals.is_empty()) {
        out.push_str("\nthere is no process\n");
    }
    out
}

/// What the rows are grouped by, as a heading.
fn heading(by: Field) -> &'static str {
    match by {
        Field::Job => "JOB",
        Field::Container => "CONTAINER",
        by => by.spec().title,
    }
}

/// Whose a total is, escaped.
fn name(by: Field, of: &GroupName) -> String {
    match of {
        GroupName::Named(name) => escape(name).into_owned(),
        GroupName::None => format!("(no {})", by.spec().names[0]),
        GroupName::Unknown => UNKNOWN.to_owned(),
    }
}

fn bytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| UNKNOWN.to_owned(), |bytes| Bytes(bytes).to_string())
}
