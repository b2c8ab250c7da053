//! Tests the commands for each finding. A protected process gets no `gpumem kill`.

use std::sync::Arc;

use super::*;
use crate::model::Process;
use crate::model::process::{Jupyter, Slurm};
use crate::reclaim::guard::Guard;
use crate::reclaim::testing::{OWNER, at, finding, gpu, guard, on_gpu, plan_of, process, snapshot};

fn announcing() -> Process {
    let variable = [(Arc::from("GPUMEM_RELEASE_SIGNAL"), Arc::from("USR2"))];
    Process { environment: Some(Arc::new(variable.into())), ..process(70, "./render") }
}

fn fill_in<'f>(
    findings: impl Iterator<Item = &'f mut Finding>,
    plan: &Plan,
    snapshot: &Snapshot,
    command_user: CommandUser,
) {
    for finding in findings.filter(|finding| finding.resolved_at.is_none()) {
        NextSteps::new(finding, plan, snapshot, command_user).put(finding);
    }
}

/// Returns findings of these kinds, with the commands for the user of `guard`.
fn with_commands(found: &[(Kind, &Process)], snapshot: &Snapshot, guard: &Guard) -> Vec<Finding> {
    let mut findings: Vec<Finding> =
        found.iter().map(|(kind, process)| finding(*kind, process)).collect();
    let guard = Guard { policy: default_policy(), ourselves: guard.ourselves.clone() };
    let plan = plan_of(&findings, snapshot, &guard);
    let command_user = CommandUser::User(guard.ourselves.uid);
    fill_in(findings.iter_mut(), &plan, snapshot, command_user);
    findings
}

fn commands(found: &[(Kind, &Process)], snapshot: &Snapshot) -> Vec<Vec<String>> {
    let findings = with_commands(found, snapshot, &guard());
    findings.into_iter().map(|finding| finding.commands).collect()
}

#[test]
fn default_reap_targets_get_kill_and_others_explain() {
    let python = process(70, "python train.py");
    let snapshot = on_gpu(std::slice::from_ref(&python));
    for &kind in Kind::ALL {
        let command = match kind {
            Kind::Idle | Kind::Orphan | Kind::Stopped => "gpumem kill 70",
            _ => "gpumem explain 70",
        };
        assert_eq!(commands(&[(kind, &python)], &snapshot), [[command]], "{kind}");
    }
    let server = process(70, "vllm serve m");
    let snapshot = on_gpu(std::slice::from_ref(&server));
    let explained = [["gpumem explain 70"]];
    assert_eq!(commands(&[(Kind::Idle, &server)], &snapshot), explained);
}

#[test]
fn a_kill_command_names_the_whole_job() {
    let rank = |pid| Process {
        process_group: Some(60),
        session: Some(60),
        ..process(pid, "python finetune.py")
    };
    let ranks = [rank(71), rank(72), rank(73)];
    let snapshot = on_gpu(&ranks);
    let all: Vec<(Kind, &Process)> = ranks.iter().map(|rank| (Kind::Orphan, rank)).collect();
    let together = "gpumem kill 71 72 73".to_owned();
    assert_eq!(commands(&all, &snapshot), vec![vec![together]; 3]);
    let partial = commands(&all[..2], &snapshot);
    assert_eq!(partial, [["gpumem explain 71"], ["gpumem explain 72"]]);
}

#[test]
fn an_idle_process_gets_release_before_kill() {
    let idle = announcing();
    let silent = process(70, "./render");
    for (kind, process, expected) in [
        (Kind::Idle, &idle, &["gpumem release 70", "gpumem kill 70"][..]),
        (Kind::ServerIdle, &idle, &["gpumem release 70", "gpumem explain 70"]),
        (Kind::Orphan, &idle, &["gpumem kill 70"]),
        // The process announces no release signal, so gpumem cannot ask it to release memory.
        (Kind::Idle, &silent, &["gpumem kill 70"]),
    ] {
        let snapshot = on_gpu(std::slice::from_ref(process));
        assert_eq!(commands(&[(kind, process)], &snapshot), [expected], "{kind}");
    }
    let ranks = [idle.clone(), Process { pid: 71, ..idle.clone() }];
    let all: Vec<(Kind, &Process)> = ranks.iter().map(|rank| (Kind::Idle, rank)).collect();
    for commands in commands(&all, &on_gpu(&ranks)) {
        let pids = commands[1].strip_prefix("gpumem kill ").unwrap();
        assert_eq!(commands[0], format!("gpumem release {pids}"));
    }
}

#[test]
fn an_owned_process_gets_the_owners_command() {
    let job = Process {
        slurm: Some(Arc::new(Slurm {
            job_id: Some("812".into()),
            step_id: Some("0".into()),
            ..Slurm::default()
        })),
        environment: Some(Arc::new([(Arc::from("SLURM_JOB_ID"), Arc::from("812"))].into())),
        ..process(70, "python train.py")
    };
    let seen = on_gpu(std::slice::from_ref(&job));
    let found = with_commands(&[(Kind::Idle, &job)], &seen, &guard());
    assert_eq!(
        (&*found[0].commands, &*found[0].actions),
        (&["scancel 812.0".to_owned()][..], &[Action::Notify][..])
    );
    let bare = process(70, "python train.py");
    let found =
        with_commands(&[(Kind::Idle, &bare)], &on_gpu(std::slice::from_ref(&bare)), &guard());
    assert!(found[0].actions.contains(&Action::Terminate));
}

#[test]
fn the_commands_depend_on_the_process_owner() {
    let others = Process {
        uid: Some(OWNER + 1),
        user: Some("ben".into()),
        ..process(70, "python train.py")
    };
    let snapshot = on_gpu(std::slice::from_ref(&others));
    let found = [(Kind::Idle, &others)];
    let mine = with_commands(&found, &snapshot, &guard());
    assert_eq!(mine[0].commands, ["gpumem explain 70"]);
    let words = mine[0].advice.join("\n");
    assert!(words.contains("ask ben to run `gpumem kill 70`"), "{words}");
    let mut root = guard();
    root.ourselves.uid = 0;
    root.ourselves.may_signal_others = true;
    let roots = with_commands(&found, &snapshot, &root);
    assert_eq!(roots[0].commands, ["gpumem kill --all-users 70"]);
    assert!(roots[0].advice.is_empty());
    // The reader of a recording is unknown, so the command is for the owner of the process.
    let mut findings = vec![finding(Kind::Idle, &others)];
    root.policy = default_policy();
    let plan = plan_of(&findings, &snapshot, &root);
    fill_in(findings.iter_mut(), &plan, &snapshot, CommandUser::Owner);
    assert_eq!(findings[0].commands, ["gpumem kill 70"]);
}

#[test]
fn a_protected_or_resolved_finding_gets_no_kill_command() {
    let kept = Process {
        environment: Some(Arc::new([(Arc::from("GPUMEM_KEEP"), Arc::from("forever"))].into())),
        ..process(70, "python train.py")
    };
    let snapshot = on_gpu(std::slice::from_ref(&kept));
    let explained = [["gpumem explain 70"]];
    assert_eq!(commands(&[(Kind::Idle, &kept)], &snapshot), explained);
    let mut over = finding(Kind::Idle, &kept);
    over.resolved_at = Some(at(0.0));
    let plan = plan_of(&[], &snapshot, &guard());
    fill_in(std::iter::once(&mut over), &plan, &snapshot, CommandUser::Owner);
    assert!(over.commands.is_empty());
}

#[test]
fn a_releasable_process_gets_a_command_without_a_finding() {
    let kernel = |state: &str, framework: &str| Process {
        framework: Some(framework.into()),
        jupyter: Some(Arc::new(Jupyter {
            connection_file: Some("/run/kernel-1.json".into()),
            execution_state: Some(state.into()),
            ..Jupyter::default()
        })),
        ..process(70, "python -m ipykernel_launcher -f /run/kernel-1.json")
    };
    let python = Process {
        framework: Some("pytorch".into()),
        executable: Some("/usr/bin/python3.14".into()),
        ..process(70, "python train.py")
    };
    for (process, can) in [
        (announcing(), true),
        (kernel("idle", "pytorch"), true),
        (kernel("busy", "pytorch"), false),
        // TensorFlow never frees its memory, and nothing is known about the other library.
        (kernel("idle", "tensorflow"), false),
        (kernel("idle", "mine"), false),
        (python, false),
    ] {
        let snapshot = on_gpu(std::slice::from_ref(&process));
        let commands =
            own_commands(&RuleSet::default(), Some(&process), &snapshot, CommandUser::User(OWNER));
        assert_eq!(commands.release.as_deref(), can.then_some("gpumem release 70"), "{process:?}");
        // The server may restart the kernel, so there is no kill command.
        let may_end = process.jupyter.is_none();
        assert_eq!(commands.kill.as_deref(), may_end.then_some("gpumem kill 70"));
    }
}

#[test]
fn all_pages_agree_on_a_kernel_without_a_server() {
    let kernel = |server_alive| Process {
        jupyter: Some(Arc::new(Jupyter {
            kernel_id: Some("1".into()),
            server_url: Some("http://127.0.0.1:1/".into()),
            server_error: Some("connection refused".into()),
            server_alive,
            ..Jupyter::default()
        })),
        ..process(70, "python -m ipykernel_launcher -f /run/kernel-1.json")
    };
    for (server_alive, may_end) in [(Some(false), true), (Some(true), false), (None, false)] {
        let kernel = kernel(server_alive);
        let snapshot = on_gpu(std::slice::from_ref(&kernel));
        let command = if may_end { "gpumem kill 70" } else { "gpumem explain 70" };
        assert_eq!(commands(&[(Kind::Orphan, &kernel)], &snapshot), [[command]]);
        let commands =
            own_commands(&RuleSet::default(), Some(&kernel), &snapshot, CommandUser::Owner);
        assert_eq!(commands.kill.as_deref(), may_end.then_some("gpumem kill 70"));
        let advised = advice::steps(&kernel).join("; ");
        assert_eq!(advised.contains("Shut Down Kernel"), !may_end, "{advised}");
        assert_eq!(advised.contains("gpumem kill 70"), may_end, "{advised}");
    }
}

#[test]
fn a_process_without_memory_or_permission_gets_no_command() {
    let announced = announcing();
    let processes = std::slice::from_ref(&announced);
    let observed = on_gpu(processes);
    let commands_by = |observed: &Snapshot, command_user| {
        own_commands(&RuleSet::default(), Some(&announced), observed, command_user)
    };
    let both = |option: &str| OwnCommands {
        release: Some(format!("gpumem release{option} 70")),
        kill: Some(format!("gpumem kill{option} 70")),
    };
    assert_eq!(commands_by(&observed, CommandUser::Owner), both(""), "a recording's owner");
    // A command that is typed elsewhere runs later, when the pid may have been reused, so it names the exact process.
    let exactly = both("").kill.map(|command| command.replace("70", "70@700@boot"));
    assert_eq!(commands_by(&observed, CommandUser::Elsewhere).kill, exactly);
    let mut without_boot_id = observed.clone();
    without_boot_id.host.boot_id = None;
    assert_eq!(commands_by(&without_boot_id, CommandUser::Elsewhere), OwnCommands::default());
    assert_eq!(commands_by(&observed, CommandUser::User(OWNER + 1)), OwnCommands::default());
    assert_eq!(commands_by(&observed, CommandUser::User(ROOT)), both(" --all-users"));
    let holds = |rows: &[(u32, u64)]| snapshot(at(0.0), processes, vec![gpu(0, rows, 0)]);
    assert_eq!(commands_by(&holds(&[(70, 0)]), CommandUser::Owner).release, None);
    // In a container, NVML's pid can belong to another process.
    let unheld = Process { gpu_files: None, ..announced.clone() };
    let mut inside = on_gpu(std::slice::from_ref(&unheld));
    inside.host.pid_namespace = Some(crate::model::snapshot::PidNamespace::Container);
    assert_eq!(commands_by(&inside, CommandUser::Owner), OwnCommands::default());
    let unresolved = Process { unresolved: Some("who knows".into()), ..announced.clone() };
    assert_eq!(commands_by(&on_gpu(&[unresolved]), CommandUser::Owner), OwnCommands::default());
    let kept = Process {
        environment: Some(Arc::new([(Arc::from("GPUMEM_KEEP"), Arc::from("forever"))].into())),
        ..process(70, "python train.py")
    };
    let on_gpu = on_gpu(std::slice::from_ref(&kept));
    let commands = own_commands(&RuleSet::default(), Some(&kept), &on_gpu, CommandUser::Owner);
    assert_eq!(commands, OwnCommands::default());
}
