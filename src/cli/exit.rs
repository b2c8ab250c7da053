//! Exit codes, and the conversion of errors to exit codes.

use std::process::ExitCode;

use crate::reclaim::{executor, ledger};
use crate::{config, recording, rules, source, watch};

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub(super) String);

/// Error of `gpumem run` for a command that was not started.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct NotStarted {
    pub(super) exit: Exit,
    pub(super) reason: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// 0: success, and no findings.
    Clean,
    /// 1: a finding at or above `--fail-on`, or a request that was not achieved.
    Findings,
    /// 2: wrong usage or invalid configuration.
    Usage,
    /// 3: could not measure, for example because the driver is missing, or because a GPU was unreadable and nothing was
    /// found. All other errors also exit with 3.
    CannotMeasure,
    /// The exit code of a command that failed under `gpumem run`.
    Command(u8),
}

impl Exit {
    pub const fn code(self) -> u8 {
        match self {
            Self::Command(code) => code,
            Self::Clean => 0,
            Self::Findings => 1,
            Self::Usage => 2,
            Self::CannotMeasure => 3,
        }
    }

    /// Returns the worse result of two hosts. As on a single host, findings take precedence over "could not measure".
    pub(super) fn or_worse(self, other: Self) -> Self {
        let badness = |exit: &Self| match exit {
            Self::Clean => 0,
            Self::CannotMeasure => 1,
            Self::Command(_) | Self::Findings => 2,
            Self::Usage => 3,
        };
        if badness(&other) > badness(&self) { other } else { self }
    }

    pub fn from_error(error: &anyhow::Error) -> Self {
        for cause in error.chain() {
            if let Some(NotStarted { exit, .. }) = cause.downcast_ref() {
                return *exit;
            }
            if cause.is::<UsageError>()
                || cause.is::<config::ConfigError>()
                || cause.is::<rules::UnknownRule>()
                || matches!(cause.downcast_ref(), Some(watch::WatchError::NotATerminal))
            {
                return Self::Usage;
            }
            // Without the lock or the audit log, the request was not carried out. `chain` does not visit the error
            // inside a transparent error, so match both the wrapped and the plain ledger error.
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

    /// Returns [`Exit::Usage`] for a file or store that cannot be opened, and [`Exit::CannotMeasure`] for other errors.
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
