//! The table of fields: what can be known of a row, what each is called, and what it says of a row.
//!
//! The [selector](super::selector) is parsed by it and the help shows it. A field answers yes, no or
//! nothing: what is not known is no evidence either way. A process that is resolved and in no container,
//! though, is known to be in none.

use super::finding::Kind;
use super::program::file_name;
use super::row::{Me, ProcessRow, notebook};
use super::snapshot::{Gpu, Process, ProcessType};

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

/// A text that is looked for, whatever the case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Needle {
    typed: String,
    lower: String,
}

impl Needle {
    /// What was typed.
    pub fn new(typed: impl Into<String>) -> Self {
        let typed = typed.into();
        let lower = typed.to_lowercase();
        Self { typed, lower }
    }

    /// As it was typed.
    pub fn typed(&self) -> &str {
        &self.typed
    }

    /// Whether a text has it in it.
    pub fn is_in(&self, text: &str) -> bool {
        if self.lower.is_ascii() {
            let (text, part) = (text.as_bytes(), self.lower.as_bytes());
            return part.is_empty()
                || text
                    .windows(part.len())
                    .any(|window| window.eq_ignore_ascii_case(part));
        }
        text.to_lowercase().contains(&self.lower)
    }

    /// Whether a text is it.
    pub fn is(&self, text: &str) -> bool {
        if self.lower.is_ascii() {
            return text.eq_ignore_ascii_case(&self.lower);
        }
        text.to_lowercase() == self.lower
    }

    fn is_in_or_is(&self, text: &str, whole: bool) -> bool {
        if whole {
            self.is(text)
        } else {
            self.is_in(text)
        }
    }

    /// Whether a word, in whichever case, begins with it.
    fn begins(&self, word: &str) -> bool {
        word.get(..self.lower.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(&self.lower))
    }

    /// The number that it is.
    fn number(&self) -> Option<u32> {
        let is_digits = self.typed.bytes().all(|byte| byte.is_ascii_digit());
        self.typed.parse().ok().filter(|_| is_digits)
    }

    /// Whether a UUID is it, or begins with it.
    fn is_uuid_of(&self, uuid: &str, whole: bool) -> bool {
        if whole {
            self.is(uuid)
        } else {
            self.begins(uuid)
        }
    }

    /// Whether it can only be meant as a UUID.
    pub fn is_uuid(&self) -> bool {
        self.lower.starts_with("gpu-") || self.lower.starts_with("mig-")
    }
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

    /// Its value as a number: bytes, percent, seconds. `is_share`: as a share of the whole, in percent.
    pub(super) fn number(self, row: &ProcessRow<'_>, is_share: bool) -> Option<f64> {
        let process = row.process.ok();
        match self {
            Self::Gpu => row.gpu.map(|gpu| f64::from(gpu.index)),
            Self::Pid => row.pid().map(f64::from),
            Self::Memory if is_share => row.memory_percent(),
            Self::Memory => row.used_bytes().map(|bytes| bytes as f64),
            Self::Sm => row.entry?.sm_percent.map(f64::from),
            Self::Cpu => process?.cpu_percent,
            Self::HostMemory => process?.rss_bytes.map(|bytes| bytes as f64),
            Self::Idle => row.idle_seconds,
            Self::Runtime => row.runtime_seconds(),
            _ => None,
        }
    }

    /// Whether its value is this number, where it is one that names something.
    pub(super) fn is_number(self, row: &ProcessRow<'_>, number: u32) -> Option<bool> {
        match self {
            Self::Gpu => row.is_on(number),
            Self::Pid => {
                let inner = row.process.ok().and_then(|it| it.namespace_pid);
                Some(row.pid()? == number || inner == Some(number))
            }
            _ => None,
        }
    }

    /// Whether its value is, or has in it, what is looked for; `None` where that is not known.
    pub(super) fn has(
        self,
        row: &ProcessRow<'_>,
        me: &Me,
        needle: &Needle,
        whole: bool,
    ) -> Option<bool> {
        let fits = |text: &str| needle.is_in_or_is(text, whole);
        match self {
            Self::Gpu => gpu_is(row, needle, whole),
            Self::Finding => {
                let fits = |kind: Kind| needle.is(ANY) || needle.begins(kind.name());
                Some(kinds(row).any(fits))
            }
            Self::Kind => {
                let names: &[&str] = match row.entry?.kind {
                    ProcessType::Compute => &["compute"],
                    ProcessType::Graphics => &["graphics"],
                    ProcessType::ComputeGraphics => &["compute", "graphics"],
                    ProcessType::Mps => &["mps"],
                    ProcessType::Other => &["other"],
                };
                Some(names.iter().any(|name| needle.begins(name)))
            }
            Self::Is if needle.begins("mine") => row.is_of(me),
            Self::Is => row.identity.map(|_| !row.is_listed()),
            Self::User => user_is(row.process.ok()?, needle, whole),
            Self::State => {
                let state = row.process.ok()?.state?;
                Some(match state_letter(needle.typed()) {
                    Some(letter) => letter == state,
                    None => STATES
                        .iter()
                        .any(|&(name, letter)| letter == state && needle.begins(name)),
                })
            }
            Self::Command => {
                let process = row.process.ok()?;
                process.command.as_ref()?;
                Some(command_has(process, needle, whole))
            }
            _ => {
                let process = row.process.ok()?;
                if labels(self, process).into_iter().flatten().any(fits) {
                    return Some(true);
                }
                is_known(self, process).then_some(false)
            }
        }
    }
}

/// What the rules found of a row.
fn kinds(row: &ProcessRow<'_>) -> impl Iterator<Item = Kind> {
    row.finding.into_iter().flat_map(|finding| {
        let also = finding.also.iter().map(|also| also.kind);
        std::iter::once(finding.kind).chain(also)
    })
}

/// Whether that a process lacks a label of a field is known.
fn is_known(field: Field, process: &Process) -> bool {
    match field {
        // Whose descriptors may be read, its libraries were read as well.
        Field::Framework => process.framework.is_some() || process.gpu_files.is_some(),
        Field::Name => process.comm.is_some() || process.command.is_some(),
        // A kernel is told by its command line.
        Field::Notebook => match &process.jupyter {
            Some(jupyter) => jupyter.notebook_path.is_some(),
            None => process.command.is_some(),
        },
        // Anybody may read in which container, unit or job a process is.
        _ => true,
    }
}

/// Whether an account's name is, or has in it, what is looked for, or its uid is it. Two accounts may
/// differ by case alone, so that a whole name is compared with it.
fn user_is(process: &Process, needle: &Needle, whole: bool) -> Option<bool> {
    let name = process.user.as_deref();
    let is_named = name.is_some_and(|name| match whole {
        true => name == needle.typed(),
        false => needle.is_in(name),
    });
    if is_named {
        return Some(true);
    }
    match needle.number() {
        Some(uid) => process.uid.map(|own| own == uid),
        None => name.map(|_| false),
    }
}

/// Whether a row's GPU, or one that it holds open, is called so: by its UUID or the beginning of it, by
/// its part, or by its name.
fn gpu_is(row: &ProcessRow<'_>, needle: &Needle, whole: bool) -> Option<bool> {
    if needle.typed.is_empty() {
        return Some(false);
    }
    if let Some(index) = needle.number() {
        return row.is_on(index);
    }
    if needle.is_uuid() {
        let mut answer = Some(false);
        for gpu in &row.snapshot.gpus {
            match row.is_on(gpu.index) {
                Some(true) if has_uuid(gpu, row, needle, whole) => return Some(true),
                Some(true) if gpu.uuid.is_some() => {}
                Some(false) => {}
                _ => answer = None,
            }
        }
        return answer;
    }
    let gpu = row.gpu?;
    let named = gpu
        .name
        .as_deref()
        .map(|name| needle.is_in_or_is(name, whole));
    let is_part = row.place_on_gpus().is_some_and(|part| needle.is(&part));
    if is_part { Some(true) } else { named }
}

fn has_uuid(gpu: &Gpu, row: &ProcessRow<'_>, needle: &Needle, whole: bool) -> bool {
    let (gpu_instance, compute_instance) = row.instance();
    let part = gpu.mig_device(gpu_instance, compute_instance);
    let uuids = [
        gpu.uuid.as_deref(),
        part.and_then(|part| part.uuid.as_deref()),
    ];
    uuids
        .into_iter()
        .flatten()
        .any(|uuid| needle.is_uuid_of(uuid, whole))
}

/// Whether a GPU is called so, or a part of it unless `all` of it is meant.
pub fn is_called(gpu: &Gpu, needle: &Needle, whole: bool, all: bool) -> bool {
    if needle.typed.is_empty() {
        return false;
    }
    if let Some(index) = needle.number() {
        return gpu.index == index;
    }
    let parts = || gpu.mig_devices.iter().filter(|_| !all);
    if needle.is_uuid() {
        let parts = parts().map(|part| part.uuid.as_deref());
        let mut uuids = parts.chain([gpu.uuid.as_deref()]).flatten();
        return uuids.any(|uuid| needle.is_uuid_of(uuid, whole));
    }
    let name = gpu.name.as_deref();
    name.is_some_and(|name| needle.is_in_or_is(name, whole))
        || parts().any(|part| needle.is(&part.name_on(gpu.index)))
}

/// The texts that a process has for a field.
fn labels(field: Field, process: &Process) -> [Option<&str>; 4] {
    match field {
        Field::Name => {
            let program = process.command.as_deref().and_then(|it| it.first());
            [
                process.comm.as_deref(),
                process.executable.as_deref().map(file_name),
                program.map(|path| file_name(path)),
                None,
            ]
        }
        Field::Notebook => [notebook(process), None, None, None],
        Field::Framework => [
            process.framework.as_deref(),
            process.framework_version.as_deref(),
            library(process, 0),
            library(process, 1),
        ],
        Field::Container => {
            let container = process.container.as_deref();
            let pod = process.kubernetes.as_deref();
            [
                container.and_then(|it| it.name.as_deref()),
                container.and_then(|it| it.id.as_deref()),
                container.and_then(|it| it.runtime.as_deref()),
                pod.and_then(|it| it.container_name.as_deref()),
            ]
        }
        Field::Pod => {
            let pod = process.kubernetes.as_deref();
            [
                pod.and_then(|it| it.pod_name.as_deref()),
                pod.and_then(|it| it.pod_uid.as_deref()),
                pod.and_then(|it| it.namespace.as_deref()),
                None,
            ]
        }
        Field::Job => {
            let slurm = process.slurm.as_deref();
            [
                slurm.and_then(|it| it.job_id.as_deref()),
                slurm.and_then(|it| it.job_name.as_deref()),
                None,
                None,
            ]
        }
        Field::Unit => [process.systemd_unit.as_deref(), None, None, None],
        _ => [None; 4],
    }
}

/// What a process has loaded beside its framework, by its place in the list.
fn library(process: &Process, place: usize) -> Option<&str> {
    process.libraries.as_deref()?.get(place).map(|it| &**it)
}

/// Whether the command line has it in one of its words; across words, where there are blanks in it.
fn command_has(process: &Process, needle: &Needle, whole: bool) -> bool {
    let words = process.command.as_deref().unwrap_or_default();
    if whole || needle.typed().contains(' ') {
        return needle.is_in_or_is(&words.join(" "), whole);
    }
    words.iter().any(|word| needle.is_in(word))
}

/// Whether a row has a word anywhere.
pub(super) fn any_has(row: &ProcessRow<'_>, needle: &Needle) -> bool {
    let has = |text: Option<&str>| text.is_some_and(|text| needle.is_in(text));
    let is_digits = needle.typed().bytes().all(|b| b.is_ascii_digit());
    let in_pid = |pid: u32| is_digits && needle.is_in(&pid.to_string());
    if row.pid().is_some_and(in_pid) {
        return true;
    }
    if has(row.gpu.and_then(|gpu| gpu.name.as_deref())) {
        return true;
    }
    if kinds(row).any(|kind| needle.is_in(kind.name())) {
        return true;
    }
    let process = match row.process {
        Ok(process) => process,
        Err(reason) => return needle.is_in(reason),
    };
    let fields = [
        Field::Name,
        Field::Notebook,
        Field::Framework,
        Field::Container,
        Field::Pod,
        Field::Job,
        Field::Unit,
    ];
    has(process.user.as_deref())
        || command_has(process, needle, false)
        || fields
            .iter()
            .any(|&field| labels(field, process).into_iter().any(has))
}
