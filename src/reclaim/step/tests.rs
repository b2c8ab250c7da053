//! Who is asked first, by what owns a process.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::model::Finding;
use crate::model::Kind;
use crate::model::snapshot::{Container, Jupyter, Kubernetes, Parent, Slurm};
use crate::reclaim::launcher::launches;
use crate::reclaim::policy::Signal;
use crate::reclaim::target::Target;
use crate::reclaim::testing::{at, finding, gpu, guard, naming, plan_of, process, snapshot};
use crate::units::GIB;

fn target(process: &Process, guard: &Guard) -> Target {
    let seen =
        snapshot(at(0.0), std::slice::from_ref(process), vec![gpu(0, &[(process.pid, GIB)], 0)]);
    let mut plan = plan_of(&[finding(Kind::Idle, process)], &seen, guard);
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
fn what_something_else_owns_is_only_advised() {
    let container = |runtime: Option<&str>, name: Option<&str>| {
        Some(Arc::new(Container {
            runtime: runtime.map(Arc::from),
            id: Some("0123456789abcdef0123".into()),
            name: name.map(Arc::from),
            ..Container::default()
        }))
    };
    let slurm = |job: Option<&str>, step: Option<&str>| {
        Some(Arc::new(Slurm {
            job_id: job.map(Arc::from),
            step_id: step.map(Arc::from),
            ..Slurm::default()
        }))
    };
    let with = |change: &dyn Fn(&mut Process)| {
        let mut process = python();
        change(&mut process);
        process
    };
    for (process, command) in [
        (with(&|it| it.slurm = slurm(Some("12"), Some("3"))), "scancel 12.3"),
        (with(&|it| it.slurm = slurm(Some("12"), Some("batch"))), "scancel 12"),
        (with(&|it| it.slurm = slurm(None, None)), "scancel"),
        (
            with(&|it| it.systemd_unit = Some("train.service".into())),
            "systemctl stop train.service",
        ),
        (
            with(&|it| {
                it.systemd_unit = Some("train.service".into());
                it.cgroup = Some(
                    "/user.slice/user-1000.slice/user@1000.service/app.slice/train.service".into(),
                );
            }),
            "systemctl --user --machine=ann@ stop train.service",
        ),
        (with(&|it| it.container = container(Some("docker"), Some("lab"))), "docker stop lab"),
        (with(&|it| it.container = container(Some("docker"), None)), "docker stop 0123456789ab"),
        (
            with(&|it| it.container = container(None, None)),
            "stop its container, 0123456789abcdef0123,",
        ),
        // What another has named is a word, whatever stands in it.
        (
            with(&|it| it.container = container(Some("podman"), Some("x; rm -rf '/'"))),
            r"podman stop 'x; rm -rf '\''/'\'''",
        ),
        (
            with(&|it| it.container = container(Some("docker"), Some("--all"))),
            "docker stop 0123456789abcdef0123",
        ),
        (
            with(&|it| {
                it.container = container(Some("containerd"), None);
                it.kubernetes = Some(Arc::new(Kubernetes {
                    pod_name: Some("train-0".into()),
                    namespace: Some("ml".into()),
                    ..Kubernetes::default()
                }));
            }),
            "kubectl delete pod -n ml train-0",
        ),
    ] {
        let advised = target(&process, &guard());
        let [Step::Advise { command: advice }] = &advised.steps[..] else {
            panic!("{advised:?}");
        };
        assert!(advised.is_advice() && advice.contains(command), "{advice}");
        let insisted = target(&process, &direct());
        assert!(!insisted.is_advice() && insisted.steps.len() == 2);
        assert!(insisted.respawn_seconds > 0.0, "it may be started again");
    }
}

#[test]
fn what_a_daemon_only_started_is_nobodys() {
    for unit in
        ["cron.service", "user@1000.service", "session-3.scope", "run-u7.scope", "sshd.service"]
    {
        let mut process = python();
        process.systemd_unit = Some(unit.into());
        assert!(!target(&process, &guard()).is_advice(), "{unit}");
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
fn a_kernel_is_shut_by_its_server_where_that_can_be_asked() {
    let mut in_service = kernel(Some("jupyter"), URL, None);
    in_service.systemd_unit = Some("jupyter.service".into());
    for process in [kernel(Some("jupyter"), URL, None), kernel(None, URL, None), in_service] {
        let target = target(&process, &guard());
        let Step::ShutKernel { kernel, grace_seconds } = &target.steps[0] else {
            panic!("{target:?}");
        };
        assert_eq!((&*kernel.id, kernel.pid, *grace_seconds), ("7a1b", 70, 10.0));
        assert_eq!(target.steps.len(), 3, "and signals where that fails");
        assert!(target.respawn_seconds >= 6.0);
    }
    for process in [
        kernel(Some("jupyter"), URL, Some("asks for a password")),
        kernel(Some("jupyter"), None, None),
    ] {
        let advised = target(&process, &guard());
        let [Step::Advise { command }] = &advised.steps[..] else {
            panic!("its server starts it again: {advised:?}");
        };
        assert!(command.contains("in its notebook"), "{command}");
        let insisted = target(&process, &direct());
        assert!(matches!(insisted.steps[0], Step::Signal { .. }));
        assert!(insisted.respawn_seconds >= 6.0, "and is looked out for");
    }
    // Nothing is there to start it again.
    let with = |server_alive, error: Option<&str>| {
        let mut process = kernel(Some("jupyter"), None, error);
        if let Some(jupyter) = process.jupyter.as_mut().map(Arc::make_mut) {
            jupyter.server_alive = server_alive;
        }
        process
    };
    for process in [with(Some(false), Some("has ended")), with(Some(true), None)] {
        let target = target(&process, &guard());
        assert!(matches!(target.steps[0], Step::Signal { .. }), "{target:?}");
    }
    let mut insist = direct();
    insist.policy.signal = Some(Signal::Int);
    let target = target(&kernel(Some("jupyter"), URL, None), &insist);
    assert!(matches!(target.steps[0], Step::Signal { signal: Signal::Int, .. }));
}

#[test]
fn a_notebook_that_is_run_from_end_to_end_is_a_batch() {
    for application in ["papermill", "nbconvert", "batch", "vscode"] {
        let target = target(&kernel(Some(application), URL, None), &guard());
        assert!(matches!(target.steps[0], Step::Signal { .. }), "{application}");
        assert_eq!(target.respawn_seconds, 0.0);
    }
}

#[test]
fn a_kernel_in_a_container_is_not_ended_with_its_server() {
    let mut process = kernel(Some("jupyter"), None, None);
    process.container = Some(Arc::new(Container::default()));
    let target = target(&process, &guard());
    let [Step::Advise { command }] = &target.steps[..] else {
        panic!("{target:?}");
    };
    assert!(command.contains("in Jupyter"), "{command}");
}

#[test]
fn a_kernel_without_its_server_is_ended_itself() {
    let mut process = kernel(Some("jupyter"), Some("http://127.0.0.1:8888/"), None);
    process.container = Some(Arc::new(Container::default()));
    let jupyter = Arc::make_mut(process.jupyter.as_mut().unwrap());
    jupyter.server_alive = Some(false);
    let target = target(&process, &guard());
    assert!(matches!(target.steps[0], Step::Signal { .. }), "{target:?}");
}

#[test]
fn who_insists_chooses_signal_and_wait() {
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
    assert_eq!(steps(None, None), [(Signal::Term, 10.0), kill]);
    assert_eq!(steps(Some(Signal::Int), Some(30)), [(Signal::Int, 30.0), kill]);
    assert_eq!(steps(Some(Signal::Kill), None), [kill]);
}

#[test]
fn the_parent_of_the_others_goes_first() {
    let leader = python();
    let child = Process {
        ppid: Some(70),
        process_group: Some(70),
        session: Some(70),
        ..process(71, "python train.py")
    };
    let processes = [leader, child];
    let seen = snapshot(at(0.0), &processes, vec![gpu(0, &[(70, GIB), (71, GIB)], 0)]);
    let findings: Vec<Finding> = processes.iter().map(|it| finding(Kind::Idle, it)).collect();
    let plan = plan_of(&findings, &seen, &guard());
    let [target] = &plan.targets[..] else {
        panic!("{plan:?}");
    };
    let to: Vec<Recipients> = target
        .steps
        .iter()
        .map(|step| match step {
            Step::Signal { recipients: to, .. } => *to,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        (target.leader, &to[..]),
        (70, &[Recipients::Leader, Recipients::Family, Recipients::Family][..])
    );
}

#[test]
fn a_worker_of_a_pool_is_left_to_what_starts_it_again() {
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
    assert!(worker.is_restarted_by_its_pool());
    let named = naming(&[70]);
    let alone = target(&worker, &named);
    let [Step::Advise { command }] = &alone.steps[..] else {
        panic!("{alone:?}");
    };
    assert!(command.contains("control shutdown"), "{command}");
    let mut insisting = direct();
    insisting.policy.targets = named.policy.targets.clone();
    let all_the_same = target(&worker, &insisting);
    assert!(!all_the_same.is_advice() && all_the_same.respawn_seconds > 0.0);
    // With the one that would start it again it is ended.
    let both = naming(&[60, 70]);
    let rows = [(60, GIB), (70, GIB)];
    let seen = snapshot(at(0.0), &[master, worker], vec![gpu(0, &rows, 0)]);
    let plan = plan_of(&[], &seen, &both);
    assert_eq!(plan.targets.len(), 1, "{:?}", plan.refused);
    assert!(!plan.targets[0].is_advice());
}

#[test]
fn launchers_are_known_by_program_module_or_script() {
    let starts_ranks = |command: &str| {
        let words: Vec<Arc<str>> = command.split(' ').map(Arc::from).collect();
        launches(Some(&words))
    };
    for command in [
        "torchrun train.py",
        "/venv/bin/python /venv/bin/torchrun --nproc-per-node 8 train.py",
        "python3.11 -u -m torch.distributed.run train.py",
        "/usr/bin/python3 -u -m deepspeed.launcher.launch --x",
        "python -X dev /venv/bin/accelerate launch train.py",
        "mpirun -np 4 python train.py",
    ] {
        assert!(starts_ranks(command), "{command}");
    }
    for command in [
        "bash run.sh torchrun",
        "python train.py torchrun",
        "python -c torchrun",
        "python mytorchrun",
        "pythonista torchrun",
        "python -m",
        "python",
        "orted",
        "",
    ] {
        assert!(!starts_ranks(command), "{command}");
    }
    assert!(!launches(None));
}
