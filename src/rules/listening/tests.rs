//! What sockets are for, by address, argv and environment.

use std::sync::Arc;

use super::*;
use crate::model::Time;
use crate::model::process::Relation;

fn words(command: &str) -> Arc<[Arc<str>]> {
    command.split(' ').map(Arc::from).collect()
}

fn process(command: &str, on: &[&str]) -> Process {
    Process {
        pid: 70,
        command: Some(words(command)),
        listening: Some(!on.is_empty()),
        listening_on: (!on.is_empty()).then(|| on.iter().copied().map(Arc::from).collect()),
        ..Process::default()
    }
}

fn rank(command: &str, on: &[&str]) -> Process {
    let environment = [("RANK", "1"), ("MASTER_PORT", "23456")];
    let environment = environment.map(|(name, value)| (Arc::from(name), Arc::from(value)));
    Process { environment: Some(Arc::new(environment.into())), ..process(command, on) }
}

fn beside(process: Process, command: &str, on: &[&str]) -> Process {
    Process {
        listening_relatives: Some(
            [Relative {
                start_ticks: None,
                pid: 60,
                relation: Relation::Ancestor,
                command: Some(words(command)),
                listening_on: on.iter().copied().map(Arc::from).collect(),
            }]
            .into(),
        ),
        ..process
    }
}

fn empty() -> Snapshot {
    Snapshot::new(Time::default())
}

#[test]
fn a_process_that_listens_for_clients_is_a_server_whatever_its_name() {
    for (command, on) in [
        ("python app.py", "tcp:0.0.0.0:8000"),
        ("python app.py", "tcp:[::]:41234"),
        ("python", "tcp:127.0.0.1:7860"),
        ("python train.py", "unix:/run/app.sock"),
        ("/opt/engine", "unix:@engine"),
        // A port it was told, though it looks like one for ranks.
        ("python app.py --port 29500", "tcp:0.0.0.0:29500"),
        ("python app.py --bind=0.0.0.0:29400", "tcp:0.0.0.0:29400"),
        // A name proves nothing: another program may have it.
        ("python x.py", "unix:/tmp/listener-x"),
        ("python x.py", "unix:@listener-x"),
    ] {
        assert_eq!(has_clients(&process(command, &[on]), &empty()), Some(true), "{command} {on}");
    }
    let configured = rank("python app.py --port 40000", &["tcp:0.0.0.0:40000"]);
    assert_eq!(has_clients(&configured, &empty()), Some(true));
    let beside_the_rest = rank("python x.py", &["tcp:0.0.0.0:8000", "tcp:0.0.0.0:40000"]);
    assert_eq!(has_clients(&beside_the_rest, &empty()), Some(true));
}

#[test]
fn sockets_of_ranks_debuggers_and_libraries_have_no_clients() {
    let none = |process: &Process| has_clients(process, &empty()) == Some(false);
    for (command, on) in [
        ("python train.py", "tcp:[::]:29500"),
        ("python train.py --master_port 1234", "tcp:[::]:1234"),
        ("python train.py --main-process-port=1234", "tcp:[::]:1234"),
        ("python train.py --dist-url tcp://127.0.0.1:1234", "tcp:127.0.0.1:1234"),
        ("python -m debugpy --listen 0.0.0.0:5678 train.py", "tcp:0.0.0.0:5678"),
        ("python -m debugpy --listen 5678 train.py", "tcp:127.0.0.1:45678"),
        ("python train.py", "unix:/tmp/pymp-x1_y/listener-0abc"),
        ("python train.py", "unix:@listener-4242-0"),
        ("python train.py", "unix:/tmp/torch-shm-dir-AbC/manager.sock"),
        ("python train.py", "unix:@cuda-uvmfd-4026531836-77"),
        ("ray::Trainer.step", "tcp:0.0.0.0:10005"),
        ("python /v/bin/dask worker tcp://x:8786", "tcp:10.0.0.1:41000"),
    ] {
        assert!(none(&process(command, &[on])), "{command} {on}");
    }
    // A rank's NCCL and Gloo sockets, its run's meeting point, and its sibling's, which are unknown.
    assert!(none(&rank("python t.py", &["tcp:10.0.0.1:40001", "tcp:[::]:23456"])));
    assert!(none(&process("python t.py", &["tcp:[::]:12355", "tcp:10.0.0.1:40001"])));
    let mut snapshot = empty();
    snapshot.processes = vec![Process { pid: 71, ppid: Some(70), ..rank("python t.py", &[]) }];
    let first = process("python t.py", &["tcp:[::]:23456", "tcp:10.0.0.1:40001"]);
    assert_eq!(has_clients(&first, &snapshot), Some(false));
    assert_eq!(has_clients(&first, &empty()), Some(true), "the purpose of the port is unknown");
    // The port that the debugged program itself is told.
    let served =
        process("python -m debugpy --listen 5678 app.py --port 8000", &["tcp:0.0.0.0:8000"]);
    assert_eq!(has_clients(&served, &empty()), Some(true));
}

#[test]
fn unreported_sockets_are_unknown() {
    let unknown = Process { listening: None, ..process("python app.py", &[]) };
    let old = Process { listening: Some(true), ..process("python app.py", &[]) };
    let old_rank = Process { listening: Some(true), ..rank("python t.py", &[]) };
    assert_eq!(has_clients(&unknown, &empty()), None);
    assert_eq!(has_clients(&old, &empty()), None);
    assert_eq!(has_clients(&old_rank, &empty()), Some(false));
    assert_eq!(has_clients(&process("python app.py", &[]), &empty()), Some(false));
}

#[test]
fn a_front_end_that_listens_makes_its_engine_a_server_and_an_attendant_does_not() {
    let engine = || process("python engine.py", &[]);
    for (command, on) in [
        ("python front.py", "tcp:0.0.0.0:8000"),
        ("node index.js", "unix:/run/x.sock"),
        ("python -m uvicorn app:app --workers 2", "tcp:127.0.0.1:8000"),
        ("", "tcp:0.0.0.0:40000"),
    ] {
        let process = beside(engine(), command, &[on]);
        assert!(has_listening_family(&process, &empty()), "{command} {on}");
    }
    for (command, on) in [
        ("tmux: server", "unix:/tmp/tmux-0/default"),
        ("sshd: ann@pts/1", "tcp:0.0.0.0:6010"),
        ("/usr/bin/python3 /v/bin/jupyter-lab --port 8888", "tcp:127.0.0.1:8888"),
        ("python -m ipykernel_launcher -f k.json", "tcp:127.0.0.1:9000"),
        (
            "/home/a/.vscode-server/bin/x/node /home/a/.vscode-server/out/server-main.js",
            "tcp:127.0.0.1:9",
        ),
        ("python /v/lib/debugpy/adapter --port 5678", "tcp:127.0.0.1:5678"),
        ("python /v/bin/torchrun --nproc-per-node 2 t.py", "tcp:[::]:23456"),
        ("python -m torch.distributed.run t.py", "tcp:[::]:40123"),
        ("python /v/bin/tensorboard --logdir x", "tcp:127.0.0.1:6006"),
        ("/v/bin/wandb-core --port-filename x", "unix:/tmp/wandb-1.sock"),
        ("wandb-service(2-77-x)", "tcp:127.0.0.1:5000"),
        ("/v/ray/raylet --x", "tcp:0.0.0.0:6380"),
        ("ray::IDLE", "tcp:0.0.0.0:10003"),
        ("python anything.py", "tcp:127.0.0.1:40000"),
        ("python anything.py", "unix:/tmp/pymp-a/listener-b"),
    ] {
        let process = beside(engine(), command, &[on]);
        assert!(!has_listening_family(&process, &empty()), "{command} {on}");
    }
    let rank = beside(rank("python t.py", &[]), "python t.py", &["tcp:10.0.0.1:40000"]);
    assert!(!has_listening_family(&rank, &empty()), "another rank");
    assert!(!has_listening_family(&engine(), &empty()));
}
