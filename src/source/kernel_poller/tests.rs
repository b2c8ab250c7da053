//! What a snapshot gets, with the test as the answering thread, or with threads that read fake files.

use super::*;
use crate::host::jupyter::testing::Proc;

fn kernel(start_ticks: u64) -> Process {
    Process {
        pid: 7,
        start_ticks: Some(start_ticks),
        jupyter: Some(Arc::new(Jupyter { kernel_id: Some("k".into()), ..Jupyter::default() })),
        ..Process::default()
    }
}

/// Notebooks with this kernel, whose thread is the test.
fn notebooks(process: &Process) -> (Notebooks, Sender<KernelAnswer>) {
    let mut notebooks = Notebooks::new(Roots::default());
    let (answers, taken) = channel();
    let known = KnownKernel {
        found: process.jupyter.clone(),
        answers: Some(taken),
        answer: None,
        is_met: false,
    };
    notebooks.known.insert(key(process).unwrap(), known);
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
fn an_answer_is_put_into_its_own_process_only() {
    let (mut notebooks, answers) = notebooks(&kernel(70));
    answers.send(busy(Instant::now())).unwrap();
    let shown = join(&mut notebooks, kernel(70));
    assert_eq!(shown.execution_state.as_deref(), Some("busy"));

    // The pid is reused; answers about its former owner are dropped.
    let shown = join(&mut notebooks, kernel(71));
    assert_eq!(shown.execution_state, None);
    assert!(answers.send(busy(Instant::now())).is_err());
}

#[test]
fn answers_about_an_earlier_program_are_forgotten() {
    let (mut notebooks, answers) = notebooks(&kernel(70));
    answers.send(busy(Instant::now())).unwrap();
    join(&mut notebooks, kernel(70));
    let other = Process { jupyter: Some(Arc::default()), ..kernel(70) };
    let shown = join(&mut notebooks, other);
    assert_eq!((shown.notebook_path, shown.execution_state), (None, None));
}

#[test]
fn an_old_answer_keeps_the_name_and_loses_the_state() {
    let (mut notebooks, answers) = notebooks(&kernel(70));
    let long_ago = Instant::now().checked_sub(OLDEST + Duration::from_secs(1)).unwrap();
    answers.send(busy(long_ago)).unwrap();
    let shown = join(&mut notebooks, kernel(70));
    assert_eq!(shown.under_way(), Some("reading its files"));
    assert_eq!(shown.notebook_path.as_deref(), Some("a.ipynb"));
    assert_eq!((shown.execution_state, shown.connections), (None, None));
    assert_eq!((shown.server_alive, shown.last_activity), (None, None));
}

#[test]
fn without_a_kernel_there_is_no_thread() {
    let mut notebooks = Notebooks::new(Roots::default());
    let command = Some([Arc::from("sleep")].into());
    let sleep = Process { command, start_ticks: Some(70), ..Process::default() };
    assert_eq!(join(&mut notebooks, sleep), Jupyter::default());
    assert_eq!(Arc::strong_count(&notebooks.threads), 1);
}

#[test]
fn a_kernel_whose_files_hang_holds_up_no_other_and_is_bounded() {
    let proc = Proc::new();
    proc.process(91, 1, 910, &["JPY_SESSION_NAME=/b.ipynb"]);
    // Opening it waits for a writer.
    let environ = proc.folder(90).join("environ");
    std::fs::remove_file(&environ).unwrap();
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, &environ, rustix::fs::FileType::Fifo, mode, 0).unwrap();

    let mut notebooks = Notebooks::new(proc.roots());
    let mut processes = [(90, 900), (91, 910)].map(|(pid, start_ticks)| Process {
        pid,
        jupyter: Some(Arc::default()),
        ..kernel(start_ticks)
    });
    let path_of = |notebooks: &mut Notebooks, at: usize, processes: &mut [Process; 2]| {
        notebooks.ask(processes);
        let key = key(&processes[at]).unwrap();
        notebooks.known.get_mut(&key).unwrap().take(Duration::from_secs(60));
        let jupyter = notebooks.known[&key].jupyter(Instant::now()).unwrap();
        jupyter.notebook_path.as_deref().map(str::to_owned)
    };
    assert_eq!(path_of(&mut notebooks, 1, &mut processes).as_deref(), Some("/b.ipynb"));
    let hanging = notebooks.known[&(90, 900)].jupyter(Instant::now()).unwrap();
    assert_eq!(hanging.under_way(), Some("reading its files"));
    std::fs::write(&environ, "JPY_SESSION_NAME=/a.ipynb").unwrap();
    assert_eq!(path_of(&mut notebooks, 0, &mut processes).as_deref(), Some("/a.ipynb"));

    let _held: Vec<Arc<()>> = vec![Arc::clone(&notebooks.threads); MOST_THREADS];
    let further = candidate(&kernel(1)).unwrap();
    assert!(notebooks.start(further).is_err());
}
