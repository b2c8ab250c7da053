//! What is planned, what is refused, and that a plan changes nothing.

use std::process::Command;
use std::thread;
use std::time::Duration;

use gpumem::api::host::{Roots, read_guarded};
use mock_nvml::scene::Fault;
use serde_json::json;

use super::{OBEYS, Stage};
use crate::machine::{Machine, Running, one_gpu};
use crate::support::{self, run};

/// The leaders of the targets that are planned in the demo.
fn planned(more: &[&str]) -> Vec<u64> {
    let output = run(&[&["reap", "--demo", "--json"], more].concat()).exits(0);
    let document = output.json();
    assert_eq!(document["status"], "planned");
    let targets = document["targets"].as_array().unwrap();
    targets.iter().map(|it| it["leader"].as_u64().unwrap()).collect()
}

const NOTEBOOK: u64 = 398_120;
const STOPPED: u64 = 448_016;
const ORPHANS: u64 = 402_519;
const LEAK: u64 = 440_871;

#[test]
fn targets_can_be_named_in_many_ways() {
    assert_eq!(planned(&[]), [NOTEBOOK, STOPPED, ORPHANS]);
    assert_eq!(planned(&["--kind", "idle,orphan"]), [NOTEBOOK, ORPHANS]);
    assert_eq!(planned(&["--kind", "stopped"]), [STOPPED]);
    assert_eq!(planned(&["--kind", "leak"]), [LEAK]);
    assert_eq!(planned(&["--gpu", "3"]), [STOPPED, ORPHANS]);
    let uuid = "GPU-94c35a1f-68b2-4d7a-b0e3-17f25c9d8a06";
    assert_eq!(planned(&["--gpu", uuid]), [STOPPED, ORPHANS]);
    assert_eq!(planned(&["--user", "ben,1005"]), [NOTEBOOK, ORPHANS]);
    assert_eq!(planned(&["--where", "mem>4GiB"]), [NOTEBOOK, STOPPED]);
    assert_eq!(planned(&["--pid", "440871"]), [LEAK], "whatever rules say");
    assert_eq!(planned(&["--pid", "440871", "--user", "ben"]), [0; 0]);
}

#[test]
fn what_is_asked_for_changes_the_steps() {
    let document =
        run(&["reap", "--demo", "--json", "--pid", "448016", "--signal", "int", "--grace", "3s"])
            .json();
    let steps = &document["targets"][0]["steps"];
    let int = json!({"step": "signal", "signal": "INT", "whom": "family", "grace_seconds": 3.0});
    assert_eq!(steps[0], int);
    assert_eq!(steps[1]["signal"], "KILL");
    let job = run(&["reap", "--demo", "--pid", "412301"]);
    assert!(
        job.stdout.contains("1. it is not gpumem's to kill: scancel 48213.0; add --direct"),
        "{job:?}"
    );
    assert!(job.stdout.ends_with("nothing for gpumem to kill; 1 for others to kill\n"));
    let direct = run(&["reap", "--demo", "--pid", "412301", "--direct"]);
    assert!(direct.stdout.contains("1. SIGTERM to 412301"), "{direct:?}");
}

#[test]
fn blind_is_never_green() {
    let none =
        run(&["reap", "--json", "--nvml-library", "/nonexistent/libnvidia-ml.so.1"]).exits(3);
    assert_eq!(none.json()["status"], "error");
    let lost = Machine::new(&one_gpu(&[]).fault(Fault::error("*", 15)));
    for more in [&[][..], &["--yes"]] {
        let lost = lost.run(&[&["reap", "--json", "--window", "0s"], more].concat()).exits(3);
        assert_eq!(lost.json()["status"], "error");
    }
}

#[test]
fn without_a_yes_nothing_is_sent() {
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
        // Who types kill wants it done; a plan is what the others are asked for.
        let code = i32::from(arguments[0] == "kill");
        assert_eq!(plan.code, code, "{plan:?}");
        assert!(plan.stdout.contains("2.0 GiB") || plan.stdout.contains("2147483648"));
        assert!(plan.stderr.contains("dry run; add --yes to carry it out"), "{plan:?}");
    }
    assert!(holder.is_alive());
    assert!(!stage.ledger().exists());
    let history = stage.run(&["reap", "--history"]);
    assert!(history.stdout.starts_with("no actions so far"), "{history:?}");
}

#[test]
fn a_keep_protects_for_at_most_so_long_and_names_its_owner() {
    let stage = or_skip!(Stage::new());
    let kept = stage.holder_by(&["env", "GPUMEM_KEEP=2999-12-31"], OBEYS);
    let pid = kept.pid.to_string();
    for (toml, words) in [
        ("", "keeps it until 3000-01-01"),
        ("[reap]\nlongest_keep = \"100d\"\n", "keeps it until 20"),
        ("[reap]\nlongest_keep = \"0s\"\n", "SIGTERM"),
    ] {
        stage.machine.configure(toml);
        let plan = stage.run(&["reap", "--pid", &pid]);
        assert!(plan.stdout.contains(words), "{words}: {plan:?}");
        assert_eq!(plan.stdout.contains("its owner "), words != "SIGTERM", "{plan:?}");
        assert!(!plan.stdout.contains("its owner keeps"), "{plan:?}");
    }
}

#[test]
fn a_dry_run_ends_with_the_code_of_the_real_one() {
    let stage = or_skip!(Stage::new());
    let kept = stage.holder_by(&["env", "GPUMEM_KEEP=2999-12-31"], OBEYS);
    let kept = kept.pid.to_string();
    // Each with an audit log of its own, all at once.
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
                // Who types kill and no --yes is shown what it would do.
                let dry: &[&str] = if arguments[0] == "kill" { &[] } else { &["--dry-run"] };
                for more in [dry, &["--yes"]] {
                    assert_code(&[arguments, more].concat(), code);
                }
            });
        }
    });
    // Of several the one that is refused decides, whatever becomes of the other.
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
    // Blind, and something is refused on what can be seen.
    let lost = Machine::new(&one_gpu(&[]).fault(Fault::error("*", 15)));
    for more in ["--dry-run", "--yes"] {
        let output = lost.run(&["reap", "--pid", "1", more]);
        assert_eq!(output.code, 1, "{more}: {output:?}");
    }
}

#[test]
fn who_started_gpumem_is_never_touched() {
    let stage = or_skip!(Stage::new());
    let gpumem = stage.command(&["reap", "--yes", "--json", "--pid"]);
    // It becomes its own victim's child.
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
fn of_another_user_only_on_request() {
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
    // The owner has a name, and what is to be added exists.
    let pid = holder.pid.to_string();
    let refused = stage.run(&["kill", "--yes", &pid]).exits(1);
    let why = format!("skipped: {pid} nobody (sleep ");
    assert!(refused.stdout.contains(&why), "{refused:?}");
    let why = "): owned by nobody; add --all-users\n";
    assert!(refused.stdout.contains(why), "{refused:?}");
    stage.release(&holder, Duration::ZERO);
    let output = stage.run(&["kill", "--yes", "--all-users", &pid]).exits(0);
    assert!(output.stdout.contains("freed 2.0 GiB in "), "{output:?}");
    assert!(!holder.is_alive());
}

/// What setproctitle leaves of the environment that a program was given.
const TITLED: &str = "import ctypes, time
fields = open('/proc/self/stat').read().rsplit(')', 1)[1].split()
begin, end = int(fields[47]), int(fields[48])
ctypes.memset(begin, 0, end - begin)
print('titled', flush=True)
time.sleep(600)";

#[test]
fn a_keep_that_was_written_over_is_unknown_and_not_absent() {
    let python = or_skip!(support::find("python3", "python3"));
    let mut command = Command::new(python);
    let (program, line) = support::hear(command.args(["-c", TITLED]).env("GPUMEM_KEEP", "yes"));
    assert_eq!(line, "titled");
    let program = Running(program);
    let pid = program.pid();
    let facts = read_guarded(&Roots::default(), pid).unwrap().unwrap();
    assert_eq!(facts.environment, None);
    let machine = Machine::new(&one_gpu(&[pid]));
    assert!(machine.snapshot(0).process(pid).get("environment").is_none());
    // A user who names it is warned.
    let planned = machine.run(&["reap", "--dry-run", "--pid", &pid.to_string()]);
    assert!(planned.stderr.contains("it is unknown whether the owner protects it"), "{planned:?}");
}
