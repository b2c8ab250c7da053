//! Selects GPUs and processes with `--gpu`, `--user` and `--where`. The options are combined into one selector, which
//! has the syntax of the filter in `gpumem watch`.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::UsageError;
use super::args::Selected;
use crate::host::is_unknown_user;
use crate::model::field::{Field, Needle, is_called};
use crate::model::row::{CurrentUser, ProcessRow, RowIndices, places};
use crate::model::selector::{self, NamedGpus, Selector};
use crate::model::{Finding, Gpu, Snapshot};
use crate::report::escape::escape;
use crate::rules::Engine;

/// Maximum number of users in an error message.
const MOST_USERS: usize = 20;

pub(super) fn current_user() -> CurrentUser {
    CurrentUser { uid: Some(rustix::process::geteuid().as_raw()), name: std::env::var("USER").ok() }
}

/// Names and uids of the users whose processes a recording contains.
#[derive(Debug, Default)]
pub(super) struct RecordedUsers(BTreeSet<(Option<Arc<str>>, Option<u32>)>);

impl RecordedUsers {
    pub(super) fn observe(&mut self, snapshot: &Snapshot) {
        for process in &snapshot.processes {
            if !self.0.iter().any(|(name, uid)| (name, uid) == (&process.user, &process.uid)) {
                self.0.insert((process.user.clone(), process.uid));
            }
        }
    }

    fn has(&self, wanted: &str) -> bool {
        self.0.iter().any(|(name, uid)| {
            name.as_deref() == Some(wanted) || uid.is_some_and(|uid| uid.to_string() == wanted)
        })
    }
}

/// A selection of GPUs and processes. The default selects everything.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    /// The combination of `--gpu`, `--user` and `--where`. `None` if everything is selected.
    selector: Option<Selector>,
    by_gpu: Option<Selector>,
    me: CurrentUser,
    users: Vec<String>,
}

impl Selection {
    pub(super) fn new(args: &Selected) -> Self {
        let by_gpu = Selector::of_field(Field::Gpu, false, &args.gpu);
        let by_user = Selector::of_field(Field::User, true, &args.user);
        let terms = args.terms.terms.iter().cloned().map(Some);
        let selector = Selector::all([by_gpu.clone(), by_user].into_iter().chain(terms));
        Self { selector, by_gpu, me: current_user(), users: args.user.clone() }
    }

    pub(super) fn into_selector(self) -> Option<Selector> {
        self.selector
    }

    pub(super) fn is_empty(&self) -> bool {
        self.selector.is_none()
    }

    /// Returns whether the selection depends on findings or idle times, which need several snapshots.
    pub(super) fn needs_history(&self) -> bool {
        self.selector.as_ref().is_some_and(Selector::needs_history)
    }

    pub(super) fn allows_gpu(&self, gpu: &Gpu) -> bool {
        let selector = self.selector.as_ref();
        selector.is_none_or(|selector| selector.allows_gpu(gpu))
    }

    /// Fails if a user in the arguments does not exist on this machine.
    pub(super) fn check_users(&self) -> Result<(), UsageError> {
        let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
        match self.users.iter().find(|name| !is_number(name) && is_unknown_user(name)) {
            Some(name) => Err(UsageError(format!(
                "--user {name}: there is no such user; `gpumem ps` shows who holds GPU memory"
            ))),
            None => Ok(()),
        }
    }

    /// Fails if the recording contains no process of a user in the arguments.
    pub(super) fn check_recorded_users(&self, recorded: &RecordedUsers) -> Result<(), UsageError> {
        let Some(unknown) = self.users.iter().find(|wanted| !recorded.has(wanted)) else {
            return Ok(());
        };
        let names: BTreeSet<&str> =
            recorded.0.iter().filter_map(|(name, _)| name.as_deref()).collect();
        let names: Vec<_> = names.into_iter().take(MOST_USERS).map(|name| escape(name)).collect();
        Err(UsageError(format!(
            "--user {unknown}: the recording has no process of this user; it has processes of {}",
            if names.is_empty() { "no known user".to_owned() } else { names.join(", ") }
        )))
    }

    /// Fails if a GPU in the arguments does not exist, or if a UUID prefix is ambiguous.
    pub(super) fn check_gpus(&self, gpus: &[Gpu]) -> Result<(), UsageError> {
        for (typed, named) in self.named_gpus(gpus) {
            if named.gpus.is_empty() {
                return Err(no_such_gpu(&typed, gpus));
            }
            if named.is_uuid && named.gpus.len() > 1 {
                return Err(more_than_one(&typed, &named.gpus));
            }
        }
        Ok(())
    }

    /// Returns the requested GPUs that are not among `gpus`.
    pub(super) fn missing_gpus(&self, gpus: &[Gpu]) -> Vec<String> {
        let named = self.named_gpus(gpus).into_iter();
        named
            .filter(|(_, named)| named.gpus.is_empty())
            .map(|(_, named)| named.typed.to_owned())
            .collect()
    }

    /// Returns each argument that names GPUs, with its option and the matching GPUs. The arguments of `--gpu` come
    /// first.
    fn named_gpus<'s, 'g>(&'s self, gpus: &'g [Gpu]) -> Vec<(String, NamedGpus<'s, 'g>)> {
        let of = |selector: Option<&'s Selector>| {
            selector.map_or_else(Vec::new, |selector| selector.named_gpus(gpus))
        };
        let flags = of(self.by_gpu.as_ref()).len();
        let named = of(self.selector.as_ref()).into_iter().enumerate();
        named
            .map(|(at, named)| match at < flags {
                true => (format!("--gpu {}", named.typed), named),
                false => (format!("--where gpu:{}", named.typed), named),
            })
            .collect()
    }

    /// Removes the GPUs that are not selected, and the errors of these GPUs.
    pub(super) fn retain_gpus(&self, snapshot: &mut Snapshot) {
        if let Some(selector) = &self.selector {
            selector.retain_gpus(snapshot);
        }
    }

    /// Selects rows and findings of a snapshot that the engine has evaluated. Returns `None` if everything is selected.
    pub(super) fn select<'f>(
        &self,
        snapshot: &Snapshot,
        engine: &Engine,
        found: impl Iterator<Item = &'f Finding>,
    ) -> Option<selector::Selected> {
        let selector = self.selector.as_ref()?;
        let rows = rows(snapshot, Some(engine));
        Some(selector.select(snapshot, &rows, found, &self.me))
    }

    /// Removes GPUs and rows that are not selected. Returns whether the selection names only whole GPUs, so that all of
    /// their rows were kept. Without an engine, terms about idle times and findings match nothing.
    pub(super) fn narrow(&self, snapshot: &mut Snapshot, engine: Option<&Engine>) -> bool {
        let Some(selector) = &self.selector else {
            return true;
        };
        let findings = engine.map_or(&[][..], Engine::findings);
        let places = places(snapshot, findings);
        let rows = rows(snapshot, engine);
        let fits = |row: &ProcessRow<'_>| selector.fits(row, &self.me);
        let fitting: Vec<RowIndices> = places
            .iter()
            .zip(&rows)
            .filter(|(_, row)| fits(row))
            .map(|(place, _)| *place)
            .collect();
        // A process without a GPU matches no term about GPUs.
        let is_loose = |at: usize| {
            let place = RowIndices { process: Some(at), ..RowIndices::default() };
            !selector.asks_for_gpus()
                && places.iter().all(|place| place.process != Some(at))
                && fits(&ProcessRow::new(snapshot, findings, place))
        };
        let is_left =
            |at: &usize| fitting.iter().any(|fit| fit.process == Some(*at)) || is_loose(*at);
        let left: Vec<usize> = (0..snapshot.processes.len()).filter(is_left).collect();
        let has_all = places
            .iter()
            .filter(|place| place.entry.is_some())
            .filter(|place| {
                let gpu = place.gpu.and_then(|at| snapshot.gpus.get(at));
                gpu.is_some_and(|gpu| selector.allows_gpu(gpu))
            })
            .all(|place| fitting.contains(place));
        let mut at = 0..;
        snapshot.processes.retain(|_| at.next().is_some_and(|at| left.contains(&at)));
        for (gpu_at, gpu) in snapshot.gpus.iter_mut().enumerate() {
            let is_fitting = |entry: usize| {
                let mut fitting = fitting.iter();
                fitting.any(|fit| fit.gpu == Some(gpu_at) && fit.entry == Some(entry))
            };
            let mut at = 0..;
            if let Some(rows) = &mut gpu.processes {
                rows.retain(|_| at.next().is_some_and(is_fitting));
            }
        }
        selector.retain_gpus(snapshot);
        has_all && selector.is_of_gpus() && self.users.is_empty()
    }
}

/// Returns the rows of a snapshot. An engine that has evaluated the snapshot adds findings and idle times.
fn rows<'a>(snapshot: &'a Snapshot, engine: Option<&'a Engine>) -> Vec<ProcessRow<'a>> {
    let findings = engine.map_or(&[][..], Engine::findings);
    let idle_since = |identity, gpu| engine?.history().idle_since(identity, gpu);
    let places = places(snapshot, findings).into_iter();
    places.map(|place| ProcessRow::new(snapshot, findings, place).idle(idle_since)).collect()
}

/// Returns whether an index, UUID or UUID prefix matches a GPU.
pub(super) fn is_gpu_named(wanted: &str, gpu: &Gpu) -> bool {
    is_called(gpu, &Needle::new(wanted), false, false)
}

pub(super) fn more_than_one(typed: &str, gpus: &[&Gpu]) -> UsageError {
    let listed: Vec<String> = gpus.iter().map(|gpu| format!("gpu:{}", gpu.index)).collect();
    let listed = listed.join(", ");
    UsageError(format!("{typed} matches more than one GPU ({listed}); give one of them"))
}

pub(super) fn no_such_gpu(typed: &str, gpus: &[Gpu]) -> UsageError {
    let indices: Vec<_> = gpus.iter().map(|gpu| gpu.index.to_string()).collect();
    let indices = if indices.is_empty() { "none".to_owned() } else { indices.join(", ") };
    UsageError(format!("{typed}: there is no such GPU; there are {indices}"))
}
