//! The table of fields. A field is a fact about a row, with the names and notation that users type.
//!
//! The [selector](super::selector) parser and the help text use this table. The result of a match is yes, no or
//! unknown. For example, if the container of a resolved process is missing, the process is known to be in no container.
//!
//! [`gpu`] is a separate table for the values of a GPU.

use super::finding::{Finding, Kind};
use super::row::ProcessRow;
use super::snapshot::Process;
use crate::units::Span;

pub mod gpu;
mod needle;
mod read;

pub use needle::Needle;
pub(super) use read::any_has;
pub use read::{GROUPED, GroupName, SortValue, is_called};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    Gpu,
    Pid,
    User,
    Memory,
    MemoryPercent,
    History,
    SmPercent,
    CpuPercent,
    CpuTime,
    HostMemory,
    State,
    Idle,
    /// Time since the process started, in seconds.
    Runtime,
    Framework,
    Place,
    Finding,
    Command,
    Name,
    Notebook,
    Container,
    Pod,
    Job,
    Unit,
    Kind,
    Is,
}

/// Notation of the values that users enter for a field. It determines how values are parsed and compared.
#[derive(Clone, Copy, Debug)]
pub enum Notation {
    Text,
    /// One of these words, or a prefix of one.
    OneOf(fn() -> Vec<&'static str>),
    Gpu,
    Number,
    Percent,
    Bytes,
    BytesOrShare,
    Seconds,
}

#[derive(Clone, Copy, Debug)]
pub struct FieldSpec {
    /// Names in a selector, most common first. If there are none, the field cannot be selected.
    pub names: &'static [&'static str],
    pub example: &'static str,
    pub meaning: &'static str,
    pub notation: Notation,
    pub field: Field,
    /// Column heading, or an empty string if no table has this column.
    pub title: &'static str,
    /// Whether rows sorted by this field start with the largest value.
    pub descending: bool,
    pub right: bool,
    /// Key that sorts the screen by this field when typed after `o`, or a blank if the screen has no such column.
    pub letter: char,
    /// Width on the screen, in terminal columns. If 0, the column is as wide as its longest text.
    pub width: u16,
    /// Rank on the screen. On a narrow terminal, the column with the highest rank is dropped first.
    pub need: usize,
    /// Order in which `ps` drops columns on a narrow terminal, starting with 1. [`STAYS`] means never, and 0 means that
    /// `ps` has no such column.
    pub gives_way: usize,
    /// Name and help text for `ps --sort`. If `ps` cannot sort by this field, both are empty.
    pub sort: (&'static str, &'static str),
    /// Name of the column in options. Used only if `sort` and `names` are empty.
    pub called: &'static str,
}

pub const STAYS: usize = usize::MAX;

const fn field(
    field: Field,
    names: &'static [&'static str],
    notation: Notation,
    example: &'static str,
    meaning: &'static str,
) -> FieldSpec {
    FieldSpec {
        names,
        example,
        meaning,
        notation,
        field,
        title: "",
        descending: false,
        right: false,
        letter: ' ',
        width: 0,
        need: 0,
        gives_way: 0,
        sort: ("", ""),
        called: "",
    }
}

impl FieldSpec {
    const fn text(self, title: &'static str) -> Self {
        Self { title, ..self }
    }

    const fn number(self, title: &'static str, descending: bool) -> Self {
        Self { title, descending, right: true, ..self }
    }

    const fn called(self, called: &'static str) -> Self {
        Self { called, ..self }
    }

    /// Returns the name of the column in options.
    pub fn column_name(&self) -> &'static str {
        match (self.sort.0, self.names.first()) {
            ("", None) => self.called,
            ("", Some(name)) => name,
            (name, _) => name,
        }
    }

    const fn most_first(self) -> Self {
        Self { descending: true, ..self }
    }

    const fn on_screen(self, letter: char, need: usize, width: u16) -> Self {
        Self { letter, need, width, ..self }
    }

    const fn in_ps(self, gives_way: usize) -> Self {
        Self { gives_way, ..self }
    }

    const fn sorts(self, key: &'static str, help: &'static str) -> Self {
        Self { sort: (key, help), ..self }
    }
}

pub const UNKNOWN: &str = "-";
/// Placeholder for a value that the GPU or driver does not report. `ps` explains it below its tables.
pub const NOT_AVAILABLE: &str = "n/a";

/// All fields, in column order. The widths include the space for the sort mark after the heading.
pub const FIELDS: [FieldSpec; 25] = {
    use Notation::{Bytes, BytesOrShare, Number, OneOf, Percent, Seconds, Text};
    [
        field(
            Field::Gpu,
            &["gpu"],
            Notation::Gpu,
            "gpu:0",
            "GPU index, UUID or its prefix, device file, MIG device (0:3) or name",
        )
        .number("GPU", false)
        .on_screen('g', 4, 0)
        .in_ps(STAYS)
        .sorts("gpu", "GPU, then GPU memory"),
        field(Field::Pid, &["pid"], Number, "pid:4242", "process id, here or in its container")
            .number("PID", false)
            .on_screen('p', 1, 0)
            .in_ps(STAYS)
            .sorts("pid", "Process id"),
        field(Field::User, &["user"], Text, "user:ann,bob", "the owner, by name or uid")
            .text("USER")
            .on_screen('u', 5, 0)
            .in_ps(STAYS)
            .sorts("user", "Owner"),
        field(
            Field::Memory,
            &["mem", "memory"],
            BytesOrShare,
            "mem>4GiB",
            "GPU memory, or its share of the GPU (50%)",
        )
        .number("MEMORY", true)
        .on_screen('m', 2, 10)
        .in_ps(STAYS)
        .sorts("memory", "GPU memory, largest first"),
        field(Field::MemoryPercent, &[], Percent, "", "its share of the GPU's memory")
            .number("MEM%", true)
            .called("memory-percent")
            .on_screen('n', 11, 5),
        field(Field::History, &[], Bytes, "", "memory over time")
            .text("HISTORY")
            .called("history")
            .most_first()
            .on_screen('y', 9, 10),
        field(Field::SmPercent, &["sm"], Percent, "sm<5", "SM utilization, in percent")
            .number("SM%", true)
            .on_screen('s', 6, 4)
            .in_ps(6)
            .sorts("sm", "SM utilization, highest first"),
        field(
            Field::CpuPercent,
            &["cpu"],
            Percent,
            "cpu>100",
            "CPU utilization, in percent of a core",
        )
        .number("CPU%", true)
        .on_screen('c', 10, 6),
        field(Field::CpuTime, &["cputime"], Seconds, "cputime>1h", "total CPU time")
            .number("CPU TIME", true)
            .in_ps(2)
            .sorts("cpu-time", "Total CPU time, longest first"),
        field(Field::HostMemory, &["rss", "host"], Bytes, "rss>1GiB", "host memory")
            .number("HOST MEM", true)
            .on_screen('h', 14, 10)
            .in_ps(1)
            .sorts("host-memory", "Resident host memory, largest first"),
        field(
            Field::State,
            &["state"],
            OneOf(state_names),
            "state:stopped",
            "process state, by name or letter",
        )
        .text("STATE")
        .on_screen('t', 12, 8)
        .in_ps(7),
        field(Field::Idle, &["idle"], Seconds, "idle>10m", "time since it last used the GPU")
            .number("IDLE", true)
            .on_screen('i', 7, 8),
        field(Field::Runtime, &["runtime", "time"], Seconds, "runtime>2h", "time since start")
            .number("RUNTIME", true)
            .on_screen('r', 13, 8)
            .in_ps(4)
            .sorts("runtime", "Time since start, longest first"),
        field(Field::Framework, &["framework"], Text, "framework:pytorch", "the framework")
            .text("FRAMEWORK")
            .on_screen('f', 15, 0)
            .in_ps(3),
        field(Field::Place, &["where"], Text, "where:vllm", "container, pod, job or unit")
            .text("WHERE")
            .on_screen('w', 8, 0)
            .in_ps(5),
        field(
            Field::Finding,
            &["finding"],
            OneOf(finding_names),
            "finding:idle",
            "kind of finding; any matches all kinds",
        )
        .text("FINDING")
        .most_first()
        .on_screen('x', 3, 0)
        .in_ps(8),
        field(Field::Command, &["command", "cmd"], Text, "command:train.py", "the command line")
            .text("COMMAND")
            .on_screen('d', 0, 0)
            .in_ps(STAYS)
            .sorts("command", "Command line"),
        field(Field::Name, &["name"], Text, "name:python", "the program"),
        field(Field::Notebook, &["notebook"], Text, "notebook:a.ipynb", "the notebook"),
        field(Field::Container, &["container"], Text, "container:bert", "the container"),
        field(Field::Pod, &["pod"], Text, "pod:bert-0", "the pod or its namespace"),
        field(Field::Job, &["job"], Text, "job:812", "the Slurm job"),
        field(Field::Unit, &["unit"], Text, "unit:vllm", "the systemd unit"),
        field(
            Field::Kind,
            &["kind", "type"],
            OneOf(|| KINDS.to_vec()),
            "kind:compute",
            "the NVML process list",
        ),
        field(Field::Is, &["is"], OneOf(|| TRAITS.to_vec()), "is:mine", "mine, unlisted"),
    ]
};

pub fn selectable() -> impl Iterator<Item = &'static FieldSpec> {
    FIELDS.iter().filter(|spec| !spec.names.is_empty())
}

/// The columns of the screen, from left to right.
pub const ON_SCREEN: [Field; count(true)] = select(true);

/// The columns of the screen, most important first. A narrow terminal drops the last columns.
pub const BY_NEED: [Field; ON_SCREEN.len()] = {
    let mut columns = ON_SCREEN;
    let mut at = 0;
    while at < FIELDS.len() {
        if is_selected(&FIELDS[at], true) {
            columns[FIELDS[at].need] = FIELDS[at].field;
        }
        at += 1;
    }
    columns
};

/// The sort keys of `ps`.
pub const SORTED: [Field; count(false)] = select(false);

const fn is_selected(spec: &FieldSpec, on_screen: bool) -> bool {
    if on_screen { spec.letter != ' ' } else { !spec.sort.0.is_empty() }
}

const fn count(on_screen: bool) -> usize {
    let (mut at, mut count) = (0, 0);
    while at < FIELDS.len() {
        count += is_selected(&FIELDS[at], on_screen) as usize;
        at += 1;
    }
    count
}

const fn select<const N: usize>(on_screen: bool) -> [Field; N] {
    let mut fields = [Field::Gpu; N];
    let (mut at, mut next) = (0, 0);
    while at < FIELDS.len() {
        if is_selected(&FIELDS[at], on_screen) {
            fields[next] = FIELDS[at].field;
            next += 1;
        }
        at += 1;
    }
    fields
}

/// The names of process states that users type and see, with the letters of the kernel.
const STATES: [(&str, char); 10] = [
    ("running", 'R'),
    ("sleeping", 'S'),
    ("in I/O", 'D'),
    ("disk", 'D'),
    ("stopped", 'T'),
    ("traced", 't'),
    ("zombie", 'Z'),
    ("defunct", 'Z'),
    ("dead", 'X'),
    ("kernel", 'I'),
];
const KINDS: [&str; 4] = ["compute", "graphics", "mps", "other"];
const TRAITS: [&str; 2] = ["mine", "unlisted"];
/// The value of `finding:` that matches any kind of finding.
const ANY: &str = "any";

fn state_names() -> Vec<&'static str> {
    STATES.map(|(name, _)| name).to_vec()
}

fn finding_names() -> Vec<&'static str> {
    let kinds = Kind::ALL.iter().map(|kind| kind.name());
    kinds.chain([ANY]).collect()
}

pub fn state_name(letter: char) -> Option<&'static str> {
    let mut states = STATES.iter();
    states.find(|(_, state)| *state == letter).map(|(name, _)| *name)
}

/// Parses a single state letter. Case matters, because `T` means stopped and `t` means traced, as in ps(1).
fn state_letter(value: &str) -> Option<char> {
    let mut chars = value.chars();
    let letter = chars.next()?;
    let is_state = STATES.iter().any(|&(_, state)| state == letter);
    (chars.next().is_none() && is_state).then_some(letter)
}

impl FieldSpec {
    /// Succeeds if a possible value begins with the needle. Otherwise, returns the possible values as an error.
    pub(super) fn allows(&self, needle: &Needle) -> Result<(), Vec<&'static str>> {
        let Notation::OneOf(words) = self.notation else {
            return Ok(());
        };
        let is_letter = self.field == Field::State && state_letter(needle.typed()).is_some();
        let words = words();
        if is_letter || words.iter().any(|word| needle.begins(word)) {
            return Ok(());
        }
        Err(words)
    }
}

impl Field {
    pub fn spec(self) -> &'static FieldSpec {
        let at = FIELDS.iter().position(|spec| spec.field == self);
        // A test checks that the table contains all fields.
        &FIELDS[at.unwrap_or_default()]
    }

    /// Returns the value as a number in the unit of the field's notation. Returns `None` if the value is unknown or
    /// not a number.
    pub fn number(self, row: &ProcessRow<'_>) -> Option<f64> {
        let process = row.process.ok();
        match self {
            Self::Gpu => row.gpu.map(|gpu| f64::from(gpu.index)),
            Self::Pid => row.pid().map(f64::from),
            Self::Memory => row.used_bytes().map(|bytes| bytes as f64),
            Self::MemoryPercent => row.memory_percent(),
            Self::History => row.growth_bytes.map(|bytes| bytes as f64),
            Self::SmPercent => row.entry?.sm_percent.map(f64::from),
            Self::CpuPercent => process?.cpu_percent,
            Self::CpuTime => process?.cpu_seconds,
            Self::HostMemory => process?.rss_bytes.map(|bytes| bytes as f64),
            Self::State => process?.state.map(|state| f64::from(u32::from(state))),
            Self::Idle => row.idle_seconds,
            Self::Runtime => row.runtime_seconds(),
            _ => None,
        }
    }

    /// Returns the text of a table cell, which the caller must escape and shorten. Returns `None` if the value is
    /// unknown, or if another function formats the field (charts and long texts).
    pub fn text(self, row: &ProcessRow<'_>) -> Option<String> {
        let process = row.process.ok();
        match self {
            Self::Gpu => row.place_on_gpus(),
            Self::Pid => Some(
                process
                    .map_or_else(|| row.pid().unwrap_or_default().to_string(), Process::pid_text),
            ),
            Self::User => match row.user() {
                Some(user) => Some(user.to_string()),
                None => process?.uid.map(|uid| uid.to_string()),
            },
            Self::History => None,
            Self::SmPercent => self.number(row).map(|percent| percent.to_string()),
            Self::State => process?.state.map(|letter| match state_name(letter) {
                Some(name) => name.to_owned(),
                None => letter.to_string(),
            }),
            Self::Framework => process?.framework_text(),
            Self::Place => process?.place(),
            Self::Finding => match row.finding {
                Some(finding) => Some(badge(finding)),
                None => row.suspect.map(|suspect| suspect.mark.to_string()),
            },
            _ => self.number(row).map(|number| match self.spec().notation {
                Notation::Bytes | Notation::BytesOrShare => {
                    crate::units::Bytes(number as u64).to_string()
                }
                Notation::Seconds => Span::from_seconds(number).to_string(),
                Notation::Percent if number < 1000.0 => format!("{number:.1}"),
                _ => format!("{number:.0}"),
            }),
        }
    }
}

/// Formats a finding briefly: `IDLE 29m`, followed by ` +1` if the process has one more finding, and ` kept` if the
/// process is exempt.
pub fn badge(finding: &Finding) -> String {
    let mut text = finding.kind.to_string().to_uppercase();
    let span = Span::from_seconds(finding.duration_seconds).to_string();
    text.push(' ');
    // Keep only the largest unit, because the message states the exact duration.
    text.push_str(span.split(' ').next().unwrap_or_default());
    if !finding.also.is_empty() {
        text.push_str(&format!(" +{}", finding.also.len()));
    }
    if finding.kept_by.is_some() {
        text.push_str(" kept");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_one_line_and_every_column_its_own_rank() {
        for spec in FIELDS {
            assert_eq!(spec.field.spec().example, spec.example, "{:?}", spec.field);
            assert_eq!(spec.title.is_empty(), spec.letter == ' ' && spec.gives_way == 0);
        }
        let mut needs: Vec<usize> = ON_SCREEN.map(|field| field.spec().need).to_vec();
        needs.sort_unstable();
        assert_eq!(needs, (0..ON_SCREEN.len()).collect::<Vec<_>>());
    }
}
