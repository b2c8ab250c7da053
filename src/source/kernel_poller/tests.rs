//! What is put into a snapshot, with the test as the thread that answers.

use super::*;
use std::sync::mpsc::Receiver;

use crate::host::jupyter::read_kernel;

/// Notebooks whose thread is the test.
fn notebooks() -> (Notebooks, Receiver<Vec<KernelCandidate>>, Answers<Vec<KernelAnswer>>) {
    let (thread, inbox, outbox) = Worker::by_hand(QUEUES);
    let notebooks = Notebooks { thread: Some(thread), ..Notebooks::new(Roots::default()) };
    (notebooks, inbox, outbox)
}

fn kernel(start_ticks: u64) -> Process {
    Process {
        pid: 7,
        start_ticks: Some(start_ticks),
        jupyter: Some(Arc::new(Jupyter { kernel_id: Some("k".into()), ..Jupyter::default() })),
        ..Process::default()
    }
}

fn busy(key: KernelKey, at: Instant) -> KernelAnswer {
    KernelAnswer {
        key,
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
    let (mut notebooks, inbox, outbox) = notebooks();
    outbox.send(vec![busy((7, 70), Instant::now())]).unwrap();
    let shown = join(&mut notebooks, kernel(70));
    assert_eq!(shown.execution_state.as_deref(), Some("busy"));
    let list = inbox.recv().unwrap();
    assert_eq!((list[0].pid, list[0].start_ticks), (7, 70));

    // The number is another's now; what is said of the one before comes too late.
    outbox.send(vec![busy((7, 70), Instant::now())]).unwrap();
    drop(outbox);
    let shown = join(&mut notebooks, kernel(71));
    assert_eq!(shown.execution_state, None);
    assert_eq!(shown.kernel_id.as_deref(), Some("k"));
}

#[test]
fn what_was_reported_of_another_program_is_forgotten() {
    let (mut notebooks, _inbox, outbox) = notebooks();
    outbox.send(vec![busy((7, 70), Instant::now())]).unwrap();
    join(&mut notebooks, kernel(70));
    drop(outbox);
    let other = Process { jupyter: Some(Arc::default()), ..kernel(70) };
    let shown = join(&mut notebooks, other);
    assert_eq!((shown.notebook_path, shown.execution_state), (None, None));
}

#[test]
fn an_old_answer_keeps_the_name_and_loses_the_state() {
    let (mut notebooks, _inbox, outbox) = notebooks();
    let long_ago = Instant::now().checked_sub(OLDEST + Duration::from_secs(1)).unwrap();
    outbox.send(vec![busy((7, 70), long_ago)]).unwrap();
    // No server is there to answer again.
    drop(outbox);
    let shown = join(&mut notebooks, kernel(70));
    assert_eq!(shown.under_way(), Some("reading its files"));
    assert_eq!(shown.notebook_path.as_deref(), Some("a.ipynb"));
    assert_eq!((shown.execution_state, shown.connections), (None, None));
    assert_eq!((shown.server_alive, shown.last_activity), (None, None));
}

#[test]
fn it_waits_for_what_is_under_way_and_takes_what_comes() {
    let (mut notebooks, inbox, outbox) = notebooks();
    let thread = thread::spawn(move || {
        let list = inbox.recv().unwrap();
        let key = (list[0].pid, list[0].start_ticks);
        let first = KernelAnswer { is_settled: false, jupyter: None, ..busy(key, Instant::now()) };
        outbox.send(vec![first]).unwrap();
        outbox.send(vec![busy(key, Instant::now())]).unwrap();
        inbox.recv().is_err()
    });
    let shown = join(&mut notebooks, kernel(70));
    assert_eq!(shown.execution_state.as_deref(), Some("busy"));
    drop(notebooks);
    assert!(thread.join().unwrap());
}

#[test]
fn what_is_slow_is_marked_and_comes_with_a_later_sample() {
    let (mut notebooks, _inbox, outbox) = notebooks();
    // Nothing is known of it yet but its argv.
    let mut processes = [kernel(70)];
    notebooks.ask(&processes);
    let now = Instant::now();
    assert_eq!(notebooks.deadline(now), Some(now + ANSWER_TIME));
    notebooks.join(&mut processes);
    let shown = processes[0].jupyter.as_deref().unwrap();
    assert_eq!(shown.under_way(), Some("reading its files"));

    // Its files are read, and its server has been asked; no sample waits for it any more.
    let mut first = busy((7, 70), now);
    first.is_settled = false;
    first.jupyter = Some(Arc::new(Jupyter {
        server_url: Some("http://localhost:8888/".into()),
        ..Jupyter::default()
    }));
    outbox.send(vec![first]).unwrap();
    notebooks.ask(&[kernel(70)]);
    assert_eq!(notebooks.deadline(now), None);
    let shown = join(&mut notebooks, kernel(70));
    assert_eq!(shown.under_way(), Some("asking its server"));
    assert_eq!(shown.execution_state, None);

    outbox.send(vec![busy((7, 70), now)]).unwrap();
    let shown = join(&mut notebooks, kernel(70));
    assert_eq!((shown.asking, shown.under_way()), (None, None));
    assert_eq!(shown.execution_state.as_deref(), Some("busy"));
    // Where samples are far apart, what it said is asked for again each time, and worth more.
    let later = now + OLDEST + Duration::from_secs(1);
    assert_eq!(notebooks.deadline(later), Some(later + AGAIN_TIME));
}

#[test]
fn the_thread_is_not_woken_where_nothing_is_to_be_done() {
    let (mut notebooks, inbox, outbox) = notebooks();
    outbox.send(vec![busy((7, 70), Instant::now())]).unwrap();
    let lists_sent = |notebooks: &mut Notebooks, process| {
        join(notebooks, process);
        inbox.try_iter().count()
    };
    assert_eq!(lists_sent(&mut notebooks, kernel(70)), 1);
    assert_eq!(lists_sent(&mut notebooks, kernel(70)), 0);
    let later = Instant::now() + REFRESH_AFTER;
    assert!(notebooks.is_refresh_due(later));
    // One that is new, or another program, is told at once; and again until all is answered.
    outbox.send(vec![busy((7, 71), Instant::now())]).unwrap();
    assert_eq!(lists_sent(&mut notebooks, kernel(71)), 1);
    assert_eq!(lists_sent(&mut notebooks, kernel(71)), 0);
    assert_eq!(lists_sent(&mut notebooks, kernel(72)), 1);
    assert_eq!(lists_sent(&mut notebooks, kernel(72)), 1);
}

#[test]
fn all_kernels_without_files_are_answered_at_once_however_many() {
    use crate::host::jupyter::testing::Proc;
    let proc = Proc::new();
    let list: Vec<KernelCandidate> = (100..150)
        .map(|pid| {
            proc.process(pid, 1, u64::from(pid) * 10, &["HOME=/nowhere"]);
            KernelCandidate {
                pid,
                start_ticks: u64::from(pid) * 10,
                jupyter: Some(Arc::new(Jupyter {
                    connection_file: Some("/nowhere/kernel-1.json".into()),
                    ..Jupyter::default()
                })),
            }
        })
        .collect();
    let (outbox, answers) = sync_channel(list.len());
    let mut poller = KernelPoller::new(proc.roots(), outbox);
    poller.work(&list).unwrap();
    let answers: Vec<KernelAnswer> = answers.try_iter().flatten().collect();
    assert_eq!(answers.len(), list.len());
    for answer in answers {
        let error = answer.jupyter.unwrap().server_error.clone().unwrap();
        assert!(answer.is_settled && error.contains("kernel-1.json"), "{error}");
    }
}

#[test]
fn without_a_kernel_there_is_no_thread() {
    let mut notebooks = Notebooks::new(Roots::default());
    let sleep = Process {
        command: Some([Arc::from("sleep")].into()),
        start_ticks: Some(70),
        ..Process::default()
    };
    assert_eq!(join(&mut notebooks, sleep), Jupyter::default());
    assert!(notebooks.thread.is_none());
}

#[test]
fn a_servers_answer_is_put_into_the_kernel_of_that_id() {
    let state = KernelState {
        id: "k".to_owned(),
        path: Some("a.ipynb".to_owned()),
        execution_state: Some("idle".to_owned()),
        last_activity: None,
        connections: Some(0),
    };
    let states = HashMap::from([("k".to_owned(), state)]);
    let answered = Jupyter {
        kernel_id: Some("k".into()),
        notebook_path: Some("early.ipynb".into()),
        ..Jupyter::default()
    };
    let mut jupyter = answered.clone();
    apply(&mut jupyter, &Ok(states));
    assert_eq!(jupyter.notebook_path.as_deref(), Some("a.ipynb"));
    assert_eq!(jupyter.execution_state.as_deref(), Some("idle"));
    assert_eq!((jupyter.connections, jupyter.server_error), (Some(0), None));

    let mut jupyter = answered.clone();
    apply(&mut jupyter, &Ok(HashMap::new()));
    assert!(jupyter.server_error.unwrap().contains("does not know"));
    let mut jupyter = answered;
    apply(&mut jupyter, &Err(ServerError::Password));
    assert!(jupyter.server_error.unwrap().contains("password"));
    assert_eq!(jupyter.notebook_path.as_deref(), Some("early.ipynb"));
}

#[test]
fn a_kernel_whose_files_hang_holds_up_no_other() {
    use crate::host::jupyter::testing::Proc;
    let proc = Proc::new();
    proc.process(91, 1, 910, &["JPY_SESSION_NAME=/b.ipynb"]);
    // Opening it waits for somebody who writes.
    let environ = proc.folder(90).join("environ");
    std::fs::remove_file(&environ).unwrap();
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, &environ, rustix::fs::FileType::Fifo, mode, 0).unwrap();

    let (outbox, answers) = sync_channel(QUEUES.1);
    let mut poller = KernelPoller::new(proc.roots(), outbox);
    let list: Vec<KernelCandidate> = [(90, 900), (91, 910)]
        .map(|(pid, start_ticks)| KernelCandidate {
            pid,
            start_ticks,
            jupyter: Some(Arc::default()),
        })
        .into();
    poller.work(&list).unwrap();
    let answer = answers.try_recv().unwrap().remove(0);
    assert_eq!(answer.key, (91, 910));
    assert_eq!(answer.jupyter.unwrap().notebook_path.as_deref(), Some("/b.ipynb"));
    assert!(answers.try_recv().is_err());
    // It is not asked a second time, and is taken in when it comes.
    poller.work(&list).unwrap();
    assert!(poller.readers.is_pending((90, 900)) && !poller.readers.is_pending((91, 910)));
    std::fs::write(&environ, "JPY_SESSION_NAME=/a.ipynb").unwrap();
    assert_eq!(poller.take_read(Duration::from_secs(60)), [(90, 900)]);
    let jupyter = poller.answer((90, 900)).unwrap().jupyter.unwrap();
    assert_eq!(jupyter.notebook_path.as_deref(), Some("/a.ipynb"));
}

#[test]
fn a_server_that_was_asked_before_a_kernel_was_there_does_not_deny_it() {
    use crate::host::jupyter::testing::Proc;
    let proc = Proc::new();
    proc.process(50, 1, 500, &[]);
    proc.process(90, 50, 900, &["JPY_PARENT_PID=50"]);
    proc.write(90, "/rt/kernel-1.json", "{}");
    let file = r#"{"pid": 50, "base_url": "/", "port": 8888}"#;
    proc.write(50, "/rt/jpserver-50.json", file);
    let candidate = KernelCandidate {
        pid: 90,
        start_ticks: 900,
        jupyter: Some(Arc::new(Jupyter {
            kernel_id: Some("k".into()),
            connection_file: Some("/rt/kernel-1.json".into()),
            ..Jupyter::default()
        })),
    };
    let (outbox, _answers) = sync_channel(QUEUES.1);
    let mut poller = KernelPoller::new(proc.roots(), outbox);
    let asked = |at| ServerAnswer { at, result: Ok(HashMap::new()) };
    let before = Instant::now();
    let kernel = read_kernel(&poller.roots, &candidate);
    let key = poller.take_in((candidate, kernel));
    poller.servers.insert((50, 500), asked(before));
    let answer = poller.answer(key).unwrap();
    assert!(!answer.is_settled && answer.jupyter.unwrap().server_error.is_none());
    assert!(poller.is_before_a_kernel((50, 500), &asked(before)));

    poller.servers.insert((50, 500), asked(Instant::now()));
    let answer = poller.answer(key).unwrap();
    let error = answer.jupyter.unwrap().server_error.clone().unwrap();
    assert!(answer.is_settled && error.contains("does not know"), "{error}");
}
