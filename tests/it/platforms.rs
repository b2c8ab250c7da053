//! Platforms on which NVML reports less data, or data about parts of a GPU: MIG, unified memory, Jetson, WSL and MPS.

use mock_nvml::scene::{Driver, Fault, Gpu, MigDevice, Process, Scene};
use serde_json::{Value, json};

use crate::machine::{GIB, Machine, Running, Snapshot};

/// Returns a GPU with two MIG devices, and with one process on the first, one on the second, and one on both.
fn mig_gpu(first: u32, second: u32, both: u32) -> Gpu {
    let process = |pid, gib: u64| Process::compute(pid, gib * GIB);
    Gpu::new("NVIDIA H100 80GB HBM3")
        .total(80 * GIB)
        .mig_device(
            MigDevice::new(0, "3g.40gb", 40 * GIB)
                .process(process(first, 4))
                .process(process(both, 1)),
        )
        .mig_device(
            MigDevice::new(2, "1g.10gb", 10 * GIB)
                .process(process(second, 2))
                .process(process(both, 3)),
        )
}

/// Returns the rows of GPU 0 as sorted tuples of pid, GPU instance and bytes.
fn rows(snapshot: &Snapshot) -> Vec<(u64, u64, u64)> {
    let rows = snapshot.gpu(0)["processes"].as_array();
    let number = |row: &Value, name: &str| {
        let number = row[name].as_u64();
        number.unwrap_or_else(|| panic!("{name} in {row}"))
    };
    let mut rows: Vec<_> = rows
        .unwrap_or_else(|| panic!("{snapshot:?}"))
        .iter()
        .map(|row| (number(row, "pid"), number(row, "gpu_instance_id"), number(row, "used_bytes")))
        .collect();
    rows.sort_unstable();
    rows
}

#[test]
fn a_cgroups_limit_is_not_the_gpus_memory() {
    let holder = Running::sleep();
    // A process in another cgroup holds 60 of 80 GiB. gpumem runs in a cgroup that is limited to 8 GiB.
    let gpu = |unattributed: u64| {
        Gpu::new("NVIDIA H100 80GB HBM3")
            .total(80 * GIB)
            .unattributed(unattributed)
            .process(Process::compute(holder.pid(), 60 * GIB))
            .limited(8 * GIB, 8 * GIB - (100 << 20))
    };
    let machine = Machine::new(
        &Scene::new().gpu(gpu(0)).gpu(Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB)),
    );
    let snapshot = machine.snapshot(0);
    assert_eq!(snapshot.0["errors"], json!([]));
    let reserved = 614 << 20;
    assert_eq!(
        snapshot.gpu(0)["memory"],
        json!({"total_bytes": 80 * GIB, "used_bytes": 60 * GIB + reserved,
               "free_bytes": 20 * GIB - reserved})
    );
    assert_eq!(snapshot.gpu(0)["memory_limit_bytes"], 8 * GIB);
    assert!(snapshot.gpu(1).get("memory_limit_bytes").is_none());
    assert_eq!(snapshot.gpu(1)["memory"]["reserved_bytes"], reserved);

    // The cgroup has only 100 MiB left, although the GPU has more free memory.
    let wait = "check --gpu 0 --timeout 1s --wait-free";
    machine.run_line(&format!("{wait} 99MiB")).exits(0);
    assert_ne!(machine.run_line(&format!("{wait} 1GiB")).code, 0);
    // In a limited cgroup, the driver does not report reserved memory, so unattributed memory is unknown.
    machine.run_line("check --window 0s --gpu 0 --max-unattributed 1GiB").exits(3);

    // A nearly full cgroup does not make the GPU nearly full. All of the GPU's memory is attributed.
    let toml = "rules.pressure.duration = \"1s\"\nrules.unattributed.duration = \"1s\"\n";
    machine.configure(toml);
    let check =
        "check --json --window 4s --interval 200ms --kind pressure,unattributed --max-used 61GiB";
    let quiet = machine.run_line(check);
    assert_eq!((quiet.code, &quiet.json()["findings"]), (0, &json!([])), "{quiet:?}");
    // The rule allows for the unknown reserved memory. 15 GiB exceed the allowance.
    let machine = Machine::new(&Scene::new().gpu(gpu(15 * GIB)));
    machine.configure(toml);
    let report = machine.run_line(check).json();
    let kinds: Vec<&str> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["unattributed"]);
}

#[test]
fn mig_devices_have_memory_and_a_row_per_instance() {
    let children = [Running::sleep(), Running::sleep(), Running::sleep()];
    let [first, second, both] = children.each_ref().map(Running::pid);
    let scene = Scene::new().gpu(mig_gpu(first, second, both));
    let machine = Machine::new(&scene);
    let mut expected = [(first, 7, 4), (second, 9, 2), (both, 7, 1), (both, 9, 3)]
        .map(|(pid, instance, gib)| (u64::from(pid), instance, gib * GIB));
    expected.sort_unstable();

    let snapshot = machine.snapshot(0);
    assert_eq!(snapshot.0["errors"], json!([]));
    assert_eq!(rows(&snapshot), expected);
    let gpu = snapshot.gpu(0);
    assert_eq!(gpu["mig_mode"], true);
    assert_eq!(gpu["memory"]["used_bytes"], 10 * GIB);
    assert!(gpu.get("gpu_percent").is_none(), "the driver does not report it under MIG");
    let devices = gpu["mig_devices"].as_array().unwrap();
    assert_eq!(devices.len(), 2);
    assert_eq!(
        devices[1],
        json!({"index": 2, "gpu_instance_id": 9, "compute_instance_id": 0,
               "uuid": "MIG-00000000-0000-4000-8002-000000000000", "profile": "1g.10gb",
               "memory": {"total_bytes": 10 * GIB, "reserved_bytes": 40 << 20,
                          "used_bytes": 5 * GIB, "free_bytes": 5 * GIB - (40 << 20)}})
    );

    // Metrics and tables use the same names.
    let page = machine.run(&["metrics"]).exits(0).stdout;
    let series = |start: &str| page.lines().any(|line| line.starts_with(start));
    let held = |mig: &str, pid: u32| {
        let uuid = gpu["uuid"].as_str().unwrap();
        let labels = format!("gpu=\"0\",uuid=\"{uuid}\",mig=\"{mig}\",pid=\"{pid}\"");
        series(&format!("gpumem_process_memory_bytes{{{labels}"))
    };
    assert!(held("0:0", first) && held("0:2", second) && held("0:0", both), "{page}");
    let table = machine.run(&["ps"]).exits(0).stdout;
    assert!(table.contains("\n0:0 ") && table.contains("\n0:2 "), "{table}");
    for line in page.lines().filter(|line| line.starts_with("gpumem_mig_memory_bytes")) {
        assert!(line.contains("mig=\"0:0\"") || line.contains("mig=\"0:2\""), "{line}");
    }
    let used = page.lines().filter(|line| line.contains(",part=\"used\"}"));
    assert_eq!(used.count(), 2, "{page}");

    // Some values of the whole GPU require root. gpumem uses the lists of the MIG devices, and reports no error.
    let driver = Driver { privileged: false, ..Driver::default() };
    machine.play(&scene.clone().driver(driver));
    let snapshot = machine.snapshot(0);
    assert_eq!(snapshot.0["errors"], json!([]));
    assert_eq!(rows(&snapshot), expected);
    let gpu = snapshot.gpu(0);
    assert!(gpu.get("memory").is_none());
    assert!(gpu["memory_unavailable"].is_string(), "{gpu}");
    assert_eq!(gpu["mig_devices"][0]["memory"]["used_bytes"], 5 * GIB);
    assert_eq!(machine.run(&["check", "--window", "1s"]).code, 0);

    // A vGPU host does not support queries for MIG devices. The lists of the whole GPU give the same rows.
    let unsupported = Fault::error("nvmlDeviceGetMigDeviceHandleByIndex", 3);
    machine.play(&scene.fault(unsupported));
    let snapshot = machine.snapshot(0);
    assert_eq!(rows(&snapshot), expected);
    assert_eq!(snapshot.gpu(0)["mig_devices"], json!([]));
}

#[test]
fn repartitioning_a_mig_gpu_causes_no_error() {
    let child = Running::sleep();
    let scene = |devices: &[(u32, &str)]| {
        let gpu = Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB);
        let gpu = devices.iter().fold(gpu, |gpu, &(index, profile)| {
            let device = MigDevice::new(index, profile, 10 * GIB);
            gpu.mig_device(device.process(Process::compute(child.pid(), GIB)))
        });
        Scene::new().gpu(gpu)
    };
    let machine = Machine::new(&scene(&[(0, "1g.10gb"), (1, "1g.10gb")]));
    let mut record = machine.record(&["--interval", "100ms", "--duration", "3s"]);
    let mut lines = vec![record.next().0];
    machine.play(&scene(&[(1, "1g.10gb"), (4, "2g.20gb")]));
    lines.extend(record.rest().map(|snapshot| snapshot.0));
    assert!(lines.iter().all(|line| line["errors"] == json!([])), "{lines:?}");
    let indices = |line: &Value| {
        let devices = line["gpus"][0]["mig_devices"].as_array().unwrap();
        let indices = devices.iter().map(|device| device["index"].as_u64().unwrap());
        indices.collect::<Vec<_>>()
    };
    assert_eq!(indices(&lines[0]), [0, 1]);
    assert_eq!(indices(&lines[lines.len() - 1]), [1, 4]);
    assert_eq!(lines[lines.len() - 1]["gpus"][0]["mig_devices"][1]["profile"], "2g.20gb");
    // gpumem looks up MIG devices at the start and after a change. A sample only reads their memory and lists.
    let samples = lines.len() as u64;
    let counts = machine.counts();
    let count = |name: &str| counts[&(name.to_owned(), Some(0))];
    assert!(samples > 2);
    assert_eq!(count("nvmlDeviceGetMaxMigDeviceCount"), 2, "{counts:?}");
    let lists = count("nvmlDeviceGetComputeRunningProcesses_v3");
    assert!((3 * samples..3 * samples + 4).contains(&lists), "{counts:?}");
}

#[test]
fn a_gpu_with_unified_memory_is_judged_by_its_processes() {
    let child = Running::sleep();
    let gpu = Gpu::gb10().process(Process::compute(child.pid(), 20 * GIB));
    let machine = Machine::new(&Scene::new().gpu(gpu));
    let snapshot = machine.snapshot(0);
    let gpu = snapshot.gpu(0);
    assert!(gpu.get("memory").is_none());
    assert!(gpu["memory_unavailable"].is_string(), "{gpu}");
    assert!(gpu.get("process_memory_unavailable").is_none());
    assert_eq!(snapshot.0["errors"], json!([]), "unified memory is not an error");
    assert_eq!(snapshot.row(0, child.pid())["used_bytes"], 20 * GIB);

    machine.configure("[rules.idle]\nmin_memory = \"1GiB\"\nduration = \"2s\"\n");
    let check = machine.run(&["check", "--json", "--window", "4s", "--interval", "200ms"]).exits(1);
    let finding = &check.json()["findings"][0];
    assert_eq!((&finding["kind"], &finding["memory_bytes"]), (&json!("idle"), &json!(20 * GIB)));
}

#[test]
fn a_jetson_reports_unlisted_processes_as_an_error() {
    let machine = Machine::new(&Scene::jetson());
    let snapshot = machine.snapshot(3);
    let gpu = snapshot.gpu(0);
    assert_eq!(gpu["name"], "Orin (nvgpu)");
    assert!(gpu["memory_unavailable"].is_string());
    assert!(gpu.get("processes").is_none(), "unknown, not empty");
    let errors = snapshot.errors();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("does not list this GPU's processes"));
    let ps = machine.run(&["ps"]);
    assert_eq!(ps.code, 3);
    assert!(!ps.stdout.contains("No process holds GPU memory"), "unknown: {ps:?}");
}

#[test]
fn under_wsl_only_the_gpus_total_use_is_known() {
    let machine = Machine::new(&Scene::wsl());
    let snapshot = machine.snapshot(0);
    let gpu = snapshot.gpu(0);
    let reserved = 614 << 20;
    assert_eq!(gpu["memory"]["used_bytes"], 5 * GIB + reserved);
    assert!(gpu["process_memory_unavailable"].is_string(), "{gpu}");
    assert_eq!(gpu["processes"], json!([]));
    assert_eq!(snapshot.0["errors"], json!([]));

    let child = Running::sleep();
    let mut listed = Scene::wsl();
    listed.gpus[0].processes =
        vec![Process { used_bytes: None, ..Process::compute(child.pid(), 0) }];
    listed.gpus[0].memory.as_mut().unwrap().used = Some((5 * GIB).into());
    machine.play(&listed);
    let snapshot = machine.snapshot(0);
    assert!(snapshot.gpu(0)["process_memory_unavailable"].is_string());
    assert!(snapshot.row(0, child.pid()).get("used_bytes").is_none());
}
