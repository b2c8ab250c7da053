//! Finds the stored history, decides whether to trust it, and passes it to the rules before the live samples.
//!
//! [`crate::recording::store`] reads and writes stores. This module accepts a store only if its newest snapshot is from
//! this boot of this machine, and if the clock was not set back since then. This user or root must have written the
//! store, unless `--store-dir` names it. In case of doubt, the store is ignored: without history, rules stay undecided,
//! but a false history would make verdicts wrong.

use std::cell::RefCell;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::args::{Global, Stored};
use super::{UsageError, warn};
use crate::host::{NotOurs, has_more_rights, prove_directory_ours, prove_leaf_ours};
use crate::model::snapshot::Host;
use crate::model::{Snapshot, Time};
use crate::reclaim::park::journal::{Journals, SHARED};
use crate::reclaim::{ReleaseLog, ledger};
use crate::recording::RecordingError;
use crate::recording::store::{Access, LatestSnapshot, Store};
use crate::rules::Engine;
use crate::source::live::Live;
use crate::units::{Bytes, MIB, Span};

const SYSTEM_STATE: &str = "/var/lib/gpumem";
const SYSTEM: &str = "/var/lib/gpumem/store";
const USER_STATE: &str = "gpumem";
const STORE: &str = "store";
const PARK: &str = "park";
/// Minimum length of the history to read, in seconds. Most findings are younger, so the output can show their age.
const REACH_SECONDS: f64 = 2.0 * 3600.0;
/// Additional history in seconds, because the recorder may delete the oldest snapshots before they are read.
const MARGIN_SECONDS: f64 = 600.0;
/// Maximum time in seconds for which the writer buffers snapshots, to compress them together.
const HELD_BACK_SECONDS: f64 = 10.0;
/// Maximum difference between a future timestamp and the clock, in seconds. A larger difference means that the clock
/// was set back.
const SAME_CLOCK_SECONDS: f64 = 1.0;
/// Maximum number of compressed bytes that `check` and most other commands read, newest first. Reading takes a few
/// seconds.
pub(super) const MOST_FOR_CHECK: u64 = 128 * MIB;
/// Maximum number of compressed bytes that `watch`, `ps` and `record` read before their first output. Reading takes a
/// few hundred milliseconds.
pub(super) const MOST_FOR_WATCH: u64 = 8 * MIB;
/// Sampling time without a stored history.
pub(super) const WINDOW: Span = Span(Duration::from_secs(30));
/// Maximum number of warnings about damaged segments.
const MOST_WARNINGS: usize = 3;

/// Arguments and environment variables that determine the directory of a store.
#[derive(Clone, Debug, Default)]
struct StoreLocations {
    chosen: Option<PathBuf>,
    state_directory: Option<OsString>,
    xdg_state_home: Option<OsString>,
    home: Option<OsString>,
    is_root: bool,
}

impl StoreLocations {
    fn new(chosen: Option<&Path>) -> Self {
        Self {
            chosen: chosen.map(Path::to_owned),
            state_directory: env::var_os("STATE_DIRECTORY"),
            xdg_state_home: env::var_os("XDG_STATE_HOME"),
            home: env::var_os("HOME"),
            is_root: rustix::process::geteuid().is_root(),
        }
    }

    /// Returns the directory in `--store-dir` or in systemd's STATE_DIRECTORY.
    fn chosen(&self) -> Option<PathBuf> {
        let service = || self.service().map(|folder| folder.join(STORE));
        self.chosen.clone().or_else(service)
    }

    fn service(&self) -> Option<PathBuf> {
        // systemd separates several directories with colons. Use the first directory.
        let first = self.state_directory.as_ref()?.to_str()?.split(':').next()?;
        absolute(Some(OsStr::new(first)))
    }

    fn own(&self) -> Option<PathBuf> {
        self.own_state().map(|folder| folder.join(STORE))
    }

    fn own_state(&self) -> Option<PathBuf> {
        if self.is_root {
            return Some(SYSTEM_STATE.into());
        }
        let home = || absolute(self.home.as_deref()).map(|home| home.join(".local/state"));
        absolute(self.xdg_state_home.as_deref()).or_else(home).map(|folder| folder.join(USER_STATE))
    }

    fn state(&self) -> Option<PathBuf> {
        self.service().or_else(|| self.own_state())
    }

    fn to_write(&self) -> Option<PathBuf> {
        self.chosen().or_else(|| self.own())
    }

    fn to_read(&self) -> Vec<PathBuf> {
        if let Some(chosen) = self.chosen() {
            return vec![chosen];
        }
        let system = (!self.is_root).then(|| PathBuf::from(SYSTEM));
        self.own().into_iter().chain(system).collect()
    }
}

fn absolute(path: Option<&OsStr>) -> Option<PathBuf> {
    path.map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Returns the directory for `record --store`, and who can read it.
///
/// All users can read root's history, because users of a shared GPU need to know who uses it. Most of the data is
/// public in /proc. To make root's history private, set the umask to 077. Other users' histories are always private.
pub(super) fn to_write(global: &Global) -> anyhow::Result<(PathBuf, Access)> {
    let places = StoreLocations::new(global.store_dir.as_deref());
    let access = if places.is_root { Access::Everyone } else { Access::Owner };
    let folder = places.to_write().ok_or_else(|| {
        let why = "HOME is not set, so there is no directory for the store; use --store-dir";
        UsageError(why.to_owned())
    })?;
    prove_directory_ours(&folder).map_err(|why| {
        UsageError(format!("cannot write to the store {}: {why}", folder.display()))
    })?;
    Ok((folder, access))
}

/// Returns the directory for the audit log and the lock, which need not exist. Fails if the path cannot be
/// determined, or if other users can change the directory.
pub(super) fn state() -> Result<PathBuf, UsageError> {
    let why = "HOME is not set, so there is no directory for the audit log; set XDG_STATE_HOME or STATE_DIRECTORY";
    let folder = StoreLocations::new(None).state();
    let folder = folder.ok_or_else(|| UsageError(why.to_owned()))?;
    prove_directory_ours(&folder).map_err(|why| {
        let name = folder.display();
        UsageError(format!("cannot use the state directory {name}, so nothing is killed: {why}"))
    })?;
    Ok(folder)
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Ask<'a> {
    pub(super) global: &'a Global,
    pub(super) stored: Stored,
    /// Maximum number of compressed bytes to read, newest first.
    pub(super) most_bytes: u64,
    pub(super) quiet: bool,
    /// End of the requested history. `None` means the current time.
    pub(super) until: Option<Time>,
}

impl<'a> Ask<'a> {
    pub(super) fn new(global: &'a Global, stored: Stored, most_bytes: u64) -> Self {
        Self { global, stored, most_bytes, quiet: false, until: None }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoadedHistory {
    /// Time of the first snapshot, or `None` if the history is empty.
    pub(super) first: Option<Time>,
    /// `true` if a recorder is running and the history is long enough to sample only briefly.
    pub(super) suffices: bool,
}

pub(super) fn feed(
    engine: &mut Engine,
    live: &Live,
    ask: Ask<'_>,
) -> Result<LoadedHistory, RecordingError> {
    feed_each(engine, live, ask, |_, _| {})
}

/// Returns the journals of parked processes. Root creates the shared directory, and other users use it if it exists.
pub(super) fn park_journals() -> Journals {
    let own = state().ok();
    let is_elsewhere =
        env::var_os("STATE_DIRECTORY").is_some() && own.as_deref() != Some(Path::new(SYSTEM_STATE));
    let is_usable = rustix::process::geteuid().is_root() || Path::new(SHARED).is_dir();
    let shared = (is_usable && !is_elsewhere).then(|| PathBuf::from(SHARED));
    Journals(shared.into_iter().chain(own.map(|own| own.join(PARK))).collect())
}

/// Returns the caller's audit log, which contains the release requests.
pub(super) fn release_log() -> Option<ReleaseLog> {
    let folder = state().ok()?;
    Some(ReleaseLog::new(folder.join(ledger::FILE_NAME)))
}

/// Applies the rules to the stored history of this boot, and calls `handle` after each snapshot.
pub(super) fn feed_each(
    engine: &mut Engine,
    live: &Live,
    ask: Ask<'_>,
    mut handle: impl FnMut(&Engine, &Snapshot),
) -> Result<LoadedHistory, RecordingError> {
    if ask.stored.no_store {
        return Ok(LoadedHistory::default());
    }
    let needed = engine.settings().longest().as_secs_f64();
    let until = ask.until.unwrap_or_else(|| live.now());
    let part = StoredPart {
        reach: REACH_SECONDS.max(needed + MARGIN_SECONDS),
        until,
        most_bytes: ask.until.is_none().then_some(ask.most_bytes),
    };
    let mut fed = LoadedHistory::default();
    let latest = each_stored(ask.global, live, part, ask.quiet, |snapshot| {
        engine.observe(&snapshot);
        handle(engine, &snapshot);
        fed.first.get_or_insert(snapshot.time);
        Ok(())
    })?;
    if latest.is_some_and(|latest| is_fresh(&latest, live.now())) {
        engine.note_recorder();
        fed.suffices = engine.history().span_seconds() >= needed.min(WINDOW.seconds());
    }
    Ok(fed)
}

#[derive(Clone, Copy, Debug)]
pub(super) struct StoredPart {
    /// Length of the history in seconds, counted back from `until`.
    pub(super) reach: f64,
    pub(super) until: Time,
    /// Maximum number of compressed bytes to read, newest first.
    pub(super) most_bytes: Option<u64>,
}

/// Calls `handle` with each stored snapshot of this boot in `part`. Returns information about the newest snapshot, or
/// `None` if no store contains snapshots of this boot.
pub(super) fn each_stored(
    global: &Global,
    live: &Live,
    part: StoredPart,
    quiet: bool,
    mut handle: impl FnMut(Snapshot) -> Result<(), RecordingError>,
) -> Result<Option<LatestSnapshot>, RecordingError> {
    let warn_unless_quiet = |text: &str| {
        if !quiet {
            warn(text);
        }
    };
    let Some((store, latest)) = choose(global, live.host(), live.now(), warn_unless_quiet)? else {
        return Ok(None);
    };
    let mut stored = store.since(part.until.plus_seconds(-part.reach));
    if let Some(most) = part.most_bytes
        && stored.keep_newest(most)
    {
        warn_unless_quiet(&format!(
            "the store {0} is large; only the newest {2} of the last {1} are used",
            store.folder().display(),
            Span::from_seconds(part.reach),
            Bytes(most)
        ));
    }
    let mut releases = release_log();
    let mut warnings = 0;
    for item in stored {
        match item {
            // Skip snapshots after `until`: live samples cover that time, or the user requested an earlier time.
            Ok(mut snapshot)
                if snapshot.time <= part.until && same_machine(&snapshot.host, live.host()) =>
            {
                // The recorder may run as a user who cannot read this audit log, so add the release requests here.
                if let Some(releases) = &mut releases {
                    releases.mark(&mut snapshot);
                }
                handle(snapshot)?;
            }
            Ok(_) => {}
            Err(error) => {
                warnings += 1;
                if warnings <= MOST_WARNINGS {
                    warn_unless_quiet(&error.to_string());
                }
            }
        }
    }
    Ok(Some(latest))
}

/// Returns the trusted store that contains the newest snapshot of this boot, or `None` if there is none.
fn choose(
    global: &Global,
    host: &Host,
    now: Time,
    warn_unless_quiet: impl Fn(&str),
) -> Result<Option<(Store, LatestSnapshot)>, RecordingError> {
    let chosen = global.store_dir.is_some();
    let folders = StoreLocations::new(global.store_dir.as_deref()).to_read();
    let mut found: Option<(Store, LatestSnapshot)> = None;
    for folder in folders {
        let store = match Store::open(&folder) {
            Ok(store) => store,
            Err(error) if chosen => return Err(error),
            Err(RecordingError::StoreUnreadable { cause, .. }) if is_no_news(&cause) => continue,
            Err(error) => {
                warn_unless_quiet(&format!("{error}, or use --no-store"));
                continue;
            }
        };
        let name = folder.display();
        if let Err(why) = prove_trusted(&folder, chosen) {
            warn_unless_quiet(&format!("the store {name} is not used: {why}"));
            continue;
        }
        let latest = store.latest().filter(|latest| same_machine(&latest.host, host));
        let Some(latest) = latest else {
            if chosen {
                warn_unless_quiet(&format!("the store {name} contains no snapshot of this boot"));
            }
            continue;
        };
        // If the newest snapshot is from the future, the clock was set back, and the ages of all snapshots are unknown.
        if latest.time.seconds_since(now) > SAME_CLOCK_SECONDS {
            warn_unless_quiet(&format!(
                "the store {name} is not used: its last snapshot is in the future ({}); if the \
                 clock was set back, restart the recorder",
                latest.time
            ));
            continue;
        }
        if found.as_ref().is_none_or(|(_, best)| best.time < latest.time) {
            found = Some((store, latest));
        }
    }
    Ok(found)
}

/// Information about stores for `gpumem doctor`.
#[derive(Debug)]
pub(super) struct Survey {
    /// Directory for `record --store`, or an error message.
    pub(super) to_write: Result<PathBuf, String>,
    /// Directory of the store that commands read, size in bytes, and age of the last snapshot in seconds.
    pub(super) used: Option<(PathBuf, u64, f64)>,
    pub(super) is_fresh: bool,
    /// Reasons why stores are not used.
    pub(super) warnings: Vec<String>,
}

/// Finds the store that commands would read, but reads no history.
pub(super) fn survey(global: &Global, host: &Host, now: Time) -> Survey {
    let warnings = RefCell::new(Vec::new());
    let warn = |text: &str| warnings.borrow_mut().push(text.to_owned());
    let chosen = choose(global, host, now, warn).unwrap_or_else(|error| {
        warnings.borrow_mut().push(error.to_string());
        None
    });
    Survey {
        to_write: to_write(global).map(|(folder, _)| folder).map_err(|error| error.to_string()),
        is_fresh: chosen.as_ref().is_some_and(|(_, latest)| is_fresh(latest, now)),
        used: chosen.map(|(store, latest)| {
            (store.folder().to_owned(), store.bytes(), now.seconds_since(latest.time))
        }),
        warnings: warnings.into_inner(),
    }
}

/// Returns whether a store does not exist or is private to another user, which needs no warning.
fn is_no_news(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
}

/// Fails if other users can write to a store, because they could forge a history. The caller can choose any store with
/// `--store-dir`, unless gpumem has more privileges than the caller.
fn prove_trusted(folder: &Path, chosen: bool) -> Result<(), NotOurs> {
    match (has_more_rights(), chosen) {
        (true, _) => prove_directory_ours(folder),
        (false, true) => Ok(()),
        (false, false) => prove_leaf_ours(folder),
    }
}

fn same_machine(stored: &Host, host: &Host) -> bool {
    stored.boot_id.is_some()
        && stored.boot_id == host.boot_id
        && stored.hostname == host.hostname
        && stored.pid_namespace == host.pid_namespace
}

/// Returns whether a recorder is running, judged by the age of the newest snapshot. The limit allows for buffering and
/// two missed samples.
fn is_fresh(latest: &LatestSnapshot, now: Time) -> bool {
    let interval = latest.interval_seconds.unwrap_or(0.0).max(0.0);
    now.seconds_since(latest.time) < 3.0 * interval + HELD_BACK_SECONDS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::snapshot::PidNamespace;

    fn os(text: &str) -> Option<OsString> {
        Some(text.into())
    }

    #[test]
    fn a_chosen_store_precedes_the_default_locations() {
        let user = StoreLocations { home: os("/home/ann"), ..StoreLocations::default() };
        let user_store = PathBuf::from("/home/ann/.local/state/gpumem/store");
        assert_eq!(user.to_write(), Some(user_store.clone()));
        assert_eq!(user.to_read(), [user_store, SYSTEM.into()]);

        let xdg = StoreLocations { xdg_state_home: os("/state"), ..user.clone() };
        assert_eq!(xdg.to_write(), Some("/state/gpumem/store".into()));
        let relative = StoreLocations { xdg_state_home: os("state"), home: os(""), ..user.clone() };
        assert_eq!(relative.to_write(), None);
        assert_eq!(relative.to_read(), [PathBuf::from(SYSTEM)]);

        let root = StoreLocations { is_root: true, ..xdg };
        assert_eq!(root.to_write(), Some(SYSTEM.into()));
        assert_eq!(root.to_read(), [PathBuf::from(SYSTEM)]);

        let service = StoreLocations {
            state_directory: os("/var/lib/gpumem:/var/lib/other"),
            ..root.clone()
        };
        assert_eq!(service.to_write(), Some(SYSTEM.into()));
        assert_eq!(user.state(), Some("/home/ann/.local/state/gpumem".into()));
        assert_eq!(root.state(), Some("/var/lib/gpumem".into()));
        assert_eq!(service.state(), Some("/var/lib/gpumem".into()));
        assert_eq!(relative.state(), None);
        let chosen = StoreLocations { chosen: Some("here".into()), ..service };
        assert_eq!(chosen.to_read(), [PathBuf::from("here")]);
        assert_eq!(chosen.to_write(), Some("here".into()));
    }

    #[test]
    fn a_store_must_match_boot_host_and_pid_namespace() {
        let here = Host {
            hostname: Some("gpu-1".into()),
            boot_id: Some("a".into()),
            pid_namespace: Some(PidNamespace::Host),
            ..Host::default()
        };
        assert!(same_machine(&here, &here));
        let changes: [fn(&mut Host); 4] = [
            |host| host.boot_id = Some("b".into()),
            |host| host.boot_id = None,
            |host| host.hostname = Some("gpu-2".into()),
            |host| host.pid_namespace = Some(PidNamespace::Container),
        ];
        for change in changes {
            let mut other = here.clone();
            change(&mut other);
            assert!(!same_machine(&other, &here), "{other:?}");
        }
        assert!(!same_machine(&Host::default(), &Host::default()));
    }

    #[test]
    fn a_store_is_fresh_for_three_intervals_and_the_buffering_time() {
        let latest = |interval_seconds| LatestSnapshot {
            time: Time::from_unix_milliseconds(1_000_000),
            host: Host::default(),
            interval_seconds,
        };
        for (interval, age, fresh) in [
            (Some(5.0), 24.0, true),
            (Some(5.0), 26.0, false),
            (None, 9.0, true),
            (None, 11.0, false),
            (Some(-60.0), 9.0, true),
        ] {
            let latest = latest(interval);
            let now = latest.time.plus_seconds(age);
            assert_eq!(is_fresh(&latest, now), fresh, "{interval:?} {age}");
        }
    }
}
