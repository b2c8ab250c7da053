//! torchrun on CPUs: plans for the launcher and its ranks, and the effect of a signal to a single rank.

use std::fs;

use super::strangers::KillOnDrop;
use super::*;
use crate::support::wait_until;

/// Each rank writes its pid to a file, and waits.
const TRAIN: &str = "import os, sys, time
path = os.path.join(sys.argv[1], os.environ['RANK'])
with open(path + '.new', 'w') as file: file.write(str(os.getpid()))
os.rename(path + '.new', path)
time.sleep(600)
";

/// Debian installs `python3-torch` for the system's Python, which need not be the first Python on PATH.
fn python_with_torch() -> Option<PathBuf> {
    let python = PathBuf::from("/usr/bin/python3");
    let import = "import importlib.util, sys; sys.exit(not importlib.util.find_spec('torch'))";
    let status = Command::new(&python).args(["-c", import]).status();
    if status.is_ok_and(|status| status.success()) {
        return Some(python);
    }
    support::skip("torch", "apt-get install python3-torch");
    None
}

#[test]
fn one_idle_rank_ends_neither_the_launcher_nor_other_ranks() {
    let python = or_skip!(python_with_torch());
    let folder = tempfile::tempdir().unwrap();
    let train = folder.path().join("train.py");
    fs::write(&train, TRAIN).unwrap();
    let mut command = Command::new(python);
    command.args(["-m", "torch.distributed.run", "--standalone"]);
    // With Python 3.11, torch 1.13 fails without these two options.
    command.args(["--nproc_per_node=2", "-r", "1", "-t", "1"]);
    command.arg("--log_dir").arg(folder.path().join("logs"));
    command.arg(&train).arg(folder.path());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut run = SessionLeader(command.process_group(0).spawn().unwrap());
    let rank = |number: u32| {
        let text = fs::read_to_string(folder.path().join(number.to_string()));
        text.ok()?.parse::<u32>().ok()
    };
    wait_until("both ranks have started", || {
        assert!(run.is_alive(), "torchrun did not start");
        rank(0).is_some() && rank(1).is_some()
    });
    let ranks = [rank(0).unwrap(), rank(1).unwrap()];
    let _guards = ranks.map(KillOnDrop);
    let lives = |pid: u32| {
        let facts = read_guarded(&Roots::default(), pid).unwrap();
        facts.is_some_and(|facts| facts.state != Some('Z'))
    };

    let mut stage = Stage::new(&ranks);
    stage.guard.policy.targets = Targets::named(vec![ranks[0]], Vec::new()).unwrap();
    let plan = stage.plan();
    let refused = format!("{:?}", plan.refused);
    for target in plan.targets {
        let (_, past) = stage.act(target);
        assert_eq!(signals_to(&past, run.pid()), []);
        assert_eq!(signals_to(&past, ranks[1]), []);
    }
    assert!(refused.contains(&run.pid().to_string()), "{refused}");
    assert!(run.is_alive() && ranks.into_iter().all(lives));

    // A person who names the launcher selects the whole run.
    stage.guard.policy.targets = Targets::named(vec![run.pid()], Vec::new()).unwrap();
    let plan = stage.plan();
    let mut members: Vec<u32> =
        plan.targets.iter().flat_map(|target| &target.members).map(|member| member.pid).collect();
    members.sort_unstable();
    let mut all = ranks.to_vec();
    all.sort_unstable();
    assert_eq!(members, all, "{plan:?}");
}
