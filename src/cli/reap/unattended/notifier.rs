//! Notices: what is written to people about a finding, and a thread that sends it.
//!
//! Sending may take long, or hang: neither the rules nor the acts wait for it. The command runs
//! first; where it fails no one counts as notified, and no terminal is written to until it succeeds. Only what
//! was delivered counts: the command has succeeded, or a terminal of the owner has taken the whole text.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

use serde::Serialize;

use super::{ServiceEvent, notify_command, terminals};
use crate::model::Time;
use crate::model::finding::Finding;
use crate::model::json;
use crate::report::escape::escape;

/// The `schema` of what the command is told.
const SCHEMA: &str = "gpumem.notice/1";
/// A finding's sentence, on a terminal.
const LONGEST_MESSAGE: usize = 300;

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
    /// The owner's terminals are told.
    pub(super) to_terminals: bool,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct NoticeResult {
    pub(super) notice: Notice,
    /// How it was delivered; or why it was not.
    pub(super) result: Result<Delivery, Undelivered>,
}

/// What has delivered a notice; never nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Delivery {
    /// The notify command has succeeded.
    pub(super) command: bool,
    /// So many of the owner's terminals have taken it.
    pub(super) terminals: usize,
}

/// Why a notice was not delivered.
#[derive(Debug, thiserror::Error)]
pub(super) enum Undelivered {
    /// The notify command did not tell it.
    #[error(transparent)]
    Command(#[from] notify_command::NotifyError),
    /// There is no command, and the owner has no terminal that could be written to.
    #[error("no terminal of {0} accepted it, and [reap] has no notify command")]
    NoTerminal(String),
    /// There is no command, and terminals are not to be written to.
    #[error("[reap] has neither a notify command nor warn_terminal = true")]
    NoWay,
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

    /// For a terminal; harmless whatever the process is called.
    fn text(&self) -> String {
        let host = escape(self.host.as_deref().unwrap_or("this machine")).into_owned();
        let message = escape(&self.finding.message).into_owned();
        let message: String = message.chars().take(LONGEST_MESSAGE).collect();
        let what = match (self.kind, self.acts_at) {
            (NoticeKind::Found, _) | (_, None) => "Please stop it if it is not needed.".to_owned(),
            (NoticeKind::Warning | NoticeKind::LastWarning, Some(at)) => {
                let at = at.local();
                format!("It will be killed at {at} unless it is used before then.")
            }
        };
        // The terminal may be in any state: lines begin where they begin.
        format!("\r\n\u{7}gpumem on {host}: {message}\r\n{what}\r\n")
    }

    /// Delivers it, and gives what came of it.
    fn deliver(self, dev: &Path, deadline: Duration) -> NoticeResult {
        let result = self.try_deliver(dev, deadline);
        NoticeResult { notice: self, result }
    }

    /// By name, where it is known.
    fn owner(&self) -> String {
        let about = self.finding.process.as_ref();
        match (about.and_then(|it| it.user.as_ref()), self.uid) {
            (Some(user), _) => user.to_string(),
            (None, Some(uid)) => format!("uid {uid}"),
            (None, None) => "its owner (not known)".to_owned(),
        }
    }

    fn try_deliver(&self, dev: &Path, deadline: Duration) -> Result<Delivery, Undelivered> {
        notify_command::run(&self.command, &self.json(), deadline)?;
        let delivery = Delivery {
            command: !self.command.is_empty(),
            terminals: match self.uid {
                Some(uid) if self.to_terminals => terminals::write(dev, uid, &self.text()),
                _ => 0,
            },
        };
        match delivery {
            Delivery { command: false, terminals: 0 } if self.to_terminals => {
                Err(Undelivered::NoTerminal(self.owner()))
            }
            Delivery { command: false, terminals: 0 } => Err(Undelivered::NoWay),
            delivery => Ok(delivery),
        }
    }
}

/// Sends notices, one after another, until there are no more senders.
pub(super) fn run(notices: &Receiver<Notice>, events: &SyncSender<ServiceEvent>) {
    for notice in notices {
        let sent = notice.deliver(Path::new("/dev"), notify_command::DEADLINE);
        if events.send(ServiceEvent::Delivered(Box::new(sent))).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::reap::unattended::terminals::tests::Pty;
    use crate::model::Kind as Finds;
    use crate::reclaim::testing::{at, finding, process};
    use rustix::process::geteuid;
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
            to_terminals: true,
        }
    }

    #[test]
    fn the_command_gets_the_finding() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("told");
        let notice = notice(&["/bin/sh", "-c", "cat > \"$0\"", path.to_str().unwrap()]);
        let sent = notice.clone().deliver(folder.path(), notify_command::DEADLINE);
        let by_command = Delivery { command: true, terminals: 0 };
        assert_eq!(sent.result.unwrap(), by_command);
        let json: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(json["schema"], "gpumem.notice/1");
        assert_eq!(json["notice"], "warning");
        assert_eq!(json["host"], "node7");
        assert_eq!(json["acts_at"], at(960.0).to_string());
        assert_eq!(json["finding"], serde_json::to_value(&notice.finding).unwrap());
    }

    #[test]
    fn a_command_that_fails_has_notified_no_owner() {
        let sent =
            notice(&["/bin/false"]).deliver(Path::new("/nonexistent"), notify_command::DEADLINE);
        assert!(sent.result.is_err());
    }

    #[test]
    fn a_command_that_hangs_has_notified_no_owner_whatever_terminals_there_are() {
        let terminal = Pty::open();
        let mut notice = notice(&["/bin/sleep", "600"]);
        notice.uid = Some(geteuid().as_raw());
        let sent = notice.deliver(Path::new("/dev"), Duration::from_millis(200));
        let hangs = matches!(
            sent.result,
            Err(Undelivered::Command(notify_command::NotifyError::Hangs { .. }))
        );
        assert!(hangs, "{:?}", sent.result);
        assert_eq!(terminal.shown(), "");
    }

    #[test]
    fn without_a_command_and_a_terminal_no_owner_is_notified() {
        let nowhere = tempfile::tempdir().unwrap();
        let mut notice = notice(&[]);
        let error_of = |notice: &Notice| {
            let sent = notice.clone().deliver(nowhere.path(), notify_command::DEADLINE);
            sent.result.unwrap_err().to_string()
        };
        let without = "accepted it, and [reap] has no notify command";
        notice.uid = Some(geteuid().as_raw());
        assert_eq!(error_of(&notice), format!("no terminal of ann {without}"));
        if let Some(about) = &mut notice.finding.process {
            about.user = None;
        }
        let uid = geteuid().as_raw();
        assert_eq!(error_of(&notice), format!("no terminal of uid {uid} {without}"));
        notice.uid = None;
        let unknown_owner = "its owner (not known)";
        assert_eq!(error_of(&notice), format!("no terminal of {unknown_owner} {without}"));
        notice.to_terminals = false;
        assert!(error_of(&notice).contains("neither a notify command nor"));
    }

    #[test]
    fn what_a_terminal_is_sent_is_harmless_and_bounded() {
        let mut notice = notice(&[]);
        let text = notice.text();
        assert_eq!(
            text,
            format!(
                "\r\n\u{7}gpumem on node7: \\e]0;x\\u{{7}}train.py has been idle\\nfor 2h\r\nIt will be killed at {} unless it is used before then.\r\n",
                at(960.0).local()
            )
        );
        notice.finding.message = "\u{202e}".repeat(100_000);
        notice.kind = NoticeKind::Found;
        let text = notice.text();
        assert!(text.len() < 500 && text.contains("if it is not needed"), "{text}");
    }
}
