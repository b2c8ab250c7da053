//! A GPU that answers late holds up no other: what is found on the others is found all the same.

use std::process::Command;

use mock_nvml::scene::{Fault, Gpu};

use crate::machine::{Machine, Running, one_gpu};

const QUICK: &str = "[rules.idle]\nduration = \"3s\"\n";

#[test]
fn what_is_found_on_a_gpu_stays_while_another_answers_in_three_seconds() {
    let holder = Running::start(Command::new("sleep").arg("62000"));
    let scene = one_gpu(&[holder.pid()]).gpu(Gpu::default());
    for function in [
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetComputeRunningProcesses_v3",
    ] {
        let late = scene.clone().fault(Fault::delay(function, 3000).on(1));
        let machine = Machine::new(&late);
        machine.configure(QUICK);
        let arguments = ["check", "--json", "--interval", "500ms", "--window", "8s"];
        let checked = machine.run(&arguments).json();
        let findings = checked["findings"].as_array().unwrap();
        let is_it = |finding: &&serde_json::Value| {
            finding["process"]["pid"] == holder.pid() && finding["kind"] == "idle"
        };
        assert!(
            findings.iter().any(|it| is_it(&it)),
            "{function}: {checked}"
        );
    }
}
