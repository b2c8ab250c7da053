//! Notices: what is written to people about a finding, and a thread that sends it.
//!
//! Sending may take long, or hang: neither the rules nor the acts wait for it. An
//! owner counts as notified only when the notify command has succeeded.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

use serde::Serialize;

use super::{ServiceEvent, notify_command};
use crate::model::Time;
use crate::model::finding::Finding;
use crate::model::json;

/// The `schema` of a notice.
const SCHEMA: &str = "gpumem.notice/1";

/// Kind of a notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NoticeKind {
    /// A finding that will not be acted on.
    Found,
    /// A finding whose process will be ended.
    Warning,
    /// The process will be ended shortly.
    LastWarning,
}

/// A notice about a finding, and its recipients.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Notice {
    pub(super) kind: NoticeKind,
    pub(super) time: Time,
    /// When the process will be ended, if nothing changes.
    pub(super) acts_at: Option<Time>,
    pub(super) finding: Finding,
    pub(super) uid: Option<u32>,
    pub(super) host: Option<Arc<str>>,
    /// The notify command.
    pub(super) command: Vec<Arc<str>>,
}

/// Result of a notice.
#[derive(Debug)]
pub(super) struct NoticeResult {
    pub(super) notice: Notice,
    /// Why it was not delivered, if it was not.
    pub(super) result: Result<(), Undelivered>,
}

/// Why a notice was not delivered.
#[derive(Debug, thiserror::Error)]
pub(super) enum Undelivered {
    /// The notify command failed.
    #[error(transparent)]
    Command(#[from] notify_command::NotifyError),
    #[error("[reap] has no notify command")]
    NoCommand,
}

impl Notice {
    /// The document for the command.
    fn json(&self) -> Vec<u8> {
        #[derive(Serialize)]
        struct NoticeDocument<'a> {
            schema: &'static str,
            notice: NoticeKind,
            time: Time,
            host: Option<&'a str>,
            uid: Option<u32>,
            acts_at: Option<Time>,
            finding: &'a Finding,
        }
        let document = NoticeDocument {
            schema: SCHEMA,
            notice: self.kind,
            time: self.time,
            host: self.host.as_deref(),
            uid: self.uid,
            acts_at: self.acts_at,
            finding: &self.finding,
        };
        // Plain data is always JSON.
        let mut line = Vec::new();
        let _ = json::append(&mut line, &document);
        line.push(b'\n');
        line
    }

    /// Delivers it, and gives the result.
    fn deliver(self, deadline: Duration) -> NoticeResult {
        let result = match self.command.is_empty() {
            true => Err(Undelivered::NoCommand),
            false => notify_command::run(&self.command, &self.json(), deadline).map_err(Into::into),
        };
        NoticeResult { notice: self, result }
    }
}

/// Sends notices, one after another, until there are no more senders.
pub(super) fn run(notices: &Receiver<Notice>, events: &SyncSender<ServiceEvent>) {
    for notice in notices {
        let sent = notice.deliver(notify_command::DEADLINE);
        if events.send(ServiceEvent::Delivered(Box::new(sent))).is_err() {
            return;
        }
    }
}
