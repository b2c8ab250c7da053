//! Reads the values of fields. Avoids allocations, because a selector reads the fields of every row.

use std::cmp::Ordering;
use std::sync::Arc;

use super::needle::Needle;
use super::{ANY, Field, Notation, STATES, state_letter};
use crate::model::finding::Kind;
use crate::model::process::Slurm;
use crate::model::program::file_name;
use crate::model::row::{CurrentUser, ProcessRow, notebook};
use crate::model::snapshot::{Gpu, LastKnown, Process, ProcessType};

impl Field {
    /// Returns whether the GPU or pid field has this number. Returns `None` for other fields, or if the value is
    /// unknown.
    pub(in crate::model) fn is_number(self, row: &ProcessRow<'_>, number: u32) -> Option<bool> {
        match self {
            Self::Gpu => row.is_on(number),
            Self::Pid => {
                let inner = row.process.ok().and_then(|process| process.namespace_pid);
                Some(row.pid()? == number || inner == Some(number))
            }
            _ => None,
        }
    }

    /// Returns whether the field's value contains the needle or, if `whole` is set, equals it. Returns `None` if the
    /// value is unknown.
    pub(in crate::model) fn has(
        self,
        row: &ProcessRow<'_>,
        me: &CurrentUser,
        needle: &Needle,
        whole: bool,
    ) -> Option<bool> {
        let fits = |text: &str| needle.is_in_or_is(text, whole);
        match self {
            Self::Gpu => gpu_is(row, needle, whole),
            Self::Finding => {
                let fits = |kind: Kind| needle.equals(ANY) || needle.begins(kind.name());
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
            Self::User => by_names(row, |process| user_is(process, needle, whole)),
            Self::State => {
                let state = row.process.ok()?.state?;
                Some(match state_letter(needle.typed()) {
                    Some(letter) => letter == state,
                    None => {
                        STATES.iter().any(|&(name, letter)| letter == state && needle.begins(name))
                    }
                })
            }
            Self::Place => Some(row.process.ok()?.place().as_deref().is_some_and(fits)),
            Self::Command => by_names(row, |process| {
                process.command.as_ref()?;
                Some(command_has(process, needle, whole))
            }),
            _ => {
                let has = |process: &Process| {
                    if labels(self, process).into_iter().flatten().any(fits) {
                        return Some(true);
                    }
                    is_known(self, process).then_some(false)
                };
                match self {
                    Self::Name => by_names(row, has),
                    _ => has(row.process.ok()?),
                }
            }
        }
    }
}

fn by_names<T>(row: &ProcessRow<'_>, read: impl FnOnce(&Process) -> Option<T>) -> Option<T> {
    match (row.process, row.ended) {
        (Ok(process), _) => read(process),
        (Err(_), Some(ended)) => read(&ended.as_named()),
        (Err(_), None) => None,
    }
}

fn kinds(row: &ProcessRow<'_>) -> impl Iterator<Item = Kind> {
    row.finding.into_iter().flat_map(|finding| {
        let also = finding.also.iter().map(|also| also.kind);
        std::iter::once(finding.kind).chain(also)
    })
}

pub(super) fn is_known(field: Field, process: &Process) -> bool {
    match field {
        // If a process's file descriptors were readable, so was the list of its libraries.
        Field::Framework => process.framework.is_some() || process.gpu_files.is_some(),
        Field::Name => process.comm.is_some() || process.command.is_some(),
        // Notebook kernels are recognised by their command line.
        Field::Notebook => match &process.jupyter {
            Some(jupyter) => jupyter.notebook_path.is_some(),
            None => process.command.is_some(),
        },
        // All users can read a process's container, unit and job.
        _ => true,
    }
}

/// Returns whether the needle equals the owner's uid or matches the owner's name. With `whole`, the needle must equal
/// the name. This comparison is case-sensitive, because two accounts may differ only in case.
fn user_is(process: &Process, needle: &Needle, whole: bool) -> Option<bool> {
    let name = process.user.as_deref();
    let is_named = name.is_some_and(|name| match whole {
        true => needle.is_exactly(name),
        false => needle.is_in(name),
    });
    if is_named {
        return Some(true);
    }
    match needle.number() {
        Some(uid) => process.uid.map(|process_uid| process_uid == uid),
        None => name.map(|_| false),
    }
}

/// Returns whether the needle is the index, device file, UUID, MIG device or model name of the row's GPU, or of a GPU
/// whose device file the process has open. Returns `None` if the answer is unknown.
fn gpu_is(row: &ProcessRow<'_>, needle: &Needle, whole: bool) -> Option<bool> {
    if needle.typed().is_empty() {
        return Some(false);
    }
    if needle.numbers().is_some() || needle.device_number().is_some() {
        let is_on = |gpu: &Gpu| match is_numbered(gpu, needle) {
            Some(false) => Some(false),
            Some(true) => row.is_on(gpu.index),
            None => row.is_on(gpu.index).filter(|is_on| !is_on),
        };
        let on: Vec<Option<bool>> = row.snapshot.gpus.iter().map(is_on).collect();
        return match on.contains(&Some(true)) {
            true => Some(true),
            false => (!on.contains(&None)).then_some(false),
        };
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
    let named = gpu.name.as_deref().map(|name| needle.is_in_or_is(name, whole));
    let is_part = row.place_on_gpus().is_some_and(|part| needle.equals(&part));
    if is_part { Some(true) } else { named }
}

/// Returns whether the needle is the GPU's index or device file. Returns `None` if the answer is unknown, or if the
/// needle is neither an index nor a device file.
fn is_numbered(gpu: &Gpu, needle: &Needle) -> Option<bool> {
    match needle.numbers() {
        Some(indices) => Some(indices.contains(&gpu.index)),
        None => Some(needle.device_number()? == gpu.minor_number?),
    }
}

fn has_uuid(gpu: &Gpu, row: &ProcessRow<'_>, needle: &Needle, whole: bool) -> bool {
    let (gpu_instance, compute_instance) = row.instance();
    let part = gpu.mig_device(gpu_instance, compute_instance);
    let uuids = [gpu.uuid.as_deref(), part.and_then(|part| part.uuid.as_deref())];
    uuids.into_iter().flatten().any(|uuid| needle.is_uuid_of(uuid, whole))
}

/// Returns whether the needle names the whole GPU or, unless `all` is set, one of its MIG devices.
pub fn is_called(gpu: &Gpu, needle: &Needle, whole: bool, all: bool) -> bool {
    if needle.typed().is_empty() {
        return false;
    }
    if let Some(is_numbered) = is_numbered(gpu, needle) {
        return is_numbered;
    }
    let parts = || gpu.mig_devices.iter().filter(|_| !all);
    if needle.is_uuid() {
        let parts = parts().map(|part| part.uuid.as_deref());
        let mut uuids = parts.chain([gpu.uuid.as_deref()]).flatten();
        return uuids.any(|uuid| needle.is_uuid_of(uuid, whole));
    }
    let name = gpu.name.as_deref();
    name.is_some_and(|name| needle.is_in_or_is(name, whole))
        || parts().any(|part| needle.equals(&part.name_on(gpu.index)))
}

pub(in crate::model) fn labels(field: Field, process: &Process) -> [Option<&str>; 4] {
    match field {
        Field::Name => {
            let program = process.command.as_deref().and_then(|argv| argv.first());
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
                container.and_then(|container| container.name.as_deref()),
                container.and_then(|container| container.id.as_deref()),
                container.and_then(|container| container.runtime.as_deref()),
                pod.and_then(|pod| pod.container_name.as_deref()),
            ]
        }
        Field::Pod => {
            let pod = process.kubernetes.as_deref();
            [
                pod.and_then(|pod| pod.pod_name.as_deref()),
                pod.and_then(|pod| pod.pod_uid.as_deref()),
                pod.and_then(|pod| pod.namespace.as_deref()),
                None,
            ]
        }
        Field::Job => {
            let slurm = process.slurm.as_deref();
            [
                slurm.and_then(|slurm| slurm.job_id.as_deref()),
                slurm.and_then(|slurm| slurm.job_name.as_deref()),
                None,
                None,
            ]
        }
        Field::Unit => [process.systemd_unit.as_deref(), None, None, None],
        _ => [None; 4],
    }
}

fn library(process: &Process, position: usize) -> Option<&str> {
    process.libraries.as_deref()?.get(position).map(|name| &**name)
}

/// Returns whether the command line contains the needle. A needle with blanks or wildcards can match across words.
fn command_has(process: &Process, needle: &Needle, whole: bool) -> bool {
    let words = process.command.as_deref().unwrap_or_default();
    if whole || needle.is_pattern() || needle.typed().contains(' ') {
        return needle.is_in_or_is(&words.join(" "), whole);
    }
    words.iter().any(|word| needle.is_in(word))
}

pub(in crate::model) fn any_has(row: &ProcessRow<'_>, needle: &Needle) -> bool {
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
    let named;
    let process = match (row.process, row.ended) {
        (Ok(process), _) => process,
        (Err(_), Some(ended)) => {
            named = ended.as_named();
            &named
        }
        (Err(reason), None) => return needle.is_in(reason),
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
        || fields.iter().any(|&field| labels(field, process).into_iter().any(has))
}

/// Fields by which `ps --by` groups, in the order of the help text.
pub const GROUPED: [Field; 4] = [Field::User, Field::Job, Field::Container, Field::Framework];

/// Number of characters of a container id that are shown. Container runtimes show the same number.
const ID_CHARS: usize = 12;

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum GroupName {
    /// A name that a process may have chosen. Callers must escape it for a terminal.
    Named(String),
    /// The row is known to be in no group.
    None,
    Unknown,
}

impl Field {
    /// Returns the group of a row by this field, which must be in [`GROUPED`].
    pub fn group(self, row: &ProcessRow<'_>) -> GroupName {
        let name = match (self, row.process.ok()) {
            (Self::User, _) => self.text(row),
            (Self::Job, Some(process)) => process.slurm.as_deref().and_then(Slurm::id),
            (Self::Container, Some(process)) => {
                process.container.as_deref().and_then(|container| {
                    let id =
                        || container.id.as_deref().map(|id| id.chars().take(ID_CHARS).collect());
                    container.name.as_deref().map(str::to_owned).or_else(id)
                })
            }
            (Self::Framework, Some(process)) => process.framework.as_deref().map(str::to_owned),
            _ => None,
        };
        let has_none = |process: &Process| {
            let is_unnamed = match self {
                Self::Job => process.slurm.is_some(),
                Self::Container => process.container.is_some(),
                Self::User => true,
                _ => false,
            };
            is_known(self, process) && !is_unnamed
        };
        match name {
            Some(name) => GroupName::Named(name),
            None if row.process.is_ok_and(has_none) => GroupName::None,
            None => GroupName::Unknown,
        }
    }
}

// Rows are sorted by value rather than by formatted text. Unknown values come last in both directions.

#[derive(Clone, Debug)]
pub enum SortValue<'a> {
    Number(f64),
    Text(&'a str),
    Made(String),
    Words(&'a [Arc<str>]),
    Unknown,
}

impl<'a> SortValue<'a> {
    /// Returns the sort key of a row. `rank` is the position of the row's finding; a lower position results in a
    /// larger key.
    pub fn new(field: Field, row: &ProcessRow<'a>, rank: Option<usize>) -> Self {
        let process = row.process.ok();
        let text =
            |value: Option<&'a Arc<str>>| value.map_or(Self::Unknown, |text| Self::Text(text));
        match field {
            Field::User => text(row.user()),
            Field::Finding => rank.map_or(Self::Unknown, |rank| Self::Number(-(rank as f64))),
            Field::Command => match process {
                None => match row.ended {
                    Some(LastKnown { command: Some(words), .. }) => Self::Words(words),
                    ended => text(ended.and_then(|ended| ended.comm.as_ref())),
                },
                Some(process) => match (notebook(process), process.command.as_deref()) {
                    (Some(path), _) => Self::Text(path),
                    (None, Some(words)) if !words.is_empty() => Self::Words(words),
                    (None, _) => text(process.comm.as_ref()),
                },
            },
            _ => match (field.number(row), field.spec().notation) {
                (Some(number), _) => Self::Number(number),
                (None, Notation::Text) => field.text(row).map_or(Self::Unknown, Self::Made),
                (None, _) => Self::Unknown,
            },
        }
    }

    pub fn compare(&self, other: &Self, descending: bool) -> Ordering {
        let turn = |ordering: Ordering| match descending {
            true => ordering.reverse(),
            false => ordering,
        };
        match (self, other) {
            (Self::Unknown, Self::Unknown) => Ordering::Equal,
            (Self::Unknown, _) => Ordering::Greater,
            (_, Self::Unknown) => Ordering::Less,
            (Self::Number(left), Self::Number(right)) => turn(left.total_cmp(right)),
            _ => turn(self.words().cmp(other.words())),
        }
    }

    fn words(&self) -> impl Iterator<Item = &str> {
        let (one, many): (Option<&str>, &[Arc<str>]) = match self {
            Self::Text(text) => (Some(text), &[]),
            Self::Made(text) => (Some(text), &[]),
            Self::Words(words) => (None, words),
            Self::Number(_) | Self::Unknown => (None, &[]),
        };
        one.into_iter().chain(many.iter().map(|word| &**word))
    }
}
