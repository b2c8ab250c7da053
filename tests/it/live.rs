//! gpumem on the mock driver with real processes: the values that gpumem reads, and drivers that are old, wrong, slow
//! or gone.

use std::os::unix::fs::symlink;
use std::process::Command;

use mock_nvml::scene::{Driver, Fault, Gpu, Memory, Process, ProcessKind, Scene, UtilizationClock};
use rustix::process::Signal;
use serde_json::json;

use crate::machine::{GIB, Machine, Running, Snapshot, one_gpu};
use crate::procs;
use crate::support::{self, wait_until};

#[test]
fn the_drivers_values_are_shown() {
    let child = Running::sleep();
    let gpu = Gpu {
        power: Some(250_500.into()),
        temperature: Some(61.into()),
        pstate: Some(2.into()),
        fan: Some(40.into()),
        persistence: Some(true),
        mig: Some(false),
        ..Gpu::new("NVIDIA A100-SXM4-40GB")
            .total(40 * GIB)
            .utilization(87, 12)
            .unattributed(3 * GIB)
    };
    let machine = Machine::new(
        &Scene::new()
            .gpu(gpu.process(Process::compute(child.pid(), 5 * GIB).sm(87)))
            .gpu(Gpu::default()),
    );
    let snapshot = machine.snapshot(0);
    assert_eq!(snapshot.0["schema"], "gpumem.snapshot/1");
    assert_eq!(snapshot.0["driver"]["version"], "580.159.03");
    assert_eq!(snapshot.0["driver"]["cuda_version"], "13.0");
    assert_eq!(snapshot.0["errors"], json!([]));
    let gpu = snapshot.gpu(0);
    assert_eq!(gpu["name"], "NVIDIA A100-SXM4-40GB");
    assert_eq!(gpu["memory"]["total_bytes"], 40 * GIB);
    assert_eq!(gpu["memory"]["used_bytes"], 8 * GIB);
    assert_eq!(gpu["memory"]["reserved_bytes"], 614_u64 << 20);
    assert_eq!((&gpu["gpu_percent"], &gpu["memory_percent"]), (&json!(87), &json!(12)));
    assert_eq!((&gpu["power_watts"], &gpu["power_limit_watts"]), (&json!(250.5), &json!(700.0)));
    assert_eq!((&gpu["temperature_celsius"], &gpu["fan_percent"]), (&json!(61), &json!(40)));
    assert_eq!((&gpu["performance_state"], &gpu["compute_mode"]), (&json!(2), &json!("default")));
    assert_eq!((&gpu["persistence_mode"], &gpu["mig_mode"]), (&json!(true), &json!(false)));
    let row = snapshot.row(0, child.pid());
    assert_eq!((&row["used_bytes"], &row["sm_percent"]), (&json!(5 * GIB), &json!(87)));
    assert_eq!(row["type"], "compute");
    assert_eq!(snapshot.0["gpus"].as_array().unwrap().len(), 2);

    let text = machine.run(&["ps"]);
    assert_eq!((text.code, text.stderr.as_str()), (0, ""));
    assert!(text.stdout.contains("NVIDIA A100-SXM4-40GB") && text.stdout.contains("sleep 600"));
    // In a container, NVML lists only visible processes, so the rest of the memory can belong to processes outside
    // the container.
    let is_host = snapshot.0["host"]["pid_namespace"] == "host";
    let rest = "GPU 0: 3.0 GiB is unattributed: no listed process holds it";
    assert_eq!(text.stdout.contains(rest), is_host, "{text:?}");
}

#[test]
fn utilization_samples_may_use_the_boot_clock() {
    let busy = Running::sleep();
    let mut scene = one_gpu(&[]);
    scene.gpus[0].processes.push(Process::compute(busy.pid(), 2 * GIB).sm(77));
    scene.driver.utilization_clock = UtilizationClock::Boot;
    let machine = Machine::new(&scene);
    let lines = record(&machine, &["--interval", "300ms", "--duration", "2s"]);
    assert!(lines.len() >= 2);
    for line in &lines {
        assert_eq!(line.row(0, busy.pid())["sm_percent"], 77, "{line:?}");
    }
}

/// Returns the snapshots that `gpumem record` writes.
fn record(machine: &Machine, more: &[&str]) -> Vec<Snapshot> {
    let output = machine.run(&[&["record"][..], more].concat()).exits(0);
    output.stdout.lines().map(|line| Snapshot(serde_json::from_str(line).unwrap())).collect()
}

#[test]
fn zeros_of_an_orin_are_unknown_and_fail_gates() {
    // On Orin, NVML returns SUCCESS and zeros.
    let empty = Gpu {
        memory: Some(Memory { total: 0.into(), reserved: 0.into(), ..Memory::default() }),
        ..Gpu::default()
    };
    let invalid = [0, u32::MAX].map(|pid| Process::compute(pid, 0));
    let scene = Scene::new().gpu(invalid.into_iter().fold(empty.clone(), Gpu::process));
    let snapshot = Machine::new(&scene).snapshot(3);
    let gpu = snapshot.gpu(0);
    assert!(gpu.get("memory").is_none() && gpu.get("processes").is_none(), "{snapshot:?}");
    let machine = Machine::new(&Scene::new().gpu(empty));
    for gate in [&["--max-used", "90%"][..], &["--max-unattributed", "1GiB"]] {
        machine.run(&[&["check", "--window", "0s"], gate].concat()).exits(3);
    }
}

#[test]
fn a_missing_function_leaves_other_values() {
    // Drivers R450 and R460 list MPS clients with a function without a version suffix.
    let client = Running::sleep();
    let row = Process::compute(client.pid(), GIB).kind(ProcessKind::Mps);
    let mut scene = Scene::new().gpu(Gpu::default().process(row)).driver(Driver::r470());
    scene.driver.missing.push("nvmlDeviceGetMPSComputeRunningProcesses_v2".into());
    // gpumem must also work if the library lacks `nvmlShutdown`.
    scene.driver.missing.push("nvmlShutdown".into());
    let snapshot = Machine::new(&scene).snapshot(0);
    assert_eq!(snapshot.row(0, client.pid())["type"], "mps");
}

#[test]
fn r535_process_records_are_read_with_their_real_size() {
    let pids: Vec<u32> = (1..=20).map(|n| 4_100_000 + n).collect();
    let scene = one_gpu(&pids).driver(Driver::r535());
    let expected: Vec<u64> = pids.iter().map(|&pid| u64::from(pid)).collect();
    assert_eq!(Machine::new(&scene).snapshot(0).pids(0), expected, "with v2, which is correct");

    // Without v2, gpumem must derive the record size from the records that v3 wrote.
    let mut scene = scene;
    for list in ["Compute", "Graphics", "MPSCompute"] {
        scene.driver.missing.push(format!("nvmlDeviceGet{list}RunningProcesses_v2"));
    }
    let machine = Machine::new(&scene);
    let snapshot = machine.snapshot(0);
    assert_eq!(snapshot.pids(0), expected);
    assert!(
        machine.counts().keys().any(|(name, _)| name == "nvmlDeviceGetComputeRunningProcesses_v3")
    );
    for pid in &pids {
        assert_eq!(snapshot.row(0, *pid)["used_bytes"], 2 * GIB);
    }
}

#[test]
fn an_old_driver_is_read_with_old_calls() {
    let child = Running::sleep();
    let scene = one_gpu(&[child.pid()]).driver(Driver::r470());
    let snapshot = Machine::new(&scene).snapshot(0);
    assert_eq!(snapshot.row(0, child.pid())["used_bytes"], 2 * GIB);
    let memory = &snapshot.gpu(0)["memory"];
    assert!(memory.get("reserved_bytes").is_none(), "memory info v1 has no such value: {memory}");
    assert_eq!(memory["used_bytes"], 2 * GIB + (614 << 20), "v1 includes reserved memory");
    assert_eq!(snapshot.0["errors"], json!([]));
}

#[test]
fn memory_info_falls_back_to_v1_and_can_be_coherent() {
    let wsl = one_gpu(&[]).fault(Fault::error("nvmlDeviceGetMemoryInfo_v2", 999));
    let snapshot = Machine::new(&wsl).snapshot(0);
    assert_eq!(snapshot.gpu(0)["memory"]["total_bytes"], 80 * GIB);
    assert_eq!(snapshot.0["errors"], json!([]));
    let mut coherent = one_gpu(&[]);
    coherent.gpus[0].numa_node = Some(1);
    let machine = Machine::new(&coherent);
    assert_eq!(machine.snapshot(0).gpu(0)["numa_node"], 1);
    machine.run(&["check", "--window", "0s", "--max-unattributed", "1GiB"]).exits(3);
}

#[test]
fn each_initialization_error_has_its_message() {
    for (code, hint) in [
        (9, "modprobe nvidia"),
        (18, "driver/library version mismatch"),
        (4, "/dev/nvidiactl"),
        (999, "nvmlInit_v2 failed"),
    ] {
        let machine = Machine::new(&Scene::new().init_error(code));
        let output = machine.run(&["check"]).exits(3);
        assert!(output.stderr.contains(hint), "{output:?}");
        assert_eq!(output.stderr.lines().count(), 1, "{output:?}");
    }
}

#[test]
fn a_lost_gpu_is_an_error_and_others_are_read() {
    let child = Running::sleep();
    for code in [15, 999] {
        let scene = Scene::new()
            .gpu(Gpu::default().process(Process::compute(child.pid(), 2 * GIB)))
            .gpu(Gpu::new("NVIDIA L40S"));
        let machine = Machine::new(&scene);
        let mut recording = machine.record(&["--interval", "100ms"]);
        let whole = recording.next();
        assert!(whole.gpu(1)["memory"].is_object());
        machine.play(&scene.fault(Fault::error("*", code).on(1)));
        let lost = recording.until(|snapshot| !snapshot.gpu(1)["memory"].is_object());
        assert_eq!(lost.gpu(1)["uuid"], whole.gpu(1)["uuid"], "the identity is kept");
        assert_eq!(lost.gpu(1)["name"], "NVIDIA L40S");
        assert!(lost.gpu(1).get("processes").is_none());
        assert!(lost.errors()[0].starts_with("1 "), "{:?}", lost.errors());
        assert_eq!(lost.row(0, child.pid())["used_bytes"], 2 * GIB);
        let verdict = machine.run(&["check", "--window", "1s", "--interval", "200ms", "--json"]);
        assert_eq!(verdict.code, 3, "an unreadable GPU must not pass: {verdict:?}");
        assert_eq!(verdict.json()["status"], "error");
    }
}

#[test]
fn a_hung_gpu_does_not_delay_others() {
    let child = Running::sleep();
    let scene = Scene::new()
        .gpu(Gpu::new("NVIDIA L40S"))
        .gpu(Gpu::default().process(Process::compute(child.pid(), 2 * GIB)));
    let hung = scene.clone().fault(Fault::hang("nvmlDeviceGetPowerUsage").on(0));
    let machine = Machine::new(&hung);
    let output = machine.run(&["ps", "--json", "--nvml-timeout", "2s"]).exits(3);
    let snapshot = Snapshot(output.json());
    assert_eq!(snapshot.row(1, child.pid())["used_bytes"], 2 * GIB);
    assert!(snapshot.errors()[0].contains("nvmlDeviceGetPowerUsage"), "{:?}", snapshot.errors());
    assert!(snapshot.errors()[0].contains("no answer for"), "{:?}", snapshot.errors());

    // The GPU answers at first, and then hangs. Its memory remains, marked as stale, and its utilization becomes
    // unknown.
    machine.play(&scene);
    let mut recording = machine.record(&["--interval", "100ms", "--nvml-timeout", "2s"]);
    assert!(recording.next().gpu(0).get("stale_seconds").is_none());
    machine.play(&hung);
    let stale = recording.until(|snapshot| snapshot.gpu(0)["stale_seconds"].as_f64() > Some(0.5));
    assert!(stale.gpu(0)["memory"].is_object() && stale.gpu(0).get("gpu_percent").is_none());
    assert!(stale.gpu(1).get("stale_seconds").is_none());
    assert_eq!(stale.gpu(1)["gpu_percent"], 0);
    let threads = format!("/proc/{}/task", recording.running.pid());
    let before = std::fs::read_dir(&threads).unwrap().count();
    for _ in 0..10 {
        recording.next();
    }
    assert_eq!(std::fs::read_dir(&threads).unwrap().count(), before, "only one thread hangs");

    machine
        .run(&["check", "--window", "1s", "--interval", "200ms", "--nvml-timeout", "300ms"])
        .exits(3);
}

#[test]
fn a_driver_that_is_reloaded_is_read_again() {
    let child = Running::sleep();
    let scene = one_gpu(&[child.pid()]);
    let machine = Machine::new(&scene);
    let mut recording = machine.record(&["--interval", "100ms"]);
    assert_eq!(recording.next().pids(0), [u64::from(child.pid())]);
    machine.play(&scene.clone().init_error(18).fault(Fault::error("*", 18)));
    let is_global = |error: &String| error.starts_with("null");
    let gone = recording.until(|snapshot| snapshot.errors().iter().any(is_global));
    assert!(gone.errors()[0].contains("version mismatch"), "{:?}", gone.errors());
    assert!(gone.gpu(0)["uuid"].is_string() && gone.gpu(0).get("processes").is_none());
    machine.play(&scene);
    recording.until(|snapshot| snapshot.gpu(0)["processes"].is_array());
    // A GPU that is added later is listed.
    machine.play(&scene.gpu(Gpu::default()));
    let added = recording.until(|snapshot| snapshot.0["gpus"].as_array().unwrap().len() == 2);
    assert_eq!(added.pids(0), [u64::from(child.pid())]);
}

#[test]
fn a_sample_makes_only_the_necessary_calls() {
    let child = Running::sleep();
    let machine = Machine::new(&one_gpu(&[child.pid()]));
    let samples = record(&machine, &["--interval", "100ms", "--duration", "2s"]).len() as u64;
    assert!(samples >= 3);
    let counts = machine.counts();
    let count = |name: &str| counts.get(&(name.to_owned(), Some(0))).copied().unwrap_or(0);
    let each_sample = [
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetPerformanceState",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetEncoderUtilization",
        "nvmlDeviceGetDecoderUtilization",
        "nvmlDeviceGetJpgUtilization",
        "nvmlDeviceGetOfaUtilization",
    ];
    for name in each_sample {
        // Twice a minute, gpumem also calls `nvmlDeviceGetClockInfo` for the memory clock.
        let more = u64::from(name == "nvmlDeviceGetClockInfo");
        assert!((samples..=samples + more).contains(&count(name)), "{name}: {counts:?}");
    }
    // gpumem calls some functions twice, once for each of two values.
    let mut others = counts.iter().filter(|((name, _), _)| !each_sample.contains(&name.as_str()));
    assert!(others.all(|(_, &count)| count <= 2), "constant values are read once: {counts:?}");
}

#[test]
fn odd_names_long_arguments_zombies_and_stopped_processes_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let odd = folder.path().join("a) b\u{1b}[31m");
    let sleep = support::find("sleep", "coreutils").unwrap();
    symlink(std::fs::canonicalize(sleep).unwrap(), &odd).unwrap();
    let odd = Running::start(Command::new(&odd).arg("600"));
    let long = vec!["x".repeat(30_000); 50];
    let long = Running::start(Command::new("sh").args(["-c", "sleep 600; :", "sh"]).args(&long));
    let zombie = Running::start(&mut Command::new("true"));
    let stopped = Running::sleep();
    procs::send(stopped.pid(), Signal::STOP);
    let pids = [odd.pid(), long.pid(), zombie.pid(), stopped.pid(), 2];
    let machine = Machine::new(&one_gpu(&pids));
    let state = |pid: u32| machine.snapshot(0).process(pid)["state"].as_str().map(str::to_owned);
    wait_until("the process is a zombie", || state(zombie.pid()).as_deref() == Some("Z"));
    wait_until("the process is stopped", || state(stopped.pid()).as_deref() == Some("T"));
    wait_until("the shell with long arguments runs", || {
        machine.snapshot(0).process(long.pid())["command"]
            .as_array()
            .is_some_and(|argv| argv.len() > 3)
    });
    let snapshot = machine.snapshot(0);
    assert_eq!(snapshot.process(odd.pid())["comm"], "a) b\u{1b}[31m");
    assert!(snapshot.process(odd.pid())["start_ticks"].is_u64());
    assert!(snapshot.process(zombie.pid()).get("command").is_none());
    let argv = snapshot.process(long.pid())["command"].as_array().unwrap().clone();
    let bytes: usize = argv.iter().map(|argument| argument.as_str().unwrap().len()).sum();
    assert!(bytes <= 40_000, "{bytes}");
    assert!(argv.last().unwrap().as_str().unwrap().ends_with('…'));
    // A zombie cannot be killed. This test is the zombie's parent.
    let parent = format!("({}) has to reap it", std::process::id());
    let killed = machine.run(&["kill", &zombie.pid().to_string(), "--yes"]);
    assert_ne!(killed.code, 0, "{killed:?}");
    let messages = format!("{}{}", killed.stdout, killed.stderr);
    assert!(messages.contains(&parent) && !messages.contains("1 of 1"), "{messages}");
    let page = machine.run(&["explain", &zombie.pid().to_string()]).stdout;
    assert!(!page.contains("gpumem kill"), "{page}");
    let text = machine.run(&["ps"]);
    assert!(!text.stdout.chars().any(|c| c.is_control() && c != '\n'), "{}", text.stdout);
}
