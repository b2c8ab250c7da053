//! `gpumem ps --by`: what the rows come to, by user, job, container or framework.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;

use super::escape::escape;
use super::gpus::UNKNOWN;
use super::style::Style;
use super::table::{Align, Table};
use crate::model::field::{Field, GroupName};
use crate::model::row::{ProcessRow, places};
use crate::model::snapshot::ReadError;
use crate::model::{Identity, Snapshot, Time};
use crate::units::Bytes;

/// The `schema` that this version writes.
pub const SCHEMA: &str = "gpumem.totals/1";

/// The totals that `gpumem ps --by --json` prints. Units are in the names. What is not known is `null`,
/// never 0. A reader ignores fields that it does not know.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct TotalsReport {
    /// Format and major version.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Time of the snapshot: RFC 3339, UTC.
    pub time: Time,
    /// What the processes are added up by: `user`, `job`, `container` or `framework`.
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
    /// How many of the processes hold memory of which the amount is not known on some GPU.
    pub unknown_processes: usize,
    /// How many processes they are.
    pub processes: usize,
    /// The GPUs that they are on, by NVML's index.
    pub gpus: Vec<u32>,
}

/// A total in the making.
#[derive(Default)]
struct RunningTotal {
    bytes: Option<u64>,
    processes: BTreeSet<Identity>,
    unknown: BTreeSet<Identity>,
    gpus: BTreeSet<u32>,
}

impl RunningTotal {
    fn add(&mut self, row: &ProcessRow<'_>) {
        let Some(identity) = row.identity else {
            return;
        };
        self.processes.insert(identity);
        match row.used_bytes() {
            Some(bytes) => self.bytes = Some(self.bytes.unwrap_or(0).saturating_add(bytes)),
            None => drop(self.unknown.insert(identity)),
        }
        let all = row.snapshot.gpus.iter().map(|gpu| gpu.index);
        match row.gpu.filter(|_| row.is_listed()) {
            Some(gpu) => drop(self.gpus.insert(gpu.index)),
            // It is listed nowhere, and has these open.
            None => self
                .gpus
                .extend(all.filter(|&gpu| row.is_on(gpu) == Some(true))),
        }
    }
}

impl TotalsReport {
    /// Adds up the rows of a snapshot by one of the fields that
    /// [`GROUPED`](crate::model::field::GROUPED) lists.
    pub fn new(snapshot: &Snapshot, by: Field) -> Self {
        let mut sums: BTreeMap<GroupName, RunningTotal> = BTreeMap::new();
        for place in places(snapshot, &[]) {
            let row = ProcessRow::new(snapshot, &[], place);
            sums.entry(by.group(&row)).or_default().add(&row);
        }
        let total = |(group, sum): (GroupName, RunningTotal)| GroupTotal {
            is_known: group != GroupName::Unknown,
            name: match group {
                GroupName::Named(name) => Some(name),
                GroupName::None | GroupName::Unknown => None,
            },
            memory_bytes: sum.bytes,
            unknown_processes: sum.unknown.len(),
            processes: sum.processes.len(),
            gpus: sum.gpus.into_iter().collect(),
        };
        let mut totals: Vec<GroupTotal> = sums.into_iter().map(total).collect();
        // Of as much memory the names decide, in their order.
        totals.sort_by_key(|total| std::cmp::Reverse(total.memory_bytes));
        Self {
            schema: SCHEMA,
            time: snapshot.time,
            by: by.spec().names.first().copied().unwrap_or_default(),
            totals,
            errors: snapshot.errors.clone(),
        }
    }

    /// The totals for people, for a terminal of `width` columns, where one is given.
    pub fn to_text(&self, width: Option<usize>, style: Style) -> String {
        if self.totals.is_empty() {
            return "No process holds GPU memory.\n".to_owned();
        }
        let heading = match self.by {
            "user" => "USER",
            "job" => "JOB",
            "container" => "CONTAINER",
            _ => "FRAMEWORK",
        };
        let columns = [
            ("MEMORY", Align::Right),
            ("PROCESSES", Align::Right),
            ("GPUS", Align::Left),
            (heading, Align::Left),
        ];
        let mut table = Table::new(&columns);
        for total in &self.totals {
            let name = match (&total.name, total.is_known) {
                (Some(name), _) => escape(name).into_owned(),
                (None, true) => format!("(no {})", self.by),
                (None, false) => UNKNOWN.to_owned(),
            };
            table.row(vec![
                total
                    .memory_bytes
                    .map_or_else(|| UNKNOWN.to_owned(), |bytes| Bytes(bytes).to_string()),
                total.processes.to_string(),
                gpus(&total.gpus),
                name,
            ]);
        }
        let mut out = table.render(width, |text| style.heading(text));
        let unknown: usize = self.totals.iter().map(|it| it.unknown_processes).sum();
        if unknown > 0 {
            let processes = match unknown {
                1 => "1 process".to_owned(),
                _ => format!("{unknown} processes"),
            };
            out.push_str(&format!(
                "\nNot in the totals: memory of {processes} that is not known.\n"
            ));
        }
        out
    }
}

/// `0-3,6`: GPUs in their order, those without a gap as a range.
fn gpus(indices: &[u32]) -> String {
    if indices.is_empty() {
        return UNKNOWN.to_owned();
    }
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &index in indices {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == index => *last = index,
            _ => ranges.push((index, index)),
        }
    }
    let write = |&(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let texts: Vec<String> = ranges.iter().map(write).collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::process::{Container, Slurm};
    use crate::model::{Gpu, GpuProcess, Process};
    use crate::units::GIB;

    fn process(pid: u32, user: Option<&str>) -> Process {
        Process {
            pid,
            start_ticks: Some(u64::from(pid)),
            user: user.map(Arc::from),
            ..Process::default()
        }
    }

    fn gpu(index: u32, rows: &[(u32, Option<u64>)]) -> Gpu {
        let row = |&(pid, used_bytes): &(u32, Option<u64>)| GpuProcess {
            pid,
            used_bytes,
            ..GpuProcess::default()
        };
        Gpu {
            index,
            processes: Some(rows.iter().map(row).collect()),
            ..Gpu::default()
        }
    }

    /// ann on three GPUs, in a job; ben in a container, his memory not known on one GPU; pid 9 is nobody's
    /// that is known.
    fn machine() -> Snapshot {
        let mut snapshot = Snapshot::new(Time::default());
        snapshot.gpus = vec![
            gpu(0, &[(1, Some(4 * GIB)), (9, Some(GIB))]),
            gpu(1, &[(1, Some(4 * GIB)), (3, Some(2 * GIB))]),
            gpu(2, &[(2, Some(GIB)), (3, None)]),
        ];
        let mut ann = process(1, Some("ann"));
        ann.slurm = Some(Arc::new(Slurm {
            job_id: Some("812".into()),
            ..Slurm::default()
        }));
        ann.framework = Some("pytorch".into());
        let mut ben = process(3, Some("ben"));
        ben.container = Some(Arc::new(Container {
            id: Some("0123456789abcdef".into()),
            ..Container::default()
        }));
        snapshot.processes = vec![ann, process(2, Some("ann")), ben];
        snapshot
    }

    fn totals(by: Field) -> Vec<(Option<String>, bool, Option<u64>, usize, Vec<u32>)> {
        let report = TotalsReport::new(&machine(), by);
        let totals = report.totals.into_iter();
        totals
            .map(|it| (it.name, it.is_known, it.memory_bytes, it.processes, it.gpus))
            .collect()
    }

    #[test]
    fn a_process_counts_once_and_its_memory_on_every_gpu() {
        let named = |name: &str, gib: u64, processes, gpus: &[u32]| {
            let name = Some(name.to_owned());
            (name, true, Some(gib * GIB), processes, gpus.to_vec())
        };
        let unknown = (None, false, Some(GIB), 1, vec![0]);
        assert_eq!(
            totals(Field::User),
            [
                named("ann", 9, 2, &[0, 1, 2]),
                named("ben", 2, 1, &[1, 2]),
                unknown.clone(),
            ]
        );
        assert_eq!(
            totals(Field::Job),
            [
                named("812", 8, 1, &[0, 1]),
                (None, true, Some(3 * GIB), 2, vec![1, 2]),
                unknown.clone(),
            ]
        );
        assert_eq!(
            totals(Field::Container)[1],
            named("0123456789ab", 2, 1, &[1, 2])
        );
        // Whether the others have loaded one could not be seen.
        let frameworks = totals(Field::Framework);
        assert_eq!(frameworks[0], named("pytorch", 8, 1, &[0, 1]));
        assert_eq!(frameworks[1].0, None);
        assert!(!frameworks[1].1 && frameworks.len() == 2);
    }

    #[test]
    fn unknown_memory_is_counted_and_names_are_escaped() {
        let mut machine = machine();
        machine.processes[2].user = Some("b\x1b[31men".into());
        let text = TotalsReport::new(&machine, Field::User).to_text(None, Style::default());
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines[1], "9.0 GiB          2  0-2   ann");
        assert!(!text.contains('\x1b'), "{text:?}");
        assert!(text.ends_with("Not in the totals: memory of 1 process that is not known.\n"));
        assert_eq!(gpus(&[0, 2, 3, 4, 9]), "0,2-4,9");
        let none = Snapshot::new(Time::default());
        let none = TotalsReport::new(&none, Field::User).to_text(None, Style::default());
        assert_eq!(none, "No process holds GPU memory.\n");
    }
}
//! Totals as a table: what each user, job, container or framework holds together.

use super::escape::escape;
use super::style::Style;
use super::table::{Align, Table};
use super::wrap::wrap;
use crate::model::field::{Field, UNKNOWN};
use crate::model::label::ranges;
use crate::model::totals::{Total, TotalOf};
use crate::units::Bytes;

/// What stands before a sum that some of what belongs to it is missing from.
const AT_LEAST: &str = ">=";

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
        let has_names = totals
            .iter()
            .any(|total| matches!(total.of, TotalOf::Named(_)));
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
fn name(by: Field, of: &TotalOf) -> String {
    match of {
        TotalOf::Named(name) => escape(name).into_owned(),
        TotalOf::None => format!("(no {})", by.spec().names[0]),
        TotalOf::Unknown => UNKNOWN.to_owned(),
    }
}

fn bytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| UNKNOWN.to_owned(), |bytes| Bytes(bytes).to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::model::totals::GROUPED;
    use crate::units::GIB;

    fn total(of: TotalOf, used_bytes: Option<u64>, unknown_rows: usize) -> Total {
        Total {
            of,
            processes: 2,
            gpus: BTreeSet::from([0, 1, 2, 5]),
            used_bytes,
            unknown_rows,
            reclaimable_bytes: Some(0),
        }
    }

    #[test]
    fn what_is_not_whole_or_not_known_is_marked() {
        let totals = [
            total(TotalOf::Named("ann\x1b[2J".to_owned()), Some(3 * GIB), 0),
            total(TotalOf::None, Some(GIB), 1),
            total(TotalOf::Unknown, None, 2),
        ];
        let text = table(Field::Job, &totals, true, None, Style::default());
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        assert_eq!(
            lines,
            [
                "MEMORY  RECLAIMABLE  PROCESSES  GPU    JOB",
                r"3.0 GiB          0 B          2  0-2,5  ann\e[2J",
                ">= 1.0 GiB          0 B          2  0-2,5  (no job)",
                "-          0 B          2  0-2,5  -",
            ]
        );
        let text = table(Field::Job, &totals, false, None, Style::default());
        assert!(!text.contains("RECLAIMABLE"), "{text}");
    }

    #[test]
    fn a_page_has_only_what_some_row_has() {
        let named = vec![total(TotalOf::Named("ann".to_owned()), Some(GIB), 0)];
        let none = vec![total(TotalOf::None, Some(GIB), 0)];
        let groups = [(Field::User, named), (Field::Job, none)];
        let page = page("totals", &groups, 40, Style::default());
        assert!(page.contains("ann") && !page.contains("JOB"), "{page}");
        assert!(super::page("totals", &[], 40, Style::default()).contains("no process"));
    }

    #[test]
    fn every_grouping_has_a_heading_and_no_rows_no_table() {
        for by in GROUPED {
            assert!(!heading(by).is_empty(), "{by:?}");
            assert_eq!(table(by, &[], true, None, Style::default()), "");
        }
    }
}
