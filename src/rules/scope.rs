//! Whom an override is for.

use std::fmt;
use std::sync::Arc;

use crate::model::{Process, Time};

/// So much of a command line is compared.
const LONGEST_COMMAND: usize = 4096;

/// Whom an override is for: everything named has to fit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scope {
    /// The owner's name.
    pub user: Option<Arc<str>>,
    /// The whole command line, arguments joined by spaces; `*` stands for any text.
    pub command: Option<Arc<str>>,
    /// The GPU.
    pub gpu: Option<GpuName>,
    /// `pytorch`, `tensorflow` …, as a snapshot names it.
    pub framework: Option<Arc<str>>,
}

/// A GPU by its index or its uuid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GpuName {
    /// NVML's index.
    Index(u32),
    /// `"GPU-…"`.
    Uuid(Arc<str>),
}

impl fmt::Display for GpuName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, "{index}"),
            Self::Uuid(uuid) => f.write_str(uuid),
        }
    }
}

impl Scope {
    /// Whether it names nobody, and so would be for everybody.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it is for this one. What is not known fits nothing.
    pub fn fits(&self, whom: &Whom<'_>) -> bool {
        let is = |wanted: &Option<Arc<str>>, known: fn(&Process) -> Option<&Arc<str>>| {
            wanted.is_none() || wanted.as_ref() == whom.process.and_then(known)
        };
        is(&self.user, |process| process.user.as_ref())
            && is(&self.framework, |process| process.framework.as_ref())
            && self.gpu.as_ref().is_none_or(|gpu| match gpu {
                GpuName::Index(wanted) => *wanted == whom.index,
                GpuName::Uuid(wanted) => Some(&**wanted) == whom.uuid,
            })
            && self.command.as_ref().is_none_or(|pattern| {
                whom.process
                    .and_then(command_line)
                    .is_some_and(|line| matches(pattern, &line))
            })
    }
}

/// Whom and when a rule is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Whom<'a> {
    /// The process; `None` where it is about a GPU.
    pub process: Option<&'a Process>,
    /// The GPU, by NVML's index.
    pub index: u32,
    /// The same by its uuid.
    pub uuid: Option<&'a str>,
    /// What the process holds there.
    pub held_bytes: Option<u64>,
    /// The snapshot's time.
    pub time: Time,
}

fn command_line(process: &Process) -> Option<String> {
    let Some(command) = process
        .command
        .as_ref()
        .filter(|command| !command.is_empty())
    else {
        return process.comm.as_deref().map(str::to_owned);
    };
    let mut line = String::new();
    for argument in command.iter() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(argument);
        if line.len() > LONGEST_COMMAND {
            let mut end = LONGEST_COMMAND;
            while !line.is_char_boundary(end) {
                end -= 1;
            }
            line.truncate(end);
            break;
        }
    }
    Some(line)
}

/// Whether the whole of `text` fits `pattern`, in which `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    // There is always a first part; without a star it is the whole.
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    // The leftmost place of each part leaves the most for those after it.
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, text, expected) in [
            ("python train.py", "python train.py", true),
            ("python train.py", "python train.py --x", false),
            ("python *", "python train.py", true),
            ("*train*", "python train.py", true),
            ("*train.py", "python train.py", true),
            ("*", "", true),
            ("", "", true),
            ("", "x", false),
            ("a*b*c", "a1b2b3c", true),
            ("a*bc*c", "abc", false),
            ("ab*ba", "aba", false),
            ("**x**", "x", true),
            ("日*", "日本", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn everything_named_has_to_fit_and_the_unknown_fits_nothing() {
        let process = Process {
            user: Some("ann".into()),
            framework: Some("pytorch".into()),
            command: Some(["python".into(), "train.py".into()].into()),
            ..Process::default()
        };
        let whom = Whom {
            process: Some(&process),
            index: 1,
            uuid: Some("GPU-1"),
            held_bytes: None,
            time: Time::default(),
        };
        let fits = |scope: Scope| scope.fits(&whom);
        let ann = Scope {
            user: Some("ann".into()),
            ..Scope::default()
        };
        assert!(fits(ann.clone()));
        assert!(fits(Scope {
            command: Some("python*".into()),
            ..ann.clone()
        }));
        assert!(!fits(Scope {
            framework: Some("jax".into()),
            ..ann.clone()
        }));
        assert!(fits(Scope {
            gpu: Some(GpuName::Index(1)),
            ..ann.clone()
        }));
        assert!(!fits(Scope {
            gpu: Some(GpuName::Index(0)),
            ..ann.clone()
        }));
        assert!(fits(Scope {
            gpu: Some(GpuName::Uuid("GPU-1".into())),
            ..ann.clone()
        }));
        let nobody = Process::default();
        let nobody = Whom {
            process: Some(&nobody),
            ..whom
        };
        assert!(!ann.fits(&nobody));
        let any_command = Scope {
            command: Some("*".into()),
            ..Scope::default()
        };
        assert!(!any_command.fits(&nobody));
    }

    #[test]
    fn a_long_command_line_is_cut_between_characters() {
        let process = Process {
            command: Some(vec![Arc::from("é".repeat(1 << 20)); 4].into()),
            ..Process::default()
        };
        assert_eq!(command_line(&process).unwrap().len(), LONGEST_COMMAND);
    }
}
