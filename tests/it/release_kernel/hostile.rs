//! Kernels that are busy, stopped, hostile, or not who they seem: what is said of each, and that it is left alone.

use std::thread;
use std::time::{Duration, Instant};

use gpumem::api::reclaim::{NotReleased, ReleaseAnswer};
use rustix::process::Signal;

use super::*;
use crate::procs;

/// `hostile_kernel.py` in one of its modes.
struct Hostile {
    place: Place,
    running: Running,
}

impl Hostile {
    fn start(mode: &str, more: &[&str]) -> Option<Self> {
        let python = python()?;
        let place = Place::new();
        let file = place.path("kernel-hostile.json");
        let mut command = place.command(&python);
        command.arg(script("hostile_kernel.py")).args([mode, "-f"]);
        let running = Running::start(command.arg(&file).args(more));
        let ready = place.path("kernel-hostile.json.ready");
        support::wait_until("it has left its file", || ready.exists());
        Some(Self { place, running })
    }

    fn was_seen(&self) -> bool {
        self.place.path("kernel-hostile.json.seen").exists()
    }
}

fn short() -> ReleaseOptions {
    ReleaseOptions { wait_ms: 1500, ..options() }
}

/// What comes of a release, once a busy machine lets the kernel answer at all.
fn answer_of(pid: u32, options: &ReleaseOptions) -> ReleaseAnswer {
    let mut answer = perform_with(pid, options);
    support::wait_until("it answers", || {
        if is_busy(&answer) {
            answer = perform_with(pid, options);
        }
        !is_busy(&answer)
    });
    answer
}

/// A mode, what has to come of it, and a part of its words.
type Case = (&'static str, fn(&ReleaseAnswer) -> bool, &'static str);

/// What comes of a release of each of these, all at once.
fn check(modes: &[Case], is_asked: bool) {
    thread::scope(|scope| {
        for (mode, expected, word) in modes {
            scope.spawn(move || {
                let hostile = or_skip!(Hostile::start(mode, &[]));
                let is_right = |answer: &ReleaseAnswer| {
                    expected(answer) && format!("{answer:?}").contains(word)
                };
                let begun = Instant::now();
                let mut answer = perform_with(hostile.running.pid(), &short());
                // One that a busy machine has not let start yet.
                while !is_right(&answer)
                    && is_busy(&answer)
                    && begun.elapsed() < Duration::from_secs(60)
                {
                    answer = perform_with(hostile.running.pid(), &short());
                }
                assert!(is_right(&answer), "{mode}: {answer:?}");
                assert_eq!(hostile.was_seen(), is_asked, "{mode}");
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
fn a_file_that_is_not_to_be_trusted_is_not_followed() {
    check(
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
        check(&[("foreign", is_refused, "does not belong to")], false);
    }
}

#[test]
fn an_answer_that_is_none_is_told_from_silence() {
    check(
        &[
            ("wrong-signature", is_no_way, "not signed with the key"),
            ("garbage", is_no_way, "not a Jupyter message"),
            ("shapeless", is_no_way, "unexpected fields"),
            ("another-answer", is_no_way, "a execute_reply"),
            ("flood", is_no_way, "too many"),
            ("other", is_no_way, "IRkernel"),
            ("dies", is_no_way, "closed the connection"),
            ("lies", is_no_way, "not the recipe's report"),
            ("aborts", is_busy, "a cell failed in between"),
            ("silent", is_late, "it will not start later"),
        ],
        true,
    );
}

#[test]
fn a_message_of_any_length_costs_no_memory_and_no_time() {
    let begun = Instant::now();
    check(
        &[
            ("giant", is_no_way, "too long"),
            ("endless", is_no_way, "too long"),
            ("noise", is_no_way, "ZeroMQ"),
            ("dumb", is_busy, "did not answer"),
        ],
        true,
    );
    assert!(begun.elapsed() < support::PATIENCE);
}

#[test]
fn a_kernel_on_a_unix_socket_is_asked_there() {
    check(&[("ipc", is_late, "did not answer")], true);
}

#[test]
fn a_port_that_a_stranger_has_is_not_spoken_to() {
    let stranger = or_skip!(Hostile::start("silent", &[]));
    let file = fs::read(stranger.place.path("kernel-hostile.json")).unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    let port = file["shell_port"].to_string();
    let kernel = Hostile::start("stranger", &[&port]).unwrap();
    let answer = perform_with(kernel.running.pid(), &short());
    assert!(is_refused(&answer), "{answer:?}");
    assert!(format!("{answer:?}").contains("does not listen"), "{answer:?}");
    assert!(!stranger.was_seen());
}

/// Each leaves the kernel as the next one needs it; the last ends it.
#[test]
fn a_real_kernel_that_is_in_the_way_of_a_release() {
    let kernel = or_skip!(RawKernel::start("kernel-raw.json"));
    let mut client = kernel.client();
    a_wrong_key_is_silence_and_changes_nothing(&kernel, &mut client);
    one_that_runs_a_cell_or_is_stopped_is_left_alone(&kernel, &mut client);
    a_request_that_it_comes_to_too_late_does_nothing(&kernel, &mut client);
    a_recipe_that_raises_or_never_ends_is_said_so(&kernel, &mut client);
    what_it_has_forked_and_another_process_of_its_number_are_not_it(&kernel, &mut client);
    one_that_dies_in_the_middle_is_seen_to(&kernel, &mut client);
}

fn a_wrong_key_is_silence_and_changes_nothing(kernel: &RawKernel, client: &mut Client) {
    client.run("x = 1");
    let before = client.state();
    let text = fs::read_to_string(&kernel.file).unwrap();
    let mut file: Value = serde_json::from_str(&text).unwrap();
    file["key"] = json!("another");
    fs::write(&kernel.file, file.to_string()).unwrap();
    assert!(is_busy(&perform_with(kernel.pid(), &short())));
    assert_eq!(client.state(), before);
    fs::write(&kernel.file, text).unwrap();
}

fn one_that_runs_a_cell_or_is_stopped_is_left_alone(kernel: &RawKernel, client: &mut Client) {
    client.run("import torch, os, time\na = torch.empty(25 << 20, device='cuda')\ndel a");
    let whole = kernel.used();
    let done = kernel.place.path("cell-is-done");
    let code = format!("while not os.path.exists({done:?}): time.sleep(0.01)");
    client.ask(&json!({"start": code}));
    support::wait_until("it is busy", || is_busy(&probe(kernel.pid())));
    let begun = Instant::now();
    let answer = perform_with(kernel.pid(), &options());
    assert!(is_busy(&answer), "{answer:?}");
    // It is not waited for beyond the probe.
    assert!(begun.elapsed() < Duration::from_secs(25));
    assert_eq!(kernel.used(), whole);
    fs::write(&done, "").unwrap();
    client.run("pass");
    assert_eq!(kernel.used(), whole, "nothing was left behind that ran later");
    procs::send(kernel.pid(), Signal::STOP);
    let answer = perform_with(kernel.pid(), &short());
    assert!(is_busy(&answer), "{answer:?}");
    procs::send(kernel.pid(), Signal::CONT);
    released(kernel.pid(), &options());
    assert_eq!(kernel.used(), whole.map(|bytes| bytes - 100 * MIB));
}

fn a_request_that_it_comes_to_too_late_does_nothing(kernel: &RawKernel, client: &mut Client) {
    // The kernel is held up before the recipe, as by a cell that began in between.
    client.run(
        "import torch, time, builtins\na = torch.empty(25 << 20, device='cuda')\ndel a\ncame = []\nreal = exec\n\
         def hold(source, *rest):\n    if str(source).startswith('T ='):\n        time.sleep(3)\n        came.append(1)\n    \
         return real(source, *rest)\nbuiltins.exec = hold",
    );
    let whole = kernel.used();
    let answer = answer_of(kernel.pid(), &short());
    assert!(is_late(&answer), "{answer:?}");
    assert_eq!(client.run("print(len(came))"), "1\n", "it came to the request");
    assert_eq!(kernel.used(), whole);
    client.run("builtins.exec = real");
}

fn a_recipe_that_raises_or_never_ends_is_said_so(kernel: &RawKernel, client: &mut Client) {
    // IPython itself runs cells by the same function.
    client.run(
        "import builtins, os, time\nreal = exec\ndef fail(): raise RuntimeError('no')\nwork = fail\n\
         def instead(source, *rest):\n    if str(source).startswith('T ='): work()\n    return real(source, *rest)\n\
         builtins.exec = instead",
    );
    let answer = answer_of(kernel.pid(), &options());
    assert!(is_no_way(&answer), "{answer:?}");
    assert!(format!("{answer:?}").contains("the script failed in the kernel: RuntimeError: no"));
    let done = kernel.place.path("done");
    client.run(&format!("def work():\n    while not os.path.exists({done:?}): time.sleep(0.01)"));
    let answer = answer_of(kernel.pid(), &short());
    assert!(is_late(&answer), "{answer:?}");
    fs::write(&done, "").unwrap();
    client.run("builtins.exec = real");
    released(kernel.pid(), &options());
}

fn one_that_dies_in_the_middle_is_seen_to(kernel: &RawKernel, client: &mut Client) {
    client.run(
        "import builtins, time\nreal = exec\n\
         builtins.exec = lambda source, *rest: time.sleep(60) if str(source).startswith('T =') else real(source, *rest)",
    );
    let pid = kernel.pid();
    let killer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(700));
        procs::send(pid, Signal::KILL);
    });
    let begun = Instant::now();
    let answer = perform_with(pid, &options());
    killer.join().unwrap();
    assert!(is_no_way(&answer), "{answer:?}");
    assert!(begun.elapsed() < Duration::from_secs(25), "it is not waited for");
}

fn what_it_has_forked_and_another_process_of_its_number_are_not_it(
    kernel: &RawKernel,
    client: &mut Client,
) {
    let text = client.run(
        "import os, time\npid = os.fork()\nif pid == 0:\n    time.sleep(600)\n    os._exit(0)\nprint(pid)",
    );
    let fork: u32 = text.trim().parse().unwrap();
    let answer = perform_with(fork, &short());
    assert!(is_no_way(&answer), "{answer:?}");
    assert!(format!("{answer:?}").contains(&format!("process {}", kernel.pid())));
    procs::send(fork, Signal::KILL);
    let mut another = way(kernel.pid());
    another.start_ticks += 1;
    let answer = perform_release(&Roots::default(), &another, &short());
    assert!(format!("{answer:?}").contains("no longer this kernel"), "{answer:?}");
}

/// A home that only its owner may read, as one on a server that does not trust root.
#[test]
fn a_file_is_read_with_the_rights_of_its_owner() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let python = or_skip!(python());
    let place = Place::new();
    let home = place.path("home");
    fs::create_dir(&home).unwrap();
    for path in [&place.path(""), &home] {
        std::os::unix::fs::chown(path, Some(65_534), Some(65_534)).unwrap();
    }
    let (file, ready) = (home.join("kernel-owned.json"), home.join("kernel-owned.json.ready"));
    let mut command = place.command(&python);
    command.arg(script("hostile_kernel.py"));
    command.args(["silent", "-f"]).arg(&file);
    let running = Running::start(command.env("HOSTILE_USER", "65534"));
    support::wait_until("it has left its file", || ready.exists());
    support::wait_until("it is spoken to", || is_late(&perform_with(running.pid(), &short())));
    // A folder on the way that root may enter and the owner may not any more.
    std::os::unix::fs::chown(&home, Some(0), Some(0)).unwrap();
    fs::set_permissions(&home, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let answer = perform_with(running.pid(), &short());
    assert!(is_no_way(&answer), "{answer:?}");
    assert!(format!("{answer:?}").contains("Permission denied"), "{answer:?}");
}
