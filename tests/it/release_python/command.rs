//! `gpumem release PID` of a real interpreter.

use serde_json::json;

use super::*;
use crate::reap::outcome;

impl Program {
    fn release(&self, more: &[&str]) -> support::Output {
        let pid = self.pid().to_string();
        let arguments = [&["release", "--json", &pid], more].concat();
        self.machine.act(&arguments)
    }
}

#[test]
fn a_python_that_runs_is_named_by_its_pid_and_one_that_sleeps_times_out() {
    let program = or_skip!(Program::start(LOOP));
    if program.machine.snapshot(0).0["host"]["pid_namespace"] != "host" {
        let output = program.release(&["--yes"]);
        assert_eq!(output.json()["targets"], json!([]), "{output:?}");
        return;
    }
    let planned = program.release(&["--dry-run"]).exits(0);
    let step = &planned.json()["targets"][0]["steps"][0];
    assert_eq!(step["way"]["by"], "python", "{planned:?}");
    assert_eq!((program.held_gib(), program.releases()), (8, 0));
    let output = program.release(&["--yes", "--wait", "20s"]).exits(0);
    let released = outcome(&output);
    assert_eq!(
        (&released["outcome"], &released["bytes"]),
        (&json!("released"), &json!(6 * GIB)),
        "{output:?}"
    );
    assert_eq!(released["live_bytes"], json!(2 * GIB));
    assert_eq!((program.held_gib(), program.releases()), (2, 1));

    let sleeps = Program::start("ready()\ntime.sleep(600)").unwrap();
    let output = sleeps.release(&["--yes", "--wait", "1s"]).exits(1);
    assert_eq!(outcome(&output)["outcome"], "timed_out", "{output:?}");
    // What was prepared for it is taken back: nothing runs later.
    sleeps.wake();
    assert_eq!((sleeps.held_gib(), sleeps.releases()), (8, 0));
}
