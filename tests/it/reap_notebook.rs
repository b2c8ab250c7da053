//! Kernels of real notebook servers are shut down through their servers. Some kernels exit, and others are restarted.
//! As in `reclaim`, the tests construct NVML's data.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use gpumem::api::host::{Roots, read_all};
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

/// The server lists the kernel, but did not start it and would not restart it.
#[test]
fn an_external_kernel_is_not_shut_down_by_the_server() {
    let external = tempfile::tempdir().unwrap();
    let folder = format!("--ServerApp.external_connection_dir={}", external.path().display());
    let server = or_skip!(server(&["--ServerApp.allow_external_kernels=True", &folder]));
    let file = external.path().join("kernel-0a1b2c3d-0123-4567-89ab-00aa11bb22cc.json");
    let code = format!(
        "import time\nfrom jupyter_client import KernelManager\n\
         manager = KernelManager(connection_file={file:?})\nmanager.start_kernel()\ntime.sleep(600)"
    );
    let mut command = server.home.command(&server.python);
    let _program = Running::start(command.args(["-c", &code]));
    let argument = format!("-f\0{}\0", file.display());
    let is_kernel = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|argv| argv.contains(&argument))
    };
    let mut kernel = None;
    wait_until("the kernel has started", || {
        let all = read_all(&Roots::default()).unwrap();
        kernel = all.iter().map(|process| process.pid).find(is_kernel);
        kernel.is_some()
    });
    wait_until("the server lists the kernel", || {
        kernels_and_sessions(&server).0.as_array().is_some_and(|kernels| kernels.len() == 1)
    });
    assert_signalled(kernel.unwrap());
}

#[test]
fn a_papermill_kernel_is_signalled_and_papermill_fails() {
    let python = or_skip!(support::python_with(&["papermill", "ipykernel"]));
    let home = JupyterHome::new();
    let mut batch = home.run_batch(&python, &["-m", "papermill", "a.ipynb", "out.ipynb"]);
    let target = assert_signalled(batch.kernel);
    let pids: Vec<u32> = target.members.iter().map(|member| member.pid).collect();
    assert_eq!((pids, target.respawn_seconds), (vec![batch.kernel], 0.0));
    assert!(!batch.running.0.wait().unwrap().success());
}

/// Asserts that a kernel, which no server would restart, is ended with signals.
fn assert_signalled(kernel: u32) -> Target {
    let mut stage = Stage::new(&[kernel]);
    let target = stage.target();
    assert!(matches!(target.steps[0], Step::Signal { .. }), "{target:?}");
    let (outcome, past) = stage.act(target.clone());
    assert!(is_freed(&outcome), "{outcome:?}");
    assert_eq!(shutdown_errors(&past), None);
    target
}

#[test]
fn a_server_without_authentication_is_asked_with_its_cookie() {
    let server = or_skip!(Server::start(&["--IdentityProvider.token=", "--ServerApp.password="]));
    let kernel = idle_kernel(&server);
    // Without a token, the server rejects a request that lacks its XSRF cookie.
    let path = format!("/api/kernels/{}", kernel.id);
    assert!(server.answer("DELETE", &path, &Value::Null, "").contains("403"));
    assert_shut_down(&server, &kernel);
}

#[test]
fn a_server_on_a_unix_socket_shuts_its_kernel_down() {
    let folder = tempfile::tempdir().unwrap();
    let sock = folder.path().join("s");
    let server = or_skip!(server(&[&format!("--ServerApp.sock={}", sock.display())]));
    assert_shut_down(&server, &idle_kernel(&server));
}

/// Asserts that a rule's plan shuts a kernel down through the server.
fn assert_shut_down(server: &Server, kernel: &Kernel) {
    let mut stage = Stage::new(&[kernel.pid]);
    let target = as_found(stage.target());
    let (outcome, past) = stage.act(target);
    assert!(is_freed(&outcome), "{outcome:?} {past:?}");
    assert_eq!(shutdown_errors(&past), Some(vec![]));
    assert!(signals_to(&past, kernel.pid).is_empty(), "{past:?}");
    assert_eq!(kernels_and_sessions(server), (json!([]), json!([])));
}

#[test]
fn a_server_with_its_own_certificate_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let [certificate, key] = or_skip!(support::certificate(folder.path()));
    let flags =
        [format!("--ServerApp.certfile={certificate}"), format!("--ServerApp.keyfile={key}")];
    let server = or_skip!(server(&[&flags[0], &flags[1]]));
    assert_eq!(server.file["secure"], true);
    let kernel = idle_kernel(&server);
    let machine = Machine::new(&one_gpu(&[kernel.pid]));
    let facts = jupyter(&machine, kernel.pid);
    assert_eq!(facts["execution_state"], "idle", "{facts}");
    assert_eq!(facts["server_error"], Value::Null, "{facts}");
    let mut stage = Stage::new(&[kernel.pid]);
    // The action is cancelled if the kernel has become busy since the plan.
    let target = stage.target();
    let driver = start_busy_cell(&server, &kernel);
    let (outcome, _) = stage.act(as_found(target.clone()));
    assert_eq!(outcome, Outcome::RuleNoLongerTrue);
    drop(driver);
    let mut stage = Stage::new(&[kernel.pid]);
    let (outcome, past) = stage.act(target);
    assert!(is_freed(&outcome), "{outcome:?} {past:?}");
    assert_eq!(shutdown_errors(&past), Some(vec![]));
    assert!(signals_to(&past, kernel.pid).is_empty(), "{past:?}");
}

/// Brings the loopback device up, and executes the other arguments.
pub const WITH_LOOPBACK: &str = "
import fcntl, os, socket, struct, sys
with socket.socket() as control:
    fcntl.ioctl(control, 0x8914, struct.pack('16sh14x', b'lo', 0x41))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
";

/// Opens a notebook, and prints the id of the kernel. The arguments are the port and the token.
const OPEN: &str = "
import json, sys, urllib.request
session = {'path': 'a.ipynb', 'name': 'a', 'type': 'notebook', 'kernel': {'name': 'python3'}}
request = urllib.request.Request(
    f'http://127.0.0.1:{sys.argv[1]}/api/sessions', json.dumps(session).encode(),
    {'Authorization': 'token ' + sys.argv[2]})
print(json.load(urllib.request.urlopen(request))['kernel']['id'])
";

#[test]
fn a_server_in_another_network_is_asked_from_within() {
    let python = or_skip!(support::python_with(&["jupyter_server", "ipykernel"]));
    let (Some(unshare), Some(nsenter)) =
        (support::find("unshare", "util-linux"), support::find("nsenter", "util-linux"))
    else {
        return;
    };
    or_skip!(support::root("root"));
    let home = JupyterHome::new();
    fs::create_dir_all(home.path("work")).unwrap();
    let mut command = home.command(&unshare);
    command
        .args(["-pfn", "--mount-proc", "--kill-child"])
        .arg(&python)
        .args(["-c", WITH_LOOPBACK, "-m", "jupyter_server", "--no-browser"])
        .args(["--allow-root", &format!("--IdentityProvider.token={TOKEN}")])
        .arg(format!("--ServerApp.root_dir={}", home.path("work").display()));
    let _outer = Running::start(&mut command);
    let (_, file) = home.server_file();
    assert_eq!(file["pid"], 1);
    let inside = home.pids_with("-m\0jupyter_server\0--no-browser");
    let inside = inside.into_iter().find(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"))
    });
    let network = format!("--net=/proc/{}/ns/net", inside.unwrap());
    let mut id = String::new();
    wait_until("a notebook is opened", || {
        let mut open = home.command(&nsenter);
        open.arg(&network).arg(&python);
        open.args(["-c", OPEN, &file["port"].to_string(), TOKEN]);
        id = support::finish(&mut open).stdout.trim().to_owned();
        !id.is_empty()
    });
    let kernel = home.pid_with(&format!("kernel-{id}.json"));
    let machine = Machine::new(&one_gpu(&[kernel]));
    let mut facts = Value::Null;
    // The kernel's environment cannot be read immediately after exec.
    wait_until("the server has answered", || {
        facts = jupyter(&machine, kernel);
        facts["server_error"].is_null()
    });
    assert!(facts["execution_state"].is_string(), "{facts}");
    assert_eq!(facts["notebook_path"], "a.ipynb", "{facts}");
    let mut stage = Stage::new(&[kernel]);
    let (outcome, past) = stage.end();
    assert!(is_freed(&outcome), "{outcome:?} {past:?}");
    assert_eq!(shutdown_errors(&past), Some(vec![]));
    assert!(signals_to(&past, kernel).is_empty(), "{past:?}");
}

/// Asserts that the state of a kernel is unknown and that gpumem does not plan to kill the kernel. Returns the data
/// that gpumem reports about the kernel.
fn assert_left_alone(kernel: u32) -> Value {
    let machine = Machine::new(&one_gpu(&[kernel]));
    machine.configure("[rules.idle]\nmin_memory = \"1GiB\"\nduration = \"2s\"\n");
    let check = ["check", "--json", "--window", "6s", "--interval", "200ms"];
    let mut document = Value::Null;
    wait_until("the kernel is idle", || {
        document = machine.run(&check).exits(0).json();
        document["findings"][0].is_object()
    });
    let finding = &document["findings"][0];
    assert_eq!(finding["evidence"]["kernel_unknown"], true, "{document}");
    assert_eq!(finding["severity"], "info", "{finding}");
    assert_eq!(finding["actions"], json!(["notify"]), "{finding}");
    let mut stage = Stage::new(&[kernel]);
    let target = stage.target();
    assert!(target.is_advice(), "{target:?}");
    let (outcome, past) = stage.act(target);
    assert!(!outcome.is_success() && signals_to(&past, kernel).is_empty(), "{outcome:?}");
    jupyter(&machine, kernel)
}

#[test]
fn voila_kernels_are_left_to_voila() {
    let python = or_skip!(support::python_with(&["voila", "ipykernel"]));
    let home = JupyterHome::new();
    let notebook = json!({
        "cells": [{"cell_type": "code", "execution_count": null, "id": "a", "metadata": {},
                   "outputs": [], "source": "x = 1"}],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "", "language": "python"}},
        "nbformat": 4, "nbformat_minor": 5,
    });
    fs::write(home.path("a.ipynb"), notebook.to_string()).unwrap();
    let port = support::free_port();
    let mut command = home.command(&python);
    command.args(["-m", "voila", "--no-browser", &format!("--port={port}")]);
    // Voila keeps the connection files of its kernels in a subdirectory of TMPDIR.
    command.env("TMPDIR", home.path(""));
    let voila = Running::start(command.arg(home.path("a.ipynb")));
    // Like a browser, open the dashboard, which starts the kernel.
    let page = format!("http://127.0.0.1:{port}/");
    wait_until("the dashboard is shown", || {
        let mut get = Command::new(&python);
        get.args(["-c", "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).status)"]);
        support::finish(get.arg(&page)).code == 0
    });
    let kernel = home.pid_with("ipykernel_launcher");
    let facts = assert_left_alone(kernel);
    assert_eq!(facts["application"], "voila", "{facts}");
    assert_eq!(facts["server_pid"], voila.pid());
    assert_eq!(facts["server_alive"], true);
    assert!(facts["server_error"].as_str().unwrap().contains("voila"), "{facts}");
}
