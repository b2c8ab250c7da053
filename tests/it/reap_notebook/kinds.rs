//! Servers of every kind, as real programs: without token and password, with a certificate of their own, in a
//! network of their own, and those that leave no file.

use super::*;

#[test]
fn a_server_without_token_and_password_is_shown_what_its_own_pages_carry() {
    let server = or_skip!(Server::start(&["--IdentityProvider.token=", "--ServerApp.password="]));
    let kernel = idle(&server);
    // It refuses who does not come from a page of its own.
    let path = format!("/api/kernels/{}", kernel.id);
    assert!(server.answer("DELETE", &path, &Value::Null, "").contains("403"));
    is_shut(&server, &kernel);
}

#[test]
fn a_server_on_a_unix_socket_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let sock = folder.path().join("s");
    let server = or_skip!(server(&[&format!("--ServerApp.sock={}", sock.display())]));
    is_shut(&server, &idle(&server));
}

/// Has a rule's plan end a kernel: its server does.
fn is_shut(server: &Server, kernel: &Kernel) {
    let mut stage = Stage::new(&[kernel.pid]);
    let target = found(stage.target());
    let (outcome, past) = stage.act(target);
    assert!(is_freed(&outcome), "{outcome:?} {past:?}");
    assert_eq!(asked(&past), Some(vec![]));
    assert!(sent(&past, kernel.pid).is_empty(), "{past:?}");
    assert_eq!(shown(server), (json!([]), json!([])));
}

#[test]
fn a_server_with_a_certificate_of_its_own_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let [certificate, key] = or_skip!(support::certificate(folder.path()));
    let flags =
        [format!("--ServerApp.certfile={certificate}"), format!("--ServerApp.keyfile={key}")];
    let server = or_skip!(server(&[&flags[0], &flags[1]]));
    assert_eq!(server.file["secure"], true);
    let kernel = idle(&server);
    let machine = Machine::new(&one_gpu(&[kernel.pid]));
    let known = jupyter(&machine, kernel.pid);
    assert_eq!(known["execution_state"], "idle", "{known}");
    assert_eq!(known["server_error"], Value::Null, "{known}");
    let mut stage = Stage::new(&[kernel.pid]);
    // One that works is left alone.
    let target = stage.target();
    let driver = busy(&server, &kernel);
    let (outcome, _) = stage.act(found(target.clone()));
    assert_eq!(outcome, Outcome::RuleNoLongerTrue);
    drop(driver);
    let mut stage = Stage::new(&[kernel.pid]);
    let (outcome, past) = stage.act(target);
    assert!(is_freed(&outcome), "{outcome:?} {past:?}");
    assert_eq!(asked(&past), Some(vec![]));
    assert!(sent(&past, kernel.pid).is_empty(), "{past:?}");
}

/// Brings the loopback up, and becomes the rest of its arguments.
pub const WITH_LOOPBACK: &str = "
import fcntl, os, socket, struct, sys
with socket.socket() as any:
    fcntl.ioctl(any, 0x8914, struct.pack('16sh14x', b'lo', 0x41))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
";

/// Opens a notebook: PORT TOKEN. Prints the kernel's id.
const OPEN: &str = "
import json, sys, urllib.request
session = {'path': 'a.ipynb', 'name': 'a', 'type': 'notebook', 'kernel': {'name': 'python3'}}
request = urllib.request.Request(
    f'http://127.0.0.1:{sys.argv[1]}/api/sessions', json.dumps(session).encode(),
    {'Authorization': 'token ' + sys.argv[2]})
print(json.load(urllib.request.urlopen(request))['kernel']['id'])
";

#[test]
fn a_server_in_a_network_of_its_own_is_asked_from_within() {
    let python = or_skip!(support::python_with(&["jupyter_server", "ipykernel"]));
    let (Some(unshare), Some(nsenter)) =
        (support::find("unshare", "util-linux"), support::find("nsenter", "util-linux"))
    else {
        return;
    };
    or_skip!(support::root("root"));
    let place = Place::new();
    fs::create_dir_all(place.path("work")).unwrap();
    let mut command = place.command(&unshare);
    command
        .args(["-pfn", "--mount-proc", "--kill-child"])
        .arg(&python)
        .args(["-c", WITH_LOOPBACK, "-m", "jupyter_server", "--no-browser"])
        .args(["--allow-root", &format!("--IdentityProvider.token={TOKEN}")])
        .arg(format!("--ServerApp.root_dir={}", place.path("work").display()));
    let _outer = Running::start(&mut command);
    let (_, file) = place.server_file();
    assert_eq!(file["pid"], 1);
    let inside = place.pids_with("-m\0jupyter_server\0--no-browser");
    let inside = inside.into_iter().find(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"))
    });
    let network = format!("--net=/proc/{}/ns/net", inside.unwrap());
    let mut id = String::new();
    wait_until("a notebook is opened", || {
        let mut open = place.command(&nsenter);
        open.arg(&network).arg(&python);
        open.args(["-c", OPEN, &file["port"].to_string(), TOKEN]);
        id = support::finish(&mut open).stdout.trim().to_owned();
        !id.is_empty()
    });
    let kernel = place.pid_with(&format!("kernel-{id}.json"));
    let machine = Machine::new(&one_gpu(&[kernel]));
    let mut known = Value::Null;
    // A kernel that has just started has no environment to read for a moment.
    wait_until("its server is asked", || {
        known = jupyter(&machine, kernel);
        known["server_error"].is_null()
    });
    assert!(known["execution_state"].is_string(), "{known}");
    assert_eq!(known["notebook_path"], "a.ipynb", "{known}");
    let mut stage = Stage::new(&[kernel]);
    let (outcome, past) = stage.end();
    assert!(is_freed(&outcome), "{outcome:?} {past:?}");
    assert_eq!(asked(&past), Some(vec![]));
    assert!(sent(&past, kernel).is_empty(), "{past:?}");
}

/// What gpumem knows of a kernel, that it says so of its server's silence, and that it does not plan to end it.
fn left_alone(kernel: u32) -> Value {
    let machine = Machine::new(&one_gpu(&[kernel]));
    machine.configure("[rules.idle]\nmin_memory = \"1GiB\"\nduration = \"2s\"\n");
    let check = ["check", "--json", "--window", "6s", "--interval", "200ms"];
    let mut document = Value::Null;
    wait_until("it has started, and rests", || {
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
    assert!(!outcome.is_success() && sent(&past, kernel).is_empty(), "{outcome:?}");
    jupyter(&machine, kernel)
}

#[test]
fn voila_and_its_kernels_are_left_to_their_dashboard() {
    let python = or_skip!(support::python_with(&["voila", "ipykernel"]));
    let place = Place::new();
    let notebook = json!({
        "cells": [{"cell_type": "code", "execution_count": null, "id": "a", "metadata": {},
                   "outputs": [], "source": "x = 1"}],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "", "language": "python"}},
        "nbformat": 4, "nbformat_minor": 5,
    });
    fs::write(place.path("a.ipynb"), notebook.to_string()).unwrap();
    let port = support::free_port();
    let mut command = place.command(&python);
    command.args(["-m", "voila", "--no-browser", &format!("--port={port}")]);
    // It keeps its kernels' connection files in a folder of its own there.
    command.env("TMPDIR", place.path(""));
    let voila = Running::start(command.arg(place.path("a.ipynb")));
    // A browser that looks at it; it stays there, and the kernel with it.
    let page = format!("http://127.0.0.1:{port}/");
    wait_until("the dashboard is shown", || {
        let mut look = Command::new(&python);
        look.args(["-c", "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).status)"]);
        support::finish(look.arg(&page)).code == 0
    });
    let kernel = place.pid_with("ipykernel_launcher");
    let known = left_alone(kernel);
    assert_eq!(known["application"], "voila", "{known}");
    assert_eq!(known["server_pid"], voila.pid());
    assert_eq!(known["server_alive"], true);
    assert!(known["server_error"].as_str().unwrap().contains("voila"), "{known}");
}

#[test]
fn a_kernel_of_a_kernel_gateway_is_left_to_its_client() {
    let python = or_skip!(support::python_with(&["kernel_gateway", "ipykernel"]));
    let place = Place::new();
    let port = support::free_port();
    let mut command = place.command(&python);
    command.args(["-m", "kernel_gateway"]);
    let port_flag = format!("--KernelGatewayApp.port={port}");
    let gateway = Running::start(command.args([&port_flag, "--KernelGatewayApp.port_retries=0"]));
    let url = format!("http://127.0.0.1:{port}/api/kernels");
    wait_until("a kernel is started", || {
        let mut start = Command::new(&python);
        start.args(["-c", "import sys, urllib.request as r; r.urlopen(sys.argv[1], b'{}')"]);
        support::finish(start.arg(&url)).code == 0
    });
    let kernel = place.pid_with("ipykernel_launcher");
    let known = left_alone(kernel);
    assert_eq!(known["application"], "kernelgateway", "{known}");
    assert_eq!(known["server_pid"], gateway.pid());
}

#[test]
fn a_kernel_that_a_person_typed_is_recognised_and_not_found_for_its_end() {
    let python = or_skip!(support::python_with(&["ipykernel"]));
    let place = Place::new();
    let mut command = place.command(&python);
    let running = Running::start(command.args(["-m", "ipykernel"]));
    let kernel = running.pid();
    wait_until("it is there", || {
        let entries = fs::read_dir(place.path("runtime"));
        entries.is_ok_and(|entries| entries.count() > 0)
    });
    let machine = Machine::new(&one_gpu(&[kernel]));
    machine.configure("[rules.idle]\nmin_memory = \"1GiB\"\nduration = \"2s\"\n");
    let mut check = machine.run(&["check", "--json", "--window", "6s", "--interval", "200ms"]);
    wait_until("it has started, and rests", || {
        check = machine.run(&["check", "--json", "--window", "6s", "--interval", "200ms"]);
        check.code == 1
    });
    let finding = &check.json()["findings"][0];
    assert_eq!(finding["actions"], json!(["notify"]), "{finding}");
    let advice = finding["advice"].to_string();
    assert!(advice.contains(&format!("`kill {kernel}`")), "{advice}");
    // Nobody starts it again.
    let target = Stage::new(&[kernel]).target();
    assert!(matches!(target.steps[0], Step::Signal { .. }), "{target:?}");
    assert_eq!(target.respawn_seconds, 0.0);
}
