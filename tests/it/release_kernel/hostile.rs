//! Kernels that are busy, stopped, hostile or not genuine. gpumem reports each problem, and leaves the kernel alone.

use std::thread;
use std::time::{Duration, Instant};

use gpumem::api::reclaim::{NotReleased, ReleaseAnswer};
use rustix::process::Signal;

use super::*;
use crate::procs;

/// `hostile_kernel.py` in one of its modes.
struct Hostile {
    home: JupyterHome,
    running: Running,
}

impl Hostile {
    fn start(mode: &str, more: &[&str]) -> Option<Self> {
        let python = python()?;
        let home = JupyterHome::new();
        let file = home.path("kernel-hostile.json");
        let mut command = home.command(&python);
        command.arg(script("hostile_kernel.py")).args([mode, "-f"]);
        let running = Running::start(command.arg(&file).args(more));
        let ready = home.path("kernel-hostile.json.ready");
        support::wait_until("the kernel has written its file", || ready.exists());
        Some(Self { home, running })
    }

    fn was_contacted(&self) -> bool {
        self.home.path("kernel-hostile.json.seen").exists()
    }
}

fn short_options() -> ReleaseOptions {
    ReleaseOptions { wait_ms: 1500, ..options() }
}

/// Repeats the request until the kernel has answered.
fn perform_until_answered(pid: u32, options: &ReleaseOptions) -> ReleaseAnswer {
    let mut answer = perform_with(pid, options);
    support::wait_until("an answer", || {
        if is_busy(&answer) {
            answer = perform_with(pid, options);
        }
        !is_busy(&answer)
    });
    answer
}

/// The mode, a check of the answer, and a word that the answer must contain.
type Case = (&'static str, fn(&ReleaseAnswer) -> bool, &'static str);

/// Checks gpumem's answers for all modes in parallel, and whether gpumem contacted the kernels.
fn assert_answers(modes: &[Case], is_contacted: bool) {
    thread::scope(|scope| {
        for (mode, expected, word) in modes {
            scope.spawn(move || {
                let hostile = or_skip!(Hostile::start(mode, &[]));
                let is_right = |answer: &ReleaseAnswer| {
                    expected(answer) && format!("{answer:?}").contains(word)
                };
                let start = Instant::now();
                let mut answer = perform_with(hostile.running.pid(), &short_options());
                // Retry, because a kernel on a busy machine may not answer within the time limit.
                while !is_right(&answer)
                    && is_busy(&answer)
                    && start.elapsed() < Duration::from_secs(60)
                {
                    answer = perform_with(hostile.running.pid(), &short_options());
                }
                assert!(is_right(&answer), "{mode}: {answer:?}");
                assert_eq!(hostile.was_contacted(), is_contacted, "{mode}");
            });
        }
    });
}

fn is_refused(answer: &ReleaseAnswer) -> bool {
    matches!(answer, Err(NotReleased::Refused(_)))
}

fn is_no_way(answer: &ReleaseAnswer) -> bool {
    matches!(answer, Err(NotReleased::NoWayIn(_)))
}

fn is_late(answer: &ReleaseAnswer) -> bool {
    matches!(answer, Err(NotReleased::TimedOut(_)))
}

fn is_busy(answer: &ReleaseAnswer) -> bool {
    matches!(answer, Err(NotReleased::Busy(_)))
}

#[test]
fn an_untrusted_connection_file_is_not_used() {
    assert_answers(
        &[
            ("unsigned-file", is_refused, "has no key"),
            ("readable", is_refused, "can be read or written by others"),
            ("symlink", is_refused, "does not belong to the kernel's owner"),
            ("scheme", is_no_way, "other than hmac-sha256"),
            ("curve", is_no_way, "encrypted"),
            ("elsewhere", is_no_way, "loopback"),
        ],
        false,
    );
    if rustix::process::geteuid().is_root() {
        assert_answers(&[("foreign", is_refused, "does not belong to")], false);
    }
}

#[test]
fn an_invalid_answer_is_distinguished_from_silence() {
    assert_answers(
        &[
            ("wrong-signature", is_no_way, "not signed with the key"),
            ("garbage", is_no_way, "not a Jupyter message"),
            ("shapeless", is_no_way, "unexpected fields"),
            ("another-answer", is_no_way, "a execute_reply"),
            ("flood", is_no_way, "too many"),
            ("other", is_no_way, "IRkernel"),
            ("dies", is_no_way, "closed the connection"),
            ("lies", is_no_way, "not a report of the recipe"),
            ("aborts", is_busy, "a cell failed in between"),
            ("silent", is_late, "will not start later"),
        ],
        true,
    );
}

#[test]
fn a_huge_message_costs_neither_memory_nor_time() {
    let start = Instant::now();
    assert_answers(
        &[
            ("giant", is_no_way, "too long"),
            ("endless", is_no_way, "too long"),
            ("noise", is_no_way, "ZeroMQ"),
            ("dumb", is_busy, "did not answer"),
        ],
        true,
    );
    assert!(start.elapsed() < support::PATIENCE);
}

#[test]
fn a_kernel_on_a_unix_socket_is_contacted() {
    assert_answers(&[("ipc", is_late, "did not answer")], true);
}

#[test]
fn a_port_of_another_process_is_not_contacted() {
    let stranger = or_skip!(Hostile::start("silent", &[]));
    let file = fs::read(stranger.home.path("kernel-hostile.json")).unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    let port = file["shell_port"].to_string();
    let kernel = Hostile::start("stranger", &[&port]).unwrap();
    let answer = perform_with(kernel.running.pid(), &short_options());
    assert!(is_refused(&answer), "{answer:?}");
    assert!(format!("{answer:?}").contains("does not listen"), "{answer:?}");
    assert!(!stranger.was_contacted());
}

/// These checks share a kernel, because starting a kernel is slow. Each check restores the kernel, and the last check
/// kills it.
#[test]
fn a_real_kernel_that_obstructs_a_release_is_left_alone() {
    let kernel = or_skip!(RawKernel::start("kernel-raw.json"));
    let mut client = kernel.client();
    assert_a_wrong_key_changes_nothing(&kernel, &mut client);
    assert_a_busy_or_stopped_kernel_is_left_alone(&kernel, &mut client);
    assert_a_late_request_does_nothing(&kernel, &mut client);
    assert_a_failing_or_endless_script_is_reported(&kernel, &mut client);
    assert_a_fork_and_a_reused_pid_are_not_the_kernel(&kernel, &mut client);
    assert_a_kernel_that_dies_is_noticed(&kernel, &mut client);
}

fn assert_a_wrong_key_changes_nothing(kernel: &RawKernel, client: &mut Client) {
    client.run("x = 1");
    let before = client.state();
    let text = fs::read_to_string(&kernel.file).unwrap();
    let mut file: Value = serde_json::from_str(&text).unwrap();
    file["key"] = json!("another");
    fs::write(&kernel.file, file.to_string()).unwrap();
    assert!(is_busy(&perform_with(kernel.pid(), &short_options())));
    assert_eq!(client.state(), before);
    fs::write(&kernel.file, text).unwrap();
}

fn assert_a_busy_or_stopped_kernel_is_left_alone(kernel: &RawKernel, client: &mut Client) {
    client.run("import torch, os, time\na = torch.empty(25 << 20, device='cuda')\ndel a");
    let whole = kernel.used_bytes();
    let done = kernel.home.path("cell-is-done");
    let code = format!("while not os.path.exists({done:?}): time.sleep(0.01)");
    client.ask(&json!({"start": code}));
    support::wait_until("the kernel is busy", || is_busy(&probe(kernel.pid())));
    let start = Instant::now();
    let answer = perform_with(kernel.pid(), &options());
    assert!(is_busy(&answer), "{answer:?}");
    // gpumem waits only for the answer to the probe.
    assert!(start.elapsed() < Duration::from_secs(25));
    assert_eq!(kernel.used_bytes(), whole);
    fs::write(&done, "").unwrap();
    client.run("pass");
    assert_eq!(kernel.used_bytes(), whole, "no request ran after the cell");
    procs::send(kernel.pid(), Signal::STOP);
    let answer = perform_with(kernel.pid(), &short_options());
    assert!(is_busy(&answer), "{answer:?}");
    procs::send(kernel.pid(), Signal::CONT);
    release(kernel.pid(), &options());
    assert_eq!(kernel.used_bytes(), whole.map(|bytes| bytes - 100 * MIB));
}

fn assert_a_late_request_does_nothing(kernel: &RawKernel, client: &mut Client) {
    // Delay the release script, like a cell that starts between the probe and the release.
    client.run(
        "import torch, time, builtins\na = torch.empty(25 << 20, device='cuda')\ndel a\ncame = []\nreal = exec\n\
         def hold(source, *rest):\n    if str(source).startswith('T ='):\n        time.sleep(3)\n        came.append(1)\n    \
         return real(source, *rest)\nbuiltins.exec = hold",
    );
    let whole = kernel.used_bytes();
    let answer = perform_until_answered(kernel.pid(), &short_options());
    assert!(is_late(&answer), "{answer:?}");
    assert_eq!(client.run("print(len(came))"), "1\n", "the request was executed");
    assert_eq!(kernel.used_bytes(), whole);
    client.run("builtins.exec = real");
}

fn assert_a_failing_or_endless_script_is_reported(kernel: &RawKernel, client: &mut Client) {
    // IPython also runs cells with `exec`, so replace only the release script.
    client.run(
        "import builtins, os, time\nreal = exec\ndef fail(): raise RuntimeError('no')\nwork = fail\n\
         def instead(source, *rest):\n    if str(source).startswith('T ='): work()\n    return real(source, *rest)\n\
         builtins.exec = instead",
    );
    let answer = perform_until_answered(kernel.pid(), &options());
    assert!(is_no_way(&answer), "{answer:?}");
    assert!(format!("{answer:?}").contains("the script failed in the kernel: RuntimeError: no"));
    let done = kernel.home.path("done");
    client.run(&format!("def work():\n    while not os.path.exists({done:?}): time.sleep(0.01)"));
    let answer = perform_until_answered(kernel.pid(), &short_options());
    assert!(is_late(&answer), "{answer:?}");
    fs::write(&done, "").unwrap();
    client.run("builtins.exec = real");
    release(kernel.pid(), &options());
}

fn assert_a_kernel_that_dies_is_noticed(kernel: &RawKernel, client: &mut Client) {
    client.run(
        "import builtins, time\nreal = exec\n\
         builtins.exec = lambda source, *rest: time.sleep(60) if str(source).startswith('T =') else real(source, *rest)",
    );
    let pid = kernel.pid();
    let killer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(700));
        procs::send(pid, Signal::KILL);
    });
    let start = Instant::now();
    let answer = perform_with(pid, &options());
    killer.join().unwrap();
    assert!(is_no_way(&answer), "{answer:?}");
    assert!(start.elapsed() < Duration::from_secs(25), "gpumem waited for a dead kernel");
}

fn assert_a_fork_and_a_reused_pid_are_not_the_kernel(kernel: &RawKernel, client: &mut Client) {
    let text = client.run(
        "import os, time\npid = os.fork()\nif pid == 0:\n    time.sleep(600)\n    os._exit(0)\nprint(pid)",
    );
    let fork: u32 = text.trim().parse().unwrap();
    let answer = perform_with(fork, &short_options());
    assert!(is_no_way(&answer), "{answer:?}");
    assert!(format!("{answer:?}").contains(&format!("process {}", kernel.pid())));
    procs::send(fork, Signal::KILL);
    let mut another = way(kernel.pid());
    another.start_ticks += 1;
    let answer = perform_release(&Roots::default(), &another, &short_options());
    assert!(format!("{answer:?}").contains("no longer this kernel"), "{answer:?}");
}

/// Only the owner's rights give access to the directory, as on a file server that does not trust root.
#[test]
fn a_connection_file_is_read_with_its_owners_rights() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let python = or_skip!(python());
    let home = JupyterHome::new();
    let owned = home.path("home");
    fs::create_dir(&owned).unwrap();
    for path in [&home.path(""), &owned] {
        std::os::unix::fs::chown(path, Some(65_534), Some(65_534)).unwrap();
    }
    let (file, ready) = (owned.join("kernel-owned.json"), owned.join("kernel-owned.json.ready"));
    let mut command = home.command(&python);
    command.arg(script("hostile_kernel.py"));
    command.args(["silent", "-f"]).arg(&file);
    let running = Running::start(command.env("HOSTILE_USER", "65534"));
    support::wait_until("the kernel has written its file", || ready.exists());
    support::wait_until("the kernel is contacted", || {
        is_late(&perform_with(running.pid(), &short_options()))
    });
    // From here on, root can enter the directory, and the owner cannot.
    std::os::unix::fs::chown(&owned, Some(0), Some(0)).unwrap();
    fs::set_permissions(&owned, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let answer = perform_with(running.pid(), &short_options());
    assert!(is_no_way(&answer), "{answer:?}");
    assert!(format!("{answer:?}").contains("permission denied"), "{answer:?}");
}
