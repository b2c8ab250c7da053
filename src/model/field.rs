//! The table of fields: what can be known of a row, what each is called, and what it says of a row.
//!
//! The [selector](super::selector) is parsed by it and the help shows it. A field answers yes, no or
//! nothing: what is not known is no evidence either way. A process that is resolved and in no container,
//! though, is known to be in none.

use super::finding::Kind;

mod needle;
mod read;

pub use needle::Needle;
pub(super) use read::any_has;
pub use read::is_called;

/// What can be asked of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// The owner.
    User,
    /// The GPU, or the part of it.
    Gpu,
    /// The process id.
    Pid,
    /// The program.
    Name,
    /// The command line.
    Command,
    /// The notebook that it is the kernel of.
    Notebook,
    /// What it computes with.
    Framework,
    /// The container that it runs in.
    Container,
    /// The Kubernetes pod.
    Pod,
    /// The Slurm job.
    Job,
    /// The systemd unit.
    Unit,
    /// What the scheduler says.
    State,
    /// What the rules found.
    Finding,
    /// Which of NVML's lists it is on.
    Kind,
    /// What else it can be.
    Is,
    /// Memory held on this GPU, in bytes.
    Memory,
    /// Use of the GPU's multiprocessors, in percent.
    Sm,
    /// Use of the CPU, in percent; one core is 100.
    Cpu,
    /// Resident host memory, in bytes.
    HostMemory,
    /// How long it has not used this GPU, in seconds.
    Idle,
    /// How long it has run, in seconds.
    Runtime,
}

/// How what is typed for a field is read and compared.
#[derive(Clone, Copy, Debug)]
pub enum Notation {
    /// A text, or a part of one.
    Text,
    /// One of some words, or the beginning of one.
    OneOf(fn() -> Vec<&'static str>),
    /// An index, a UUID, a part or a name.
    Gpu,
    /// A whole number.
    Number,
    /// A number, with or without `%`.
    Percent,
    /// A size with its unit.
    Bytes,
    /// A size, or a share of the GPU's memory.
    BytesOrShare,
    /// A duration with its unit.
    Seconds,
}

/// A field's line in the table.
#[derive(Clone, Copy, Debug)]
pub struct FieldSpec {
    /// What it may be called; the first is its name.
    pub names: &'static [&'static str],
    /// A term of it as it may be typed.
    pub example: &'static str,
    /// What it is.
    pub meaning: &'static str,
    /// How a value is typed.
    pub notation: Notation,
    /// Which it is.
    pub field: Field,
}

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
    }
}

/// Every field that can be asked for.
pub const FIELDS: [FieldSpec; 21] = {
    use Notation::{Bytes, BytesOrShare, Number, OneOf, Percent, Seconds, Text};
    [
        field(
            Field::User,
            &["user"],
            Text,
            "user:ann,bob",
            "the owner, by name or uid",
        ),
        field(
            Field::Gpu,
            &["gpu"],
            Notation::Gpu,
            "gpu:0",
            "the GPU's index, UUID (or its beginning), part (0:3) or name",
        ),
        field(
            Field::Pid,
            &["pid"],
            Number,
            "pid:4242",
            "the process id, here or in its container",
        ),
        field(Field::Name, &["name"], Text, "name:python", "the program"),
        field(
            Field::Command,
            &["command", "cmd"],
            Text,
            "command:train.py",
            "the command line",
        ),
        field(
            Field::Notebook,
            &["notebook"],
            Text,
            "notebook:a.ipynb",
            "the notebook",
        ),
        field(
            Field::Framework,
            &["framework"],
            Text,
            "framework:pytorch",
            "what it computes with",
        ),
        field(
            Field::Container,
            &["container"],
            Text,
            "container:bert",
            "the container",
        ),
        field(
            Field::Pod,
            &["pod"],
            Text,
            "pod:bert-0",
            "the pod or its namespace",
        ),
        field(Field::Job, &["job"], Text, "job:812", "the Slurm job"),
        field(
            Field::Unit,
            &["unit"],
            Text,
            "unit:vllm",
            "the systemd unit",
        ),
        field(
            Field::State,
            &["state"],
            OneOf(state_names),
            "state:stopped",
            "what the scheduler says",
        ),
        field(
            Field::Finding,
            &["finding"],
            OneOf(finding_names),
            "finding:idle",
            "what the rules found; any: anything",
        ),
        field(
            Field::Kind,
            &["kind", "type"],
            OneOf(|| KINDS.to_vec()),
            "kind:compute",
            "which of NVML's lists it is on",
        ),
        field(
            Field::Is,
            &["is"],
            OneOf(|| TRAITS.to_vec()),
            "is:mine",
            "mine, unlisted",
        ),
        field(
            Field::Memory,
            &["mem", "memory"],
            BytesOrShare,
            "mem>4GiB",
            "memory on the GPU, or its share (50%)",
        ),
        field(
            Field::Sm,
            &["sm"],
            Percent,
            "sm<5",
            "use of the GPU, in percent",
        ),
        field(
            Field::Cpu,
            &["cpu"],
            Percent,
            "cpu>100",
            "use of the CPU, in percent",
        ),
        field(
            Field::HostMemory,
            &["rss", "host"],
            Bytes,
            "rss>1GiB",
            "host memory",
        ),
        field(
            Field::Idle,
            &["idle"],
            Seconds,
            "idle>10m",
            "how long it is idle",
        ),
        field(
            Field::Runtime,
            &["runtime", "time"],
            Seconds,
            "runtime>2h",
            "how long it has run",
        ),
    ]
};

/// The states by the word that is typed and shown, and the kernel's letter.
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
/// NVML's lists.
const KINDS: [&str; 4] = ["compute", "graphics", "mps", "other"];
/// What a process can be.
const TRAITS: [&str; 2] = ["mine", "unlisted"];
/// Fits whatever the rules found.
const ANY: &str = "any";

fn state_names() -> Vec<&'static str> {
    STATES.map(|(name, _)| name).to_vec()
}

fn finding_names() -> Vec<&'static str> {
    let kinds = Kind::ALL.iter().map(|kind| kind.name());
    kinds.chain([ANY]).collect()
}

/// What a state is called; `None` of a letter that no kernel of today has.
pub fn state_name(letter: char) -> Option<&'static str> {
    let mut states = STATES.iter();
    states
        .find(|(_, state)| *state == letter)
        .map(|(name, _)| *name)
}

/// The state that a single letter is; `T` is stopped and `t` traced, as for ps.
fn state_letter(value: &str) -> Option<char> {
    let mut chars = value.chars();
    let letter = chars.next()?;
    let is_state = STATES.iter().any(|&(_, state)| state == letter);
    (chars.next().is_none() && is_state).then_some(letter)
}

impl FieldSpec {
    /// Whether `value` can be the value of this field; else those that can.
    pub(super) fn allows(&self, value: &str) -> Result<(), Vec<&'static str>> {
        let Notation::OneOf(words) = self.notation else {
            return Ok(());
        };
        let needle = Needle::new(value);
        let is_letter = self.field == Field::State && state_letter(value).is_some();
        let words = words();
        if is_letter || words.iter().any(|word| needle.begins(word)) {
            return Ok(());
        }
        Err(words)
    }
}

impl Field {
    /// Its line in the table.
    pub fn spec(self) -> &'static FieldSpec {
        let at = FIELDS.iter().position(|spec| spec.field == self);
        // A test holds that every field has one.
        &FIELDS[at.unwrap_or_default()]
    }
}
