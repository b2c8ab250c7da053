//! Plans and refusals. Making a plan changes nothing.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use gpumem::api::host::{Roots, read_guarded};
use mock_nvml::scene::Fault;
use serde_json::json;

use super::{OBEYS, Stage};
use crate::machine::{Machine, Running, one_gpu};
use crate::support::{self, run, short_demo};

/// Returns the leaders of the planned targets in the demo.
fn planned_leaders(more: &[&str]) -> Vec<u64> {
    let output = run(&[&["reap", "--replay", short_demo(), "--json"], more].concat()).exits(0);
    let document = output.json();
    assert_eq!(document["status"], "planned");
    let targets = document["targets"].as_array().unwrap();
    targets.iter().map(|target| target["leader"].as_u64().unwrap()).collect()
}

const NOTEBOOK: u64 = 398_120;
const STOPPED: u64 = 448_016;
const ORPHANS: u64 = 402_519;
const LEAK: u64 = 440_871;

#[test]
fn targets_are_selected_by_kind_gpu_user_filter_and_pid() {
    assert_eq!(planned_leaders(&[]), [NOTEBOOK, STOPPED, ORPHANS]);
    assert_eq!(planned_leaders(&["--kind", "idle,orphan"]), [NOTEBOOK, ORPHANS]);
    assert_eq!(planned_leaders(&["--kind", "stopped"]), [STOPPED]);
    assert_eq!(planned_leaders(&["--kind", "leak"]), [LEAK]);
    assert_eq!(planned_leaders(&["--gpu", "3"]), [STOPPED, ORPHANS]);
    let uuid = "GPU-94c35a1f-68b2-4d7a-b0e3-17f25c9d8a06";
    assert_eq!(planned_leaders(&["--gpu", uuid]), [STOPPED, ORPHANS]);
    assert_eq!(planned_leaders(&["--user", "ben,1005"]), [NOTEBOOK, ORPHANS]);
    assert_eq!(planned_leaders(&["--where", "mem>4GiB"]), [NOTEBOOK, STOPPED]);
    assert_eq!(planned_leaders(&["--pid", "440871"]), [LEAK], "regardless of rules");
    assert_eq!(planned_leaders(&["--pid", "440871", "--user", "ben"]), [0; 0]);
}

#[test]
fn options_change_the_planned_steps() {
    let plan = |more: &[&str]| run(&[&["reap", "--replay", short_demo()], more].concat());
    let document = plan(&["--json", "--pid", "448016", "--signal", "int", "--grace", "3s"]).json();
    let steps = &document["targets"][0]["steps"];
    let int =
        json!({"step": "signal", "signal": "INT", "recipients": "family", "grace_seconds": 3.0});
    assert_eq!(steps[0], int);
    assert_eq!(steps[1]["signal"], "KILL");
    let job = plan(&["--pid", "412301"]);
    assert!(
        job.stdout.contains("1. it is not gpumem's to kill: scancel 48213.0; add --direct"),
        "{job:?}"
    );
    let direct = plan(&["--pid", "412301", "--direct"]);
    assert!(direct.stdout.contains("1. SIGTERM to 412301"), "{direct:?}");
}

#[test]
fn unreadable_gpus_exit_with_3() {
    let no_driver =
        run(&["reap", "--json", "--nvml-library", "/nonexistent/libnvidia-ml.so.1"]).exits(3);
    assert_eq!(no_driver.json()["status"], "error");
    let lost = Machine::new(&one_gpu(&[]).fault(Fault::error("*", 15)));
    for more in [&[][..], &["--yes"]] {
        let lost = lost.run(&[&["reap", "--json", "--window", "0s"], more].concat()).exits(3);
        assert_eq!(lost.json()["status"], "error");
    }
}

#[test]
fn without_yes_nothing_is_sent() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(OBEYS);
    let pid = holder.pid.to_string();
    for arguments in [
        &["reap", "--pid", &pid][..],
        &["reap", "--pid", &pid, "--dry-run"],
        &["reap", "--pid", &pid, "--json"],
        &["kill", &pid],
    ] {
        let plan = stage.run(arguments);
        // `kill` fails without `--yes`, because the user requested an action. `reap` shows a plan by default.
        let code = i32::from(arguments[0] == "kill");
        assert_eq!(plan.code, code, "{plan:?}");
        assert!(plan.stderr.contains("dry run; add --yes to carry it out"), "{plan:?}");
    }
    assert!(holder.is_alive());
    assert!(!stage.ledger().exists());
}

#[test]
fn a_plan_skips_programs_that_are_never_killed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    let planned = |toml: &str| {
        fs::write(&path, toml).unwrap();
        planned_leaders(&["--config", path.to_str().unwrap()]).contains(&STOPPED)
    };
    assert!(planned(""));
    assert!(!planned("[reap]\nnever = [\"python3.12\"]\n"));
    assert!(planned("[reap]\nnever = [\"python3\", \"ython3.12\"]\n"));
}

#[test]
fn a_keep_protects_up_to_the_configured_limit() {
    let stage = or_skip!(Stage::new());
    let kept = stage.holder_by(&["env", "GPUMEM_KEEP=2999-12-31"], OBEYS);
    let pid = kept.pid.to_string();
    for (toml, words) in [
        ("", " until 3000-01-01"),
        ("[reap]\nlongest_keep = \"100d\"\n", " until 20"),
        ("[reap]\nlongest_keep = \"0s\"\n", "SIGTERM"),
    ] {
        stage.machine.configure(toml);
        let plan = stage.run(&["reap", "--pid", &pid]);
        assert!(plan.stdout.contains(words), "{words}: {plan:?}");
        assert_eq!(plan.stdout.contains("protected by its owner "), words != "SIGTERM", "{plan:?}");
    }
}

#[test]
fn a_dry_run_exits_with_the_code_of_the_real_run() {
    let stage = or_skip!(Stage::new());
    let kept = stage.holder_by(&["env", "GPUMEM_KEEP=2999-12-31"], OBEYS);
    let kept = kept.pid.to_string();
    // Separate audit logs let the commands run in parallel.
    let assert_code = |arguments: &[&str], code: i32| {
        let state = stage.machine.path(&arguments.join(" "));
        let output = support::finish(stage.command(arguments).env("STATE_DIRECTORY", &state));
        assert_eq!(output.code, code, "{arguments:?}: {output:?}");
        assert!(!state.join("reap.jsonl").exists(), "{arguments:?}");
    };
    let rows = [
        (&["reap", "--pid", "1"][..], 1),
        (&["reap", "--pid", "4194300"], 1),
        (&["reap", "--pid", &kept], 1),
        (&["reap", "--pid", &kept, "--pid", "1"], 1),
        (&["reap", "--pid", &kept, "--json"], 1),
        (&["reap", "--pid", &kept, "--user", "no-such-user"], 2),
        (&["kill", "no.ipynb"], 1),
        (&["reap", "--kind", "leak", "--window", "0s"], 0),
        (&["reap", "--window", "0s"], 0),
        (&["reap", "--gpu", "9", "--window", "0s"], 2),
        (&["kill", "1"], 1),
        (&["kill", "4194300"], 1),
        (&["kill", &kept], 1),
    ];
    thread::scope(|scope| {
        for (arguments, code) in rows {
            let assert_code = &assert_code;
            scope.spawn(move || {
                // `kill` without `--yes` is a dry run.
                let dry: &[&str] = if arguments[0] == "kill" { &[] } else { &["--dry-run"] };
                for more in [dry, &["--yes"]] {
                    assert_code(&[arguments, more].concat(), code);
                }
            });
        }
    });
    // A refused target determines the exit code, regardless of the other target's outcome.
    let holder = stage.holder(OBEYS);
    let (pid, refused) = (holder.pid.to_string(), "4194300");
    for more in ["--dry-run", "--yes"] {
        if more == "--yes" {
            stage.release(&holder, Duration::ZERO);
        }
        let output = stage.run(&["reap", "--pid", &pid, "--pid", refused, more]);
        assert_eq!(output.code, 1, "{more}: {output:?}");
    }
    assert!(!holder.is_alive());
    // The GPU is lost. gpumem refuses the named process because of facts from /proc.
    let lost = Machine::new(&one_gpu(&[]).fault(Fault::error("*", 15)));
    for more in ["--dry-run", "--yes"] {
        let output = lost.run(&["reap", "--pid", "1", more]);
        assert_eq!(output.code, 1, "{more}: {output:?}");
    }
}

#[test]
fn gpumems_ancestors_are_never_signalled() {
    let stage = or_skip!(Stage::new());
    let gpumem = stage.command(&["reap", "--yes", "--json", "--pid"]);
    // The target itself starts gpumem.
    let mut parent = stage.namespace.command("sh");
    let script = "exec 3</dev/nvidia0; echo '{\"gpus\":[{\"processes\":[{\"pid\":'$$',\
        \"used_bytes\":2147483648}]}]}' > \"$GPUMEM_MOCK_SCENE\"; \"$@\" $$; exit $?";
    parent.args(["-c", script, "sh", support::gpumem(), "reap", "--yes", "--json"]);
    parent.arg("--nvml-library").arg(stage.machine.library()).arg("--pid");
    for (name, value) in gpumem.get_envs() {
        match value {
            Some(value) => parent.env(name, value),
            None => parent.env_remove(name),
        };
    }
    let output = support::finish(&mut parent).exits(1);
    let document = output.json();
    assert_eq!(document["status"], "incomplete");
    assert_eq!(document["refused"][0]["why"]["protection"]["reason"], "ancestor");
}

#[test]
fn another_users_process_needs_all_users() {
    or_skip!(support::root("root"));
    let (Some(stage), Some(_)) = (Stage::new(), support::find("setpriv", "util-linux")) else {
        return;
    };
    let other_user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let holder = stage.holder_by(&other_user, OBEYS);
    let output = stage.reap(&holder, &[]).exits(1);
    let refused = &output.json()["refused"][0]["why"]["protection"];
    assert_eq!(*refused, json!({"reason": "other_user", "uid": 65534}));
    assert!(holder.is_alive());
    // The message names the owner and the missing option.
    let pid = holder.pid.to_string();
    let refused = stage.run(&["kill", "--yes", &pid]).exits(1);
    assert!(refused.stdout.contains("owned by nobody; add --all-users\n"), "{refused:?}");
    stage.release(&holder, Duration::ZERO);
    stage.run(&["kill", "--yes", "--all-users", &pid]).exits(0);
    assert!(!holder.is_alive());
}

/// Overwrites the initial environment of the process, as setproctitle does.
const TITLED: &str = "import ctypes, time
fields = open('/proc/self/stat').read().rsplit(')', 1)[1].split()
begin, end = int(fields[47]), int(fields[48])
ctypes.memset(begin, 0, end - begin)
print('titled', flush=True)
time.sleep(600)";

#[test]
fn an_overwritten_keep_is_unknown_rather_than_absent() {
    let python = or_skip!(support::find("python3", "python3"));
    let mut command = Command::new(python);
    let (program, line) =
        support::start_and_read_line(command.args(["-c", TITLED]).env("GPUMEM_KEEP", "yes"));
    assert_eq!(line, "titled");
    let program = Running(program);
    let pid = program.pid();
    let facts = read_guarded(&Roots::default(), pid).unwrap().unwrap();
    assert_eq!(facts.environment, None);
    let machine = Machine::new(&one_gpu(&[pid]));
    assert!(machine.snapshot(0).process(pid).get("environment").is_none());
    // gpumem warns a person who names the process.
    let planned = machine.run(&["reap", "--dry-run", "--pid", &pid.to_string()]);
    assert!(planned.stderr.contains("it is unknown whether the owner protects it"), "{planned:?}");
}
