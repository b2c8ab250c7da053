//! Tests the first step for each kind of owner.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::model::Finding;
use crate::model::Kind;
use crate::model::snapshot::{Container, Jupyter, Parent, Slurm};
use crate::reclaim::launcher::is_launcher_command;
use crate::reclaim::policy::Signal;
use crate::reclaim::target::Target;
use crate::reclaim::testing::{child, finding, guard, guard_naming, on_gpu, plan_of, process};

fn target(process: &Process, guard: &Guard) -> Target {
    let snapshot = on_gpu(std::slice::from_ref(process));
    let mut plan = plan_of(&[finding(Kind::Idle, process)], &snapshot, guard);
    assert_eq!(plan.targets.len(), 1, "{:?}", plan.refused);
    plan.targets.remove(0)
}

fn python() -> Process {
    process(70, "python train.py")
}

fn direct() -> Guard {
    let mut guard = guard();
    guard.policy.direct = true;
    guard
}

#[test]
fn an_owned_process_gets_its_owners_command() {
    let in_container = |runtime: Option<&str>, name: Option<&str>| Process {
        container: Some(Arc::new(Container {
            runtime: runtime.map(Arc::from),
            id: Some("0123456789abcdef0123".into()),
            name: name.map(Arc::from),
            ..Container::default()
        })),
        ..python()
    };
    let slurm = |job: Option<&str>, step: Option<&str>| {
        Some(Arc::new(Slurm {
            job_id: job.map(Arc::from),
            step_id: step.map(Arc::from),
            ..Slurm::default()
        }))
    };
    for (process, command) in [
        (Process { slurm: slurm(Some("12"), Some("3")), ..python() }, "scancel 12.3"),
        (Process { systemd_unit: Some("train.service".into()), ..python() }, "kill 70"),
        (in_container(Some("docker"), Some("lab")), "docker exec lab kill 70"),
        (in_container(None, None), "stop its container, 0123456789abcdef0123,"),
    ] {
        let advised = target(&process, &guard());
        let [Step::Advise { command: advice }] = &advised.steps[..] else {
            panic!("{advised:?}");
        };
        assert!(advised.is_advice() && advice.contains(command), "{advice}");
        let insisted = target(&process, &direct());
        assert!(!insisted.is_advice() && insisted.steps.len() == 2);
        assert!(insisted.respawn_seconds > 0.0, "a restart is expected");
    }
}

fn kernel(application: Option<&str>, url: Option<&str>, error: Option<&str>) -> Process {
    Process {
        jupyter: Some(Arc::new(Jupyter {
            application: application.map(Arc::from),
            kernel_id: Some("7a1b".into()),
            server_url: url.map(Arc::from),
            server_error: error.map(Arc::from),
            notebook_path: Some("Train.ipynb".into()),
            ..Jupyter::default()
        })),
        ..process(70, "python -m ipykernel_launcher -f k.json")
    }
}

const URL: Option<&str> = Some("http://127.0.0.1:8888/");

#[test]
fn a_kernel_is_shut_down_by_a_server_that_can_be_asked() {
    const PASSWORD: Option<&str> = Some("asks for a password");
    let with = |mut process: Process, change: fn(&mut Process, &mut Jupyter)| {
        let mut jupyter = process.jupyter.as_deref().cloned().unwrap();
        change(&mut process, &mut jupyter);
        process.jupyter = Some(Arc::new(jupyter));
        process
    };
    let lab = || kernel(Some("jupyter"), URL, None);
    let unreached = || kernel(Some("jupyter"), None, None);
    for (case, process, first, advice) in [
        ("a server", lab(), "shut", ""),
        ("an unknown application", kernel(None, URL, None), "shut", ""),
        (
            "in a service",
            with(lab(), |process, _| process.systemd_unit = Some("jupyter.service".into())),
            "shut",
            "",
        ),
        // A server would or might restart these kernels.
        ("a password", kernel(Some("jupyter"), URL, PASSWORD), "advise", "in its notebook"),
        ("a server not found", unreached(), "advise", "in its notebook"),
        (
            "in a container",
            with(unreached(), |process, _| process.container = Some(Arc::default())),
            "advise",
            "in Jupyter",
        ),
        // No server can restart these kernels.
        (
            "its server has ended",
            with(unreached(), |_, jupyter| {
                (jupyter.server_alive, jupyter.server_error) =
                    (Some(false), Some("has ended".into()));
            }),
            "signal",
            "",
        ),
        (
            "its server has ended in a container",
            with(lab(), |process, jupyter| {
                process.container = Some(Arc::default());
                jupyter.server_alive = Some(false);
            }),
            "signal",
            "",
        ),
        (
            "a server without an address",
            with(unreached(), |_, jupyter| jupyter.server_alive = Some(true)),
            "signal",
            "",
        ),
        // Editors, and programs that run a notebook from start to end, do not restart their kernels.
        ("papermill", kernel(Some("papermill"), URL, None), "signal", ""),
        ("nbconvert", kernel(Some("nbconvert"), URL, None), "signal", ""),
        ("batch", kernel(Some("batch"), URL, None), "signal", ""),
        ("an editor", kernel(Some("vscode"), URL, None), "signal", ""),
    ] {
        let target = target(&process, &guard());
        match &target.steps[0] {
            Step::ShutKernel { kernel, grace_seconds } => {
                assert_eq!(first, "shut", "{case}");
                assert_eq!((&*kernel.id, kernel.pid, *grace_seconds), ("7a1b", 70, 10.0));
                assert_eq!(target.steps.len(), 3, "{case}: signals follow if that fails");
                assert!(target.respawn_seconds >= 6.0, "{case}");
            }
            Step::Advise { command } => {
                assert_eq!((first, target.steps.len()), ("advise", 1), "{case}");
                assert!(command.contains(advice), "{case}: {command}");
                let insisted = self::target(&process, &direct());
                assert!(matches!(insisted.steps[0], Step::Signal { .. }), "{case}");
                assert!(insisted.respawn_seconds >= 6.0, "{case}: a restart is expected");
            }
            Step::Signal { .. } => assert_eq!(first, "signal", "{case}"),
            other => panic!("{case}: {other:?}"),
        }
    }
    assert_eq!(target(&kernel(Some("papermill"), URL, None), &guard()).respawn_seconds, 0.0);
    let mut insist = direct();
    insist.policy.signal = Some(Signal::Int);
    let target = target(&lab(), &insist);
    assert!(matches!(target.steps[0], Step::Signal { signal: Signal::Int, .. }));
}

#[test]
fn the_user_can_choose_signal_and_grace_period() {
    let steps = |signal, seconds: Option<u64>| {
        let mut guard = guard();
        guard.policy.signal = signal;
        guard.policy.grace = seconds.map(Duration::from_secs);
        let target = target(&python(), &guard);
        let steps = target.steps.iter().map(|step| match step {
            Step::Signal { signal, grace_seconds, .. } => (*signal, *grace_seconds),
            other => panic!("{other:?}"),
        });
        steps.collect::<Vec<_>>()
    };
    let kill = (Signal::Kill, 5.0);
    assert_eq!(steps(None, None), [(Signal::Term, 30.0), kill]);
    assert_eq!(steps(Some(Signal::Int), Some(20)), [(Signal::Int, 20.0), kill]);
    assert_eq!(steps(Some(Signal::Kill), None), [kill]);
}

#[test]
fn the_parent_is_signalled_before_its_children() {
    let processes = [python(), child(71)];
    let snapshot = on_gpu(&processes);
    let findings: Vec<Finding> =
        processes.iter().map(|process| finding(Kind::Idle, process)).collect();
    let plan = plan_of(&findings, &snapshot, &guard());
    let [target] = &plan.targets[..] else {
        panic!("{plan:?}");
    };
    let recipients = target.steps.iter().map(|step| match step {
        Step::Signal { recipients, .. } => *recipients,
        other => panic!("{other:?}"),
    });
    let expected = [Recipients::Leader, Recipients::Family, Recipients::Family];
    assert_eq!((target.leader, recipients.collect::<Vec<_>>()), (70, expected.to_vec()));
}

#[test]
fn a_pool_worker_gets_its_pools_command() {
    let master = process(60, "python /venv/bin/celery -A app worker");
    let parent = Parent {
        pid: 60,
        start_ticks: Some(600),
        comm: Some("celery".into()),
        command: master.command.clone(),
        ..Parent::default()
    };
    let worker = Process {
        ppid: Some(60),
        parent: Some(Arc::new(parent)),
        parent_is_reaper: Some(false),
        process_group: Some(60),
        session: Some(60),
        ..process(70, "python /venv/bin/celery -A app worker")
    };
    assert!(worker.restarting_pool().is_some());
    let named = guard_naming(&[70]);
    let alone = target(&worker, &named);
    let [Step::Advise { command }] = &alone.steps[..] else {
        panic!("{alone:?}");
    };
    assert!(command.contains("control shutdown"), "{command}");
    let mut insisting = direct();
    insisting.policy.targets = named.policy.targets.clone();
    let all_the_same = target(&worker, &insisting);
    assert!(!all_the_same.is_advice() && all_the_same.respawn_seconds > 0.0);
    // If the master is also requested, the whole pool is ended.
    let both = guard_naming(&[60, 70]);
    let plan = plan_of(&[], &on_gpu(&[master, worker]), &both);
    assert_eq!(plan.targets.len(), 1, "{:?}", plan.refused);
    assert!(!plan.targets[0].is_advice());
}

#[test]
fn launchers_are_recognised_by_program_module_or_script() {
    for (command, is_launcher) in [
        ("torchrun train.py", true),
        ("/venv/bin/python /venv/bin/torchrun --nproc-per-node 8 train.py", true),
        ("python3.11 -u -m torch.distributed.run train.py", true),
        ("mpirun -np 4 python train.py", true),
        ("bash run.sh torchrun", false),
        ("bash torchrun", false),
        ("python train.py torchrun", false),
        ("python mytorchrun", false),
        ("", false),
    ] {
        let words: Vec<Arc<str>> = command.split(' ').map(Arc::from).collect();
        assert_eq!(is_launcher_command(Some(&words)), is_launcher, "{command}");
    }
    assert!(!is_launcher_command(None));
}
