//! `gpumem run`: the command behaves as it does without gpumem, and the report contains the memory use.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use mock_nvml::scene::{ComputeMode, Fault, Gpu, MigDevice, Process, Scene};
use rustix::process::Signal;
use serde_json::Value;

use crate::machine::{GIB, LineProcess, Machine, Running, one_gpu};
use crate::place::{in_namespace, unshare};
use crate::procs::{self, lives, send};
use crate::support::{self, finish, finish_with_input, wait_until};

/// Returns a `gpumem run` command with options and a program.
fn run(machine: &Machine, options: &[&str], program: &[&str]) -> Command {
    let mut command = support::command(&["run"]);
    command.arg("--nvml-library").arg(machine.library()).args(options).arg("--").args(program);
    machine.environment(&mut command);
    command
}

/// posix_spawn of glibc starts programs with glibc's two internal signals ignored.
fn without_glibc_signals(status: &str) -> String {
    status.replace("SigIgn:\t0000000180", "SigIgn:\t0000000000")
}

/// Returns how often gpumem has listed the processes on the GPUs.
fn samples(machine: &Machine) -> u64 {
    if !machine.path("counts").exists() {
        return 0;
    }
    let counts = machine.counts();
    let listed = counts.iter().filter(|((name, _), _)| name.contains("ComputeRunningProcesses"));
    listed.map(|(_, count)| count).sum()
}

/// Waits until gpumem has sampled the current scene.
fn wait_for_samples(machine: &Machine) {
    let before = samples(machine);
    wait_until("new samples", || samples(machine) > before + 6);
}

/// The attribute with this machine's name.
fn junit_hostname() -> String {
    let uname = rustix::system::uname();
    format!("hostname=\"{}\"", uname.nodename().to_str().unwrap())
}

fn read_json(path: &Path) -> Value {
    let document: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    crate::schema::check(&document);
    document
}

#[test]
fn exit_code_and_output_are_the_commands() {
    let machine = Machine::new(&one_gpu(&[]));
    let not_a_program = machine.path("not-a-program");
    fs::write(&not_a_program, "").unwrap();
    for program in [
        &["sh", "-c", "cat; echo err >&2; exit 5"] as &[&str],
        &["sh", "-c", "kill -KILL $$"],
        &["sh", "-c", "kill -SEGV $$"],
        &[
            "sh",
            "-c",
            "pwd; ls -l /proc/self/fd | wc -l; grep -e SigIgn -e SigBlk /proc/self/status",
        ],
        &["grep", "-c", "", "-"],
        &["true", "--no-such-option"],
    ] {
        let mut bare = Command::new(program[0]);
        bare.args(&program[1..]).current_dir("/");
        support::clean_environment(&mut bare);
        let input: Vec<u8> = (0..200_000).map(|byte| b"0123\n"[byte % 5]).collect();
        let bare = finish_with_input(&mut bare, &input);
        let mut wrapped = run(&machine, &["--quiet"], program);
        let wrapped = finish_with_input(wrapped.current_dir("/"), &input);
        let plain = |output: support::Output| {
            (output.code, without_glibc_signals(&output.stdout), output.stderr)
        };
        assert_eq!(plain(wrapped), plain(bare), "{program:?}");
    }
    for (program, code) in [("/no/such/program", 127), (not_a_program.to_str().unwrap(), 126)] {
        let output = finish(&mut run(&machine, &[], &[program])).exits(code);
        assert!(output.stderr.contains(program), "{output:?}");
    }
    // The parent sees the signal of the command, not an exit code.
    let mut killed = run(&machine, &[], &["sh", "-c", "kill -TERM $$"]);
    assert_eq!(killed.status().unwrap().signal(), Some(Signal::TERM.as_raw()));
}

#[test]
fn signal_dispositions_and_masks_are_inherited() {
    let machine = Machine::new(&one_gpu(&[]));
    let status = ["grep", "-e", "SigIgn", "-e", "SigBlk", "/proc/self/status"];
    for option in
        ["--ignore-signal=PIPE,INT,HUP", "--block-signal=USR1,TERM", "--default-signal=PIPE"]
    {
        let mut bare = Command::new("env");
        let bare = finish(bare.arg(option).args(status));
        let mut env = Command::new("env");
        env.arg(option);
        let run = run(&machine, &["-q"], &status);
        let wrapped = finish(support::before(&mut env, &run));
        let [wrapped, bare] = [wrapped, bare].map(|output| without_glibc_signals(&output.stdout));
        assert_eq!(wrapped, bare, "{option}");
    }
}

#[test]
fn signals_to_gpumem_reach_the_command() {
    or_skip!(support::interrupts("a program that is interrupted"));
    let machine = Machine::new(&one_gpu(&[]));
    let script = "trap 'echo $name; exit 4' TERM; trap 'echo usr1' USR1; trap 'echo int' INT; \
        echo started; while :; do sleep 0.05; done";
    let mut command = run(&machine, &["-q"], &["sh", "-c", script]);
    let mut talking = LineProcess::start(command.env("name", "term"));
    assert_eq!(talking.line(), "started");
    for (signal, word) in [(Signal::USR1, "usr1"), (Signal::INT, "int"), (Signal::TERM, "term")] {
        send(talking.running.pid(), signal);
        assert_eq!(talking.line(), word);
    }
    assert_eq!(talking.running.0.wait().unwrap().code(), Some(4));
    // If the command ignores the signal, gpumem keeps running.
    let script = "trap '' TERM; echo started; read line; echo $line";
    let mut talking = LineProcess::start(&mut run(&machine, &["-q"], &["sh", "-c", script]));
    assert_eq!(talking.line(), "started");
    send(talking.running.pid(), Signal::TERM);
    assert_eq!(talking.ask("on"), "on");
    assert_eq!(talking.running.0.wait().unwrap().code(), Some(0));
}

/// Sends real-time signals to its parent or to itself, and prints the signals that it receives. It ends itself with a
/// real-time signal.
const REAL_TIME: &str = "\
import ctypes, os, signal, struct, sys
libc = ctypes.CDLL(None)
target = os.getppid() if sys.argv[1] == 'parent' else os.getpid()
signal.alarm(60)
chosen = [signal.SIGRTMIN, signal.SIGRTMIN + 5, signal.SIGRTMAX]
signal.pthread_sigmask(signal.SIG_BLOCK, chosen)
for number in chosen:
    for value in (7, 1 << 40):
        assert libc.sigqueue(target, int(number), ctypes.c_void_p(value)) == 0
    os.kill(target, number)
received = []
mask = struct.pack('Q', sum(1 << number - 1 for number in chosen)).ljust(128, b'\\0')
for _ in range(9):
    info = ctypes.create_string_buffer(128)
    assert libc.sigwaitinfo(mask, info) > 0
    number, _, code, _, sender, uid, value = struct.unpack_from('iiiiIIQ', info.raw)
    queued = (sender == os.getpid(), uid, value)
    received.append((number, code, queued if code == -1 else None))
received.sort(key=lambda signal: signal[0])
print(received, flush=True)
os.kill(os.getpid(), signal.SIGRTMIN + 3)
";

#[test]
fn real_time_signals_are_forwarded_with_their_values() {
    let python = or_skip!(support::find("python3", "python3"));
    let machine = Machine::new(&two_gpus([GIB, GIB]));
    let bare = finish(Command::new(&python).args(["-c", REAL_TIME, "self"]));
    let program = [python.to_str().unwrap(), "-c", REAL_TIME, "parent"];
    let wrapped = finish(&mut run(&machine, &["-q"], &program));
    assert_eq!((wrapped.stdout, wrapped.code), (bare.stdout, bare.code), "{}", wrapped.stderr);
    // Before the command starts, a real-time signal ends gpumem.
    let mut waiting = Running::start(&mut run(&machine, &["-q", "--wait-free", "3GiB"], &["true"]));
    wait_for_samples(&machine);
    let pid = waiting.pid().to_string();
    assert!(Command::new("kill").args(["-s", "RTMIN+3", &pid]).status().unwrap().success());
    assert_eq!(waiting.0.wait().unwrap().signal().map(|signal| 128 + signal), Some(bare.code));
}

#[test]
fn closed_standard_streams_stay_closed() {
    let machine = Machine::new(&one_gpu(&[]));
    let log = machine.path("open");
    let script = format!("ls /proc/$$/fd > {}; true", log.display());
    for closed in ["", "0<&-", "1>&-", "2>&-", "0<&- 2>&-", "0<&- 1>&- 2>&-"] {
        let open = |program: &Command| {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("exec \"$@\" {closed}"), "sh"]);
            finish(support::before(&mut shell, program)).exits(0);
            fs::read_to_string(&log).unwrap()
        };
        let mut bare = Command::new("sh");
        let bare = open(bare.args(["-c", &script]));
        let wrapped = open(&run(&machine, &["-q"], &["sh", "-c", &script]));
        assert_eq!(wrapped, bare, "{closed}");
    }
}

#[test]
fn a_stopped_command_is_waited_for() {
    let machine = Machine::new(&one_gpu(&[]));
    let script = "echo $$; read line; exit 3";
    let mut talking = LineProcess::start(&mut run(&machine, &["-q"], &["sh", "-c", script]));
    let pid: u32 = talking.line().parse().unwrap();
    for _ in 0..3 {
        send(pid, Signal::STOP);
        wait_until("the command is stopped", || procs::state(pid) == Some('T'));
        send(pid, Signal::CONT);
        wait_until("the command continues", || procs::state(pid) == Some('S'));
    }
    send(pid, Signal::STOP);
    wait_until("the command is stopped", || procs::state(pid) == Some('T'));
    send(talking.running.pid(), Signal::CONT);
    wait_until("the command continues", || procs::state(pid) == Some('S'));
    assert_eq!(talking.end(), Some(3));
}

#[test]
fn the_output_ends_with_the_command() {
    let machine = Machine::new(&one_gpu(&[]));
    // The detached process does not keep standard output open. gpumem must not keep it open either.
    let script = "setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $!";
    let mut child = run(&machine, &[], &["sh", "-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    let left: u32 = text.trim().parse().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(lives(left));
    procs::kill_group(left);
}

#[test]
fn without_a_driver_the_command_needs_allow_no_gpu() {
    let machine = Machine::new(&Scene { init_error: Some(9), ..one_gpu(&[]) });
    let mark = machine.path("mark");
    let touch = ["touch", mark.to_str().unwrap()];
    finish(&mut run(&machine, &[], &touch)).exits(3);
    assert!(!mark.exists());
    let check = machine.run(&["check", "--format", "junit"]).exits(3);
    assert!(check.stdout.contains(&junit_hostname()), "{check:?}");
    let report = machine.path("report.json");
    let options = ["--allow-no-gpu", "--report", report.to_str().unwrap()];
    finish(&mut run(&machine, &options, &touch)).exits(0);
    assert!(mark.exists());
    let report = read_json(&report);
    assert_eq!((&report["status"], &report["samples"]), (&"ok".into(), &0.into()));
    assert!(!report["errors"].as_array().unwrap().is_empty());
    // Usage errors are also reported before the command starts.
    fs::remove_file(&mark).unwrap();
    for option in ["--interval", "--nvml-timeout"] {
        let output = finish(&mut run(&machine, &["--allow-no-gpu", option, "0s"], &touch)).exits(2);
        assert!(output.stderr.contains(option) && !mark.exists(), "{output:?}");
    }
    // The same options work on machines with and without a GPU.
    let options = ["--allow-no-gpu", "--max-peak", "1GiB", "--fail-on", "leak,held"];
    let output = finish(&mut run(&machine, &options, &["true"])).exits(0);
    assert!(output.stderr.contains("--max-peak 1.0 GiB: undecided"), "{output:?}");
    finish(&mut run(&machine, &options, &["false"])).exits(1);
    let strict = [&options as &[&str], &["--fail-on-undecided"]].concat();
    finish(&mut run(&machine, &strict, &["true"])).exits(1);
}

#[test]
fn a_peak_of_a_short_command_is_measured() {
    let machine = Machine::new(&one_gpu(&[]));
    let report = machine.path("report.json");
    let options = ["--max-peak", "1GiB", "--report", report.to_str().unwrap()];
    for _ in 0..5 {
        finish(&mut run(&machine, &options, &["true"])).exits(0);
        assert_ne!(read_json(&report)["samples"], 0);
    }
}

#[test]
fn an_unwritable_report_is_an_error_before_the_start() {
    let machine = Machine::new(&one_gpu(&[]));
    let mark = machine.path("mark");
    let folder = machine.path("folder.json");
    fs::create_dir(&folder).unwrap();
    for name in ["/no/such/folder/x.json", "x.pdf", "x", folder.to_str().unwrap()] {
        let touch = ["touch", mark.to_str().unwrap()];
        let output = finish(&mut run(&machine, &["--report", name], &touch)).exits(2);
        assert!(output.stderr.contains(name), "{output:?}");
        assert!(!mark.exists());
    }
    // If the command removes the directory of the report, gpumem fails at the end.
    let removed = machine.path("removed");
    let (folder, report) = (removed.to_str().unwrap(), removed.join("report.xml"));
    for code in [0, 7] {
        fs::create_dir(&removed).unwrap();
        let script = format!("rm -r {folder}; exit {code}");
        let options = ["--report", report.to_str().unwrap()];
        let output = finish(&mut run(&machine, &options, &["sh", "-c", &script]));
        assert!(output.stderr.contains("cannot write"), "{output:?}");
        output.exits(code.max(1));
    }
}

#[test]
fn a_report_says_that_the_command_did_not_run() {
    let machine = Machine::new(&two_gpus([GIB, GIB]));
    let path = machine.path("report.json");
    let other = machine.path("report.xml");
    let reports = ["--report", path.to_str().unwrap(), "--report", other.to_str().unwrap()];
    let check = |reason: &str| {
        let document = read_json(&path);
        assert_eq!(document["status"], "incomplete", "{document}");
        assert_eq!((&document["exit_code"], &document["signal"]), (&Value::Null, &Value::Null));
        let error = document["errors"][0].as_str().unwrap();
        assert!(error.contains(reason), "{error}");
        let xml = fs::read_to_string(&other).unwrap();
        assert!(xml.contains(&junit_hostname()), "{xml}");
        assert!(xml.contains("tests=\"1\" failures=\"1\"") && xml.contains(reason), "{xml}");
    };
    for (options, program, code, reason) in [
        (&[] as &[&str], "/no/such/program", 127, "/no/such/program: "),
        (&["--wait-free", "3GiB", "--timeout", "50ms"], "true", 1, "--timeout"),
        (&["--gpu", "7"], "true", 2, "--gpu 7"),
    ] {
        for file in [&path, &other] {
            fs::write(file, "of an earlier run").unwrap();
        }
        finish(&mut run(&machine, &[&reports, options].concat(), &[program])).exits(code);
        check(reason);
    }
    // gpumem is killed while it waits for a GPU, or while the command runs.
    for (options, program) in
        [(&["--wait-free", "3GiB"] as &[&str], &["true"] as &[&str]), (&[], &["sleep", "600"])]
    {
        fs::write(&path, "of an earlier run").unwrap();
        let mut killed = Running::start(&mut run(&machine, &[&reports, options].concat(), program));
        wait_for_samples(&machine);
        procs::kill_group(killed.pid());
        killed.0.wait().unwrap();
        check("a signal ended it");
    }
}

#[test]
fn peak_memory_and_processes_are_reported_in_each_format() {
    let machine = Machine::new(&one_gpu(&[]));
    let paths = ["json", "xml"].map(|ending| machine.path(&format!("report.{ending}")));
    let mut options = vec!["--max-peak", "1GiB", "--interval", "50ms"];
    for path in &paths {
        options.extend(["--report", path.to_str().unwrap()]);
    }
    let script = "echo $$; read line";
    let mut command = run(&machine, &options, &["sh", "-c", script]);
    command.env("GITHUB_ACTIONS", "true");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut bytes = [0; 32];
    let length = child.stdout.as_mut().unwrap().read(&mut bytes).unwrap();
    let pid: u32 = std::str::from_utf8(&bytes[..length]).unwrap().trim().parse().unwrap();
    let stranger = Running::sleep();
    let scene = |bytes: u64| {
        let gpu = Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB);
        let process = Process::compute(pid, bytes);
        Scene::new().gpu(gpu.process(process).process(Process::compute(stranger.pid(), 9 * GIB)))
    };
    for bytes in [2 * GIB, 5 * GIB, GIB] {
        machine.play(&scene(bytes));
        wait_for_samples(&machine);
    }
    child.stdin.take().unwrap().write_all(b"end\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("\n::error title=gpumem"), "{stderr}");
    let report = read_json(&paths[0]);
    assert_eq!((&report["status"], &report["exit_code"]), (&"findings".into(), &0.into()));
    let gpu = &report["gpus"][0];
    assert_eq!((&gpu["peak_bytes"], &gpu["last_bytes"]), (&(5 * GIB).into(), &GIB.into()));
    let processes = report["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 1);
    assert_eq!(processes[0]["process"]["pid"], pid);
    assert_eq!(report["assertions"][0]["passed"], false);
    let xml = fs::read_to_string(&paths[1]).unwrap();
    assert!(xml.contains("tests=\"2\" failures=\"1\""), "{xml}");
    assert!(xml.contains(&junit_hostname()), "{xml}");
}

#[test]
fn a_detached_process_with_memory_is_reported() {
    let machine = Machine::new(&one_gpu(&[]));
    let report = machine.path("report.json");
    let options = ["--fail-on", "held,leak", "--report", report.to_str().unwrap()];
    // The process is detached: its parent has exited, and it leads a session.
    let script = "(setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $! >&3) 3>&1";
    let script = format!("{script}; read line");
    let mut talking =
        LineProcess::start(run(&machine, &options, &["bash", "-c", &script]).stderr(Stdio::null()));
    let left: u32 = talking.line().parse().unwrap();
    machine.play(&one_gpu(&[left]));
    wait_for_samples(&machine);
    let start = Instant::now();
    assert_eq!(talking.end(), Some(1));
    assert!(start.elapsed().as_secs() >= 4);
    let document = read_json(&report);
    let held = &document["held"][0];
    assert_eq!((&held["process"]["pid"], &held["used_bytes"]), (&left.into(), &(2 * GIB).into()));
    assert_eq!(held["command"], format!("gpumem kill {left}"));
    assert_eq!(document["assertions"][0]["message"], "2.0 GiB still held after the command exited");
    assert!(lives(left), "gpumem run must end no process");
    procs::kill_group(left);
}

/// The process that used the GPU exits before the last sample.
#[test]
fn a_leak_in_a_short_run_is_undecided() {
    for (more, code) in [(None, 0), (Some("--fail-on-undecided"), 1)] {
        let machine = Machine::new(&one_gpu(&[]));
        let paths = ["json", "xml"].map(|ending| machine.path(&format!("report.{ending}")));
        let mut options = vec!["--fail-on", "leak", "--interval", "50ms"];
        options.extend(more);
        for path in &paths {
            options.extend(["--report", path.to_str().unwrap()]);
        }
        let script = ["sh", "-c", "sleep 600 & echo $!; read line; kill $!; wait; read line; :"];
        let mut command = run(&machine, &options, &script);
        let mut talking = LineProcess::start(command.stderr(Stdio::piped()));
        let pid: u32 = talking.line().parse().unwrap();
        machine.play(&one_gpu(&[pid]));
        wait_for_samples(&machine);
        talking.say("kill it");
        machine.play(&one_gpu(&[]));
        wait_for_samples(&machine);
        talking.say("end");
        let mut stderr = String::new();
        talking.running.0.stderr.as_mut().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!(talking.running.0.wait().unwrap().code(), Some(code), "{stderr}");
        assert!(stderr.contains("--fail-on leak: undecided"), "{stderr}");
        let document = read_json(&paths[0]);
        assert_eq!(document["leaks_decided"], false);
        assert_eq!(document["assertions"][0].get("passed"), Some(&Value::Null));
        let xml = fs::read_to_string(&paths[1]).unwrap();
        assert!(xml.contains("skipped=\"1\""), "{xml}");
    }
    // Without a process on a GPU, there is no leak.
    let machine = Machine::new(&one_gpu(&[]));
    let options = ["--fail-on", "leak", "--fail-on-undecided"];
    finish(&mut run(&machine, &options, &["sleep", "0.5"])).exits(0);
}

/// Creates directories like those in sysfs, so that the scene's GPUs can be claimed.
pub fn make_claimable(machine: &Machine) {
    let folder = machine.path("pci");
    let gpus = machine.snapshot(0).0["gpus"].as_array().unwrap().clone();
    for gpu in gpus {
        let address = gpu["pci_bus_id"].as_str().unwrap().to_ascii_lowercase();
        let device = folder.join(address.strip_prefix("0000").unwrap());
        fs::create_dir_all(&device).unwrap();
        for file in ["device", "dma_mask_bits", "consistent_dma_mask_bits"] {
            fs::write(device.join(file), "0x10de\n").unwrap();
        }
    }
}

fn two_gpus(free: [u64; 2]) -> Scene {
    free.into_iter().fold(Scene::new(), |scene, free| {
        let gpu = Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB);
        let mut gpu = gpu.unattributed(80 * GIB - free);
        gpu.memory.get_or_insert_default().reserved = 0.into();
        scene.gpu(gpu)
    })
}

#[test]
fn only_usable_devices_are_offered() {
    let empty = || Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB);
    let divided = empty()
        .mig_device(MigDevice::new(0, "3g.40gb", 40 * GIB).process(Process::compute(1, 37 * GIB)))
        .mig_device(MigDevice::new(2, "1g.10gb", 10 * GIB).process(Process::compute(1, GIB)));
    let prohibited = Gpu { compute_mode: Some(ComputeMode::Prohibited), ..empty() };
    let broken = Gpu { recovery_action: Some(1), drained: Some(false), ..empty() };
    let machine = Machine::new(&Scene::new().gpu(divided).gpu(prohibited).gpu(broken));
    let mig = "MIG-00000000-0000-4000-8002-000000000000\n";
    let show = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"];
    for (size, gpu, code, expected) in [
        ("8GiB", "--gpu=0", 0, mig),
        ("10GiB", "--gpus=1", 1, ""),
        ("2GiB:1", "--gpu=1", 1, ""),
        ("2GiB:2", "--gpu=2", 1, ""),
    ] {
        let check = ["check", "--wait-free", size, "--print", "uuid", "--timeout", "50ms"];
        assert_eq!(machine.run(&check).exits(code).stdout, expected, "{size}");
        let size = size.split(':').next().unwrap();
        let options = ["--wait-free", size, gpu, "--interval", "20ms", "--timeout", "50ms"];
        let shown = finish(&mut run(&machine, &options, &show)).exits(code).stdout;
        assert_eq!(shown, expected, "{gpu}");
    }
}

#[test]
fn run_waits_for_memory_and_takes_the_freest_gpu() {
    let machine = Machine::new(&two_gpus([GIB, 2 * GIB]));
    let uuids: Vec<String> = (0..2)
        .map(|gpu| machine.snapshot(0).gpu(gpu)["uuid"].as_str().unwrap().to_owned())
        .collect();
    let show = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"];
    let fast = ["--interval", "20ms"];
    let run_shown = |options: &[&str], visible: Option<&str>| {
        let mut command = run(&machine, &[options, &fast].concat(), &show);
        if let Some(visible) = visible {
            command.env("CUDA_VISIBLE_DEVICES", visible);
        }
        finish(&mut command)
    };
    assert_eq!(run_shown(&["--gpus", "1"], None).exits(0).stdout.trim(), uuids[1]);
    assert_eq!(run_shown(&["--gpus", "2"], None).exits(0).stdout.trim(), uuids.join(","));
    assert_eq!(run_shown(&["--gpu", "0"], None).exits(0).stdout.trim(), uuids[0]);
    let reversed = format!("{},{}", uuids[1], uuids[0]);
    assert_eq!(run_shown(&["--gpus", "2"], Some("1,0")).exits(0).stdout.trim(), reversed);
    let twice = format!("0,{}", uuids[0]);
    assert_eq!(run_shown(&["--gpu", &twice], None).exits(0).stdout.trim(), uuids[0]);
    // `run` chooses only GPUs in the caller's CUDA_VISIBLE_DEVICES.
    assert_eq!(run_shown(&["--gpus", "1"], Some("0")).exits(0).stdout.trim(), uuids[0]);
    assert_eq!(run_shown(&[], Some("7")).exits(0).stdout.trim(), "7");
    for (options, visible) in [
        (&["--gpus", "3"] as &[&str], None),
        (&["--gpu", "2"], None),
        (&["--gpu", "1"], Some("0")),
        (&["--gpus", "1"], Some("")),
        (&["--wait-free", "81GiB"], None),
    ] {
        run_shown(options, visible).exits(2);
    }
    let late = run_shown(&["--wait-free", "3GiB", "--timeout", "100ms"], None).exits(1);
    assert!(late.stdout.is_empty(), "{late:?}");
    let mut waiting = LineProcess::start(&mut run(
        &machine,
        &["--wait-free", "3GiB", "--interval", "20ms"],
        &show,
    ));
    wait_for_samples(&machine);
    machine.play(&two_gpus([3 * GIB, 2 * GIB]));
    assert_eq!(waiting.line(), uuids[0]);
    assert_eq!(waiting.running.0.wait().unwrap().code(), Some(0));
}

#[test]
fn without_a_size_a_gpu_that_another_user_uses_is_not_chosen() {
    // Only root can start a process of another user. Without root, the test uses pid 1, which belongs to root.
    let by_another = || Running::start(Command::new("sleep").arg("600").uid(65534));
    let another = rustix::process::geteuid().is_root().then(by_another);
    let another = another.as_ref().map_or(1, Running::pid);
    let own = Running::sleep();
    let gpu = |pid: u32, bytes: u64| {
        let gpu = Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB);
        gpu.process(Process::compute(pid, bytes))
    };
    let machine =
        Machine::new(&Scene::new().gpu(gpu(another, 60 * GIB)).gpu(gpu(own.pid(), 70 * GIB)));
    make_claimable(&machine);
    for (options, code, says) in [
        ("--gpus 1", 0, "in use: GPU 1: ".to_owned()),
        ("--claim", 0, format!("({})", own.pid())),
        ("--gpus 2 --timeout 50ms", 1, format!("({another})")),
        ("--gpu 0 --timeout 50ms", 1, "other users' processes".to_owned()),
        ("--gpu 0 --allow-others", 0, format!("({another})")),
        ("--gpu 0 --wait-free 1GiB", 0, String::new()),
    ] {
        let words: Vec<&str> = options.split(' ').chain(["--interval", "20ms"]).collect();
        let output = finish(&mut run(&machine, &words, &["true"]));
        assert!(output.stderr.contains(&says), "{options}: {output:?}");
        output.exits(code);
    }
}

/// SIGHUP is ignored as under nohup. SIGCHLD is ignored, but gpumem still returns the exit code.
#[test]
fn ignored_signals_do_not_end_the_wait() {
    let machine = Machine::new(&two_gpus([GIB, GIB]));
    let options = ["-q", "--wait-free", "3GiB", "--interval", "20ms"];
    let run = run(&machine, &options, &["sh", "-c", "exit 5"]);
    let mut env = Command::new("env");
    env.arg("--ignore-signal=HUP,CHLD");
    let mut waiting = Running::start(support::before(&mut env, &run));
    wait_for_samples(&machine);
    send(waiting.pid(), Signal::HUP);
    wait_for_samples(&machine);
    machine.play(&two_gpus([3 * GIB, GIB]));
    assert_eq!(waiting.0.wait().unwrap().code(), Some(5));
}

#[test]
fn a_claim_lasts_as_long_as_gpumem_or_its_command() {
    let machine = Machine::new(&two_gpus([GIB, GIB]));
    make_claimable(&machine);
    let claim = |options: &[&str]| {
        let options = [&["--claim", "--interval", "20ms"], options].concat();
        let script = "echo $$ $CUDA_VISIBLE_DEVICES; read line";
        run(&machine, &options, &["sh", "-c", script])
    };
    let claims = || {
        let document = machine.run(&["ps", "--json"]).json();
        [0, 1].map(|gpu| document["gpus"][gpu]["claim"].clone())
    };
    assert_eq!(claims(), [Value::Null, Value::Null]);
    let mut first = LineProcess::start(&mut claim(&["--gpu", "0"]));
    let line = first.line();
    let command: u32 = line.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(claims()[0]["pid"], first.running.pid());
    assert_eq!(claims()[1], Value::Null);
    // Newer locks of another user precede the claim in /proc/locks, but gpumem still finds the claim.
    let many_locks = hold_locks_as_nobody(&machine, 3000);
    assert!(claims()[0].is_object() && claims()[1].is_null());
    drop(many_locks);
    let shown = machine.run(&["ps"]).stdout;
    assert!(shown.contains(&format!("({})", first.running.pid())), "{shown}");
    // The second claim takes the other GPU, and the third claim waits.
    let mut second = LineProcess::start(&mut claim(&["--gpus", "1"]));
    assert_ne!(second.line().split(' ').nth(1), line.split(' ').nth(1));
    finish(&mut claim(&["--gpus", "1", "--timeout", "50ms"])).exits(1);
    // A run without a claim also avoids claimed GPUs.
    let unclaimed = ["--gpus", "1", "--timeout", "50ms"];
    finish(&mut run(&machine, &unclaimed, &["true"])).exits(1);
    // If gpumem is killed, the command keeps the claim.
    send(first.running.pid(), Signal::KILL);
    first.running.0.wait().unwrap();
    assert!(lives(command));
    assert!(claims()[0].is_object());
    finish(&mut claim(&["--gpu", "0", "--timeout", "50ms"])).exits(1);
    let mut third = LineProcess::start(&mut claim(&["--gpu", "0"]));
    first.say("end");
    third.line();
    assert_eq!(third.end(), Some(0));
    assert_eq!(second.end(), Some(0));
    assert_eq!(claims(), [Value::Null, Value::Null]);
    // If claims are impossible, the command does not start.
    for (folder, code) in [("/no/such/folder", 3), ("", 2), ("pci", 2)] {
        let mut nowhere = claim(&[]);
        let output = finish(nowhere.env("GPUMEM_CLAIM_DIR", folder)).exits(code);
        assert!(output.stderr.contains("GPUMEM_CLAIM_DIR"), "{output:?}");
    }
    // `ps` fails, because it would not see the claims.
    let ps = &["ps"];
    finish(machine.command(ps).env("GPUMEM_CLAIM_DIR", "")).exits(2);
}

#[test]
fn a_gpu_that_cannot_be_claimed_is_skipped() {
    let two = two_gpus([GIB, GIB]);
    let machine = Machine::new(&two);
    make_claimable(&machine);
    let claim = |options: &[&str]| {
        let options =
            [&["--claim", "--nvml-timeout", "200ms", "--timeout", "50ms"], options].concat();
        finish(&mut run(&machine, &options, &["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]))
    };
    let uuid = claim(&["--gpu", "1"]).exits(0).stdout;
    for fault in
        [Fault::error("*", 15), Fault::hang("*"), Fault::error("nvmlDeviceGetPciInfo_v3", 999)]
    {
        machine.play(&two.clone().fault(fault.on(0)));
        let output = claim(&[]).exits(0);
        assert_eq!(output.stdout, uuid);
        let skipped = "gpumem: skipped: cannot claim GPU 0: its bus address is unknown\n";
        assert!(output.stderr.contains(skipped), "{output:?}");
    }
    for options in [&["--gpu", "0"], &["--gpus", "2"]] {
        let output = claim(options).exits(3);
        assert!(output.stdout.is_empty() && output.stderr.contains("GPU 0"), "{output:?}");
    }
}

/// Returns the words of a nested `gpumem run` with these options for a shell.
fn nested(machine: &Machine, options: &str) -> String {
    let gpumem = support::command(&[]).get_program().to_owned();
    let options =
        format!("{options} --interval 10ms --nvml-library {}", machine.library().display());
    format!("{} run -q {options} --", gpumem.display())
}

#[test]
fn a_nested_run_uses_the_claim_around_it() {
    let machine = Machine::new(&two_gpus([2 * GIB, GIB]));
    make_claimable(&machine);
    let uuid = machine.snapshot(0).gpu(1)["uuid"].as_str().unwrap().to_owned();
    let outer = |script: &str| {
        let options = ["-q", "--claim", "--gpu", "1", "--interval", "20ms"];
        finish(&mut run(&machine, &options, &["bash", "-c", script]))
    };
    let claim = nested(&machine, "--claim --timeout 50ms");
    let show = "sh -c 'echo $CUDA_VISIBLE_DEVICES'";
    let close: String = (3..64).map(|descriptor| format!(" {descriptor}<&-")).collect();
    for script in [
        format!("{claim} {show}"),
        format!("env -u CUDA_VISIBLE_DEVICES {claim} {show}"),
        // Many programs close descriptors in their children.
        format!("{claim} {show} {close}"),
        format!("{} {show}", nested(&machine, "--gpus 1 --timeout 50ms")),
        format!("{claim} {} {show}", nested(&machine, "--gpus 1 --timeout 50ms")),
        // The claim outlives a killed gpumem.
        format!("kill -9 $PPID; {claim} {show} {close}"),
    ] {
        let output = outer(&script);
        assert_eq!(output.stdout.trim(), uuid, "{script} {output:?}");
    }
    let gpumem = claim.split(" run ").next().unwrap();
    let library = machine.library().display();
    let check = "check --wait-free 1GiB --print index --timeout 50ms --nvml-library";
    assert_eq!(outer(&format!("{gpumem} {check} {library}")).exits(0).stdout, "1\n");
    // GPUs outside the claim are not available.
    for options in ["--gpu 0", "--gpus 2", "--claim --gpu 0,1"] {
        let inner = nested(&machine, &format!("--timeout 50ms {options}"));
        outer(&format!("env -u CUDA_VISIBLE_DEVICES {inner} {show}")).exits(2);
    }
    let too_deep = outer(&format!("{claim} {claim} {show}"));
    assert!(too_deep.stderr.contains("claims can be nested only once"), "{too_deep:?}");
    // Nested runs exclude each other, and wait.
    let waits = nested(&machine, "--claim");
    let exclusive = format!(
        "{waits} sh -c 'mkdir {0} && sleep 0.1 && rmdir {0}'",
        machine.path("taken").display()
    );
    let parallel = format!("{exclusive} & first=$!; {exclusive} && wait $first");
    outer(&parallel).exits(0);
}

/// Other programs' locks prevent claims, and their holders are named.
#[test]
fn the_holder_of_any_lock_is_named() {
    or_skip!(support::find("flock", "util-linux"));
    let machine = Machine::new(&one_gpu(&[]));
    make_claimable(&machine);
    let folder = fs::read_dir(machine.path("pci")).unwrap().next().unwrap().unwrap().path();
    let claim = ["--claim", "--timeout", "50ms", "--interval", "20ms"];
    let check = ["check", "--wait-free", "1GiB", "--print", "index", "--timeout", "50ms"];
    for kind in ["-s", "-x"] {
        let mut locker = Command::new("flock");
        locker.args([kind, folder.to_str().unwrap(), "sleep", "600"]);
        let mut locker = Running::start(&mut locker);
        let lock = || machine.snapshot(0).gpu(0)["claim"].clone();
        wait_until("the lock is found", || lock()["pid"] == locker.pid());
        assert_eq!(lock()["program"], "flock");
        let named = format!("'s flock ({})", locker.pid());
        assert!(machine.run(&["ps"]).stdout.contains(&named));
        let output = finish(&mut run(&machine, &claim, &["true"])).exits(1);
        assert!(output.stderr.contains(&named), "{output:?}");
        assert_eq!(machine.run(&check).exits(1).stdout, "");
        // The kernel does not list locks of other pid namespaces.
        if let Some(unshare) = unshare("p") {
            let words = claim.join(" ");
            let script = format!("\"$@\" run {words} -- true");
            let output = finish(&mut in_namespace(&machine, &unshare, &script)).exits(1);
            assert!(output.stderr.contains("claimed by an unknown process"), "{output:?}");
        }
        // The process that took the lock has exited, and its child has inherited the lock.
        let [child] = procs::children(locker.pid())[..] else { panic!("one child") };
        locker.0.kill().unwrap();
        locker.0.wait().unwrap();
        assert!(lock().is_object() && lock()["pid"].is_null());
        send(child, Signal::KILL);
        finish(&mut run(&machine, &["--claim"], &["true"])).exits(0);
    }
    // Only root can take an exclusive record lock on a queue's file.
    if rustix::process::geteuid().is_root() {
        let script = format!(
            "import fcntl; file = open({:?}, 'r+'); fcntl.lockf(file, fcntl.LOCK_EX); print('on', flush=True); input()",
            folder.join("dma_mask_bits")
        );
        let mut locker = LineProcess::start(Command::new("python3").args(["-c", &script]));
        assert_eq!(locker.line(), "on");
        let output = finish(&mut run(&machine, &claim, &["true"])).exits(3);
        let named = format!("process {} holds an exclusive lock", locker.running.pid());
        assert!(output.stderr.contains(&named), "{output:?}");
    }
    // A claim from another pid namespace is seen, too.
    let unshare = or_skip!(unshare("p"));
    let mut first =
        LineProcess::start(&mut run(&machine, &claim, &["sh", "-c", "echo on; read line"]));
    assert_eq!(first.line(), "on");
    let script = format!("\"$@\" {}", check.join(" "));
    assert_eq!(finish(&mut in_namespace(&machine, &unshare, &script)).exits(1).stdout, "");
    let output = finish(&mut in_namespace(&machine, &unshare, "\"$@\" ps")).exits(0);
    assert!(output.stdout.contains("claimed by an unknown process"), "{output:?}");
}

/// Starts a process that holds `count` POSIX locks. As root, the process runs as nobody.
fn hold_locks_as_nobody(machine: &Machine, count: usize) -> Running {
    let (file, ready) = (machine.path("locked"), machine.path("holds-locks"));
    let script = format!(
        "import fcntl, os, sys, time\n\
         file = open({file:?}, 'w'); ready = open({ready:?}, 'w')\n\
         if os.getuid() == 0: os.setuid(65534)\n\
         for index in range({count}): fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * index)\n\
         ready.write('x'); ready.flush(); time.sleep(600)"
    );
    let process = Running::start(Command::new("python3").args(["-c", &script]));
    wait_until("the process holds the locks", || {
        fs::read(&ready).is_ok_and(|text| !text.is_empty())
    });
    process
}

/// Returns the pids of the runs that wait for a GPU; 0 if unknown.
fn queue(machine: &Machine, gpu: usize) -> Vec<u64> {
    let snapshot = machine.snapshot(0);
    let waiters = snapshot.gpu(gpu)["queue"].as_array().into_iter().flatten();
    waiters.map(|waiter| waiter["pid"].as_u64().unwrap_or(0)).collect()
}

/// Options of a claim that does not poll, so that it must be woken.
const CLAIM: [&str; 4] = ["-q", "--claim", "--interval", "5m"];

/// Starts a claim whose command appends `name` to a log and exits after a line of input.
fn claim_and_log(machine: &Machine, options: &[&str], name: &str) -> LineProcess {
    let script = format!("echo {name} >> {}; read line", machine.path("log").display());
    let options = [&CLAIM, options].concat();
    LineProcess::start(&mut run(machine, &options, &["sh", "-c", &script]))
}

fn wait_for_log(machine: &Machine, names: &[&str]) {
    let log = || fs::read_to_string(machine.path("log")).unwrap_or_default();
    wait_until("the run starts", || log().lines().count() >= names.len());
    assert_eq!(log().lines().collect::<Vec<_>>(), names);
}

#[test]
fn claims_are_served_in_order_of_arrival() {
    let machine = Machine::new(&two_gpus([GIB, GIB]));
    make_claimable(&machine);
    let mut holder = claim_and_log(&machine, &["--gpu", "0"], "holder");
    wait_for_log(&machine, &["holder"]);
    // The first run in the queue needs both GPUs. Later runs need only one, but must wait for the first run.
    let mut large = claim_and_log(&machine, &["--gpus", "2"], "large");
    let first = u64::from(large.running.pid());
    wait_until("the large one is first in line", || {
        [0, 1].iter().all(|&gpu| queue(&machine, gpu) == [first])
    });
    let mut waiting = Vec::new();
    for (number, name) in ["small0", "small1", "small2", "small3"].iter().enumerate() {
        waiting.push(claim_and_log(&machine, &["--gpu", "0"], name));
        wait_until("the small one is in line", || queue(&machine, 0).len() == number + 2);
    }
    let named = format!("first in line: root ({first}) for ");
    let named = if rustix::process::geteuid().is_root() { &named } else { "first in line: " };
    assert!(machine.run(&["ps"]).stdout.contains(named));
    let late = ["--claim", "--timeout", "50ms"];
    let late = finish(&mut run(&machine, &late, &["true"])).exits(1);
    assert!(late.stderr.contains(&format!("GPU 0: {named}")), "{late:?}");
    let check = machine.run(&["check", "--wait-free", "2GiB:0", "--timeout", "50ms"]).exits(1);
    assert!(check.stdout.contains(named), "{check:?}");
    // GPU 1 is free, but the first run in its queue waits for both.
    let plain = ["--gpu", "1", "--timeout", "50ms"];
    let plain = finish(&mut run(&machine, &plain, &["true"])).exits(1);
    assert!(plain.stderr.contains(&format!("GPU 1: {named}")), "{plain:?}");
    let mut names = vec!["holder"];
    wait_for_log(&machine, &names);
    holder.say("end");
    names.push("large");
    wait_for_log(&machine, &names);
    large.say("end");
    for (small, name) in waiting.iter_mut().zip(["small0", "small1", "small2", "small3"]) {
        names.push(name);
        wait_for_log(&machine, &names);
        small.say("end");
    }
    wait_until("the queue is empty", || queue(&machine, 0).is_empty());
}

#[test]
fn a_process_that_keeps_the_claim_is_named() {
    let machine = Machine::new(&one_gpu(&[]));
    make_claimable(&machine);
    let leaves = ["sh", "-c", "sleep 600 >&- 2>&- & echo $!"];
    let output = finish(&mut run(&machine, &["--claim"], &leaves)).exits(0);
    let pid = output.stdout.trim();
    let line = output.stderr.lines().find(|line| line.contains("GPU 0 stays claimed until"));
    assert!(line.is_some_and(|line| line.ends_with(&format!("({pid})"))), "{output:?}");
    send(pid.parse().unwrap(), Signal::KILL);
    let output = finish(&mut run(&machine, &["--claim"], &["true"])).exits(0);
    assert!(!output.stderr.contains("stays claimed"), "{output:?}");
}

#[test]
fn a_run_waits_only_for_gpus_that_it_can_use() {
    let machine = Machine::new(&two_gpus([GIB, GIB]));
    make_claimable(&machine);
    let mut holder = claim_and_log(&machine, &["--gpu", "0"], "holder");
    wait_for_log(&machine, &["holder"]);
    let mut second = claim_and_log(&machine, &["--gpu", "0"], "second");
    wait_until("the second is in line", || queue(&machine, 0).len() == 1);
    finish(&mut run(&machine, &["--claim"], &["true"])).exits(0);
    // A stopped run does not delay others, and keeps its place.
    send(second.running.pid(), Signal::STOP);
    let mut third = claim_and_log(&machine, &["--gpu", "0"], "third");
    wait_until("the third is in line", || !queue(&machine, 0).is_empty());
    holder.say("end");
    wait_for_log(&machine, &["holder", "third"]);
    let mut fourth = claim_and_log(&machine, &["--gpu", "0"], "fourth");
    send(second.running.pid(), Signal::CONT);
    wait_until("both are in line", || queue(&machine, 0).len() == 2);
    third.say("end");
    wait_for_log(&machine, &["holder", "third", "second"]);
    second.say("end");
    wait_for_log(&machine, &["holder", "third", "second", "fourth"]);
    fourth.say("end");
}

/// The kernel lists neither locks nor processes of other pid namespaces.
#[test]
fn the_queue_spans_pid_namespaces() {
    let unshare = or_skip!(unshare("p"));
    let machine = Machine::new(&one_gpu(&[]));
    make_claimable(&machine);
    let mut holder = claim_and_log(&machine, &[], "holder");
    wait_for_log(&machine, &["holder"]);
    let inside = |name: &str| {
        let log = machine.path("log");
        let options = CLAIM.join(" ");
        let script =
            format!("\"$@\" run {options} -- sh -c 'echo {name} >> {}; read line'", log.display());
        LineProcess::start(&mut in_namespace(&machine, &unshare, &script))
    };
    let mut waiting = Vec::new();
    for (number, name) in ["first", "second", "third", "fourth"].into_iter().enumerate() {
        waiting.push(match number % 2 {
            0 => inside(name),
            _ => claim_and_log(&machine, &[], name),
        });
        wait_until("it is in line", || queue(&machine, 0).len() == number + 1);
    }
    let output = finish(&mut in_namespace(&machine, &unshare, "\"$@\" ps")).exits(0);
    assert!(output.stdout.contains("first in line: an unknown process for "), "{output:?}");
    holder.say("end");
    let mut names = vec!["holder"];
    for (process, name) in waiting.iter_mut().zip(["first", "second", "third", "fourth"]) {
        names.push(name);
        wait_for_log(&machine, &names);
        process.say("end");
    }
}

fn race_rounds() -> u64 {
    std::env::var("GPUMEM_TEST_RACES").map_or(10, |text| text.parse().unwrap())
}

/// Several waiting runs are killed at once, and the others start in order of arrival.
#[test]
fn killed_runs_do_not_change_the_order() {
    let names: Vec<String> = (0..6).map(|number| number.to_string()).collect();
    for round in 0..race_rounds().div_ceil(16) {
        let machine = Machine::new(&two_gpus([GIB, GIB]));
        make_claimable(&machine);
        let mut holder = claim_and_log(&machine, &["--gpus", "2"], "holder");
        wait_for_log(&machine, &["holder"]);
        let mut waiting = Vec::new();
        for (number, name) in names.iter().enumerate() {
            let options: &[&str] = if round % 3 == 0 { &["--gpus", "2"] } else { &["--gpu", "1"] };
            waiting.push(claim_and_log(&machine, options, name));
            wait_until("the run is in line", || queue(&machine, 1).len() == number + 1);
        }
        let killed = |number: usize| (round.wrapping_mul(0x9e37_79b9) >> (8 + number)) & 1 == 1;
        for (_, process) in waiting.iter().enumerate().filter(|(number, _)| killed(*number)) {
            send(process.running.pid(), Signal::KILL);
        }
        holder.say("end");
        let mut expected = vec!["holder"];
        for (number, process) in waiting.iter_mut().enumerate() {
            if !killed(number) {
                expected.push(&names[number]);
                wait_for_log(&machine, &expected);
                process.say("end");
            }
        }
    }
}

/// Runs that claim the same GPU, two of them nested, are killed, stopped and continued at random times. The GPU is
/// never claimed twice, and is always released.
#[test]
fn racing_claims_have_one_winner() {
    let machine = Machine::new(&one_gpu(&[]));
    make_claimable(&machine);
    let (taken, both) = (machine.path("taken"), machine.path("both"));
    let script =
        format!("mkdir {0} || touch {1}; rmdir {0}; echo done", taken.display(), both.display());
    let inner = format!("{} sh -c '{script}'", nested(&machine, "--claim"));
    let twice = format!("{inner} & {inner}; wait");
    for round in 0..race_rounds() {
        let start = |script: &str| {
            let options = ["-q", "--claim", "--interval", "1ms"];
            let mut command = run(&machine, &options, &["sh", "-c", script]);
            let child = command.stdin(Stdio::null()).stderr(Stdio::null());
            child.stdout(Stdio::piped()).spawn().unwrap()
        };
        let pause = |factor: u64| {
            let micros = round.wrapping_mul(factor) % 60_000;
            std::thread::sleep(std::time::Duration::from_micros(micros));
        };
        let mut killed = start(&script);
        let mut others = [
            (start(&script), "done\n"),
            (start(&twice), "done\ndone\n"),
            (start(&script), "done\n"),
        ];
        // Kill and stop at different times in each round.
        pause(7919);
        send(others[0].0.id(), Signal::STOP);
        killed.kill().unwrap();
        killed.wait().unwrap();
        pause(104_729);
        send(others[0].0.id(), Signal::CONT);
        for (other, output) in &mut others {
            let mut text = String::new();
            other.stdout.take().unwrap().read_to_string(&mut text).unwrap();
            assert_eq!((&*text, other.wait().unwrap().code()), (*output, Some(0)), "{round}");
        }
        assert!(!both.exists(), "{round}");
        // The command of the killed run still owns the GPU.
        wait_until("the command has ended", || !taken.exists());
    }
}

#[test]
fn a_failed_run_reports_the_least_free_memory_and_its_holders() {
    let machine = Machine::new(&one_gpu(&[]));
    let holder = Running::sleep();
    let report = machine.path("report.json");
    let options = ["--interval", "50ms", "--report", report.to_str().unwrap()];
    for code in [1, 0] {
        let script = format!("echo $$; read line; exit {code}");
        let mut command = run(&machine, &options, &["sh", "-c", &script]);
        let mut talking = LineProcess::start(command.stderr(Stdio::piped()));
        let pid: u32 = talking.line().parse().unwrap();
        let stderr = |pid: u32| fs::read_link(format!("/proc/{pid}/fd/2")).unwrap();
        assert_eq!(stderr(pid), stderr(talking.running.pid()), "the command inherits stderr");
        // The other process is largest when the command is at its peak, and has exited at the end.
        for (commands, others) in [(GIB, 10 * GIB), (2 * GIB, 70 * GIB), (GIB, 0)] {
            let gpu = Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB);
            let mut gpu = gpu.process(Process::compute(pid, commands));
            if others > 0 {
                gpu = gpu.process(Process::compute(holder.pid(), others));
            }
            machine.play(&Scene::new().gpu(gpu));
            wait_for_samples(&machine);
        }
        talking.say("end");
        let mut stderr = String::new();
        let pipe = talking.running.0.stderr.as_mut().unwrap();
        pipe.read_to_string(&mut stderr).unwrap();
        assert_eq!(talking.running.0.wait().unwrap().code(), Some(code));
        let document = read_json(&report);
        assert_eq!(stderr.contains("GPU 0: least free"), code != 0, "{stderr}");
        if code == 0 {
            assert_eq!(document["least_free"], Value::Null);
            continue;
        }
        let least = &document["least_free"][0];
        let free = least["free_bytes"].as_u64().unwrap();
        assert!(free <= 8 * GIB && free > 7 * GIB, "{least}");
        let others = least["others"].as_array().unwrap();
        assert_eq!(others.len(), 1, "{least}");
        assert_eq!(others[0]["process"]["pid"], holder.pid());
        assert_eq!(others[0]["used_bytes"], 70 * GIB);
    }
}
