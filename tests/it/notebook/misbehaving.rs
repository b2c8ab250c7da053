//! Servers that misbehave, and files that lead astray: what gpumem says of them, and whom it tells
//! nothing.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread;

use serde_json::{Value, json};

use super::{Place, TOKEN, assert_no_secret, jupyter, jupyter_at_once, script};
use crate::machine::{Machine, Running, one_gpu};
use crate::support::{self, wait_until};

/// What gpumem shows of a kernel.
fn shown_of(kernel: u32) -> Value {
    jupyter(&Machine::new(&one_gpu(&[kernel])), kernel)
}

#[track_caller]
fn assert_error(shown: &Value, words: &str) {
    assert!(shown["server_error"].as_str().is_some_and(|error| error.contains(words)), "{shown}");
}

#[test]
fn a_port_that_the_server_does_not_hold_is_not_spoken_to() {
    let place = Place::new();
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    stranger.set_nonblocking(true).unwrap();
    let port = stranger.local_addr().unwrap().port();
    let fake = or_skip!(place.fake_server(&["good", &format!("port={port}")]));
    let shown = shown_of(fake.kernel);
    assert_error(&shown, &format!("does not listen on port {port}"));
    assert_eq!(stranger.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(!place.path("requests").exists());
}

#[test]
fn another_process_on_the_servers_socket_is_not_spoken_to() {
    let place = Place::new();
    // Named as NCCL's are: this process is an ancestor of the other tests' children, for whom it is no front
    // end while it listens here.
    let sock = place.path("nccl-socket-s");
    let stranger = std::os::unix::net::UnixListener::bind(&sock).unwrap();
    let sock = format!("sock={}", json!(sock.to_str().unwrap()));
    let fake = or_skip!(place.fake_server(&["good", &sock]));
    let shown = shown_of(fake.kernel);
    assert_error(&shown, "another process listens");
    let mut sent = Vec::new();
    stranger.accept().unwrap().0.read_to_end(&mut sent).unwrap();
    assert_eq!(sent, b"");
}

#[test]
fn the_token_goes_to_the_server_and_a_redirect_is_not_followed() {
    let place = Place::new();
    let good = or_skip!(place.fake_server(&["good"]));
    let shown = shown_of(good.kernel);
    assert_eq!(shown["notebook_path"], "late.ipynb", "{shown}");
    assert_eq!(shown["execution_state"], "busy");
    assert_eq!(shown["last_activity"], "2026-11-21T10:00:00.123Z");
    assert_eq!(shown["connections"], 2);
    let sent = fs::read_to_string(place.path("requests")).unwrap();
    let sent = sent.to_ascii_lowercase();
    assert!(sent.starts_with("get /api/sessions http/1.1\r\n"), "{sent}");
    assert!(sent.contains(&format!("authorization: token {TOKEN}\r\n")), "{sent}");

    let place = Place::new();
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let url = format!("http://{}/api/sessions", elsewhere.local_addr().unwrap());
    let fake = place.fake_server(&["redirect", &url]).unwrap();
    let shown = shown_of(fake.kernel);
    assert_error(&shown, "redirected");
    assert_eq!(elsewhere.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn what_a_slow_server_answers_comes_with_a_later_sample() {
    let place = Place::new();
    let slow = or_skip!(place.fake_server(&["slow"]));
    let machine = Machine::new(&one_gpu(&[slow.kernel]));
    let shown = jupyter_at_once(&machine, slow.kernel);
    assert_eq!(shown["asking"], true, "{shown}");
    let shown = jupyter(&machine, slow.kernel);
    assert_eq!(shown["notebook_path"], "late.ipynb", "{shown}");
    assert_eq!(shown["server_error"], Value::Null, "{shown}");
}

#[test]
fn a_proxy_of_the_environment_is_not_asked() {
    let place = Place::new();
    let fake = or_skip!(place.fake_server(&["good"]));
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
fn what_a_server_answers_badly_is_reported_and_the_notebook_stays_named() {
    for (manner, change, expected) in [
        ("huge", "port_was=1", "not Jupyter's"),
        ("garbage", "port_was=1", "not Jupyter's"),
        ("good", "pid=1", "not written by Jupyter"),
        ("good", "token=\"a\\nb\"", "refused"),
    ] {
        let place = Place::new();
        let fake = or_skip!(place.fake_server(&[manner, change]));
        let shown = shown_of(fake.kernel);
        let error = shown["server_error"].as_str().unwrap_or_default();
        assert!(error.contains(expected), "{manner} {change}: {shown}");
        let path = shown["notebook_path"].as_str().unwrap();
        assert!(path.ends_with("early.ipynb"), "{shown}");
        assert_eq!(shown["execution_state"], Value::Null, "{shown}");
    }
}

#[test]
fn a_server_that_hangs_holds_up_no_sample() {
    let holds_up_none = |manner: &str| {
        let place = Place::new();
        let fake = or_skip!(place.fake_server(&[manner]));
        let machine = Machine::new(&one_gpu(&[fake.kernel]));
        // The first sample does not wait for it.
        let mut shown = Value::Null;
        wait_until("its files are read", || {
            shown = jupyter_at_once(&machine, fake.kernel);
            shown["notebook_path"] == "early.ipynb"
        });
        assert_eq!(shown["server_error"], Value::Null, "{shown}");
        assert_eq!(shown["asking"], true, "{shown}");
        for (command, words) in [
            (&["ps"][..], "asking its server] "),
            (&["explain", &fake.kernel.to_string()], "asking its server; its details"),
        ] {
            wait_until("it is said that its server is being asked", || {
                let output = machine.run(command).exits(0);
                output.stdout.contains(words)
            });
        }
        // A later one says what became of it.
        let recording = machine.path("recording.jsonl");
        let record = machine
            .typed(&format!(
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
        scope.spawn(|| holds_up_none("hang"));
        scope.spawn(|| holds_up_none("drip"));
    });
}

#[test]
fn others_files_are_not_read_for_a_user() {
    or_skip!(support::root("root"));
    let place = Place::new();
    // Into it, though it need not see what lies there.
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    fs::create_dir(place.path("runtime")).unwrap();
    // A user names a file of root's as its kernel's.
    let secret = place.path("runtime/kernel-4711.json");
    fs::write(&secret, json!({"jupyter_session": "of root's"}).to_string()).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let kernel = {
        use std::os::unix::process::CommandExt as _;
        let mut command = place.command(Path::new("tail"));
        command.arg("-f").arg(&secret).arg("/dev/null");
        Running::start(command.uid(65_534).gid(65_534))
    };
    let shown = shown_of(kernel.pid());
    assert_eq!(shown["connection_file"], secret.to_str().unwrap());
    assert_eq!(shown["notebook_path"], Value::Null, "{shown}");
    assert_error(&shown, "does not belong to the kernel's owner");
}

#[test]
fn a_server_in_another_pid_namespace_is_found_by_its_own_number() {
    let (Some(unshare), Some(python)) =
        (support::find("unshare", "util-linux"), support::find("python3", "python3"))
    else {
        return;
    };
    or_skip!(support::root("root"));
    let place = Place::new();
    let mut command = place.command(&unshare);
    command
        .args(["-pf", "--mount-proc", "--kill-child"])
        .arg(&python)
        .arg(script("fake_server.py"))
        .arg(place.path(""));
    let _outer = Running::start(command.arg("good"));
    let (path, file) = place.server_file();
    assert_eq!(file["pid"], 1, "{}", path.display());
    let kernel = place.pid_with("ipykernel_launcher.py");
    let shown = shown_of(kernel);
    assert_eq!(shown["server_error"], Value::Null, "{shown}");
    assert_eq!(shown["notebook_path"], "late.ipynb");
    assert_eq!(shown["server_alive"], true);
    assert_ne!(shown["server_pid"], 1);
}
