//! What a row says to each term of a filter: without making text, for it is asked of every row.

use super::{ANY, Field, Quantity, STATES, TERMS, Test, state_letter};
use crate::model::program::file_name;
use crate::model::snapshot::{Process, ProcessType};
use crate::watch::app::Me;
use crate::watch::picture::{Subject, notebook};

/// A text that is looked for, whatever the case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Needle {
    /// As it was typed.
    pub(super) typed: String,
    lower: String,
}

impl Needle {
    pub(super) fn new(typed: String) -> Self {
        let lower = typed.to_lowercase();
        Self { typed, lower }
    }

    fn is_in(&self, text: &str) -> bool {
        if self.lower.is_ascii() {
            let (text, part) = (text.as_bytes(), self.lower.as_bytes());
            return part.is_empty()
                || text
                    .windows(part.len())
                    .any(|window| window.eq_ignore_ascii_case(part));
        }
        text.to_lowercase().contains(&self.lower)
    }

    fn is(&self, text: &str) -> bool {
        if self.lower.is_ascii() {
            return text.eq_ignore_ascii_case(&self.lower);
        }
        text.to_lowercase() == self.lower
    }

    fn begins(&self, name: &str) -> bool {
        name.starts_with(&self.lower)
    }
}

impl Test {
    /// Whether a row fits; `None` where that is not known.
    pub(super) fn holds(&self, subject: &Subject<'_>, me: &Me) -> Option<bool> {
        match self {
            Self::Word(needle) => Some(says(subject, needle)),
            Self::Text { spec, whole, any } => {
                let field = TERMS[*spec].field;
                let mut known = false;
                for needle in any {
                    match field_fits(field, subject, me, needle, *whole) {
                        Some(true) => return Some(true),
                        Some(false) => known = true,
                        None => {}
                    }
                }
                known.then_some(false)
            }
            Self::Number { spec, sign, any } => {
                let (field, order) = (TERMS[*spec].field, sign.order());
                let mut known = false;
                for quantity in any {
                    let fits = match (field, sign.text()) {
                        (Field::Gpu, ":" | "=") => subject.is_on(quantity.number as u32),
                        (Field::Pid, ":" | "=") => Some(is_pid(subject, quantity.number as u32)),
                        _ => number(field, subject, quantity)
                            .map(|value| order.holds(value, quantity.number)),
                    };
                    match fits {
                        Some(true) => return Some(true),
                        Some(false) => known = true,
                        None => {}
                    }
                }
                known.then_some(false)
            }
        }
    }
}

fn is_pid(subject: &Subject<'_>, pid: u32) -> bool {
    let inner = subject.process.ok().and_then(|it| it.namespace_pid);
    subject.row.key.identity.pid == pid || inner == Some(pid)
}

fn number(field: Field, subject: &Subject<'_>, typed: &Quantity) -> Option<f64> {
    let row = subject.row;
    let process = subject.process.ok();
    match field {
        Field::Gpu => row.key.gpu.map(f64::from),
        Field::Pid => Some(f64::from(row.key.identity.pid)),
        Field::Memory if typed.is_share => subject.memory_percent(),
        Field::Memory => row.entry.used_bytes.map(|bytes| bytes as f64),
        Field::Sm => row.entry.sm_percent.map(f64::from),
        Field::Cpu => process?.cpu_percent,
        Field::Rss => process?.rss_bytes.map(|bytes| bytes as f64),
        Field::Idle => row.idle_seconds,
        Field::Runtime => row.runtime_seconds,
        _ => None,
    }
}

/// Whether the value of a field is, or has in it, what is looked for.
fn field_fits(
    field: Field,
    subject: &Subject<'_>,
    me: &Me,
    needle: &Needle,
    whole: bool,
) -> Option<bool> {
    let fits = |text: &str| {
        if whole {
            needle.is(text)
        } else {
            needle.is_in(text)
        }
    };
    let has = |text: Option<&str>| text.is_some_and(fits);
    match field {
        Field::Gpu => {
            let gpu = subject.gpu?;
            let part = subject.place_on_gpus();
            Some(has(gpu.name.as_deref()) || part.is_some_and(|part| needle.is(&part)))
        }
        Field::Finding => Some(subject.finding.is_some_and(|finding| {
            let also = finding.also.iter().map(|also| also.kind);
            needle.is(ANY)
                || std::iter::once(finding.kind)
                    .chain(also)
                    .any(|kind| needle.begins(kind.name()))
        })),
        Field::Kind if !subject.row.is_listed => None,
        Field::Kind => {
            let names: &[&str] = match subject.row.entry.kind {
                ProcessType::Compute => &["compute"],
                ProcessType::Graphics => &["graphics"],
                ProcessType::ComputeGraphics => &["compute", "graphics"],
                ProcessType::Mps => &["mps"],
                ProcessType::Other => &["other"],
            };
            Some(names.iter().any(|name| needle.begins(name)))
        }
        Field::Is if needle.begins("mine") => subject.is_of(me),
        Field::Is => Some(!subject.row.is_listed),
        _ => {
            let named;
            let process = match (subject.process, subject.ended()) {
                (Ok(process), _) => process,
                // What is left of one that has ended is its names.
                (Err(_), Some(ended))
                    if matches!(field, Field::User | Field::Command | Field::Name) =>
                {
                    named = ended.as_named();
                    &named
                }
                (Err(_), _) => return None,
            };
            match field {
                Field::User => match (process.user.as_deref(), process.uid) {
                    (Some(user), _) => Some(fits(user)),
                    (None, Some(uid)) => Some(needle.is(&uid.to_string())),
                    (None, None) => None,
                },
                Field::State => {
                    let state = process.state?;
                    Some(match state_letter(&needle.typed) {
                        Some(letter) => letter == state,
                        None => STATES
                            .iter()
                            .any(|&(name, letter)| letter == state && needle.begins(name)),
                    })
                }
                Field::Command => {
                    process.command.as_ref()?;
                    Some(command_fits(process, needle, whole))
                }
                _ => Some(labels(field, process).into_iter().any(has)),
            }
        }
    }
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
fn command_fits(process: &Process, needle: &Needle, whole: bool) -> bool {
    let words = process.command.as_deref().unwrap_or_default();
    if whole || needle.typed.contains(' ') {
        let line = words.join(" ");
        return if whole {
            needle.is(&line)
        } else {
            needle.is_in(&line)
        };
    }
    words.iter().any(|word| needle.is_in(word))
}

/// Whether a row says a word anywhere.
fn says(subject: &Subject<'_>, needle: &Needle) -> bool {
    let has = |text: Option<&str>| text.is_some_and(|text| needle.is_in(text));
    let is_digits = needle.typed.bytes().all(|b| b.is_ascii_digit());
    let pid = subject.row.key.identity.pid;
    if is_digits && needle.is_in(&pid.to_string()) {
        return true;
    }
    if has(subject.gpu.and_then(|gpu| gpu.name.as_deref())) {
        return true;
    }
    let kinds = subject.finding.into_iter().flat_map(|finding| {
        let also = finding.also.iter().map(|also| also.kind);
        std::iter::once(finding.kind).chain(also)
    });
    if kinds.into_iter().any(|kind| needle.is_in(kind.name())) {
        return true;
    }
    let named;
    let process = match (subject.process, subject.ended()) {
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
        || command_fits(process, needle, false)
        || fields
            .iter()
            .any(|&field| labels(field, process).into_iter().any(has))
}
