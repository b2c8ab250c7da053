//! Creates notices about findings, chooses their recipients and times, and retries failed deliveries.

use std::sync::Arc;

use serde::Serialize;

use super::{PendingRetry, RETRY_SECONDS, ReapScheduler, System, is_seen};
use crate::config::reap::Response;
use crate::host::read_time;
use crate::model::finding::Finding;
use crate::model::{Time, json};
use crate::reclaim::park::journal::ParkRecord;
use crate::reclaim::warnings::WarningDue;
use crate::report::escape::escape;

const SCHEMA: &str = "gpumem.notice/1";

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NoticeKind {
    /// No process will be ended or parked.
    Found,
    /// The finding's process will be ended or parked.
    Warning,
    LastWarning,
}

/// A notice. The notify command gets it as a JSON document.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Notice {
    schema: &'static str,
    #[serde(rename = "notice")]
    pub kind: NoticeKind,
    pub time: Time,
    pub host: Option<Arc<str>>,
    pub uid: Option<u32>,
    /// When the process will be ended or parked, unless the finding ends earlier. `None` if neither will happen.
    pub acts_at: Option<Time>,
    /// The command that brings the memory back, if the process will be parked and not ended.
    pub restore: Option<String>,
    pub finding: Finding,
    #[serde(skip)]
    pub command: Vec<Arc<str>>,
}

impl Notice {
    pub fn json(&self) -> Vec<u8> {
        let mut line = Vec::new();
        // Writing to a vector cannot fail.
        let _ = json::append(&mut line, self);
        line.push(b'\n');
        line
    }
}

/// Returns the JSON document that tells the owner of a parked notebook why it cannot be restored.
pub fn no_room_json(record: &ParkRecord, host: Option<&str>, why: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct NoRoomDocument<'a> {
        schema: &'static str,
        notice: &'static str,
        time: Time,
        host: Option<&'a str>,
        uid: u32,
        restore: String,
        message: String,
    }
    let process = &record.process;
    let name = process.notebook.as_ref().unwrap_or(&process.name);
    let document = NoRoomDocument {
        schema: SCHEMA,
        notice: "no_room",
        time: read_time(),
        host,
        uid: process.uid,
        restore: format!("gpumem unpark {}", process.pid),
        message: escape(&format!("{name} is parked and runs a cell, which waits: {why}")).into(),
    };
    let mut line = Vec::new();
    let _ = json::append(&mut line, &document);
    line.push(b'\n');
    line
}

impl ReapScheduler {
    pub(super) fn warn(
        &mut self,
        finding: &Finding,
        is_of_end: bool,
        now: Time,
        system: &mut dyn System,
    ) {
        let undelivered = self.undelivered.get(&finding.id);
        let is_waiting = undelivered.is_some_and(|retry| now < retry.retry_at);
        if is_waiting
            || self.pending_notices.contains(&finding.id)
            || !is_seen(finding, &self.snapshot)
        {
            return;
        }
        let warning = self.warnings.find(finding, is_of_end);
        let due = warning.map_or(WarningDue::First, |warning| warning.due(now, &self.reap));
        let grace = self.reap.grace.0.as_secs_f64();
        let warn = self.reap.warn.0.as_secs_f64();
        let (kind, acts_at) = match (due, is_of_end) {
            (WarningDue::First, false) => (NoticeKind::Found, None),
            (WarningDue::First, true) => {
                (NoticeKind::Warning, Some(now.plus_seconds(warn).plus_seconds(grace)))
            }
            (WarningDue::Last, true) if warning.is_some_and(|warning| !warning.is_over) => {
                (NoticeKind::LastWarning, Some(now.plus_seconds(grace)))
            }
            _ => return,
        };
        let about = finding.process.as_ref();
        let process = about.and_then(|about| self.snapshot.process(about.pid));
        let is_parked = self.reap.response(&finding.rule) == Response::Park;
        let restore =
            about.filter(|_| is_parked).map(|about| format!("gpumem unpark {}", about.pid));
        let notice = Notice {
            schema: SCHEMA,
            kind,
            time: now,
            acts_at,
            restore: restore.filter(|_| acts_at.is_some()),
            finding: finding.clone(),
            uid: process.and_then(|process| process.uid),
            host: self.snapshot.host.hostname.clone(),
            command: self.reap.notify.clone(),
        };
        if system.notify(notice) {
            self.pending_notices.insert(Arc::clone(&finding.id));
        }
    }

    pub fn delivered(
        &mut self,
        notice: &Notice,
        result: Result<(), String>,
        now: Time,
        system: &mut dyn System,
    ) {
        let finding = &notice.finding;
        self.pending_notices.remove(&finding.id);
        let owner = finding.process.as_ref().and_then(|process| process.user.as_deref());
        let owner = owner.unwrap_or("the owner");
        let written = result.and_then(|()| {
            let is_of_end = notice.kind != NoticeKind::Found;
            let noted = self.warnings.note(finding, is_of_end, now);
            noted.map_err(|error| error.to_string())
        });
        match written {
            Ok(()) => {
                let end = if notice.restore.is_some() { "parked" } else { "killed" };
                let action = match (notice.kind, notice.acts_at) {
                    (NoticeKind::Found, _) | (_, None) => "notified".to_owned(),
                    (NoticeKind::Warning, Some(at)) => {
                        format!("warned, to be {end} at {}", at.local())
                    }
                    (NoticeKind::LastWarning, Some(at)) => {
                        format!("warned last, to be {end} at {}", at.local())
                    }
                };
                self.undelivered.remove(&finding.id);
                system.log(&format!("{}: {owner} {action} by the notify command", finding.message));
            }
            Err(error) => {
                let retry_at = now.plus_seconds(RETRY_SECONDS);
                let earlier = self.undelivered.get(&finding.id);
                // Log an error only once if it repeats.
                if earlier.is_none_or(|retry| retry.error != error) {
                    system.log(&format!("{}: {owner} not notified: {error}", finding.message));
                }
                let undelivered = PendingRetry { retry_at, error };
                self.undelivered.insert(Arc::clone(&finding.id), undelivered);
            }
        }
    }
}
