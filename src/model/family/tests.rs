//! Tests which processes are joined into families and which are kept apart.

use super::*;
use crate::model::snapshot::{Container, Gpu, GpuProcess, Jupyter, PidNamespace, Slurm};
use crate::model::testing::environment;
use crate::model::{Snapshot, Time};

/// Returns a process of user 1000 in this group and session, with a terminal.
fn process(pid: u32, group: u32, session: u32) -> Process {
    Process {
        pid,
        start_ticks: Some(u64::from(pid) * 10),
        uid: Some(1000),
        user: Some("ann".into()),
        comm: Some("python".into()),
        state: Some('S'),
        process_group: Some(group),
        session: Some(session),
        session_leader_alive: Some(true),
        ppid: Some(1),
        parent_is_reaper: Some(true),
        ..Process::default()
    }
}

fn parent(pid: u32, comm: &str) -> Option<Arc<Parent>> {
    Some(Arc::new(Parent {
        pid,
        start_ticks: Some(u64::from(pid) * 10),
        comm: Some(comm.into()),
        command: None,
        ..Parent::default()
    }))
}

fn kernel(pid: u32) -> Process {
    Process { jupyter: Some(Arc::new(Jupyter::default())), ..process(pid, pid, pid) }
}

/// Returns a torchrun worker in its own session. `text` contains the worker's rank, run, port and agent. The agent `-`
/// stands for no agent.
fn rank(pid: u32, text: &str) -> Process {
    let [rank, run, port, agent] = text.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{text}")
    };
    Process {
        environment: environment(&[
            ("TORCHELASTIC_RUN_ID", run),
            ("RANK", rank),
            ("WORLD_SIZE", "4"),
            ("MASTER_ADDR", "localhost"),
            ("MASTER_PORT", port),
        ]),
        parent: agent.parse().ok().and_then(|agent| parent(agent, "torchrun")),
        ..process(pid, pid, pid)
    }
}

fn snapshot(processes: &[Process]) -> Snapshot {
    let mut snapshot = Snapshot::new(Time::from_unix_milliseconds(0));
    snapshot.host.pid_namespace = Some(PidNamespace::Host);
    snapshot.processes = processes.to_vec();
    snapshot
}

fn members(processes: &[Process]) -> Vec<Vec<u32>> {
    let families = families(&snapshot(processes));
    families.into_iter().map(|family| family.members).collect()
}

fn ties(processes: &[Process]) -> Vec<Tie> {
    let families = families(&snapshot(processes));
    let all = families.into_iter().flat_map(|family| family.ties);
    all.collect()
}

#[test]
fn a_process_group_is_one_job() {
    let trainer = Process { parent: parent(50, "bash"), ..process(100, 100, 50) };
    let worker = Process { parent: parent(100, "python"), ..process(101, 100, 50) };
    let processes = [trainer, worker];
    let families = families(&snapshot(&processes));
    let [family] = &families[..] else { panic!("{families:?}") };
    assert_eq!((&*family.id, &*family.members), ("family:100", &[100, 101][..]));
    assert_eq!(family.ties, BTreeSet::from([Tie::ProcessGroup, Tie::Parent]));
    assert_eq!(family.launcher, parent(50, "bash"));
    assert_eq!(family.user.as_deref(), Some("ann"));
    assert_eq!(member(&families, 101), Some(family));
    assert_eq!(member(&families, 7), None);
}

#[test]
fn two_jobs_of_one_shell_are_two_families() {
    let typed = |pid| Process {
        parent: parent(50, "bash"),
        terminal: Some("pts/3".into()),
        systemd_unit: Some("session-3.scope".into()),
        cgroup: Some("/user.slice/user-1000.slice/session-3.scope".into()),
        ..process(pid, pid, 50)
    };
    assert_eq!(members(&[typed(100), typed(200)]), [[100], [200]]);
    // After the user has logged out, the terminal and the session leader are gone, but the programs are still two
    // families.
    let orphaned = |pid| Process {
        terminal: None,
        session_leader_alive: Some(false),
        parent: None,
        ..typed(pid)
    };
    assert_eq!(members(&[orphaned(100), orphaned(200)]), [[100], [200]]);
    // The programs stay separate even if the shell also has a device file open.
    let shell = Process { comm: Some("bash".into()), ..process(50, 50, 50) };
    assert_eq!(members(&[shell, typed(100), typed(200)]), [[50], [100], [200]]);
}

#[test]
fn programs_of_one_supervisor_are_separate_families() {
    let supervised = |pid| Process {
        parent: parent(50, "supervisord"),
        systemd_unit: Some("supervisor.service".into()),
        cgroup: Some("/system.slice/supervisor.service".into()),
        ..process(pid, pid, 50)
    };
    assert_eq!(members(&[supervised(100), supervised(200)]), [[100], [200]]);
    let main = Process { parent_is_reaper: Some(true), ..supervised(150) };
    let main = Process { session: Some(150), parent: None, ..main };
    assert_eq!(members(&[supervised(100), main]), [[100], [150]]);
}

#[test]
fn two_notebook_kernels_are_always_two_families() {
    let server = |process: Process| Process {
        parent: parent(40, "jupyter-lab"),
        cgroup: Some("/system.slice/docker-x.scope".into()),
        container: Some(Arc::new(Container::default())),
        ..process
    };
    let (one, two) = (server(kernel(100)), server(kernel(200)));
    assert_eq!(members(&[one.clone(), two.clone()]), [[100], [200]]);

    // The kernels stay separate even if the server is the container's first process and has a device file open.
    let first = Process { namespace_pid: Some(1), parent: None, ..server(process(40, 40, 40)) };
    let all = [first, one.clone(), two.clone()];
    assert_eq!(members(&all), [[40], [100], [200]]);

    // Some editors start their kernels in one group and session. The kernels are still separate, and each helper
    // belongs to its kernel.
    let editor = |process| Process { process_group: Some(30), session: Some(30), ..process };
    let helper =
        |pid, starter| Process { parent: parent(starter, "python"), ..process(pid, 30, 30) };
    let all = [editor(one), editor(two), helper(101, 100), helper(201, 200), process(300, 30, 30)];
    assert_eq!(members(&all), [vec![100, 101], vec![200, 201], vec![300]]);
}

#[test]
fn a_kernel_is_not_in_its_servers_family() {
    // An editor can start a kernel in its own group and session.
    let server = process(90, 90, 90);
    let kernel = Process {
        parent: parent(90, "node"),
        process_group: Some(90),
        session: Some(90),
        ..kernel(100)
    };
    let helper = Process { parent: parent(100, "python"), ..process(101, 90, 90) };
    assert_eq!(members(&[server, kernel, helper]), [vec![90], vec![100, 101]]);
}

#[test]
fn a_process_detached_from_its_kernel_is_a_separate_family() {
    let helper = Process { parent: parent(100, "python"), ..process(101, 101, 100) };
    assert_eq!(members(&[kernel(100), helper.clone()]), [[100, 101]]);
    let detached = Process { session: Some(101), ..helper };
    assert_eq!(members(&[kernel(100), detached]), [[100], [101]]);
}

#[test]
fn processes_of_different_users_are_never_joined() {
    let other =
        Process { uid: Some(1001), parent: parent(100, "python"), ..process(101, 100, 100) };
    assert_eq!(members(&[process(100, 100, 100), other.clone()]), [[100], [101]]);
    let without_uid = Process { uid: None, ..other };
    assert_eq!(members(&[process(100, 100, 100), without_uid]), [[100]]);
    // Processes of different users are not joined, even if a dead process started both.
    let dead = Process { pid: 90, ..Process::default() };
    let one = process(100, 90, 50);
    let two = Process { uid: Some(1001), ..process(101, 90, 50) };
    assert_eq!(members(&[dead, one, two]), [[90], [100], [101]]);
}

#[test]
fn a_dead_trainer_and_its_workers_are_one_family() {
    let dead = Process { pid: 90, ..Process::default() };
    let worker = |pid| Process {
        gpu_files: Some(Arc::from([Arc::from("/dev/nvidia0"), "/dev/nvidia-uvm".into()])),
        group_leader_alive: Some(false),
        ..process(pid, 90, 50)
    };
    let mut snapshot = snapshot(&[dead, worker(101), worker(102), process(103, 103, 50)]);
    snapshot.gpus = vec![Gpu {
        minor_number: Some(0),
        processes: Some(vec![GpuProcess { pid: 90, ..GpuProcess::default() }]),
        ..Gpu::default()
    }];
    let found = families(&snapshot);
    assert_eq!(found[0].members, [90, 101, 102]);
    assert_eq!(found[0].ties, BTreeSet::from([Tie::ProcessGroup, Tie::GpuFiles]));
    assert_eq!(&*found[0].id, "family:90");
    assert_eq!(found[0].user.as_deref(), Some("ann"));
    assert_eq!(found[1].members, [103]);
    let tree = found[0].tree(&snapshot);
    let branch = |pid, depth| Branch { pid, depth };
    assert_eq!(tree, [branch(90, 0), branch(101, 1), branch(102, 1)]);

    // If the GPU's minor number is unknown, an open device file is no evidence. Unresolved pids belong to no family.
    let Some(gpu) = snapshot.gpus.first_mut() else { unreachable!() };
    gpu.minor_number = None;
    assert_eq!(families(&snapshot)[0].ties, BTreeSet::from([Tie::ProcessGroup]));
    snapshot.processes[0].unresolved = Some("a pid of another pid namespace".into());
    assert_eq!(families(&snapshot)[0].members, [101, 102]);
    snapshot.processes[0].unresolved = None;
    snapshot.host.pid_namespace = Some(PidNamespace::Container);
    assert_eq!(families(&snapshot)[0].members, [101, 102]);
}

#[test]
fn a_child_of_a_dead_process_joins_its_family() {
    let dead = Process { pid: 90, ..Process::default() };
    let worker = Process { parent: parent(90, "python"), ..process(101, 70, 50) };
    assert_eq!(members(&[dead, worker.clone()]), [[90, 101]]);
    // The pid of the dead starter was reused. The new process is younger than the worker, so it did not start the
    // worker.
    let stranger = Process { start_ticks: Some(99_999), ..process(90, 90, 60) };
    assert_eq!(members(&[stranger, worker]), [[90], [101]]);
}

#[test]
fn a_session_is_one_job_if_a_member_leads_it() {
    let leader = process(100, 100, 100);
    let own_group = process(101, 101, 100);
    assert_eq!(ties(&[leader, own_group]), [Tie::Session]);
    let daemons = [process(101, 101, 100), process(102, 102, 100)];
    assert_eq!(members(&daemons), [[101], [102]]);
}

#[test]
fn ranks_of_one_run_are_one_family() {
    for agent in ["50", "-"] {
        let ranks =
            [(100, 0), (101, 1)].map(|(pid, at)| rank(pid, &format!("{at} run-7 29400 {agent}")));
        assert_eq!(members(&ranks), [[100, 101]]);
        assert_eq!(ties(&ranks), [Tie::Run]);
    }
    // Data loaders have the environment of their rank. This does not prevent joining.
    let loader = |pid, rank_pid: u32| Process {
        parent: parent(rank_pid, "python"),
        process_group: Some(rank_pid),
        session: Some(rank_pid),
        ..rank(pid, "0 run-7 29400 -")
    };
    let all = [
        rank(100, "0 run-7 29400 50"),
        rank(101, "1 run-7 29400 50"),
        loader(110, 100),
        loader(111, 100),
    ];
    assert_eq!(members(&all), [[100, 101, 110, 111]]);
    assert_eq!(families(&snapshot(&all))[0].launcher, parent(50, "torchrun"));
}

#[test]
fn two_similar_runs_are_two_families() {
    for (why, one, two) in [
        ("the default id, two launchers", "0 none 29500 50", "1 none 29500 60"),
        ("the default id, no launcher", "0 none 29500 -", "1 none 29500 -"),
        ("an id from the manual, two ports", "0 100 29400 -", "1 100 29401 -"),
        ("a rank twice", "0 run-7 29400 -", "0 run-7 29400 -"),
        ("an orphan of the run before", "3 run-7 29400 -", "0 run-7 29400 60"),
    ] {
        assert_eq!(members(&[rank(100, one), rank(200, two)]), [[100], [200]], "{why}");
    }
    // A script started two runs in its process group. The runs stay separate because their launchers differ.
    let in_script = |process| Process { process_group: Some(40), session: Some(40), ..process };
    let all = [
        in_script(rank(100, "0  29500 50")),
        in_script(rank(101, "1  29500 50")),
        in_script(rank(200, "0  29501 60")),
        in_script(rank(201, "1  29501 60")),
    ];
    assert_eq!(members(&all), [[100, 101], [200, 201]]);
}

#[test]
fn mpi_slurm_and_ray_name_their_runs() {
    let with = |pid, pairs: &[(&str, &str)], launcher: Option<u32>| Process {
        environment: environment(pairs),
        parent: launcher.and_then(|pid| parent(pid, "launcher")),
        ..process(pid, pid, pid)
    };
    let pmix = |pid, name, rank| {
        let pairs = [("PMIX_NAMESPACE", name), ("OMPI_COMM_WORLD_RANK", rank)];
        with(pid, &pairs, None)
    };
    assert_eq!(
        members(&[pmix(100, "a@1", "0"), pmix(101, "a@1", "1"), pmix(102, "b@1", "1")]),
        [vec![100, 101], vec![102]]
    );
    let step = |pid, step, rank| {
        let pairs = [("SLURM_JOB_ID", "77"), ("SLURM_STEP_ID", step), ("SLURM_PROCID", rank)];
        with(pid, &pairs, None)
    };
    assert_eq!(
        members(&[step(100, "0", "0"), step(101, "0", "1"), step(102, "1", "0")]),
        [vec![100, 101], vec![102]]
    );
    let interactive =
        |pid, rank| Process { terminal: Some("pts/1".into()), ..step(pid, "0", rank) };
    assert_eq!(members(&[interactive(100, "0"), interactive(101, "1")]), [[100], [101]]);
    let ray = |pid, launcher| with(pid, &[("RAY_JOB_ID", "01000000")], launcher);
    assert_eq!(
        members(&[ray(100, Some(50)), ray(101, Some(50)), ray(102, Some(60)), ray(103, None)]),
        [vec![100], vec![101], vec![102], vec![103]],
        "an orphan makes the launcher uncertain"
    );
    assert_eq!(members(&[ray(100, Some(50)), ray(101, Some(50))]), [[100, 101]]);
    let pmi = |pid, rank, launcher| with(pid, &[("PMI_RANK", rank)], launcher);
    assert_eq!(members(&[pmi(100, "0", Some(50)), pmi(101, "1", Some(50))]), [[100, 101]]);
    assert_eq!(members(&[pmi(100, "0", None), pmi(101, "1", None)]), [[100], [101]]);
}

#[test]
fn a_cgroup_is_one_job_if_it_was_created_for_a_member() {
    let in_container = |pid, namespace_pid| Process {
        container: Some(Arc::new(Container { id: Some("0123".into()), ..Container::default() })),
        cgroup: Some("/docker/0123".into()),
        namespace_pid: Some(namespace_pid),
        ..process(pid, pid, pid)
    };
    // `docker exec` started both processes, which may be unrelated.
    assert_eq!(members(&[in_container(100, 17), in_container(101, 18)]), [[100], [101]]);
    let program = [in_container(99, 1), in_container(100, 17)];
    assert_eq!(members(&program), [[99, 100]]);
    assert_eq!(ties(&program), [Tie::Cgroup]);
    let typed = Process { terminal: Some("pts/0".into()), ..in_container(100, 17) };
    assert_eq!(members(&[in_container(99, 1), typed]), [[99], [100]]);
    // A pid namespace in a login looks like a container without an id. It is not joined with other processes of the
    // login.
    let unnamed = |process: Process| Process {
        container: Some(Arc::new(Container::default())),
        cgroup: Some("/user.slice/session-3.scope".into()),
        ..process
    };
    let first = unnamed(in_container(99, 1));
    assert_eq!(members(&[first, unnamed(in_container(100, 1))]), [[99], [100]]);

    let in_unit = |pid, unit: &str, reaper| Process {
        systemd_unit: Some(unit.into()),
        cgroup: Some(format!("/system.slice/{unit}").into()),
        parent_is_reaper: Some(reaper),
        ..process(pid, pid, pid)
    };
    let worker = |unit| in_unit(101, unit, false);
    assert_eq!(
        members(&[in_unit(100, "train.service", true), worker("train.service")]),
        [[100, 101]]
    );
    for unit in ["cron.service", "ssh.service", "user@1000.service", "x.scope"] {
        assert_eq!(members(&[in_unit(100, unit, true), worker(unit)]), [[100], [101]], "{unit}");
    }
    // Each of the two processes looks like the main process of the service.
    let unit = "train.service";
    assert_eq!(members(&[in_unit(100, unit, true), in_unit(101, unit, true)]), [[100], [101]]);

    let in_step = |pid, step: &str| Process {
        slurm: Some(Arc::new(Slurm {
            job_id: Some("77".into()),
            step_id: Some(step.into()),
            ..Slurm::default()
        })),
        ..process(pid, pid, pid)
    };
    assert_eq!(members(&[in_step(100, "0"), in_step(101, "0")]), [[100, 101]]);
    assert_eq!(members(&[in_step(100, "0"), in_step(101, "1")]), [[100], [101]]);
    for step in ["extern", "interactive"] {
        assert_eq!(
            members(&[in_step(100, step), in_step(101, step)]),
            [[100], [101]],
            "people log in to these steps"
        );
    }
}

#[test]
fn a_tree_is_in_parent_order_and_handles_cycles() {
    let child_of =
        |pid, starter| Process { parent: parent(starter, "python"), ..process(pid, 100, 50) };
    for (processes, expected) in [
        (
            vec![process(100, 100, 50), child_of(101, 100), child_of(102, 100), child_of(103, 101)],
            &[(100, 0), (101, 1), (103, 2), (102, 1)][..],
        ),
        // In a recording, parents can form a cycle.
        (
            vec![child_of(100, 101), child_of(101, 100), child_of(102, 102)],
            &[(102, 0), (100, 0), (101, 1)],
        ),
    ] {
        let snapshot = snapshot(&processes);
        let tree = families(&snapshot)[0].tree(&snapshot);
        let tree: Vec<_> = tree.iter().map(|branch| (branch.pid, branch.depth)).collect();
        assert_eq!(tree, expected);
    }
}

#[test]
fn families_do_not_depend_on_the_order_of_processes() {
    let mut processes = vec![
        process(100, 100, 50),
        process(101, 100, 50),
        kernel(200),
        process(201, 200, 200),
        rank(300, "0 r 1 -"),
        rank(301, "1 r 1 -"),
    ];
    let before = members(&processes);
    assert_eq!(before, [[100, 101], [200, 201], [300, 301]]);
    processes.reverse();
    assert_eq!(members(&processes), before);
}

#[test]
fn orphaned_workers_are_separated_from_a_working_group() {
    let code = "from multiprocessing.spawn import spawn_main; spawn_main()";
    let spawned = |pid: u32| Process {
        command: Some(["python", "-c", code].map(Arc::from).into()),
        ..process(pid, 600, 600)
    };
    let trial =
        Process { parent_is_reaper: Some(false), ppid: Some(600), ..process(610, 600, 600) };
    let child = Process { parent_is_reaper: Some(false), ppid: Some(610), ..spawned(611) };
    let families = families(&snapshot(&[spawned(601), spawned(602), trial, child]));
    let members: Vec<&[u32]> = families.iter().map(|family| &*family.members).collect();
    assert_eq!(members, [&[601, 602][..], &[610, 611]]);
}
