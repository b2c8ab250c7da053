//! Adds data from files and notebook servers to the kernels in a snapshot.
//!
//! A home directory can be on a file server that hangs, and a notebook server may never answer. Each kernel therefore
//! has a thread that reads its files every minute and queries its server every ten seconds. A sample uses the answers
//! that have arrived, and waits for answers about new kernels for at most [`ANSWER_TIME`] in total. Data that is
//! still missing is marked as pending (`Jupyter::asking`) and added to a later sample. Each answer is about one
//! process, identified by pid and start time. If an answer is older than half a minute, only the names in it are
//! used, because the kernel's state may have changed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use std::{io, thread};

use crate::deadline::{ANSWER_TIME, Deadline};
use crate::host::Roots;
use crate::host::jupyter::{
    Client, KernelCandidate, KernelState, LocalKernel, Server, ServerError, may_be_kernel,
    read_kernel,
};
use crate::model::Process;
use crate::model::snapshot::Jupyter;

/// Maximum age of an answer whose kernel state is used.
const OLDEST: Duration = Duration::from_secs(30);

/// Interval between requests to a server, and between checks whether a kernel's starter is alive.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(10);

const READ_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Time limit for all requests of one query.
const SERVER_TIME: Duration = Duration::from_secs(3);

/// Maximum number of threads, including those that hang. For additional kernels, only the command line is used.
const MOST_THREADS: usize = 64;

type KernelKey = (u32, u64);

#[derive(Clone, Debug)]
struct KernelAnswer {
    /// `None` if the process turned out not to be a kernel.
    jupyter: Option<Arc<Jupyter>>,
    at: Instant,
    /// Whether the server was queried, or there is no server to query.
    is_settled: bool,
}

#[derive(Debug)]
pub(super) struct Notebooks {
    roots: Roots,
    kernels: HashMap<KernelKey, KnownKernel>,
    /// Each thread holds a clone, so the number of references is the number of threads plus one.
    threads: Arc<()>,
}

#[derive(Debug)]
struct KnownKernel {
    /// Kernel described by the command line. If it changes, the process has executed a different program.
    from_argv: Option<Arc<Jupyter>>,
    /// `None` if no thread was started. Dropping the receiver ends the thread.
    answers: Option<Receiver<KernelAnswer>>,
    answer: Option<KernelAnswer>,
    /// Whether a sample has waited for this kernel. Later samples do not.
    has_waited: bool,
}

impl KnownKernel {
    /// Takes the answers that have arrived. If none of them is settled, waits up to `time` for a settled one.
    fn take(&mut self, time: Duration) {
        let deadline = Deadline::after(time);
        let Some(answers) = &self.answers else { return };
        self.answer = answers.try_iter().last().or(self.answer.take());
        while self.answer.as_ref().is_none_or(|answer| !answer.is_settled)
            && let Ok(answer) = answers.recv_timeout(deadline.left())
        {
            self.answer = Some(answer);
        }
    }

    fn jupyter(&self, now: Instant) -> Option<Arc<Jupyter>> {
        let Some(KernelAnswer { jupyter, at, is_settled }) = &self.answer else {
            return self.from_argv.as_ref().map(|jupyter| mark(jupyter, self.answers.is_some()));
        };
        let jupyter = jupyter.as_ref()?;
        if now.saturating_duration_since(*at) <= OLDEST {
            return Some(mark(jupyter, !is_settled));
        }
        let is_outdated = jupyter.execution_state.is_some();
        let kept = Jupyter {
            execution_state: None,
            last_activity: None,
            connections: None,
            server_alive: None,
            ..Jupyter::clone(jupyter)
        };
        Some(mark(&kept.into(), is_outdated || !is_settled))
    }
}

fn mark(jupyter: &Arc<Jupyter>, is_asked: bool) -> Arc<Jupyter> {
    let mut jupyter = Arc::clone(jupyter);
    if is_asked {
        Arc::make_mut(&mut jupyter).asking = Some(true);
    }
    jupyter
}

impl Notebooks {
    pub(super) fn new(roots: Roots) -> Self {
        Self { roots, kernels: HashMap::new(), threads: Arc::default() }
    }

    /// Removes kernels that have exited, and starts threads for new ones.
    pub(super) fn ask(&mut self, processes: &[Process]) {
        let mut old_kernels = std::mem::take(&mut self.kernels);
        for candidate in processes.iter().filter_map(candidate) {
            let key = (candidate.pid, candidate.start_ticks);
            let old_kernel =
                old_kernels.remove(&key).filter(|kernel| kernel.from_argv == candidate.jupyter);
            let mut kernel = old_kernel.unwrap_or_else(|| KnownKernel {
                from_argv: candidate.jupyter.clone(),
                answers: None,
                answer: None,
                has_waited: false,
            });
            if kernel.answers.is_none() {
                kernel.answers = self.start(candidate).ok();
            }
            self.kernels.insert(key, kernel);
        }
    }

    /// Adds the current answers to the kernels. Call [`Self::ask`] first.
    pub(super) fn join(&mut self, processes: &mut [Process]) {
        let deadline = Deadline::after(ANSWER_TIME);
        for kernel in self.kernels.values_mut() {
            let has_waited = std::mem::replace(&mut kernel.has_waited, true);
            kernel.take(if has_waited { Duration::ZERO } else { deadline.left() });
        }
        let now = Instant::now();
        for process in processes {
            if let Some(kernel) = key(process).and_then(|key| self.kernels.get(&key)) {
                process.jupyter = kernel.jupyter(now);
            }
        }
    }

    /// Starts the thread of a kernel, which ends after the returned receiver is dropped.
    fn start(&self, candidate: KernelCandidate) -> io::Result<Receiver<KernelAnswer>> {
        if Arc::strong_count(&self.threads) > MOST_THREADS {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let (sender, answers) = channel();
        let (roots, counted) = (self.roots.clone(), Arc::clone(&self.threads));
        thread::Builder::new().name("notebook".to_owned()).spawn(move || {
            let _counted = counted;
            while_wanted(&roots, &candidate, &sender);
        })?;
        Ok(answers)
    }
}

fn key(process: &Process) -> Option<KernelKey> {
    Some((process.pid, process.start_ticks?))
}

fn candidate(process: &Process) -> Option<KernelCandidate> {
    let may_be = || may_be_kernel(process.command.as_deref().unwrap_or_default());
    let (pid, start_ticks) = key(process).filter(|_| process.jupyter.is_some() || may_be())?;
    Some(KernelCandidate { pid, start_ticks, jupyter: process.jupyter.clone() })
}

fn while_wanted(roots: &Roots, candidate: &KernelCandidate, answers: &Sender<KernelAnswer>) {
    let mut kernel: Option<LocalKernel> = None;
    let mut read_at: Option<Instant> = None;
    loop {
        let at = Instant::now();
        let is_first = read_at.is_none();
        if read_at.is_none_or(|read_at| at.duration_since(read_at) >= READ_AGAIN_AFTER) {
            read_at = Some(at);
            kernel = read_kernel(roots, candidate);
        } else {
            kernel.take_if(|kernel| !kernel.refresh(roots));
        }
        let mut jupyter = kernel.as_ref().map(|kernel| kernel.jupyter.clone());
        let server = kernel.as_ref().and_then(|kernel| kernel.server.as_ref());
        if let (Some(jupyter), Some(server)) = (&mut jupyter, server) {
            // Send the names first, so that a server that hangs does not delay them.
            let names =
                KernelAnswer { jupyter: Some(jupyter.clone().into()), at, is_settled: false };
            if is_first && answers.send(names).is_err() {
                return;
            }
            let result = ask(roots, server, jupyter.kernel_id.as_deref());
            apply(jupyter, result);
        }
        let answer = KernelAnswer { jupyter: jupyter.map(Arc::from), at, is_settled: true };
        if answers.send(answer).is_err() {
            return;
        }
        thread::sleep(ASK_AGAIN_AFTER);
    }
}

/// Queries a server about a kernel. The list of all kernels is requested only if the kernel has no session.
fn ask(roots: &Roots, server: &Server, id: Option<&str>) -> Result<KernelState, ServerError> {
    let deadline = Deadline::after(SERVER_TIME);
    let time_left = || deadline.left().max(Duration::from_millis(1));
    let client = Client::new(roots, server)?;
    let find =
        |states: Vec<KernelState>| states.into_iter().find(|state| Some(state.id.as_str()) == id);
    if let Some(state) = find(client.sessions(time_left())?) {
        return Ok(state);
    }
    find(client.kernels(time_left())?).ok_or(ServerError::UnknownKernel)
}

fn apply(jupyter: &mut Jupyter, result: Result<KernelState, ServerError>) {
    match result {
        Ok(state) => {
            if let Some(path) = state.path {
                jupyter.notebook_path = Some(path.into());
            }
            jupyter.execution_state = state.execution_state.map(Into::into);
            jupyter.last_activity = state.last_activity;
            jupyter.connections = state.connections;
        }
        Err(error) => jupyter.server_error = Some(error.to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::Proc;

    fn kernel(start_ticks: u64) -> Process {
        Process {
            pid: 7,
            start_ticks: Some(start_ticks),
            jupyter: Some(Arc::new(Jupyter { kernel_id: Some("k".into()), ..Jupyter::default() })),
            ..Process::default()
        }
    }

    /// Returns a poller with one kernel, and a sender that takes the place of the kernel's thread.
    fn notebooks(process: &Process) -> (Notebooks, Sender<KernelAnswer>) {
        let mut notebooks = Notebooks::new(Roots::default());
        let (answers, taken) = channel();
        let kernel = KnownKernel {
            from_argv: process.jupyter.clone(),
            answers: Some(taken),
            answer: None,
            has_waited: false,
        };
        notebooks.kernels.insert(key(process).unwrap(), kernel);
        (notebooks, answers)
    }

    fn busy(at: Instant) -> KernelAnswer {
        KernelAnswer {
            jupyter: Some(Arc::new(Jupyter {
                kernel_id: Some("k".into()),
                notebook_path: Some("a.ipynb".into()),
                server_alive: Some(true),
                execution_state: Some("busy".into()),
                connections: Some(1),
                ..Jupyter::default()
            })),
            at,
            is_settled: true,
        }
    }

    fn join(notebooks: &mut Notebooks, process: Process) -> Jupyter {
        let mut processes = [process];
        notebooks.ask(&processes);
        notebooks.join(&mut processes);
        let [process] = processes;
        process.jupyter.as_deref().cloned().unwrap_or_default()
    }

    #[test]
    fn an_answer_applies_only_to_its_process() {
        let (mut notebooks, answers) = notebooks(&kernel(70));
        answers.send(busy(Instant::now())).unwrap();
        let jupyter = join(&mut notebooks, kernel(70));
        assert_eq!(jupyter.execution_state.as_deref(), Some("busy"));

        // If the pid is reused, answers about the earlier process are ignored.
        let jupyter = join(&mut notebooks, kernel(71));
        assert_eq!(jupyter.execution_state, None);
        assert!(answers.send(busy(Instant::now())).is_err());
    }

    #[test]
    fn answers_about_an_earlier_program_are_dropped() {
        let (mut notebooks, answers) = notebooks(&kernel(70));
        answers.send(busy(Instant::now())).unwrap();
        join(&mut notebooks, kernel(70));
        let other_program = Process { jupyter: Some(Arc::default()), ..kernel(70) };
        let jupyter = join(&mut notebooks, other_program);
        assert_eq!((jupyter.notebook_path, jupyter.execution_state), (None, None));
    }

    #[test]
    fn an_old_answer_keeps_the_name_but_not_the_state() {
        let (mut notebooks, answers) = notebooks(&kernel(70));
        let long_ago = Instant::now().checked_sub(OLDEST + Duration::from_secs(1)).unwrap();
        answers.send(busy(long_ago)).unwrap();
        let jupyter = join(&mut notebooks, kernel(70));
        assert_eq!(jupyter.under_way(), Some("reading its files"));
        assert_eq!(jupyter.notebook_path.as_deref(), Some("a.ipynb"));
        assert_eq!((jupyter.execution_state, jupyter.connections), (None, None));
        assert_eq!((jupyter.server_alive, jupyter.last_activity), (None, None));
    }

    #[test]
    fn no_thread_starts_without_a_kernel() {
        let mut notebooks = Notebooks::new(Roots::default());
        let command = Some([Arc::from("sleep")].into());
        let sleep = Process { command, start_ticks: Some(70), ..Process::default() };
        assert_eq!(join(&mut notebooks, sleep), Jupyter::default());
        assert_eq!(Arc::strong_count(&notebooks.threads), 1);
    }

    #[test]
    fn a_kernel_with_hanging_files_does_not_delay_others() {
        let proc = Proc::new();
        proc.process(91, 1, 910, &["JPY_SESSION_NAME=/b.ipynb"]);
        // Opening the FIFO for reading blocks until it has a writer.
        let environ = proc.folder(90).join("environ");
        std::fs::remove_file(&environ).unwrap();
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &environ, rustix::fs::FileType::Fifo, mode, 0)
            .unwrap();

        let mut notebooks = Notebooks::new(proc.roots());
        let mut processes = [(90, 900), (91, 910)].map(|(pid, start_ticks)| Process {
            pid,
            jupyter: Some(Arc::default()),
            ..kernel(start_ticks)
        });
        let path_of = |notebooks: &mut Notebooks, at: usize, processes: &mut [Process; 2]| {
            notebooks.ask(processes);
            let key = key(&processes[at]).unwrap();
            notebooks.kernels.get_mut(&key).unwrap().take(Duration::from_secs(60));
            let jupyter = notebooks.kernels[&key].jupyter(Instant::now()).unwrap();
            jupyter.notebook_path.as_deref().map(str::to_owned)
        };
        assert_eq!(path_of(&mut notebooks, 1, &mut processes).as_deref(), Some("/b.ipynb"));
        let hanging = notebooks.kernels[&(90, 900)].jupyter(Instant::now()).unwrap();
        assert_eq!(hanging.under_way(), Some("reading its files"));
        std::fs::write(&environ, "JPY_SESSION_NAME=/a.ipynb").unwrap();
        assert_eq!(path_of(&mut notebooks, 0, &mut processes).as_deref(), Some("/a.ipynb"));

        let _held: Vec<Arc<()>> = vec![Arc::clone(&notebooks.threads); MOST_THREADS];
        let further = candidate(&kernel(1)).unwrap();
        assert!(notebooks.start(further).is_err());
    }
}
