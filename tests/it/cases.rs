//! Situations from public reports, rebuilt as recordings: what `check` finds and what it tells people to type.

use crate::support::{self, Output};

/// `gpumem check` of a recording, without a configuration.
fn check(name: &str) -> Output {
    let path = recording(name);
    support::run(&["check", "--replay", &path, "--config", "/dev/null"])
}

fn explain(name: &str, pid: &str) -> String {
    let path = recording(name);
    support::run(&["explain", pid, "--replay", &path, "--config", "/dev/null"]).exits(0).stdout
}

fn recording(name: &str) -> String {
    format!("{}/tests/data/cases/{name}.jsonl.zst", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn virtual_machines_are_neither_idle_nor_offered_a_signal() {
    let output = check("vgpu").exits(0);
    assert!(!output.stdout.contains("kill"), "{output:?}");
    let page = explain("vgpu", "911");
    assert!(page.contains("virtual machine") && page.contains("`virsh shutdown DOMAIN`"), "{page}");
    assert!(!page.contains("kill"), "{page}");
}

#[test]
fn a_program_under_supervisord_is_stopped_there() {
    let output = check("supervisord").exits(1);
    let stop = "supervisorctl stop comfy:comfy";
    assert!(output.stdout.contains("-> supervisord (pid 7000) would start it again"), "{output:?}");
    assert!(output.stdout.contains(&format!("run: {stop}\n")), "{output:?}");
    assert!(!output.stdout.contains("kill"), "{output:?}");
    let page = explain("supervisord", "7100");
    assert!(page.contains(stop) && !page.contains("gpumem kill"), "{page}");
    let path = recording("supervisord");
    let plan = support::run(&["reap", "--replay", &path, "--config", "/dev/null"]).stdout;
    let (owner, signal) = (plan.find(stop).unwrap(), plan.find("SIGTERM").unwrap());
    assert!(owner < signal, "the owner comes first: {plan}");
}
