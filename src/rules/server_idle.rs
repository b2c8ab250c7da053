//! `server-idle`: an inference server holds memory on a GPU and got no request.
//!
//! Evaluated like [`idle`], for the processes that `idle` skips because waiting is their work: those that look
//! like an inference server and are not known not to listen, and those that work for one. The memory may be
//! wanted, so this is reported and no action ends the server.

use super::idle::{self, DEFAULTS, DURATION, IdleEvidence, MAX_CPU_PERCENT, MIN_MEMORY};
use super::rule::{RuleKind, SEVERITY, Settings};
use crate::model::finding::{Kind, Severity};

/// As `idle`, without notebooks, which serve no clients.
pub static KIND: RuleKind = RuleKind {
    process: idle::judge,
    ..RuleKind::new::<IdleEvidence>(
        Kind::ServerIdle,
        "an inference server holds memory on a GPU and has not used it for the duration",
        &[MIN_MEMORY, DURATION, MAX_CPU_PERCENT, SEVERITY],
        Settings { severity: Severity::Info, ..DEFAULTS },
    )
};

#[cfg(test)]
mod tests;
