//! Real servers of several kinds: without token and password, with a certificate, in another network namespace, and
//! without a server file.

use super::*;

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

/// Brings the loopback device up, and executes the remaining arguments.
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

#[test]
fn kernel_gateway_kernels_are_left_to_their_client() {
    let python = or_skip!(support::python_with(&["kernel_gateway", "ipykernel"]));
    let home = JupyterHome::new();
    let port = support::free_port();
    let mut command = home.command(&python);
    command.args(["-m", "kernel_gateway"]);
    let port_flag = format!("--KernelGatewayApp.port={port}");
    let gateway = Running::start(command.args([&port_flag, "--KernelGatewayApp.port_retries=0"]));
    let url = format!("http://127.0.0.1:{port}/api/kernels");
    wait_until("a kernel is started", || {
        let mut start = Command::new(&python);
        start.args(["-c", "import sys, urllib.request as r; r.urlopen(sys.argv[1], b'{}')"]);
        support::finish(start.arg(&url)).code == 0
    });
    let kernel = home.pid_with("ipykernel_launcher");
    let facts = assert_left_alone(kernel);
    assert_eq!(facts["application"], "kernelgateway", "{facts}");
    assert_eq!(facts["server_pid"], gateway.pid());
}

#[test]
fn a_kernel_started_by_hand_is_reported_only() {
    let python = or_skip!(support::python_with(&["ipykernel"]));
    let home = JupyterHome::new();
    let mut command = home.command(&python);
    let running = Running::start(command.args(["-m", "ipykernel"]));
    let kernel = running.pid();
    wait_until("the connection file exists", || {
        let entries = fs::read_dir(home.path("runtime"));
        entries.is_ok_and(|entries| entries.count() > 0)
    });
    let machine = Machine::new(&one_gpu(&[kernel]));
    machine.configure("[rules.idle]\nmin_memory = \"1GiB\"\nduration = \"2s\"\n");
    let mut check = machine.run(&["check", "--json", "--window", "6s", "--interval", "200ms"]);
    wait_until("the kernel is idle", || {
        check = machine.run(&["check", "--json", "--window", "6s", "--interval", "200ms"]);
        check.code == 1
    });
    let finding = &check.json()["findings"][0];
    assert_eq!(finding["actions"], json!(["notify"]), "{finding}");
    let advice = finding["advice"].to_string();
    assert!(advice.contains(&format!("`kill {kernel}`")), "{advice}");
    // No server restarts this kernel.
    let target = Stage::new(&[kernel]).target();
    assert!(matches!(target.steps[0], Step::Signal { .. }), "{target:?}");
    assert_eq!(target.respawn_seconds, 0.0);
}
