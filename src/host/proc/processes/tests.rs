//! Tests the process table with a fake /proc, and with child processes in the real /proc.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::host::read_clocks;
use crate::host::testing::{FakeProc, StatLine};
use crate::model::Time;
use crate::model::process::Parent;
use crate::model::snapshot::Jupyter;

const SECOND: u64 = 1_000_000_000;

fn machine(has_gpu: bool) -> FakeProc {
    let fake = FakeProc::new();
    if has_gpu {
        fs::write(fake.dev.join("nvidia0"), "").unwrap();
    }
    fake
}

fn table(fake: &FakeProc) -> Processes {
    Processes::new(fake.roots.clone())
}

const TRAIN: StatLine = StatLine {
    comm: "train",
    ppid: 60,
    group: 70,
    session: 60,
    terminal: 0x8803,
    ticks: 500,
    threads: 4,
    start: 12_345,
    stack: 0x7ffc,
    ..StatLine::ASLEEP
};

fn only_process(sample: ProcessSample) -> Process {
    assert_eq!((sample.gone, sample.unreadable), (vec![], vec![]));
    let [process] = <[Process; 1]>::try_from(sample.processes).unwrap();
    process
}

fn words(command: &Process) -> Vec<&str> {
    let words = command.command.as_deref().unwrap_or_default();
    words.iter().map(AsRef::as_ref).collect()
}

#[test]
fn all_available_values_are_read() {
    let fake = machine(true);
    fake.stat(70, &TRAIN);
    fake.put(70, "status", "Name:\ttrain\nUid:\t0\t5\t5\t5\nNSpid:\t70\n");
    fake.put(70, "cmdline", "python\0-m\0ipykernel\0");
    fake.put(70, "maps", "1-2 r--p 0 08:01 9 /v/libtorch_cuda.so\n");
    let folder = fake.folder(70);
    symlink("/usr/bin/python3 (deleted)", folder.join("exe")).unwrap();
    let dev = |name: &str| fake.dev.join(name);
    for (number, name) in ["null", "nvidiactl", "nvidia0", "nvidia0 (deleted)"].iter().enumerate() {
        fake.link(70, &format!("fd/{number}"), dev(name));
    }
    fake.link(70, "fd/9", "socket:[123]");
    fake.link(70, "cwd", "/home/ann/api_key=s3cret9");
    fake.put(60, "status", "Name:\tbash\nNSpid:\t60\n");

    let mut processes = table(&fake);
    assert!(processes.has_gpu_device_files());
    let mut process = only_process(processes.sample(&[70], SECOND));
    let files = process.gpu_files.take().unwrap();
    let expected: [Arc<str>; 2] =
        [dev("nvidia0").to_str().unwrap().into(), dev("nvidiactl").to_str().unwrap().into()];
    assert_eq!(*files, expected);
    let ticks = rustix::param::clock_ticks_per_second();
    assert_eq!(
        process,
        Process {
            pid: 70,
            start_ticks: Some(12_345),
            start_time: Some(Time::from_unix_milliseconds(
                processes.around.booted.unix_milliseconds() + (12_345_000 / ticks) as i64
            )),
            ppid: Some(60),
            process_group: Some(70),
            session: Some(60),
            parent_is_reaper: Some(false),
            group_leader_alive: Some(true),
            session_leader_alive: Some(true),
            state: Some('S'),
            uid: Some(0),
            user: Some("root".into()),
            comm: Some("train".into()),
            command: Some(["python", "-m", "ipykernel"].map(Arc::from).into()),
            executable: Some("/usr/bin/python3".into()),
            working_directory: Some("api_key=***".into()),
            cpu_seconds: Some(500.0 / ticks as f64),
            rss_bytes: Some(3 * rustix::param::page_size() as u64),
            threads: Some(4),
            terminal: Some("pts/3".into()),
            framework: Some("pytorch".into()),
            jupyter: Some(Arc::new(Jupyter {
                application: Some("ipykernel".into()),
                ..Jupyter::default()
            })),
            ..Process::default()
        }
    );
}

#[test]
fn unreadable_values_are_unknown() {
    let fake = machine(true);
    fake.stat(70, &TRAIN);
    // Use a file instead of a folder and folders instead of files, because even root cannot read these.
    fake.put(70, "fd", "");
    for name in ["status", "cmdline", "maps", "exe", "cwd"] {
        fs::create_dir(fake.folder(70).join(name)).unwrap();
    }
    let process = only_process(table(&fake).sample(&[70], SECOND));
    assert_eq!(process.gpu_files, None);
    assert_eq!((process.uid, process.user), (None, None));
    assert_eq!((process.command, process.executable), (None, None));
    assert_eq!(process.working_directory, None);
    assert_eq!((process.framework, process.jupyter), (None, None));
    assert_eq!(process.parent_is_reaper, None);
    assert_eq!(process.cpu_percent, None);
    assert_eq!(process.start_ticks, Some(12_345));
}

#[test]
fn open_files_are_unknown_without_device_files() {
    let fake = machine(false);
    fake.stat(70, &TRAIN);
    fake.link(70, "fd/0", "/dev/null");
    let mut processes = table(&fake);
    assert!(!processes.has_gpu_device_files());
    assert_eq!(only_process(processes.sample(&[70], SECOND)).gpu_files, None);

    // The driver is loaded only now.
    fs::write(fake.dev.join("nvidiactl"), "").unwrap();
    let process = only_process(processes.sample(&[70], 40 * SECOND));
    assert!(processes.has_gpu_device_files());
    assert_eq!(process.gpu_files.as_deref(), Some(&[][..]));
    // In a container without device files, gpumem has opened NVML nevertheless.
    fs::remove_file(fake.dev.join("nvidiactl")).unwrap();
    assert!(!table(&fake).has_gpu_device_files());
    symlink("90", fake.proc.join("self")).unwrap();
    fake.link(90, "fd/3", fake.dev.join("nvidiactl"));
    assert!(table(&fake).has_gpu_device_files());
}

#[test]
fn cpu_use_is_measured_between_two_samples() {
    let fake = machine(false);
    let hz = rustix::param::clock_ticks_per_second();
    fake.stat(70, &TRAIN);
    let mut processes = table(&fake);
    assert_eq!(only_process(processes.sample(&[70], SECOND)).cpu_percent, None);
    fake.put(70, "schedstat", "0 2000000000 0\n");
    for (ticks, now_ns, percent) in [
        (500 + hz, 3 * SECOND, 50.0),
        (500 + hz, 4 * SECOND, 0.0),
        // A second sample at the same time keeps the previous value.
        (500 + 9 * hz, 4 * SECOND, 0.0),
        (500 + 12 * hz, 5 * SECOND, 300.0),
        // The value does not change if the time or the CPU time decreases.
        (500, 2 * SECOND, 300.0),
        (600, 6 * SECOND, 0.25 * 10_000.0 / hz as f64),
    ] {
        fake.stat(70, &StatLine { ticks, ..TRAIN });
        let process = only_process(processes.sample(&[70], now_ns));
        assert_eq!(process.cpu_percent, Some(percent), "{ticks} at {now_ns}");
        assert_eq!(process.cpu_seconds, Some(ticks as f64 / hz as f64));
        assert_eq!(process.cpu_wait_seconds, Some(2.0));
    }
}

#[test]
fn a_reused_pid_is_another_process() {
    let fake = machine(false);
    fake.stat(70, &TRAIN);
    fake.put(70, "cmdline", "old\0");
    let mut processes = table(&fake);
    assert_eq!(words(&only_process(processes.sample(&[70], SECOND))), ["old"]);

    // The pid is reused between two samples.
    fake.end(70);
    fake.stat(70, &StatLine { start: 99, ticks: 900, ..TRAIN });
    fake.put(70, "cmdline", "new\0");
    let process = only_process(processes.sample(&[70], 2 * SECOND));
    assert_eq!((process.start_ticks, words(&process)), (Some(99), vec!["new"]));
    assert_eq!(process.cpu_percent, None, "of another process");

    // A sample finds no process, and then the pid is reused.
    fake.end(70);
    assert_eq!(processes.sample(&[70], 3 * SECOND).gone, [70]);
    fake.stat(70, &StatLine { start: 100, ..TRAIN });
    let process = only_process(processes.sample(&[70], 4 * SECOND));
    assert_eq!((process.start_ticks, process.cpu_percent), (Some(100), None));
}

#[test]
fn rarely_changing_values_are_read_when_due() {
    let fake = machine(false);
    fake.stat(70, &TRAIN);
    fake.put(70, "cmdline", "one\0");
    let mut processes = table(&fake);
    let first = only_process(processes.sample(&[70], SECOND));

    fake.put(70, "cmdline", "two\0");
    let second = only_process(processes.sample(&[70], 2 * SECOND));
    let (Some(a), Some(b)) = (&first.command, &second.command) else {
        panic!("no command");
    };
    assert!(Arc::ptr_eq(a, b), "shared, not read again");
    assert_eq!(words(&only_process(processes.sample(&[70], 35 * SECOND))), ["two"]);
    assert_eq!(processes.sample(&[], 35 * SECOND), ProcessSample::default());
    assert!(processes.entries.is_empty(), "other processes are dropped");
    processes.sample(&[70], 35 * SECOND);

    // A different name or stack address shows that the process has executed another program.
    fake.put(70, "cmdline", "three\0");
    fake.stat(70, &StatLine { comm: "a) (b", ..TRAIN });
    let process = only_process(processes.sample(&[70], 36 * SECOND));
    assert_eq!(words(&process), ["three"]);
    assert_eq!(process.comm.as_deref(), Some("a) (b"));
    fake.put(70, "cmdline", "four\0");
    fake.stat(70, &StatLine { comm: "a) (b", stack: 1, ..TRAIN });
    assert_eq!(words(&only_process(processes.sample(&[70], 37 * SECOND))), ["four"]);
}

#[test]
fn the_framework_is_detected_again_while_a_program_loads() {
    let fake = machine(false);
    fake.stat(70, &TRAIN);
    fake.put(70, "maps", "");
    let mut processes = table(&fake);
    let mut framework = |second: u64| {
        let process = only_process(processes.sample(&[70], second * SECOND));
        process.framework.map(|framework| framework.to_string())
    };
    assert_eq!(framework(1), None);
    fake.put(70, "maps", "1-2 r--p 0 08:01 9 /v/libtorch_cuda.so\n");
    assert_eq!(framework(4), None);
    assert_eq!(framework(6).as_deref(), Some("pytorch"));
    let vllm = "1-2 r--p 0 08:01 9 /v/vllm/_C.abi3.so\n1-2 r--p 0 08:01 9 /lib/libcuda.so.1\n";
    fake.put(70, "maps", vllm);
    assert_eq!(framework(10).as_deref(), Some("pytorch"));
    assert_eq!(framework(20).as_deref(), Some("vllm"));
    // The new program has not loaded these libraries.
    fake.put(70, "maps", "");
    assert_eq!(framework(24).as_deref(), Some("vllm"));
    fake.stat(70, &StatLine { stack: 1, ..TRAIN });
    assert_eq!(framework(33), None);
}

#[test]
fn argv_of_an_old_program_is_read_at_every_tenth_visit() {
    let fake = machine(false);
    fake.stat(70, &TRAIN);
    fake.put(70, "cmdline", "one\0");
    let mut processes = table(&fake);
    let mut program = |second: u64| {
        let process = only_process(processes.sample(&[70], second * SECOND));
        words(&process).first().map(ToString::to_string)
    };
    assert_eq!(program(3600).as_deref(), Some("one"));
    fake.put(70, "cmdline", "two\0");
    let read_again = (3601..4200).find(|&second| program(second).as_deref() == Some("two"));
    // All files are read again after ten visits. The first interval between visits is shorter than 30 s.
    assert!((3600 + 270..=3600 + 300).contains(&read_again.unwrap()), "{read_again:?}");
    fake.put(70, "cmdline", "three\0");
    fake.stat(70, &StatLine { comm: "renamed", ..TRAIN });
    assert_eq!(program(4201).as_deref(), Some("three"));
}

#[test]
fn memory_of_a_process_stuck_in_a_driver_is_not_read() {
    let fake = machine(false);
    fake.stat(70, &StatLine { state: 'D', ..TRAIN });
    fake.put(70, "cmdline", "stuck\0");
    fake.put(70, "maps", "1-2 r--p 0 08:01 9 /v/libtorch_cuda.so\n");
    fake.put(70, "environ", "RANK=0\0");
    // The command line of a stuck parent is not read either.
    fake.stat(60, &StatLine { state: 'D', ..SHELL });
    fake.put(60, "status", "Name:\tbash\nNSpid:\t60\n");
    fake.put(60, "cmdline", "bash\0");
    let mut processes = table(&fake);
    for second in [1, 2, 60] {
        let process = only_process(processes.sample(&[70], second * SECOND));
        assert_eq!((process.state, words(&process)), (Some('D'), vec![]));
        assert_eq!((process.framework, process.environment), (None, None));
        assert_eq!(process.comm.as_deref(), Some("train"));
        let parent = process.parent.unwrap();
        assert_eq!((parent.comm.as_deref(), &parent.command), (Some("bash"), &None));
    }
    fake.stat(70, &TRAIN);
    let process = only_process(processes.sample(&[70], 61 * SECOND));
    assert_eq!(words(&process), ["stuck"]);
    assert!(process.environment.is_some());
    assert_eq!(process.framework.as_deref(), Some("pytorch"));
    // The known values must remain while the process is stuck.
    fake.stat(70, &StatLine { state: 'D', ..TRAIN });
    assert_eq!(words(&only_process(processes.sample(&[70], 120 * SECOND))), ["stuck"]);
}

#[test]
fn an_exiting_process_keeps_its_values() {
    let fake = machine(true);
    fake.stat(70, &TRAIN);
    fake.put(70, "cmdline", "train\0");
    fake.put(70, "maps", "1-2 r--p 0 08:01 9 /v/libtorch_cuda.so\n");
    fake.link(70, "fd/0", fake.dev.join("nvidia0"));
    let folder = fake.folder(70);
    symlink("/usr/bin/train", folder.join("exe")).unwrap();
    symlink("/home/ann", folder.join("cwd")).unwrap();
    let mut processes = table(&fake);
    let before = only_process(processes.sample(&[70], SECOND));
    assert_eq!(before.gpu_files.as_deref().map(<[_]>::len), Some(1));

    // An exiting process loses its memory map, and with it the link to its executable, then its open files, then its
    // working directory.
    for name in ["cmdline", "maps"] {
        fake.put(70, name, "");
    }
    fs::remove_dir_all(folder.join("fd")).unwrap();
    fs::create_dir(folder.join("fd")).unwrap();
    fs::remove_file(folder.join("exe")).unwrap();
    fs::remove_file(folder.join("cwd")).unwrap();
    for (flags, state, second) in [(4, 'D', 60), (4, 'R', 120), (0, 'Z', 400)] {
        fake.stat(70, &StatLine { flags, state, stack: 0, ..TRAIN });
        let after = only_process(processes.sample(&[70], second * SECOND));
        assert_eq!(after.gpu_files, None, "open files are not visible");
        assert_eq!(after.command, before.command);
        assert_eq!(after.executable, before.executable);
        assert_eq!(after.working_directory.as_deref(), Some("ann"));
        assert_eq!(after.framework, before.framework);
    }
}

#[test]
fn leaders_and_adopting_parents_are_checked() {
    let fake = machine(false);
    let mut processes = table(&fake);
    let mut relations = |stat: StatLine, second: u64| {
        fake.stat(70, &stat);
        let process = only_process(processes.sample(&[70], second * SECOND));
        (process.parent_is_reaper, process.group_leader_alive, process.session_leader_alive)
    };
    let named = |name: &str, inner: u32| format!("Name:\t{name}\nNSpid:\t60\t{inner}\n");
    fake.put(60, "status", named("bash", 60));
    fake.put(61, "status", named("systemd", 61));

    // The leader of the worker's process group has exited.
    let worker = StatLine { group: 69, ..TRAIN };
    assert_eq!(relations(worker, 1), (Some(false), Some(false), Some(true)));
    // The leader of the session also exits.
    fs::remove_dir_all(fake.proc.join("60")).unwrap();
    assert_eq!(relations(worker, 2).2, Some(false));
    // Both leaders and the parent are outside this pid namespace.
    let outside = StatLine { group: 0, session: 0, ppid: 0, start: 2, ..TRAIN };
    assert_eq!(relations(outside, 3), (None, None, None));
    // The first process of a container adopts orphans regardless of its name, as do init and a user's systemd.
    fake.put(60, "status", named("python3", 1));
    for (ppid, start, adopts) in [(60, 3, true), (61, 4, true), (1, 5, true)] {
        let child = StatLine { ppid, start, ..TRAIN };
        assert_eq!(relations(child, start).0, Some(adopts), "{ppid}");
    }
    // The parent changed between samples, so the new parent is known to adopt orphans, whatever its name is.
    fake.put(62, "status", named("anything", 62));
    fake.put(60, "status", named("bash", 60));
    assert_eq!(relations(StatLine { start: 6, ..TRAIN }, 6).0, Some(false));
    let adopted = StatLine { start: 6, ppid: 62, ..TRAIN };
    assert_eq!(relations(adopted, 7).0, Some(true));
    assert_eq!(relations(adopted, 60).0, Some(true));
}

#[test]
fn an_invalid_stat_is_an_error_but_a_missing_one_is_not() {
    let fake = machine(false);
    fake.put(70, "stat", "70 (torn) S 1 2");
    fs::create_dir(fake.proc.join("72")).unwrap();
    fs::write(fake.proc.join("73"), "").unwrap();
    fake.stat(74, &StatLine { group: 74, ..TRAIN });
    let released = "75 (x) X 0 -1 -1 0 -1 0 0 0 0 0 0 0 0 0 20 0 0 0 9 0 0 0 0 0 0 0 0\n";
    fake.put(75, "stat", released);
    let mut processes = table(&fake);
    for second in [1, 2] {
        let sample = processes.sample(&[70, 71, 72, 73, 74, 75, u32::MAX], second * SECOND);
        let pids: Vec<u32> = sample.processes.iter().map(|process| process.pid).collect();
        assert_eq!(pids, [74]);
        assert_eq!(sample.gone, [71, 72, 75, u32::MAX]);
        let path = |pid: &str| fake.proc.join(pid);
        assert_eq!(
            sample.unreadable,
            [
                (70, HostError::Malformed { path: path("70") }),
                (73, HostError::Read { path: path("73"), errno: rustix::io::Errno::NOTDIR }),
            ]
        );
    }
}

#[test]
fn a_hidden_process_is_not_reported_as_gone() {
    let fake = machine(false);
    fs::remove_dir(fake.proc.join("1")).unwrap();
    fake.stat(70, &StatLine { group: 69, ..TRAIN });
    // The kernel lets gpumem open the folder of a hidden process, but not read files in the folder.
    fs::create_dir(fake.proc.join("72")).unwrap();
    let sample = table(&fake).sample(&[70, 71, 72], SECOND);
    assert_eq!(sample.processes[0].group_leader_alive, None);
    assert!(sample.gone.is_empty());
    let hidden = |pid: u32| (pid, HostError::Hidden { path: fake.proc.join(pid.to_string()) });
    assert_eq!(sample.unreadable, [hidden(71), hidden(72)]);
}

/// A child process, which is killed and reaped on drop.
struct Running(Child);

impl Running {
    fn new(program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Samples a real process until `matches` returns `true`. Panics after two minutes.
fn sample_until(
    processes: &mut Processes,
    pid: u32,
    mut matches: impl FnMut(&Process) -> bool,
) -> Process {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let sample = processes.sample(&[pid], read_clocks().boottime_ns);
        let process = sample.processes.into_iter().next();
        if let Some(process) = process.as_ref().filter(|process| matches(process)) {
            return process.clone();
        }
        assert!(Instant::now() < deadline, "still {process:?}");
        std::thread::yield_now();
    }
}

#[test]
fn a_real_child_keeps_its_identity() {
    // The child waits for a line before it executes another program.
    let mut child = Running::new("sh", &["-c", "read line; exec sleep 600"]);
    let pid = child.pid();
    let mut processes = Processes::new(Roots::default());
    let first = sample_until(&mut processes, pid, |process| words(process).len() == 3);
    assert_eq!((first.ppid, first.threads), (Some(std::process::id()), Some(1)));
    assert_eq!(first.uid, Some(rustix::process::getuid().as_raw()));
    let folder = std::env::current_dir().unwrap();
    assert_eq!(first.working_directory.as_deref(), folder.file_name().unwrap().to_str());
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    let started = first.start_time.unwrap().unix_seconds();
    assert!((now - 120..=now + 2).contains(&started), "{started} of {now}");

    child.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let sleep = sample_until(&mut processes, pid, |process| words(process) == ["sleep", "600"]);
    assert_eq!(sleep.comm.as_deref(), Some("sleep"));
    assert_ne!(first.executable, sleep.executable);

    child.0.kill().unwrap();
    let dead = sample_until(&mut processes, pid, |process| process.state == Some('Z'));
    assert_eq!(words(&dead), ["sleep", "600"], "as it was");
    for later in [sleep, dead] {
        assert_eq!(later.identity(), first.identity());
    }
    let zombie = sample_until(&mut Processes::new(Roots::default()), pid, |_| true);
    assert_eq!((zombie.command, zombie.executable, zombie.gpu_files), (None, None, None));

    child.0.wait().unwrap();
    let sample = processes.sample(&[pid], read_clocks().boottime_ns);
    assert_eq!((sample.gone, sample.processes), (vec![pid], vec![]));
}

#[test]
fn a_process_in_a_frozen_cgroup_is_stopped() {
    for (path, events, frozen, state) in [
        ("/a.scope", "populated 1\nfrozen 1\n", Some(true), 'T'),
        ("/a.scope", "populated 1\nfrozen 0\n", Some(false), 'S'),
        ("/../a.scope", "populated 1\nfrozen 1\n", None, 'S'),
        ("/other", "frozen 1\n", None, 'S'),
    ] {
        let fake = machine(false);
        fake.stat(70, &StatLine { state: 'S', ..TRAIN });
        fake.put(70, "cgroup", format!("0::{path}\n"));
        let folder = fake.root.join("sys/fs/cgroup/a.scope");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cgroup.events"), events).unwrap();
        let process = only_process(table(&fake).sample(&[70], SECOND));
        assert_eq!(
            (process.frozen, process.live_state()),
            (frozen, Some(state)),
            "{path} {events}"
        );
    }
}

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

const SHELL: StatLine = StatLine { comm: "bash", start: 500, ..TRAIN };

/// Creates a process whose parent is a running shell.
fn with_parent() -> FakeProc {
    let fake = machine(false);
    fake.stat(70, &TRAIN);
    fake.stat(60, &SHELL);
    fake.put(60, "status", "Name:\tbash\nNSpid:\t60\n");
    fake.put(60, "cmdline", "bash\0-l\0");
    fake
}

fn bash() -> Parent {
    Parent {
        pid: 60,
        start_ticks: Some(500),
        comm: Some("bash".into()),
        command: Some([Arc::from("bash"), "-l".into()].into()),
        ..Parent::default()
    }
}

#[test]
fn a_container_is_named_from_its_runtimes_files() {
    let fake = machine(false);
    fake.stat(70, &TRAIN);
    fake.put(70, "cgroup", format!("0::/system.slice/docker-{ID}.scope\n"));
    fake.put(70, "status", "Name:\ttrain\nUid:\t0\t0\t0\t0\nNSpid:\t70\t1\n");
    fake.put(70, "environ", "RANK=0\0API_TOKEN=hidden\0");
    let folder = fake.root.join("var/lib/docker/containers").join(ID);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("config.v2.json"), r#"{"Name":"/trainer"}"#).unwrap();

    let mut processes = table(&fake);
    let process = sample_until(&mut processes, 70, |process| {
        let container = process.container.as_deref().unwrap();
        container.name.is_some()
    });
    let container = process.container.unwrap();
    assert_eq!(
        (container.runtime.as_deref(), container.id.as_deref(), container.name.as_deref()),
        (Some("docker"), Some(ID), Some("trainer"))
    );
    assert_eq!((process.namespace_pid, process.systemd_unit), (Some(1), None));
    let environment = process.environment.unwrap();
    assert_eq!(environment.len(), 1);
    assert_eq!(environment.get("RANK").map(AsRef::as_ref), Some("0"));
}

#[test]
fn the_owner_follows_the_cgroup_but_the_environment_is_kept() {
    let fake = with_parent();
    fake.put(70, "cgroup", "0::/system.slice/ssh.service\n");
    fake.put(70, "environ", "RANK=0\0");
    fake.put(70, "status", "Uid:\t0\t0\t0\t0\n");
    let mut processes = table(&fake);
    let process = only_process(processes.sample(&[70], SECOND));
    assert_eq!(process.systemd_unit.as_deref(), Some("ssh.service"));
    assert_eq!(process.cgroup.as_deref(), Some("/system.slice/ssh.service"));
    assert_eq!(process.user.as_deref(), Some("root"));

    fake.put(70, "cgroup", "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n");
    fake.put(70, "environ", "title\0");
    fake.put(70, "status", "Uid:\t65534\t0\t0\t0\n");
    let process = only_process(processes.sample(&[70], 40 * SECOND));
    assert_eq!((process.systemd_unit, process.uid), (None, Some(65534)));
    assert_ne!(process.user.as_deref(), Some("root"));
    assert_eq!(process.slurm.unwrap().job_id.as_deref(), Some("7"));
    assert_eq!(process.environment.unwrap().len(), 1, "as it was given");

    // The process executes a program with a different environment.
    fake.stat(70, &StatLine { stack: 0x7ffd, ..TRAIN });
    let process = only_process(processes.sample(&[70], 44 * SECOND));
    assert_eq!(process.environment.as_deref(), Some(&Default::default()));
}

#[test]
fn the_first_parent_remains_the_starter() {
    let fake = with_parent();
    let mut processes = table(&fake);
    let process = only_process(processes.sample(&[70], SECOND));
    assert_eq!(process.parent.as_deref(), Some(&bash()));
    let before = process.parent.unwrap();
    let process = only_process(processes.sample(&[70], 40 * SECOND));
    assert!(Arc::ptr_eq(&before, process.parent.as_ref().unwrap()));

    // The shell exits, and another process adopts the child.
    fake.end(60);
    fake.stat(55, &StatLine { comm: "manager", ..SHELL });
    fake.put(55, "status", "Name:\tmanager\nNSpid:\t55\n");
    fake.stat(70, &StatLine { ppid: 55, ..TRAIN });
    let process = only_process(processes.sample(&[70], 44 * SECOND));
    assert_eq!(process.parent_is_reaper, Some(true));
    assert_eq!(process.parent.as_deref(), Some(&bash()));
}

#[test]
fn an_adopter_or_a_later_process_is_not_the_starter() {
    let fake = with_parent();
    // gpumem sees the child only after the shell has exited.
    fake.put(1, "status", "Name:\tsystemd\nNSpid:\t1\n");
    fake.stat(1, &StatLine { comm: "systemd", start: 1, ..SHELL });
    fake.stat(70, &StatLine { ppid: 1, ..TRAIN });
    assert_eq!(only_process(table(&fake).sample(&[70], SECOND)).parent, None);

    fake.stat(70, &TRAIN);
    let later = TRAIN.start + 1;
    fake.stat(60, &StatLine { start: later, ..SHELL });
    assert_eq!(only_process(table(&fake).sample(&[70], SECOND)).parent, None);
    fake.stat(60, &StatLine { start: TRAIN.start, ..SHELL });
    assert!(only_process(table(&fake).sample(&[70], SECOND)).parent.is_some());
}
