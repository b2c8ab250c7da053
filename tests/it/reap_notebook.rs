//! Kernels of real notebook servers are shut down through their servers. Some kernels exit, and others are restarted.
//! As in `reclaim`, the tests construct NVML's data.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use gpumem::api::host::Roots;
use gpumem::api::model::Kind;
use gpumem::api::reclaim::ledger::{Deed, LedgerSummary};
use gpumem::api::reclaim::{
    Because, KernelAtServer as Planned, Outcome, Reason, RequestResult, Signal, Step, Target,
    ask_server,
};
use rustix::process::Signal as OsSignal;
use serde_json::{Value, json};

use crate::machine::{Machine, Running, one_gpu};
use crate::notebook::{JupyterHome, Kernel, Server, TOKEN, assert_no_secret, jupyter, script};
use crate::procs;
use crate::reclaim::{GIB, Stage, is_freed, signals_to};
use crate::support::{self, PATIENCE, wait_until};

pub mod kinds;

/// A password, and the hash that Jupyter stores (`sha1:SALT:HASH`).
const PASSWORD: &str = "open sesame";
const HASHED: &str = "sha1:0123456789ab:fd010cf6748116b1f90db728b0c26bcb33e079b8";

pub fn server(more: &[&str]) -> Option<Server> {
    let token = format!("--IdentityProvider.token={TOKEN}");
    Server::start(&[&[&*token], more].concat())
}

/// Opens a notebook, executes a cell, and waits until the kernel is idle.
pub fn idle_kernel(server: &Server) -> Kernel {
    let kernel = server.open("a.ipynb");
    assert!(server.start_code(&kernel, "x = 1").0.wait().unwrap().success());
    wait_until("the kernel is idle", || state(server, &kernel) == "idle");
    kernel
}

/// Returns the state of a kernel, according to the server.
fn state(server: &Server, kernel: &Kernel) -> String {
    let model = server.request("GET", &format!("/api/kernels/{}", kernel.id), &Value::Null);
    model["execution_state"].as_str().unwrap().to_owned()
}

/// Makes a kernel execute a cell that ends when the file `done` exists.
pub fn start_busy_cell(server: &Server, kernel: &Kernel) -> Running {
    let done = server.home.path("done");
    let code = format!("import os, time\nwhile not os.path.exists({done:?}): time.sleep(0.01)");
    let driver = server.start_code(kernel, &code);
    wait_until("the kernel is busy", || state(server, kernel) == "busy");
    driver
}

/// Changes the target as if a rule had found it.
fn as_found(mut target: Target) -> Target {
    target.reason = Reason::Found {
        findings: vec![Because {
            id: "idle".into(),
            rule: "idle".into(),
            kind: Kind::Idle,
            pid: target.leader,
            since: gpumem::api::model::Time::from_unix_milliseconds(0),
            message: String::new(),
            evidence: Value::Null,
        }],
    };
    target
}

fn planned_kernel(target: &mut Target) -> &mut Planned {
    match target.steps.first_mut() {
        Some(Step::ShutKernel { kernel, .. }) => kernel,
        other => panic!("{other:?}"),
    }
}

/// Returns the errors of the shutdown request in the audit log, or `None` if no request was made.
fn shutdown_errors(past: &LedgerSummary) -> Option<Vec<String>> {
    let deeds = past.acts.iter().flat_map(|act| &act.deeds);
    let mut requests = deeds.filter(|record| matches!(record.deed, Deed::ShutKernel { .. }));
    let failures = requests.next()?.failures.as_ref().unwrap();
    assert!(requests.next().is_none(), "{past:?}");
    let errors: Vec<String> = failures.iter().map(|failure| failure.error.clone()).collect();
    let all = format!("{past:?}");
    assert_no_secret(&[&all]);
    Some(errors)
}

/// Returns the server's lists of kernels and sessions.
fn kernels_and_sessions(server: &Server) -> (Value, Value) {
    let get = |path| server.request("GET", path, &Value::Null);
    (get("/api/kernels"), get("/api/sessions"))
}

/// These checks share a server, because starting a server is slow. Each check ends its kernel, and the last check
/// kills the server.
#[test]
fn a_notebook_server_ends_its_kernels() {
    let mut server = or_skip!(server(&[]));
    assert_an_idle_kernel_is_shut_down(&server);
    assert_reap_shuts_a_kernel_down(&server);
    assert_a_busy_kernel_needs_a_named_target(&server);
    assert_a_recently_busy_kernel_is_left_alone(&server);
    assert_a_forked_process_does_not_end_its_kernel(&server);
    assert_a_restarted_kernel_is_not_the_target(&server);
    assert_a_signalled_kernel_is_restarted(&server);
    assert_a_kernel_without_its_server_is_signalled(&mut server);
}

/// Deletes a kernel after a check. Repeats the request, because a kernel that is restarting survives it.
fn shut_down(server: &Server, kernel: &Kernel) {
    let authorization = format!("Authorization: token {TOKEN}\r\n");
    wait_until("the server has no kernel", || {
        let path = format!("/api/kernels/{}", kernel.id);
        server.answer("DELETE", &path, &Value::Null, &authorization);
        kernels_and_sessions(server) == (json!([]), json!([]))
    });
}

fn assert_an_idle_kernel_is_shut_down(server: &Server) {
    let kernel = idle_kernel(server);
    let mut stage = Stage::new(&[kernel.pid]);
    let target = as_found(stage.target());
    let (outcome, past) = stage.act(target);
    let freed = matches!(outcome, Outcome::Freed { bytes: GIB, .. });
    assert!(freed, "{outcome:?}");
    assert_eq!(shutdown_errors(&past), Some(vec![]));
    assert!(signals_to(&past, kernel.pid).is_empty(), "{past:?}");
    assert_eq!(kernels_and_sessions(server), (json!([]), json!([])));
    assert!(!kernel.connection_file.exists());
}

fn assert_reap_shuts_a_kernel_down(server: &Server) {
    let kernel = idle_kernel(server);
    let machine = Machine::new(&one_gpu(&[kernel.pid]));
    let (process, scene) = (format!("/proc/{}", kernel.pid), machine.path("scene.json"));
    thread::spawn(move || {
        while fs::exists(&process).unwrap_or(false) {
            thread::sleep(Duration::from_millis(10));
        }
        // Ignore the error: the test can end first and remove the directory.
        let _ = one_gpu(&[]).write(&scene);
    });
    let output = machine.act(&["reap", "--yes", "--json", "--pid", &kernel.pid.to_string()]);
    let ledger = fs::read_to_string(machine.path("state/reap.jsonl")).unwrap_or_default();
    assert_no_secret(&[&output.stdout, &output.stderr, &ledger]);
    let report = output.json();
    if machine.snapshot(0).0["host"]["pid_namespace"] != "host" {
        // In another pid namespace, only an open GPU file would confirm the kernel's pid, and the kernel has none open.
        let reason = &report["refused"][0]["why"]["protection"]["reason"];
        assert_eq!(reason, "other_namespace", "{output:?}");
        assert_eq!(state(server, &kernel), "idle");
        return shut_down(server, &kernel);
    }
    assert_eq!(output.code, 0, "{output:?}");
    assert_eq!(report["freed_bytes"], 2 * GIB);
    assert_eq!(kernels_and_sessions(server), (json!([]), json!([])));
    assert!(!ledger.contains("SIGTERM"), "{ledger}");
}

fn assert_a_busy_kernel_needs_a_named_target(server: &Server) {
    let kernel = idle_kernel(server);
    let mut stage = Stage::new(&[kernel.pid]);
    let target = stage.target();
    let _driver = start_busy_cell(server, &kernel);
    let (outcome, past) = stage.act(as_found(target.clone()));
    assert_eq!(outcome, Outcome::RuleNoLongerTrue);
    assert_eq!(shutdown_errors(&past).unwrap(), ["it is working"]);
    assert!(signals_to(&past, kernel.pid).is_empty(), "{past:?}");
    assert_eq!(state(server, &kernel), "busy");

    let (outcome, _) = stage.act(target);
    assert!(is_freed(&outcome), "{outcome:?}");
    assert_eq!(kernels_and_sessions(server), (json!([]), json!([])));
}

fn assert_a_recently_busy_kernel_is_left_alone(server: &Server) {
    let kernel = idle_kernel(server);
    let mut stage = Stage::new(&[kernel.pid]);
    let mut target = as_found(stage.target());
    let model = server.request("GET", &format!("/api/kernels/{}", kernel.id), &Value::Null);
    let active = model["last_activity"].as_str().unwrap().parse().unwrap();
    planned_kernel(&mut target).last_activity = Some(active);
    assert!(server.start_code(&kernel, "x = 2").0.wait().unwrap().success());
    wait_until("the kernel is idle again", || state(server, &kernel) == "idle");
    let (outcome, past) = stage.act(target);
    assert_eq!(outcome, Outcome::RuleNoLongerTrue, "{past:?}");
    assert_eq!(state(server, &kernel), "idle");
    shut_down(server, &kernel);
}

fn assert_a_signalled_kernel_is_restarted(server: &Server) {
    let kernel = idle_kernel(server);
    let mut stage = Stage::new(&[kernel.pid]);
    // `--direct` kills the kernel without a request to the server.
    stage.guard.policy.direct = true;
    stage.guard.policy.signal = Some(Signal::Term);
    let mut target = stage.target();
    // On a busy machine, the server restarts kernels later than a plan assumes.
    target.respawn_seconds = PATIENCE.as_secs_f64() / 2.0;
    let (outcome, past) = stage.act(target);
    assert_eq!(shutdown_errors(&past), None);
    assert_eq!(signals_to(&past, kernel.pid), [Signal::Term]);
    let Outcome::Respawned { pid, .. } = outcome else {
        panic!("{outcome:?}");
    };
    let restarted = server.home.pid_with(&format!("kernel-{}.json", kernel.id));
    assert!(pid == restarted && pid != kernel.pid);
    let (kernels, _) = kernels_and_sessions(server);
    assert_eq!(kernels[0]["id"], kernel.id);
    shut_down(server, &kernel);
}

fn assert_a_restarted_kernel_is_not_the_target(server: &Server) {
    let kernel = idle_kernel(server);
    let mut stage = Stage::new(&[kernel.pid]);
    let mut target = stage.target();
    let path = format!("/api/kernels/{}/restart", kernel.id);
    server.request("POST", &path, &json!({}));
    let answer = ask_server(&Roots::default(), planned_kernel(&mut target), true, &[]);
    let RequestResult::Failed(reason) = answer else {
        panic!("{answer:?}");
    };
    assert!(reason.contains("not kernel") && reason.contains("new plan"), "{reason}");
    let (outcome, past) = stage.act(target);
    assert_eq!(outcome, Outcome::AlreadyGone);
    assert_eq!(shutdown_errors(&past), None);
    let (kernels, _) = kernels_and_sessions(server);
    assert_eq!(kernels[0]["id"], kernel.id);
    shut_down(server, &kernel);
}

fn assert_a_forked_process_does_not_end_its_kernel(server: &Server) {
    let kernel = idle_kernel(server);
    let fork = server.home.path("fork");
    let code = format!(
        "import os, time\npid = os.fork()\nif pid == 0:\n    os.setsid()\n    time.sleep(600)\n\
         open({fork:?}, 'w').write(str(pid))"
    );
    assert!(server.start_code(&kernel, &code).0.wait().unwrap().success());
    let fork: u32 = fs::read_to_string(fork).unwrap().parse().unwrap();
    // `ps` names the fork as a worker of the notebook.
    let machine = Machine::new(&one_gpu(&[kernel.pid, fork]));
    wait_until("kernel and worker are named", || {
        let output = machine.run(&["ps"]);
        ["[notebook a.ipynb]", "[worker of notebook a.ipynb]"]
            .iter()
            .all(|name| output.stdout.matches(name).count() == 1)
    });
    let mut target = Stage::new(&[kernel.pid]).target();
    let kernel_step = planned_kernel(&mut target);
    kernel_step.pid = fork;
    kernel_step.start_ticks =
        gpumem::api::host::read_start_ticks("/proc".as_ref(), fork).unwrap().unwrap();
    let answer = ask_server(&Roots::default(), kernel_step, true, &[]);
    let RequestResult::Restarts(reason) = answer else {
        panic!("{answer:?}");
    };
    let expected = format!("process {} was started as the same kernel", kernel.pid);
    assert!(reason.contains(&expected), "{reason}");
    assert_eq!(state(server, &kernel), "idle");
    procs::send(fork, OsSignal::KILL);
    shut_down(server, &kernel);
}

#[test]
fn a_kernel_of_a_password_server_is_left_to_its_server() {
    let hashed = format!("--PasswordIdentityProvider.hashed_password={HASHED}");
    let server = or_skip!(Server::start(&[&hashed, "--IdentityProvider.token="]));
    let url = format!("http://localhost:{}/", server.file["port"]);
    let mut login = Command::new(&server.python);
    login.arg(script("login.py")).args([&url, PASSWORD, "a.ipynb"]);
    let login = support::finish(&mut login).exits(0);
    let kernel = server.kernel(login.stdout.trim());
    let mut stage = Stage::new(&[kernel.pid]);
    // The server accepts only a password, which gpumem does not know. The shutdown request therefore fails, and
    // gpumem sends no signal.
    let (outcome, past) = stage.end();
    let errors = shutdown_errors(&past).unwrap();
    assert!(errors[0].contains("only a password"), "{errors:?}");
    assert!(signals_to(&past, kernel.pid).is_empty(), "{past:?}");
    assert!(!outcome.is_success());
    let file = format!("kernel-{}.json", kernel.id);
    assert_eq!(server.home.pid_with(&file), kernel.pid);
}

fn assert_a_kernel_without_its_server_is_signalled(server: &mut Server) {
    let kernel = idle_kernel(server);
    let mut stage = Stage::new(&[kernel.pid]);
    let target = stage.target();
    // Stop the kernel with SIGSTOP, because it would exit when it notices that its parent has died.
    procs::send(kernel.pid, OsSignal::STOP);
    server.running.0.kill().unwrap();
    server.running.0.wait().unwrap();
    let file = format!("runtime/jpserver-{}.json", server.running.pid());
    assert!(server.home.path(&file).exists(), "the stale file remains");
    // A new plan signals the kernel, because no server can restart it.
    let new_target = stage.target();
    assert!(!new_target.is_advice(), "{new_target:?}");
    let (outcome, past) = stage.act(target);
    assert!(is_freed(&outcome), "{outcome:?}");
    let errors = shutdown_errors(&past).unwrap();
    assert!(errors[0].contains("has exited"), "{errors:?}");
    assert_eq!(signals_to(&past, kernel.pid), [Signal::Term, Signal::Cont]);
}

#[test]
fn an_unresponsive_server_gets_one_request() {
    let home = JupyterHome::new();
    let fake = or_skip!(home.fake_server(&["deaf"]));
    let shut_requests = || {
        let requests = fs::read_to_string(home.path("requests")).unwrap_or_default();
        requests.matches("DELETE ").count()
    };
    // On a busy machine, an earlier answer can be late, and gpumem then does not request the shutdown.
    wait_until("a shutdown request was sent", || {
        let (_, past) = Stage::new(&[fake.kernel]).end();
        assert!(signals_to(&past, fake.kernel).is_empty(), "{past:?}");
        shut_requests() > 0
    });
    assert_eq!(shut_requests(), 1);
}

#[test]
fn an_external_kernel_is_not_shut_down_by_the_server() {
    let external = tempfile::tempdir().unwrap();
    let folder = external.path().display();
    let allow = [
        "--ServerApp.allow_external_kernels=True".to_owned(),
        format!("--ServerApp.external_connection_dir={folder}"),
    ];
    let server = or_skip!(server(&[&allow[0], &allow[1]]));
    let id = "0a1b2c3d-0123-4567-89ab-00aa11bb22cc";
    let file = external.path().join(format!("kernel-{id}.json"));
    let code = format!(
        "import time\nfrom jupyter_client import KernelManager\n\
         manager = KernelManager(connection_file={:?})\nmanager.start_kernel()\ntime.sleep(600)",
        file.display().to_string()
    );
    let mut command = server.home.command(&server.python);
    let program = Running::start(command.args(["-c", &code]));
    wait_until("the kernel has started", || file.exists() && pid_of(&file).is_some());
    let kernel = pid_of(&file).unwrap();
    wait_until("the server lists the kernel", || {
        let (kernels, _) = kernels_and_sessions(&server);
        kernels.as_array().is_some_and(|kernels| kernels.len() == 1)
    });
    let mut stage = Stage::new(&[kernel]);
    let target = stage.target();
    assert!(matches!(target.steps[0], Step::Signal { .. }), "{target:?}");
    let (outcome, past) = stage.act(target);
    assert!(is_freed(&outcome), "{outcome:?}");
    assert_eq!(shutdown_errors(&past), None);
    drop(program);
}

/// Returns the process whose command line contains this connection file.
fn pid_of(file: &std::path::Path) -> Option<u32> {
    let file = file.to_str()?;
    let all = gpumem::api::host::read_all(&Roots::default()).ok()?;
    let is_kernel = |pid: &u32| {
        let argv = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let argv = String::from_utf8_lossy(&argv);
        argv.contains("ipykernel_launcher") && argv.contains(file)
    };
    all.iter().map(|process| process.pid).find(is_kernel)
}

#[test]
fn a_papermill_kernel_is_signalled_and_papermill_fails() {
    let python = or_skip!(support::python_with(&["papermill", "ipykernel"]));
    let home = JupyterHome::new();
    let mut batch = home.run_batch(&python, &["-m", "papermill", "a.ipynb", "out.ipynb"]);
    let mut stage = Stage::new(&[batch.kernel]);
    let target = stage.target();
    assert!(matches!(target.steps[0], Step::Signal { .. }), "{target:?}");
    assert_eq!(target.respawn_seconds, 0.0);
    let pids: Vec<u32> = target.members.iter().map(|member| member.pid).collect();
    assert_eq!(pids, [batch.kernel]);
    let (outcome, past) = stage.act(target);
    assert!(is_freed(&outcome), "{outcome:?}");
    assert_eq!(shutdown_errors(&past), None);
    let status = batch.running.0.wait().unwrap();
    assert!(!status.success(), "{status:?}");
}
