//! Servers that misbehave and files that mislead. gpumem reports the problem, and sends no secret.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread;

use serde_json::{Value, json};

use super::{JupyterHome, TOKEN, assert_no_secret, first_facts, jupyter, script};
use crate::machine::{Machine, Running, one_gpu};
use crate::support::{self, wait_until};

fn facts_of(kernel: u32) -> Value {
    jupyter(&Machine::new(&one_gpu(&[kernel])), kernel)
}

#[track_caller]
fn assert_error(facts: &Value, words: &str) {
    assert!(facts["server_error"].as_str().is_some_and(|error| error.contains(words)), "{facts}");
}

#[test]
fn a_port_not_held_by_the_server_gets_no_request() {
    let home = JupyterHome::new();
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    stranger.set_nonblocking(true).unwrap();
    let port = stranger.local_addr().unwrap().port();
    let fake = or_skip!(home.fake_server(&["good", &format!("port={port}")]));
    let facts = facts_of(fake.kernel);
    assert_error(&facts, &format!("does not listen on port {port}"));
    assert_eq!(stranger.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(!home.path("requests").exists());
}

#[test]
fn a_socket_of_another_process_gets_no_request() {
    let home = JupyterHome::new();
    // The name is like that of NCCL's sockets, so that gpumem does not mistake the socket for a server's. This
    // process is an ancestor of other tests' children, which would otherwise look like servers.
    let sock = home.path("nccl-socket-s");
    let stranger = std::os::unix::net::UnixListener::bind(&sock).unwrap();
    let sock = format!("sock={}", json!(sock.to_str().unwrap()));
    let fake = or_skip!(home.fake_server(&["good", &sock]));
    let facts = facts_of(fake.kernel);
    assert_error(&facts, "another process listens");
    let mut sent = Vec::new();
    stranger.accept().unwrap().0.read_to_end(&mut sent).unwrap();
    assert_eq!(sent, b"");
}

#[test]
fn the_server_gets_the_token_and_redirects_are_not_followed() {
    let home = JupyterHome::new();
    let good = or_skip!(home.fake_server(&["good"]));
    let facts = facts_of(good.kernel);
    assert_eq!(facts["notebook_path"], "late.ipynb", "{facts}");
    assert_eq!(facts["execution_state"], "busy");
    assert_eq!(facts["last_activity"], "2026-11-21T10:00:00.123Z");
    assert_eq!(facts["connections"], 2);
    let sent = fs::read_to_string(home.path("requests")).unwrap();
    let sent = sent.to_ascii_lowercase();
    assert!(sent.starts_with("get /api/sessions http/1.1\r\n"), "{sent}");
    assert!(sent.contains(&format!("authorization: token {TOKEN}\r\n")), "{sent}");

    let home = JupyterHome::new();
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let url = format!("http://{}/api/sessions", elsewhere.local_addr().unwrap());
    let fake = home.fake_server(&["redirect", &url]).unwrap();
    let facts = facts_of(fake.kernel);
    assert_error(&facts, "redirected");
    assert_eq!(elsewhere.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_slow_servers_answer_is_in_a_later_sample() {
    let home = JupyterHome::new();
    let slow = or_skip!(home.fake_server(&["slow"]));
    let machine = Machine::new(&one_gpu(&[slow.kernel]));
    let facts = first_facts(&machine, slow.kernel);
    assert_eq!(facts["asking"], true, "{facts}");
    let facts = jupyter(&machine, slow.kernel);
    assert_eq!(facts["notebook_path"], "late.ipynb", "{facts}");
    assert_eq!(facts["server_error"], Value::Null, "{facts}");
}

#[test]
fn proxy_variables_are_ignored() {
    let home = JupyterHome::new();
    let fake = or_skip!(home.fake_server(&["good"]));
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    proxy.set_nonblocking(true).unwrap();
    let url = format!("http://{}", proxy.local_addr().unwrap());
    let machine = Machine::new(&one_gpu(&[fake.kernel]));
    let mut command = machine.command(&["ps", "--json"]);
    for name in ["http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"] {
        command.env(name, &url);
    }
    wait_until("the server itself has answered", || {
        let output = support::finish(&mut command);
        output.stdout.contains("late.ipynb")
    });
    assert_eq!(proxy.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_bad_answer_is_reported_and_the_notebook_named() {
    for (manner, change, expected) in [
        ("huge", "port_was=1", "not from Jupyter"),
        ("garbage", "port_was=1", "not from Jupyter"),
        ("good", "pid=1", "not written by Jupyter"),
        ("good", "token=\"a\\nb\"", "refused"),
        ("good", "password=true token=\"\"", "only a password"),
    ] {
        let home = JupyterHome::new();
        let arguments: Vec<&str> = [manner].into_iter().chain(change.split(' ')).collect();
        let fake = or_skip!(home.fake_server(&arguments));
        let facts = facts_of(fake.kernel);
        let error = facts["server_error"].as_str().unwrap_or_default();
        assert!(error.contains(expected), "{manner} {change}: {facts}");
        let path = facts["notebook_path"].as_str().unwrap();
        assert!(path.ends_with("early.ipynb"), "{facts}");
        assert_eq!(facts["execution_state"], Value::Null, "{facts}");
    }
}

#[test]
fn a_server_that_hangs_does_not_delay_samples() {
    let assert_no_delay = |manner: &str| {
        let home = JupyterHome::new();
        let fake = or_skip!(home.fake_server(&[manner]));
        let machine = Machine::new(&one_gpu(&[fake.kernel]));
        // The first sample does not wait for the server.
        let mut facts = Value::Null;
        wait_until("the kernel's files are read", || {
            facts = first_facts(&machine, fake.kernel);
            facts["notebook_path"] == "early.ipynb"
        });
        assert_eq!(facts["server_error"], Value::Null, "{facts}");
        assert_eq!(facts["asking"], true, "{facts}");
        for (command, words) in [
            (&["ps"][..], "asking its server] "),
            (&["explain", &fake.kernel.to_string()], "asking its server; details follow"),
        ] {
            wait_until("the output says that the server is being asked", || {
                let output = machine.run(command).exits(0);
                output.stdout.contains(words)
            });
        }
        // A later sample contains the error.
        let recording = machine.path("recording.jsonl");
        let record = machine
            .run_line(&format!(
                "record {} --interval 200ms --duration 5s",
                recording.to_str().unwrap()
            ))
            .exits(0);
        let recorded = fs::read_to_string(&recording).unwrap();
        let reason = "it did not answer GET api/sessions in time";
        assert!(recorded.contains(reason), "{manner}: {recorded}");
        assert_no_secret(&[&recorded, &record.stderr]);
    };
    thread::scope(|scope| {
        scope.spawn(|| assert_no_delay("hang"));
        scope.spawn(|| assert_no_delay("drip"));
    });
}

#[test]
fn another_users_file_is_not_read_for_a_kernel() {
    or_skip!(support::root("root"));
    let home = JupyterHome::new();
    // The kernel's user must be able to enter the directory.
    fs::set_permissions(home.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    fs::create_dir(home.path("runtime")).unwrap();
    // The user's process names root's file as its connection file.
    let secret = home.path("runtime/kernel-4711.json");
    fs::write(&secret, json!({"jupyter_session": "of root's"}).to_string()).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let kernel = {
        use std::os::unix::process::CommandExt as _;
        let mut command = home.command(Path::new("tail"));
        command.arg("-f").arg(&secret).arg("/dev/null");
        Running::start(command.uid(65_534).gid(65_534))
    };
    let facts = facts_of(kernel.pid());
    assert_eq!(facts["connection_file"], secret.to_str().unwrap());
    assert_eq!(facts["notebook_path"], Value::Null, "{facts}");
    assert_error(&facts, "does not belong to the kernel's owner");
}

#[test]
fn a_server_in_another_pid_namespace_is_found() {
    let (Some(unshare), Some(python)) =
        (support::find("unshare", "util-linux"), support::find("python3", "python3"))
    else {
        return;
    };
    or_skip!(support::root("root"));
    let home = JupyterHome::new();
    let mut command = home.command(&unshare);
    command
        .args(["-pf", "--mount-proc", "--kill-child"])
        .arg(&python)
        .arg(script("fake_server.py"))
        .arg(home.path(""));
    let _outer = Running::start(command.arg("good"));
    let (path, file) = home.server_file();
    assert_eq!(file["pid"], 1, "{}", path.display());
    let kernel = home.pid_with("ipykernel_launcher.py");
    let facts = facts_of(kernel);
    assert_eq!(facts["server_error"], Value::Null, "{facts}");
    assert_eq!(facts["notebook_path"], "late.ipynb");
    assert_eq!(facts["server_alive"], true);
    assert_ne!(facts["server_pid"], 1);
}
