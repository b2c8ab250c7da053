//! The notebooks behind the kernels of each snapshot: what their files and servers say, asked on a
//! thread of its own.
//!
//! A home directory may be on a file system that hangs, and a server may never answer. So [`Notebooks`]
//! tells the thread which kernels there are and takes what it has answered so far: a sample that meets a
//! kernel for the first time goes on as soon as all is answered, and after [`ANSWER_TIME`] without. What
//! has not come by then is marked as being asked (`Jupyter::asking`) and comes with a later sample. An
//! answer belongs to one process, by pid and start, and what of it grows old is taken out again: a state
//! from half a minute ago proves nothing about now.
//!
//! The thread has a kernel's files read (`readers`) when it appears and every minute, and asks each server
//! every ten seconds, for all of its kernels at once; it does neither itself, so that a file or a server
//! that hangs holds up nothing but its own kernel.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use self::readers::{FileReaders, Read};
use self::server_states::{apply, ask};
use crate::deadline::{ANSWER_TIME, Answers, NotAsked, Worker};
use crate::host::Roots;
use crate::host::jupyter::{
    KernelCandidate, KernelState, LocalKernel, Server, ServerError, may_be_kernel,
};
use crate::model::Process;
use crate::model::snapshot::Jupyter;

mod readers;
mod server_states;

/// How long a sample waits for what servers say again, where the one before is longer ago than an answer
/// holds, as with an interval of a minute: one that came later would be old in each sample.
const AGAIN_TIME: Duration = Duration::from_millis(400);

/// How often the thread is told which kernels there are where they are the same and all has been answered: its
/// work comes due less often.
const REFRESH_AFTER: Duration = Duration::from_secs(5);

/// An answer that is older says nothing about what goes on.
const OLDEST: Duration = Duration::from_secs(30);

/// How often a server is asked, and a kernel's starter looked for.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// How often files are read again.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// How long files are waited for; what comes later is taken when it comes.
const READ_TIME: Duration = Duration::from_secs(1);

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
    /// When the thread was told last.
    refreshed: Option<Instant>,
    /// The number of the last sample.
    number: u64,
}

#[derive(Debug)]
struct KnownKernel {
    /// What its argv tells; another program was executed where it differs.
    found: Option<Arc<Jupyter>>,
    answer: Option<KernelAnswer>,
    /// The answer without what has grown old.
    faded: Option<Arc<Jupyter>>,
    /// A sample has met it before; what it lacks is taken when it comes.
    is_met: bool,
    /// The number of the last sample that it was in.
    sample: u64,
}

impl KnownKernel {
    /// Whether its files or its server have still to answer.
    fn is_asked(&self) -> bool {
        self.answer.as_ref().is_none_or(|it| !it.is_settled)
    }

    /// Whether its server said what it does, too long ago to be so now.
    fn is_outdated(&self, now: Instant) -> bool {
        let outdated = |answer: &KernelAnswer| {
            let jupyter = answer.jupyter.as_ref();
            jupyter.is_some_and(|it| it.execution_state.is_some())
                && now.saturating_duration_since(answer.at) > OLDEST
        };
        self.answer.as_ref().is_some_and(outdated)
    }
}

impl Notebooks {
    pub(super) fn new(roots: Roots) -> Self {
        Self { roots, thread: None, known: HashMap::new(), refreshed: None, number: 0 }
    }

    /// Tells the thread which kernels there are.
    pub(super) fn ask(&mut self, processes: &[Process]) {
        self.note(processes);
        if self.known.is_empty() {
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
        let now = Instant::now();
        if let Some(thread) = self.thread.as_ref().filter(|_| self.is_refresh_due(now)) {
            self.refreshed = Some(now);
            // One that is busy is told at the next sample.
            match thread.ask(processes.iter().filter_map(candidate).collect()) {
                Ok(()) => {}
                Err(NotAsked::Busy(_)) => self.refreshed = None,
                Err(NotAsked::Ended) => self.thread = None,
            }
        }
    }

    /// Whether there is something for the thread to do, or may be by now.
    fn is_refresh_due(&self, now: Instant) -> bool {
        let refreshed = self.refreshed.filter(|_| !self.known.values().any(KnownKernel::is_asked));
        refreshed.is_none_or(|at| now.saturating_duration_since(at) >= REFRESH_AFTER)
    }

    /// Puts into each kernel what is known of it now; they were asked about before.
    pub(super) fn join(&mut self, processes: &mut [Process]) {
        self.take_answers();
        self.wait(Instant::now());
        let now = Instant::now();
        let may_be_asked = self.thread.is_some();
        for process in processes {
            let Some(known) = key(process).and_then(|key| self.known.get_mut(&key)) else {
                continue;
            };
            if let Some(answer) = &known.answer {
                process.jupyter = if now.saturating_duration_since(answer.at) <= OLDEST {
                    answer.jupyter.clone()
                } else {
                    let faded = || answer.jupyter.as_deref().map(|jupyter| fade(jupyter).into());
                    known.faded = known.faded.take().or_else(faded);
                    known.faded.clone()
                };
            }
            if may_be_asked
                && (known.is_asked() || known.is_outdated(now))
                && let Some(jupyter) = &mut process.jupyter
            {
                Arc::make_mut(jupyter).asking = Some(true);
            }
        }
    }

    /// Forgets who is gone, and notes who is new.
    fn note(&mut self, processes: &[Process]) {
        self.number += 1;
        let mut noted = 0;
        for process in processes.iter().filter(|it| may_be_candidate(it)) {
            let Some(key) = key(process) else {
                continue;
            };
            noted += 1;
            let same = self.known.get_mut(&key);
            if let Some(known) = same.filter(|known| known.found == process.jupyter) {
                known.sample = self.number;
                continue;
            }
            let known = KnownKernel {
                found: process.jupyter.clone(),
                answer: None,
                faded: None,
                is_met: false,
                sample: self.number,
            };
            self.known.insert(key, known);
        }
        if noted != self.known.len() {
            let number = self.number;
            self.known.retain(|_, known| known.sample == number);
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

    /// Until when a sample goes on without what it lacks; `None` where it lacks nothing that it would have soon:
    /// for a moment of kernels that are new, longer of those whose server said something long ago.
    fn deadline(&self, now: Instant) -> Option<Instant> {
        let deadlines = self.known.values().filter_map(|known| {
            if known.is_outdated(now) {
                Some(now + AGAIN_TIME)
            } else {
                (known.is_asked() && !known.is_met).then_some(now + ANSWER_TIME)
            }
        });
        deadlines.max()
    }

    /// Takes what comes until then.
    fn wait(&mut self, now: Instant) {
        while let Some(thread) = &self.thread
            && let Some(deadline) = self.deadline(now)
            && let left = deadline.saturating_duration_since(Instant::now())
            && let Some(answers) = thread.take(left)
        {
            take(&mut self.known, answers);
        }
        for known in self.known.values_mut() {
            known.is_met = true;
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

fn may_be_candidate(process: &Process) -> bool {
    process.jupyter.is_some() || may_be_kernel(process.command.as_deref().unwrap_or_default())
}

fn candidate(process: &Process) -> Option<KernelCandidate> {
    let (pid, start_ticks) = key(process).filter(|_| may_be_candidate(process))?;
    Some(KernelCandidate { pid, start_ticks, jupyter: process.jupyter.clone() })
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
    readers: FileReaders,
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

/// A server's last answer.
#[derive(Debug)]
struct ServerAnswer {
    at: Instant,
    result: Result<HashMap<String, KernelState>, ServerError>,
}

impl ServerAnswer {
    /// Whether it knows nothing of a kernel because that one is younger than it.
    fn is_before(&self, watched: &Watched) -> bool {
        let id = watched.kernel.as_ref().and_then(|kernel| kernel.jupyter.kernel_id.as_deref());
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
            readers: FileReaders::new(&roots),
            roots,
            kernels: HashMap::new(),
            servers: HashMap::new(),
            outbox,
        }
    }

    /// Does what is due about these kernels. `None` where the answers are not read any more.
    fn work(&mut self, list: &[KernelCandidate]) -> Option<()> {
        self.kernels.retain(|key, _| list.iter().any(|it| (it.pid, it.start_ticks) == *key));
        // What needs no server first: one that hangs does not keep the others' names back.
        let now = Instant::now();
        let mut seen = self.take_read(Duration::ZERO);
        let mut unread = Vec::new();
        for candidate in list {
            let key = (candidate.pid, candidate.start_ticks);
            if self.is_to_be_read(candidate, now) {
                unread.push(candidate.clone());
            } else if self.refresh(key, now) {
                seen.push(key);
            }
        }
        self.readers.ask(unread.into_iter(), now);
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

    fn is_to_be_read(&self, candidate: &KernelCandidate, now: Instant) -> bool {
        let key = (candidate.pid, candidate.start_ticks);
        let is_due = self.kernels.get(&key).is_none_or(|watched| {
            watched.found != candidate.jupyter
                || now.saturating_duration_since(watched.read_at) >= READ_AGAIN_AFTER
        });
        is_due && !self.readers.is_pending(key)
    }

    /// Looks for a kernel's starter again where that is due; whether it was.
    fn refresh(&mut self, key: KernelKey, now: Instant) -> bool {
        let is_due = |watched: &&mut Watched| {
            now.saturating_duration_since(watched.looked_at) >= ASK_AGAIN_AFTER
        };
        let Some(watched) = self.kernels.get_mut(&key).filter(is_due) else {
            return false;
        };
        watched.looked_at = now;
        watched.kernel.take_if(|kernel| !kernel.refresh(&self.roots));
        true
    }

    /// Takes in what has been read by now, waiting for the first as long as is given.
    fn take_read(&mut self, time: Duration) -> Vec<KernelKey> {
        let first = self.readers.take(time);
        let mut read: Vec<Read> = first.into_iter().collect();
        if !read.is_empty() {
            read.extend(std::iter::from_fn(|| self.readers.take(Duration::ZERO)));
        }
        read.into_iter().map(|read| self.take_in(read)).collect()
    }

    /// Waits for what is being read, and sends each on as it comes. What hangs is waited for once.
    fn wait_for_files(&mut self) -> Option<()> {
        while let Some(asked) = self.readers.asked_last()
            && let left = READ_TIME.saturating_sub(asked.elapsed())
            && !left.is_zero()
        {
            let read = self.take_read(left);
            self.send(read.iter().filter_map(|key| self.answer(*key)).collect())?;
        }
        Some(())
    }

    fn take_in(&mut self, (candidate, mut kernel): Read) -> KernelKey {
        let key = (candidate.pid, candidate.start_ticks);
        let before = self.kernels.remove(&key).and_then(|watched| watched.kernel);
        if let (Some(kernel), Some(before)) = (&mut kernel, &before) {
            kernel.remember_looks_of(before);
        }
        let now = Instant::now();
        let watched = Watched { found: candidate.jupyter, kernel, read_at: now, looked_at: now };
        self.kernels.insert(key, watched);
        key
    }

    /// The servers of all kernels.
    fn servers(&self) -> HashMap<KernelKey, Server> {
        let kernels = self.kernels.values().filter_map(|it| it.kernel.as_ref());
        kernels
            .filter_map(|kernel| kernel.server.as_ref())
            .map(|server| ((server.listener.pid, server.listener.start_ticks), server.clone()))
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
        kernels.filter_map(|watched| watched.kernel.as_ref()?.jupyter.kernel_id.clone()).collect()
    }

    /// What is known of one process.
    fn answer(&self, key: KernelKey) -> Option<KernelAnswer> {
        let watched = self.kernels.get(&key)?;
        let mut answer =
            KernelAnswer { key, jupyter: None, at: watched.looked_at, is_settled: true };
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
    Some((server.listener.pid, server.listener.start_ticks))
}

#[cfg(test)]
mod tests;
