//! Tests random forgeries, in which a user imitates the cgroups, programs, parents and variables of other users'
//! processes. Suggested commands must never name an innocent process, and a forgery must not protect its author.

use std::fs;
use std::os::unix::fs::chown;

use rustix::process::geteuid;

use super::*;
use crate::advice;
use crate::host::testing::{FakeProc, StatLine};
use crate::host::{Guarded, Processes, read_guarded};
use crate::model::Process;
use crate::model::dice::Dice;
use crate::model::testing::rounds;

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const POD: &str = "8f7e6d5c-4b3a-4210-8fed-cba987654321";
const FORGER: u32 = 1000;

/// Strings that identify innocent processes and must not occur in a line about the forger.
const INNOCENT: [&str; 4] = ["0123456789ab", "888", "8f7e6d5c", "trainer"];

struct ObservedProcess {
    process: Process,
    facts: Guarded,
}

/// A process in the fake /proc. `numbers` are its pids in all pid namespaces that contain it.
struct FakeProcess<'a> {
    pid: u32,
    ppid: u32,
    uid: u32,
    comm: &'static str,
    exe: &'a str,
    argv: &'a str,
    numbers: &'a str,
}

fn add_process(fake: &FakeProc, process: &FakeProcess<'_>) {
    let start = u64::from(process.pid) * 10;
    fake.stat(
        process.pid,
        &StatLine { comm: process.comm, ppid: process.ppid, start, ..StatLine::ASLEEP },
    );
    let uid = process.uid;
    let status = format!(
        "Name:\tx\nTgid:\t{}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{}\n",
        process.pid, process.numbers
    );
    fake.put(process.pid, "status", status);
    fake.put(process.pid, "cmdline", process.argv.replace(' ', "\0"));
    fake.put(process.pid, "oom_score_adj", "0\n");
    // Without the `exe` link, the program file is unreadable.
    if !process.exe.is_empty() {
        fake.link(process.pid, "exe", process.exe);
    }
    chown(fake.folder(process.pid), Some(uid), Some(uid)).unwrap();
}

fn read_process(fake: &FakeProc) -> ObservedProcess {
    let process = Processes::new(fake.roots.clone()).sample(&[70], 1).processes.remove(0);
    let facts = read_guarded(fake, 70).unwrap().unwrap();
    ObservedProcess {
        process: Process { gpu_files: super::process(70, "x").gpu_files, ..process },
        facts,
    }
}

fn pick<'a>(dice: &mut Dice, of: &[&'a str]) -> &'a str {
    of[dice.place(of.len())]
}

/// Picks a cgroup path that a user can create, below the user's own systemd instance or in the user's own container.
fn forged_cgroup(dice: &mut Dice) -> String {
    let claims = [
        format!("docker-{ID}.scope"),
        format!("libpod-{ID}.scope"),
        format!("docker/{ID}"),
        format!("lxc.payload.trainer/{ID}"),
        "lxc/trainer".to_owned(),
        "machine-trainer.scope".to_owned(),
        "slurmstepd.scope/job_888/step_0/user/task_0".to_owned(),
        "slurm/uid_5/job_888/step_batch".to_owned(),
        format!(
            "kubepods.slice/kubepods-pod{}.slice/cri-containerd-{ID}.scope",
            POD.replace('-', "_")
        ),
        format!("kubepods/burstable/pod{POD}/{ID}"),
        "trainer.service".to_owned(),
        "user.slice".to_owned(),
        "app.slice".to_owned(),
    ];
    let mut path = "/user.slice/user-1000.slice/user@1000.service".to_owned();
    for _ in 0..dice.roll(4) {
        path = format!("{path}/{}", claims[dice.place(claims.len())]);
    }
    path
}

/// Picks a forger, and returns it with a description of the forgery.
fn forger(dice: &mut Dice, folder: &std::path::Path) -> (FakeProc, String) {
    let fake = FakeProc::new();
    let exe = folder.join(pick(dice, &["Xorg", "sshd", "dockerd", "systemd-trainer", "python3"]));
    fs::write(&exe, "").unwrap();
    chown(&exe, Some(FORGER), None).unwrap();
    let exe = exe.to_str().unwrap();
    let cgroup = match dice.roll(3) {
        0 => "/user.slice/user-1000.slice/session-3.scope".to_owned(),
        _ => forged_cgroup(dice),
    };
    // The program file is the user's own, or belongs to root but can be started by users under any name.
    let (owner, file) = [(FORGER, exe), (0, "/usr/bin/su"), (0, "")][dice.place(3)];
    let conmon = format!("conmon -c {ID} -n trainer");
    let shim = format!("containerd-shim -namespace moby -id {ID}");
    let (comm, argv) = [
        ("slurmstepd", "slurmstepd:\u{1}[888.0]"),
        ("conmon", &*conmon),
        ("containerd-shim", &*shim),
        ("runc", "runc run trainer"),
        ("supervisord", "/usr/bin/python3 /usr/bin/supervisord -n"),
        ("pbs_mom", "/opt/pbs/sbin/pbs_mom"),
        ("runsv", "runsv trainer"),
        ("python3", "/usr/bin/python3 /usr/bin/supervisord -n"),
    ][dice.place(8)];
    let argv = argv.replace('\u{1}', " ");
    let has_namespace = dice.roll(2) == 0;
    let numbers = if has_namespace { "70\t1" } else { "70" };
    let put = |pid, ppid, uid, comm, exe, argv: &str, numbers| {
        add_process(&fake, &FakeProcess { pid, ppid, uid, comm, exe, argv, numbers });
    };
    put(1, 0, 0, "systemd", "/usr/lib/systemd/systemd", "/sbin/init", "1");
    put(60, 1, owner, comm, file, &argv, "60");
    let is_deep = has_namespace && dice.roll(3) == 0;
    let parent = if is_deep { 65 } else { 60 };
    if is_deep {
        put(65, 60, FORGER, "slurmstepd", exe, "slurmstepd [888.batch]", "65\t1");
    }
    put(70, parent, FORGER, "python3", exe, "python3 trainer.py", numbers);
    fake.put(70, "cgroup", format!("0::{cgroup}\n"));
    fake.put(
        70,
        "environ",
        "SLURM_JOB_ID=888\0SLURM_STEP_ID=0\0SLURM_ARRAY_JOB_ID=888\0SLURM_ARRAY_TASK_ID=1\0\
         POD_NAME=trainer\0POD_NAMESPACE=trainer\0SLURMD_NODENAME=n\0",
    );
    (fake, format!("{cgroup}, {numbers:?}, below {owner} {argv:?}, {exe}"))
}

#[test]
fn forged_facts_neither_blame_others_nor_protect() {
    if !geteuid().is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for seed in 1..=rounds(20) {
        let mut dice = Dice::new(seed);
        let (fake, forgery) = forger(&mut dice, folder.path());
        let ObservedProcess { process, facts } = read_process(&fake);
        for line in advice::place_lines(&process) {
            // The line may name a unit of the user's own systemd instance, or a program of the user's own supervisor.
            let is_own = line.contains("systemctl --user -M ") || line.contains(", as its user: `");
            let is_innocent = INNOCENT.iter().any(|name| line.contains(name));
            assert!(is_own || !is_innocent, "{seed}: {line}: {forgery}");
        }
        let snapshot = snapshot(at(0.0), &[process], vec![gpu(0, &[(70, GIB)], 0)]);
        let mut guard = guard_naming(&[70]);
        (guard.ourselves.uid, guard.ourselves.may_signal_others) = (0, true);
        guard.policy.all_users = true;
        let plan = plan_with(&[], &snapshot, &[], &[(70, facts)].into(), &guard);
        let steps = plan.targets.first().map(|target| target.steps.as_slice());
        let is_ended = matches!(steps, Some([Step::Signal { .. }, ..]));
        assert!(is_ended, "{seed}: {:?} {:?}: {forgery}", plan.refused, steps);
    }
}

/// Programs that own other processes: comm, program file and command line.
const OWNERS: [(&str, &str, &str); 8] = [
    ("supervisord", "/usr/bin/python3.11", "/usr/bin/python3 /usr/bin/supervisord -n"),
    ("runsv", "/usr/bin/runsv", "runsv trainer"),
    ("pbs_mom", "/opt/pbs/sbin/pbs_mom", "/opt/pbs/sbin/pbs_mom"),
    ("sge_shepherd", "/sge/sge_shepherd", "sge_shepherd -bg"),
    ("condor_starter", "/usr/sbin/condor_starter", "condor_starter -f"),
    ("nomad", "/usr/bin/nomad", "/usr/bin/nomad executor {}"),
    ("gitlab-runner", "/usr/bin/gitlab-runner", "gitlab-runner run"),
    ("slurmstepd", "/usr/sbin/slurmstepd", "slurmstepd:"),
];

/// Programs that gpumem does not know as owners.
const OTHERS: [(&str, &str, &str); 4] = [
    ("bash", "/usr/bin/bash", "-bash"),
    ("python3", "/usr/bin/python3.11", "python3 launch.py"),
    ("newsupervisor", "/usr/bin/newsupervisor", "newsupervisor run"),
    ("tmux", "/usr/bin/tmux", "tmux"),
];

#[test]
fn a_forged_owner_changes_only_the_advice_about_its_author() {
    if !geteuid().is_root() {
        return;
    }
    for seed in 1..=rounds(20) {
        let mut dice = Dice::new(seed);
        let fake = FakeProc::new();
        let put = |pid: u32, ppid, uid, (comm, exe, argv): (&'static str, &str, &str)| {
            let numbers = &*pid.to_string();
            add_process(&fake, &FakeProcess { pid, ppid, uid, comm, exe, argv, numbers });
        };
        put(1, 0, 0, ("systemd", "/usr/lib/systemd/systemd", "/sbin/init"));
        let train = ("python3", "/usr/bin/python3.11", "python3 train.py");
        let mut is_roots = Vec::new();
        for index in 0..5 {
            let (parent, pid, uid) = (61 + index, 81 + index, 2000 + index);
            let (by, program) = match dice.roll(3) {
                0 => (0, OWNERS[dice.place(OWNERS.len())]),
                1 => (uid, OWNERS[dice.place(OWNERS.len())]),
                _ => (0, OTHERS[dice.place(OTHERS.len())]),
            };
            put(parent, 1, by, program);
            put(pid, parent, uid, train);
            is_roots.push((pid, by == 0 && OWNERS.contains(&program)));
        }
        // The forger's parent looks like an owner. Some processes, including the forger, have environment variables
        // that name jobs.
        let (comm, file, argv) = OWNERS[dice.place(OWNERS.len())];
        let (by, file) = [(FORGER, file), (0, "/usr/bin/su"), (0, "")][dice.place(3)];
        put(60, 1, by, (comm, file, argv));
        put(70, 60, FORGER, train);
        let names =
            ["SUPERVISOR_PROCESS_NAME", "PBS_JOBID", "SLURM_JOB_ID", "_CONDOR_SLOT", "pm_id"];
        for pid in [70, 81, 82, 83, 84, 85] {
            let set = |name: &&str| format!("{name}={}\0", 80 + name.len());
            let environ: String = names.iter().filter(|_| dice.roll(2) == 0).map(set).collect();
            fake.put(pid, "environ", environ);
            fake.put(pid, "cgroup", "0::/user.slice/user-1000.slice/session-3.scope\n");
        }
        let pids = [70, 81, 82, 83, 84, 85];
        let steps_of = |pids: &[u32]| {
            let mut processes = Processes::new(fake.roots.clone()).sample(pids, 1).processes;
            let gpu_files = process(70, "x").gpu_files;
            processes.iter_mut().for_each(|process| process.gpu_files.clone_from(&gpu_files));
            let rows: Vec<(u32, u64)> = pids.iter().map(|&pid| (pid, GIB)).collect();
            let facts = pids.iter().map(|&pid| (pid, read_guarded(&fake, pid).unwrap().unwrap()));
            let facts = facts.collect();
            let seen = snapshot(at(0.0), &processes, vec![gpu(0, &rows, 0)]);
            let mut guard = guard_naming(pids);
            (guard.ourselves.uid, guard.ourselves.may_signal_others) = (0, true);
            guard.policy.all_users = true;
            let plan = plan_with(&[], &seen, &[], &facts, &guard);
            let mut steps: Vec<_> = plan
                .targets
                .into_iter()
                .map(|target| (target.leader, target.steps, target.owner))
                .collect();
            steps.sort_by_key(|(leader, ..)| *leader);
            assert_eq!(steps.len(), pids.len(), "{seed}");
            steps
        };
        let with = steps_of(&pids);
        assert!(matches!(with[0].1[..], [Step::Signal { .. }, ..]), "{seed}: {with:?}");
        assert_eq!(with[1..], steps_of(&pids[1..]), "{seed}");
        for (pid, is_left) in is_roots {
            let (_, steps, _) = with.iter().find(|(leader, ..)| *leader == pid).unwrap();
            assert_eq!(
                matches!(steps[..], [Step::Advise { .. }]),
                is_left,
                "{seed}: {pid} {steps:?}"
            );
        }
    }
}
