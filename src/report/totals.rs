//! Totals by user, job, container or framework, for `gpumem ps --by` and the screen.

use schemars::JsonSchema;
use serde::Serialize;

use super::escape::{escape, wrap};
use super::style::Style;
use super::table::{Align, Table};
use crate::model::field::{Field, GroupName, UNKNOWN};
use crate::model::label::ranges;
use crate::model::snapshot::ReadError;
use crate::model::totals::Total;
use crate::model::{Snapshot, Time};
use crate::units::Bytes;

pub const SCHEMA: &str = "gpumem.totals/1";

/// Prefix of a sum that does not include unknown amounts.
const AT_LEAST: &str = ">=";

/// The totals that `gpumem ps --by --json` prints. Units are part of the field names. Unknown values are `null`,
/// never 0. Readers must ignore unknown fields.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct TotalsReport {
    /// Format and major version.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Time of the snapshot: RFC 3339, UTC.
    pub time: Time,
    /// Field that the totals are grouped by: `user`, `job`, `container` or `framework`.
    pub by: &'static str,
    /// One total for each group, most memory first.
    pub totals: Vec<GroupTotal>,
    /// Read errors.
    pub errors: Vec<ReadError>,
}

/// Totals for one user, job, container or framework.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct GroupTotal {
    /// Name of the group; `null` for processes without a group, or if the group is unknown. The name is untrusted:
    /// escape it for a terminal.
    pub name: Option<String>,
    /// Whether the group of the processes is known; `true` for processes without a group.
    pub is_known: bool,
    /// Known memory of the processes, in bytes; `null` if unknown for all of them.
    pub memory_bytes: Option<u64>,
    /// Number of (process, GPU) pairs with an unknown amount of memory. If it is not 0, the processes hold more than
    /// `memory_bytes`.
    pub unknown_rows: usize,
    /// Part of the memory that `gpumem reap --all-users` would target by default, in bytes, before a plan checks the
    /// protection of processes; `null` if unknown, for example in the first sample.
    pub reclaimable_bytes: Option<u64>,
    /// Number of processes.
    pub processes: usize,
    /// NVML indices of the processes' GPUs.
    pub gpus: Vec<u32>,
}

impl TotalsReport {
    /// Creates the report. Without rules (`is_judged` is false), reclaimable memory is unknown.
    pub fn new(snapshot: &Snapshot, by: Field, totals: Vec<Total>, is_judged: bool) -> Self {
        let total = |total: Total| GroupTotal {
            is_known: total.group != GroupName::Unknown,
            name: match total.group {
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

/// Formats one line per total, without the RECLAIMABLE column if no rules were applied. Returns an empty string if
/// there are no totals.
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
                // `Table` omits a column without text.
                false => String::new(),
            },
            total.processes.to_string(),
            ranges(total.gpus.iter().copied()),
            name(by, &total.group),
        ]);
    }
    match table.is_empty() {
        true => String::new(),
        false => table.render(width, |text| style.heading(text)),
    }
}

/// Formats a table of totals for each field. A field that is unknown or empty for all processes is omitted.
pub fn page(title: &str, groups: &[(Field, Vec<Total>)], width: usize, style: Style) -> String {
    let mut out = String::new();
    for line in wrap(&escape(title), (width, width), 2) {
        out.push_str(&style.heading(&line));
        out.push('\n');
    }
    for (by, totals) in groups {
        let has_names = totals.iter().any(|total| matches!(total.group, GroupName::Named(_)));
        if has_names {
            out.push('\n');
            out.push_str(&table(*by, totals, true, Some(width), style));
        }
    }
    if groups.iter().all(|(_, totals)| totals.is_empty()) {
        out.push_str("\nno processes\n");
    }
    out
}

fn heading(by: Field) -> &'static str {
    match by {
        Field::Job => "JOB",
        Field::Container => "CONTAINER",
        by => by.spec().title,
    }
}

fn name(by: Field, group: &GroupName) -> String {
    match group {
        GroupName::Named(name) => escape(name).into_owned(),
        GroupName::None => format!("(no {})", by.spec().names[0]),
        GroupName::Unknown => UNKNOWN.to_owned(),
    }
}

fn bytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| UNKNOWN.to_owned(), |bytes| Bytes(bytes).to_string())
}
