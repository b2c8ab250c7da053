//! Finds past actions in the ledger: release requests, and totals for metrics.
//!
//! A release request must not look like work: the notebook server reports activity, and the program frees memory.
//! Snapshots therefore mark the processes that were asked ([`Process::asked`](crate::model::Process::asked)). The
//! rules ignore the effects of the request, and gpumem does not repeat the request too early.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::OFlags;

use super::ledger::{self, LedgerEntry, LedgerEvent, LedgerSummary};
use super::release::{ReleaseBy, ReleaseWay};
use super::target::{Deed, LedgerProcess};
use crate::model::process::AskedRelease;
use crate::model::waste::{How, Reclaimed};
use crate::model::{Snapshot, Time};

/// Maximum number of bytes read from the end of the ledger, enough for a few hundred acts.
const MAX_READ_BYTES: u64 = 1 << 20;
/// Assumed duration, in seconds, of a release whose end the ledger does not contain.
const ASSUMED_SECONDS: f64 = 60.0;

#[derive(Clone, PartialEq, Debug)]
pub struct PastRelease {
    /// The process that received the request. For a server, the process that listens.
    pub process: LedgerProcess,
    pub since: Time,
    /// End of the release, if known.
    until: Option<Time>,
    /// For a kernel, its last activity before the request, if known.
    last_activity: Option<Time>,
}

impl PastRelease {
    pub fn new(way: &ReleaseWay, since: Time, until: Option<Time>) -> Self {
        let last_activity = match way.by {
            ReleaseBy::Kernel { last_activity, .. } => last_activity,
            _ => None,
        };
        Self { process: LedgerProcess::new(way), since, until, last_activity }
    }

    /// Returns the request as it appears in a snapshot taken at `now`.
    pub fn asked(&self, now: Time) -> AskedRelease {
        let under_way = || now.min(self.since.plus_seconds(ASSUMED_SECONDS));
        let until = self.until.unwrap_or_else(under_way);
        AskedRelease {
            since: self.since,
            until: until.max(self.since),
            last_activity: self.last_activity,
        }
    }
}

/// Returns all release requests since boot, in the order of the ledger. Includes requests without a result.
pub fn past_releases(past: &LedgerSummary, boot_id: Option<&str>) -> Vec<PastRelease> {
    let is_of_boot = |act: &&ledger::PastAct| {
        let target = act.target.as_deref();
        target.is_none_or(|target| target.boot_id.as_deref() == boot_id)
    };
    let deeds = past.acts.iter().filter(is_of_boot).flat_map(|act| &act.deeds);
    let releases = deeds.filter_map(|deed| match &deed.deed {
        Deed::Release { way } => Some(PastRelease::new(way, deed.time, deed.ended)),
        _ => None,
    });
    releases.collect()
}

/// Reads the release requests in a ledger, and reads them again when the file changes.
#[derive(Clone, Debug)]
pub struct ReleaseLog {
    path: PathBuf,
    read: Option<(u64, Option<SystemTime>)>,
    releases: Vec<PastRelease>,
}

impl ReleaseLog {
    pub fn new(path: PathBuf) -> Self {
        Self { path, read: None, releases: Vec::new() }
    }

    /// Marks the processes in a snapshot that were asked to release memory. If the ledger cannot be read, marks no
    /// process.
    pub fn mark(&mut self, snapshot: &mut Snapshot) {
        self.refresh(snapshot.host.boot_id.as_deref());
        if self.releases.is_empty() {
            return;
        }
        for process in &mut snapshot.processes {
            let is_same = |release: &&PastRelease| {
                let LedgerProcess { pid, start_ticks } = release.process;
                (pid, Some(start_ticks)) == (process.pid, process.start_ticks)
            };
            // The snapshot may have been stored before the latest request.
            let releases = self.releases.iter().rev();
            let mut before = releases.filter(|release| release.since <= snapshot.time);
            if let Some(last) = before.find(is_same) {
                process.asked = Some(Arc::new(last.asked(snapshot.time)));
            }
        }
    }

    fn refresh(&mut self, boot_id: Option<&str>) {
        let current = std::fs::metadata(&self.path).ok();
        let current = current.map(|metadata| (metadata.len(), metadata.modified().ok()));
        if current == self.read {
            return;
        }
        self.read = current;
        let past = ledger::read(&self.path, MAX_READ_BYTES).unwrap_or_default();
        self.releases = past_releases(&past, boot_id);
    }
}

/// Computes totals of past actions. Each update reads only the lines appended since the previous update. The totals
/// never decrease, even if the log is truncated.
#[derive(Debug)]
pub struct ReclaimLog {
    path: PathBuf,
    /// Inode of the file. `read` counts the bytes read from this file.
    inode: u64,
    read: u64,
    open: HashMap<Arc<str>, OpenAct>,
    sums: Reclaimed,
}

#[derive(Debug, Default)]
struct OpenAct {
    user: Arc<str>,
    /// Method of the last action, or `None` if no action was taken yet.
    method: Option<How>,
}

impl ReclaimLog {
    pub fn new(path: PathBuf) -> Self {
        let (open, sums) = (HashMap::new(), Reclaimed::default());
        Self { path, inode: 0, read: 0, open, sums }
    }

    /// Reads new entries and returns the totals. Returns the previous totals if the log cannot be read.
    pub fn sums(&mut self) -> &Reclaimed {
        let _ = self.read_on();
        &self.sums
    }

    fn read_on(&mut self) -> io::Result<()> {
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(&self.path)?;
        let metadata = file.metadata()?;
        if metadata.ino() != self.inode || metadata.len() < self.read {
            // The file was replaced or truncated, so read it from the start.
            (self.inode, self.read) = (metadata.ino(), 0);
        }
        file.seek(SeekFrom::Start(self.read))?;
        let mut file = BufReader::new(file.take(metadata.len() - self.read));
        let mut line = Vec::new();
        // If the last line has no newline, it is still being written.
        while file.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
            self.read += line.len() as u64;
            if let Some(entry) = ledger::parse(&line) {
                self.add(entry);
            }
            line.clear();
        }
        Ok(())
    }

    fn add(&mut self, entry: LedgerEntry) {
        match entry.event {
            LedgerEvent::Begun { target, .. } => {
                let leader = target.members.iter().find(|member| member.pid == target.leader);
                let user = leader.and_then(|leader| leader.user.clone()).unwrap_or_default();
                self.open.insert(entry.act, OpenAct { user, method: None });
            }
            LedgerEvent::Intended(deed) | LedgerEvent::Done { deed, .. } => {
                self.open.entry(entry.act).or_default().method = Some(method_of(&deed));
            }
            LedgerEvent::Ended(outcome) => {
                let Some(OpenAct { user, method: Some(method) }) = self.open.remove(&entry.act)
                else {
                    return;
                };
                *self.sums.acts.entry((method, outcome.name())).or_default() += 1;
                if outcome.freed_bytes() > 0 {
                    *self.sums.bytes.entry((method, user)).or_default() += outcome.freed_bytes();
                }
            }
        }
    }
}

fn method_of(deed: &Deed) -> How {
    match deed {
        Deed::Release { way } if matches!(way.by, ReleaseBy::Server(_)) => "unload",
        Deed::Release { .. } => "release",
        Deed::Park { .. } => "park",
        Deed::Signal { .. } | Deed::ShutKernel { .. } => "end",
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::reclaim::Outcome;
    use crate::reclaim::ledger::{Actor, Ledger, LedgerSink as _};
    use crate::reclaim::testing::{BOOT, at, gpu, process, snapshot, target};
    use crate::units::GIB;

    fn way() -> ReleaseWay {
        ReleaseWay {
            pid: 70,
            start_ticks: 700,
            by: ReleaseBy::Kernel {
                kernel_id: Some("7a1b".into()),
                notebook: None,
                last_activity: Some(at(-7200.0)),
            },
        }
    }

    #[test]
    fn snapshots_are_marked_from_the_ledger() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reap.jsonl");
        let python = process(70, "python train.py");
        let snapshot_at = |seconds: f64| {
            snapshot(
                at(seconds),
                &[python.clone(), process(71, "python b.py")],
                vec![gpu(0, &[(70, GIB), (71, GIB)], 0)],
            )
        };
        let target = target(&python);
        assert_eq!(target.boot_id.as_deref(), Some(BOOT));
        let mut log = ReleaseLog::new(path.clone());
        let mut marked = |seconds: f64| {
            let mut snapshot = snapshot_at(seconds);
            log.mark(&mut snapshot);
            assert_eq!(snapshot.processes[1].asked, None);
            snapshot.processes[0].asked.as_deref().cloned()
        };
        assert_eq!(marked(0.0), None, "no ledger");
        let mut ledger = Ledger::open(&path).unwrap();
        let mut write = |seconds: f64, event| {
            let (time, act) = (at(seconds), "x".into());
            ledger.write(&LedgerEntry { time, act, event }).unwrap();
        };
        let (actor, target) = (Actor::default(), Box::new(target));
        write(10.0, LedgerEvent::Begun { actor, target });
        assert_eq!(marked(10.0), None);
        write(10.0, LedgerEvent::Intended(Deed::Release { way: way() }));
        let asked = |until: f64| {
            Some(AskedRelease {
                since: at(10.0),
                until: at(until),
                last_activity: Some(at(-7200.0)),
            })
        };
        assert_eq!(marked(9.0), None, "before the request");
        assert_eq!(marked(12.0), asked(12.0), "under way");
        assert_eq!(marked(500.0), asked(70.0), "no result in the ledger");
        let (deed, failures) = (Deed::Release { way: way() }, Vec::new());
        write(13.0, LedgerEvent::Done { deed, failures });
        assert_eq!(marked(500.0), asked(13.0));
    }

    #[test]
    fn only_activity_near_a_request_is_explained() {
        let asked = PastRelease::new(&way(), at(10.0), Some(at(13.0))).asked(at(100.0));
        for (seconds, expected) in
            [(7.9, false), (8.0, true), (11.0, true), (15.0, true), (15.1, false)]
        {
            assert_eq!(asked.explains(at(seconds)), expected, "{seconds}");
        }
    }

    fn append(path: &std::path::Path, act: &str, events: Vec<LedgerEvent>) {
        let mut ledger = Ledger::open(path).unwrap();
        for event in events {
            ledger.write(&LedgerEntry { time: at(0.0), act: act.into(), event }).unwrap();
        }
    }

    fn begun() -> LedgerEvent {
        let target = Box::new(target(&process(70, "python")));
        LedgerEvent::Begun { actor: Actor::default(), target }
    }

    fn term() -> LedgerEvent {
        LedgerEvent::Intended(Deed::ShutKernel { kernel_id: "k".into() })
    }

    fn freed() -> LedgerEvent {
        LedgerEvent::Ended(Outcome::Freed { bytes: GIB, ms: 900 })
    }

    #[test]
    fn an_act_is_counted_once_and_totals_never_decrease() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reap.jsonl");
        let mut log = ReclaimLog::new(path.clone());
        assert_eq!(log.sums(), &Reclaimed::default(), "no log");
        // The entries of an act can be read at different times, and an act without actions is not included.
        append(&path, "a", vec![begun(), term()]);
        assert_eq!(log.sums(), &Reclaimed::default());
        append(&path, "a", vec![freed()]);
        append(&path, "b", vec![begun(), LedgerEvent::Ended(Outcome::RuleNoLongerTrue)]);
        append(&path, "c", vec![begun(), term(), LedgerEvent::Ended(Outcome::StillAlive)]);
        let expected = |freed: u64| Reclaimed {
            bytes: [(("end", "ann".into()), freed * GIB)].into(),
            acts: [(("end", "freed".into()), freed), (("end", "still_alive".into()), 1)].into(),
        };
        assert_eq!(log.sums(), &expected(1));
        assert_eq!(log.sums(), &expected(1), "it is not read again");
        // First, the log is replaced with a new file. Then, it is truncated.
        fs::rename(&path, folder.path().join("old")).unwrap();
        append(&path, "d", vec![begun(), term(), freed()]);
        assert_eq!(log.sums(), &expected(2));
        fs::write(&path, "").unwrap();
        assert_eq!(log.sums(), &expected(2));
        append(&path, "e", vec![begun(), term(), freed()]);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, [&whole[..], b"{\"schema\":\"gpu"].concat()).unwrap();
        assert_eq!(log.sums(), &expected(3));
        append(&path, "f", vec![begun(), term(), freed()]);
        assert_eq!(log.sums(), &expected(4));
    }
}
