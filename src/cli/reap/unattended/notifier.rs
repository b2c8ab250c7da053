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

/// The `schema` of what the command is told.
const SCHEMA: &str = "gpumem.notice/1";

/// What is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NoticeKind {
    /// It was found, and nothing will be done about it.
    Found,
    /// It was found, and will be ended.
    Warning,
    /// It will be ended shortly.
    LastWarning,
}

/// A notice about a finding, and its recipients.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Notice {
    pub(super) kind: NoticeKind,
    pub(super) time: Time,
    /// When it will be ended, if nothing changes.
    pub(super) acts_at: Option<Time>,
    pub(super) finding: Finding,
    pub(super) uid: Option<u32>,
    pub(super) host: Option<Arc<str>>,
    /// The command that is told.
    pub(super) command: Vec<Arc<str>>,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct NoticeResult {
    pub(super) notice: Notice,
    /// Why it was not delivered, where it was not.
    pub(super) result: Result<(), Undelivered>,
}

/// Why a notice was not delivered.
#[derive(Debug, thiserror::Error)]
pub(super) enum Undelivered {
    /// The notify command did not tell it.
    #[error(transparent)]
    Command(#[from] notify_command::NotifyError),
    #[error("[reap] has no notify command")]
    NoCommand,
}

impl Notice {
    /// For the command.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Kind as Finds;
    use crate::reclaim::testing::{at, finding, process};
    use std::fs;

    fn notice(command: &[&str]) -> Notice {
        let mut finding = finding(Finds::Idle, &process(70, "python train.py"));
        finding.message = "\u{1b}]0;x\u{7}train.py has been idle\nfor 2h".to_owned();
        Notice {
            kind: NoticeKind::Warning,
            time: at(0.0),
            acts_at: Some(at(960.0)),
            finding,
            uid: None,
            host: Some("node7".into()),
            command: command.iter().map(|&word| word.into()).collect(),
        }
    }

    #[test]
    fn the_command_gets_the_finding() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("told");
        let notice = notice(&["/bin/sh", "-c", "cat > \"$0\"", path.to_str().unwrap()]);
        notice.clone().deliver(notify_command::DEADLINE).result.unwrap();
        let json: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(json["schema"], "gpumem.notice/1");
        assert_eq!(json["notice"], "warning");
        assert_eq!(json["host"], "node7");
        assert_eq!(json["acts_at"], at(960.0).to_string());
        assert_eq!(json["finding"], serde_json::to_value(&notice.finding).unwrap());
    }

    #[test]
    fn a_command_that_fails_hangs_or_is_not_given_has_notified_no_owner() {
        let undelivered =
            |command: &[&str], patience| notice(command).deliver(patience).result.unwrap_err();
        let patience = notify_command::DEADLINE;
        assert!(matches!(undelivered(&["/bin/false"], patience), Undelivered::Command(_)));
        let hangs = undelivered(&["/bin/sleep", "600"], Duration::from_millis(200));
        assert!(
            matches!(hangs, Undelivered::Command(notify_command::NotifyError::Hangs { .. })),
            "{hangs:?}"
        );
        assert!(matches!(undelivered(&[], patience), Undelivered::NoCommand));
    }
}
