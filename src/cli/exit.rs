//! Exit codes, and which one a failure ends with.

use std::process::ExitCode;

use crate::reclaim::{executor, ledger};
use crate::{config, recording, rules, source, watch};

/// An error in the command line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub(super) String);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// 0: done, and nothing found.
    Clean,
    /// 1: a finding at or above `--fail-on`, a limit exceeded, a new holder, or memory not free in time; of `reap`,
    /// a target could not be terminated, or its memory was not freed.
    Findings,
    /// 2: wrong usage or configuration.
    Usage,
    /// 3: could not measure: no driver, or a GPU that cannot be read and nothing found.
    CannotMeasure,
    /// The exit code of a command that failed under `run`.
    Command(u8),
}

impl Exit {
    /// The number.
    pub const fn code(self) -> u8 {
        match self {
            Self::Command(code) => code,
            Self::Clean => 0,
            Self::Findings => 1,
            Self::Usage => 2,
            Self::CannotMeasure => 3,
        }
    }

    /// The worse of the results of two machines: findings before "could not measure", as for one
    /// machine.
    pub(super) fn or_worse(self, other: Self) -> Self {
        let badness = |exit: &Self| match exit {
            Self::Clean => 0,
            Self::CannotMeasure => 1,
            Self::Command(_) | Self::Findings => 2,
            Self::Usage => 3,
        };
        if badness(&other) > badness(&self) { other } else { self }
    }

    /// The exit code of a failure: usage errors, or "could not measure".
    pub fn of(error: &anyhow::Error) -> Self {
        for cause in error.chain() {
            if cause.is::<UsageError>()
                || cause.is::<config::ConfigError>()
                || cause.is::<rules::UnknownRule>()
                || matches!(cause.downcast_ref(), Some(watch::WatchError::NotATerminal))
            {
                return Self::Usage;
            }
            // What was asked for was not done.
            // A transparent error stands in the chain in place of the one it wraps.
            let ledger = match cause.downcast_ref() {
                Some(executor::ExecutorError::Lock(_)) => return Self::Findings,
                Some(executor::ExecutorError::Ledger(error)) => Some(error),
                None => cause.downcast_ref(),
            };
            if let Some(ledger::LedgerError::Open { .. } | ledger::LedgerError::Write { .. }) =
                ledger
            {
                return Self::Findings;
            }
            if let Some(source::SourceError::Recording(error)) = cause.downcast_ref() {
                return Self::of_recording(error);
            }
            if let Some(error) = cause.downcast_ref::<recording::RecordingError>() {
                return Self::of_recording(error);
            }
        }
        Self::CannotMeasure
    }

    /// A wrong file name is a usage error; a file that cannot be read or written is "could not
    /// measure".
    fn of_recording(error: &recording::RecordingError) -> Self {
        use recording::RecordingError as E;
        match error {
            E::Open { .. }
            | E::Directory { .. }
            | E::Create { .. }
            | E::Compressed { .. }
            | E::StoreUnwritable { .. }
            | E::StoreUnreadable { .. } => Self::Usage,
            _ => Self::CannotMeasure,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
