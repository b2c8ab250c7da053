//! The notebooks behind the kernels of each snapshot: what their files and servers say, asked on a
//! thread of its own.
//!
//! A home directory may be on a file system that hangs, and a server may never answer. So [`Notebooks`]
//! tells the thread which kernels there are and takes what it has answered so far; it waits only for
//! kernels of which nothing was heard yet, [`PATIENCE`] at most. An answer belongs to one process, by
//! pid and start, and what of it grows old is taken out again: a state from half a minute ago proves
//! nothing about now.
//!
//! The thread has a kernel's files read when it appears and every minute, and asks each server every ten
//! seconds, for all of its kernels at once; it does neither itself, so that a file or a server that
//! hangs holds up nothing but its own kernel.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::deadline::{Answers, NotAsked, Worker};
use crate::host::Roots;
use crate::host::jupyter::{
    Client, KernelCandidate, KernelState, LocalKernel, Server, ServerError, may_be_kernel,
    read_kernel,
};
use crate::model::Process;
use crate::model::snapshot::Jupyter;

/// How long a sample waits for kernels of which nothing was heard yet.
const PATIENCE: Duration = Duration::from_millis(400);

/// An answer that is older says nothing about what goes on.
const OLDEST: Duration = Duration::from_secs(30);

/// How long a server has for all that it is asked.
const SERVER_TIME: Duration = Duration::from_secs(3);

/// How often a server is asked, and a kernel's starter looked for.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// How often files are read again.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// How long files are waited for; what comes later is taken when it comes.
const READ_TIME: Duration = Duration::from_secs(1);

/// How many kernels' files are read at once, those that hang among them.
const READ_AT_ONCE: usize = 16;

/// How many servers are asked at once.
const AT_ONCE: usize = 16;

/// One list of kernels may wait for the thread, and so many lists of answers before it waits for them to be taken.
const QUEUES: (usize, usize) = (1, 16);

/// Who a process is: pid and start ticks.
type KernelKey = (u32, u64);

/// What the thread has found out about one process.
#[derive(Clone, Debug)]
struct KernelAnswer {
    key: KernelKey,
    /// `None` where it is no kernel after all.
    jupyter: Option<Arc<Jupyter>>,
    /// When this was so.
    at: Instant,
    /// Nothing more is under way: the server was asked, or there is none to ask.
    is_settled: bool,
}

type KernelWorker = Worker<Vec<KernelCandidate>, Vec<KernelAnswer>>;

/// The kernels of the last snapshot, and what was heard of them.
#[derive(Debug)]
pub(super) struct Notebooks {
    roots: Roots,
    /// Absent before the first kernel.
    thread: Option<KernelWorker>,
    known: HashMap<KernelKey, KnownKernel>,
}

#[derive(Debug)]
struct KnownKernel {
    /// What its argv tells; another program was executed where it differs.
    found: Option<Arc<Jupyter>>,
    answer: Option<KernelAnswer>,
    /// The answer without what has grown old.
    faded: Option<Arc<Jupyter>>,
    /// It was waited for.
    was_waited_for: bool,
}

impl Notebooks {
    pub(super) fn new(roots: Roots) -> Self {
        Self {
            roots,
            thread: None,
            known: HashMap::new(),
        }
    }

    /// Puts into each kernel what is known of it now.
    pub(super) fn join(&mut self, processes: &mut [Process]) {
        let candidates: Vec<KernelCandidate> = processes.iter().filter_map(candidate).collect();
        if candidates.is_empty() {
            self.known.clear();
            return;
        }
        if self.thread.is_none() {
            let roots = self.roots.clone();
            let poll = |answers| {
                let mut poller = KernelPoller::new(roots, answers);
                move |list: Vec<_>| poller.work(&list)
            };
            // Without a thread, kernels are known by their argv only.
            self.thread = Worker::start("notebooks", QUEUES, poll).ok();
        }
        self.note(&candidates);
        self.take_answers();
        if let Some(thread) = &self.thread {
            // One that is busy is told at the next sample.
            if let Err(NotAsked::Ended) = thread.ask(candidates) {
                self.thread = None;
            }
        }
        self.wait(Instant::now());
        let now = Instant::now();
        for process in processes {
            if let Some(known) = key(process).and_then(|key| self.known.get_mut(&key))
                && let Some(answer) = &known.answer
            {
                process.jupyter = if now.saturating_duration_since(answer.at) <= OLDEST {
                    answer.jupyter.clone()
                } else {
                    let faded = || {
                        answer
                            .jupyter
                            .as_deref()
                            .map(|jupyter| fade(jupyter).into())
                    };
                    known.faded = known.faded.take().or_else(faded);
                    known.faded.clone()
                };
            }
        }
    }

    /// Forgets who is gone, and notes who is new.
    fn note(&mut self, candidates: &[KernelCandidate]) {
        let mut before = std::mem::take(&mut self.known);
        for candidate in candidates {
            let key = (candidate.pid, candidate.start_ticks);
            let same = before
                .remove(&key)
                .filter(|known| known.found == candidate.jupyter);
            let known = same.unwrap_or_else(|| KnownKernel {
                found: candidate.jupyter.clone(),
                answer: None,
                faded: None,
                was_waited_for: false,
            });
            self.known.insert(key, known);
        }
    }

    fn take_answers(&mut self) {
        let Some(thread) = &self.thread else {
            return;
        };
        while let Some(answers) = thread.take(Duration::ZERO) {
            take(&mut self.known, answers);
        }
    }

    /// Waits for those of whom nothing was heard yet, and for those whose server answered before and
    /// was not asked for long, as with an interval of a minute.
    fn wait(&mut self, now: Instant) {
        let is_awaited = |known: &KnownKernel| match &known.answer {
            None => !known.was_waited_for,
            Some(answer) if !answer.is_settled => !known.was_waited_for,
            Some(answer) => {
                let has_state = answer
                    .jupyter
                    .as_ref()
                    .is_some_and(|jupyter| jupyter.execution_state.is_some());
                has_state && now.saturating_duration_since(answer.at) > OLDEST
            }
        };
        let Some(thread) = &self.thread else {
            return;
        };
        let deadline = now + PATIENCE;
        while self.known.values().any(is_awaited) {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(answers) = thread.take(left) else {
                break;
            };
            take(&mut self.known, answers);
        }
        for known in self.known.values_mut() {
            known.was_waited_for = true;
        }
    }
}

/// Takes in answers; one about a process that is no longer there is dropped.
fn take(known: &mut HashMap<KernelKey, KnownKernel>, answers: Vec<KernelAnswer>) {
    for answer in answers {
        if let Some(known) = known.get_mut(&answer.key) {
            known.faded = None;
            known.answer = Some(answer);
        }
    }
}

fn key(process: &Process) -> Option<KernelKey> {
    Some((process.pid, process.start_ticks?))
}

fn candidate(process: &Process) -> Option<KernelCandidate> {
    let (pid, start_ticks) = key(process)?;
    let may_be = || may_be_kernel(process.command.as_deref().unwrap_or_default());
    (process.jupyter.is_some() || may_be()).then(|| KernelCandidate {
        pid,
        start_ticks,
        jupyter: process.jupyter.clone(),
    })
}

/// What stays true however old it is.
fn fade(jupyter: &Jupyter) -> Jupyter {
    Jupyter {
        execution_state: None,
        last_activity: None,
        connections: None,
        server_alive: None,
        ..jupyter.clone()
    }
}

/// What the thread knows.
#[derive(Debug)]
struct KernelPoller {
    roots: Roots,
    kernels: HashMap<KernelKey, Watched>,
    servers: HashMap<KernelKey, ServerAnswer>,
    /// Those whose files are being read, and since when.
    reading: HashMap<KernelKey, Instant>,
    read: (SyncSender<Read>, Receiver<Read>),
    outbox: Answers<Vec<KernelAnswer>>,
}

/// A kernel, and when its files were read.
#[derive(Debug)]
struct Watched {
    found: Option<Arc<Jupyter>>,
    /// `None` where it is no kernel after all.
    kernel: Option<LocalKernel>,
    read_at: Instant,
    looked_at: Instant,
}

/// What was read for a candidate.
type Read = (KernelCandidate, Option<LocalKernel>);

/// A server's last answer.
#[derive(Debug)]
struct ServerAnswer {
    at: Instant,
    result: Result<HashMap<String, KernelState>, ServerError>,
}

impl ServerAnswer {
    /// Whether it knows nothing of a kernel because that one is younger than it.
    fn is_before(&self, watched: &Watched) -> bool {
        let id = watched
            .kernel
            .as_ref()
            .and_then(|kernel| kernel.jupyter.kernel_id.as_deref());
        let is_known = match (&self.result, id) {
            (Ok(states), Some(id)) => states.contains_key(id),
            _ => true,
        };
        !is_known && self.at < watched.read_at
    }
}

impl KernelPoller {
    fn new(roots: Roots, outbox: Answers<Vec<KernelAnswer>>) -> Self {
        Self {
            roots,
            kernels: HashMap::new(),
            servers: HashMap::new(),
            reading: HashMap::new(),
            read: sync_channel(READ_AT_ONCE),
            outbox,
        }
    }

    /// Does what is due about these kernels. `None` where nobody wants to know any more.
    fn work(&mut self, list: &[KernelCandidate]) -> Option<()> {
        self.kernels
            .retain(|key, _| list.iter().any(|it| (it.pid, it.start_ticks) == *key));
        // What needs no server first: one that hangs does not keep the others' names back.
        let mut seen = Vec::new();
        while let Ok(read) = self.read.1.try_recv() {
            seen.push(self.take_in(read));
        }
        for candidate in list {
            if self.see(candidate, Instant::now()) {
                seen.push((candidate.pid, candidate.start_ticks));
            }
        }
        self.send(seen.iter().filter_map(|key| self.answer(*key)).collect())?;
        self.wait_for_files()?;
        let servers = self.servers();
        self.servers.retain(|key, _| servers.contains_key(key));
        let is_due = |key: &KernelKey| {
            let asked = self.servers.get(key);
            asked.is_none_or(|asked| {
                asked.at.elapsed() >= ASK_AGAIN_AFTER || self.is_before_a_kernel(*key, asked)
            })
        };
        let due: Vec<(KernelKey, Server)> =
            servers.into_iter().filter(|(key, _)| is_due(key)).collect();
        for due in due.chunks(AT_ONCE) {
            self.ask_all(due)?;
        }
        Some(())
    }

    /// Asks several servers at once: one that hangs does not hold up the others. Each answer is sent
    /// on as it comes.
    fn ask_all(&mut self, servers: &[(KernelKey, Server)]) -> Option<()> {
        let (outbox, inbox) = sync_channel(servers.len());
        thread::scope(|scope| {
            for (key, server) in servers {
                let (roots, wanted) = (self.roots.clone(), self.wanted(*key));
                let outbox = outbox.clone();
                let asking = move || {
                    let result = ask(&roots, server, &wanted);
                    // There is room for one of each.
                    let _ = outbox.send((*key, result));
                };
                let builder = thread::Builder::new().name("notebook-server".to_owned());
                // Without a thread it is not asked this time.
                let _ = builder.spawn_scoped(scope, asking);
            }
            drop(outbox);
            for (key, result) in inbox {
                let at = Instant::now();
                self.servers.insert(key, ServerAnswer { at, result });
                let of_server = self.kernels_of(key);
                let answers = of_server.into_iter().filter_map(|key| self.answer(key));
                self.send(answers.collect())?;
            }
            Some(())
        })
    }

    fn send(&self, answers: Vec<KernelAnswer>) -> Option<()> {
        if answers.is_empty() {
            return Some(());
        }
        self.outbox.send(answers).ok()
    }

    /// Does what is due about one process; whether there is something to say of it at once.
    fn see(&mut self, candidate: &KernelCandidate, now: Instant) -> bool {
        let key = (candidate.pid, candidate.start_ticks);
        let due = |since: Instant, period| now.saturating_duration_since(since) >= period;
        let watched = self.kernels.get_mut(&key);
        let is_to_be_read = watched.as_ref().is_none_or(|watched| {
            watched.found != candidate.jupyter || due(watched.read_at, READ_AGAIN_AFTER)
        });
        let may_read = self.reading.len() < READ_AT_ONCE && !self.reading.contains_key(&key);
        if is_to_be_read && may_read {
            let (roots, candidate) = (self.roots.clone(), candidate.clone());
            let outbox = self.read.0.clone();
            let reading = move || {
                let kernel = read_kernel(&roots, &candidate);
                // There is room for all who read at once.
                let _ = outbox.send((candidate, kernel));
            };
            let builder = thread::Builder::new().name("notebook-files".to_owned());
            if builder.spawn(reading).is_ok() {
                self.reading.insert(key, now);
            }
            return false;
        }
        let Some(watched) = watched.filter(|watched| due(watched.looked_at, ASK_AGAIN_AFTER))
        else {
            return false;
        };
        watched.looked_at = now;
        watched
            .kernel
            .take_if(|kernel| !kernel.refresh(&self.roots));
        true
    }

    /// Waits for what is being read, and sends each on as it comes. What hangs is waited for once.
    fn wait_for_files(&mut self) -> Option<()> {
        loop {
            let now = Instant::now();
            let ends = self.reading.values().map(|begun| *begun + READ_TIME);
            let Some(end) = ends.filter(|end| *end > now).max() else {
                return Some(());
            };
            if let Ok(read) = self.read.1.recv_timeout(end - now) {
                let key = self.take_in(read);
                self.send(self.answer(key).into_iter().collect())?;
            }
        }
    }

    fn take_in(&mut self, (candidate, mut kernel): Read) -> KernelKey {
        let key = (candidate.pid, candidate.start_ticks);
        self.reading.remove(&key);
        let before = self.kernels.remove(&key).and_then(|watched| watched.kernel);
        if let (Some(kernel), Some(before)) = (&mut kernel, &before) {
            kernel.remember_looks_of(before);
        }
        let now = Instant::now();
        let watched = Watched {
            found: candidate.jupyter,
            kernel,
            read_at: now,
            looked_at: now,
        };
        self.kernels.insert(key, watched);
        key
    }

    /// The servers of all kernels.
    fn servers(&self) -> HashMap<KernelKey, Server> {
        let kernels = self.kernels.values().filter_map(|it| it.kernel.as_ref());
        kernels
            .filter_map(|kernel| kernel.server.as_ref())
            .map(|server| ((server.pid, server.start_ticks), server.clone()))
            .collect()
    }

    fn kernels_of(&self, server: KernelKey) -> Vec<KernelKey> {
        let is_of = |kernel: &LocalKernel| server_key(kernel) == Some(server);
        let kernels = self.kernels.iter();
        kernels
            .filter(|(_, watched)| watched.kernel.as_ref().is_some_and(is_of))
            .map(|(key, _)| *key)
            .collect()
    }

    /// Whether a server was asked before one of its kernels was there.
    fn is_before_a_kernel(&self, server: KernelKey, asked: &ServerAnswer) -> bool {
        let kernels = self.kernels_of(server);
        let mut kernels = kernels.iter().filter_map(|key| self.kernels.get(key));
        kernels.any(|watched| asked.is_before(watched))
    }

    /// The ids of a server's kernels that are on a GPU.
    fn wanted(&self, server: KernelKey) -> Vec<Arc<str>> {
        let kernels = self.kernels_of(server);
        let kernels = kernels.iter().filter_map(|key| self.kernels.get(key));
        kernels
            .filter_map(|watched| watched.kernel.as_ref()?.jupyter.kernel_id.clone())
            .collect()
    }

    /// What is known of one process.
    fn answer(&self, key: KernelKey) -> Option<KernelAnswer> {
        let watched = self.kernels.get(&key)?;
        let mut answer = KernelAnswer {
            key,
            jupyter: None,
            at: watched.looked_at,
            is_settled: true,
        };
        let Some(kernel) = &watched.kernel else {
            return Some(answer);
        };
        let mut jupyter = kernel.jupyter.clone();
        if let Some(server) = server_key(kernel) {
            match self.servers.get(&server) {
                Some(asked) if !asked.is_before(watched) => {
                    answer.at = answer.at.min(asked.at);
                    apply(&mut jupyter, &asked.result);
                }
                _ => answer.is_settled = false,
            }
        }
        answer.jupyter = Some(jupyter.into());
        Some(answer)
    }
}

fn server_key(kernel: &LocalKernel) -> Option<KernelKey> {
    let server = kernel.server.as_ref()?;
    Some((server.pid, server.start_ticks))
}

/// Asks a server for its kernels; for those without a session only where one of them is wanted.
fn ask(
    roots: &Roots,
    server: &Server,
    wanted: &[Arc<str>],
) -> Result<HashMap<String, KernelState>, ServerError> {
    let begun = Instant::now();
    let client = Client::new(roots, server)?;
    let left = || {
        let left = SERVER_TIME.saturating_sub(begun.elapsed());
        left.max(Duration::from_millis(1))
    };
    let by_id = |states: Vec<KernelState>| states.into_iter().map(|it| (it.id.clone(), it));
    let mut states: HashMap<String, KernelState> = by_id(client.sessions(left())?).collect();
    if wanted.iter().any(|id| !states.contains_key(&**id)) {
        for (id, state) in by_id(client.kernels(left())?) {
            states.entry(id).or_insert(state);
        }
    }
    Ok(states)
}

/// Puts a server's answer into what is known of a kernel.
fn apply(jupyter: &mut Jupyter, result: &Result<HashMap<String, KernelState>, ServerError>) {
    let states = match result {
        Ok(states) => states,
        Err(error) => {
            jupyter.server_error = Some(error.to_string().into());
            return;
        }
    };
    let Some(state) = jupyter.kernel_id.as_deref().and_then(|id| states.get(id)) else {
        jupyter.server_error = Some(ServerError::UnknownKernel.to_string().into());
        return;
    };
    if let Some(path) = &state.path {
        jupyter.notebook_path = Some(path.as_str().into());
    }
    jupyter.execution_state = state.execution_state.as_deref().map(Into::into);
    jupyter.last_activity = state.last_activity;
    jupyter.connections = state.connections;
}

#[cfg(test)]
mod tests;
