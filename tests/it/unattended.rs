//! `gpumem reap --watch` as a service: messages to the service manager, notify commands, a missing driver, and signals.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use mock_nvml::scene::{Gpu, Process, Scene};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::machine::{GIB, LineProcess, Machine, Running, one_gpu};
use crate::procs::{self, state};
use crate::support::{
    PATIENCE, clean_environment, find, free_port, gpumem, http, run, wait_until, write_program,
};

/// A configuration that finds a stopped process after a second. The notify command writes to a file.
const NOTIFY_ONLY: &str = "[sample]\ninterval = \"200ms\"\n[reap]\nwarn = \"1s\"\ngrace = \"1s\"\n\
                     notify = [\"/bin/sh\", \"-c\", \"cat >> $0\", \"NOTICES\"]\n\
                     [rules.stopped]\nduration = \"1s\"\n";

/// A running service, and its manager's socket.
struct Service {
    machine: Machine,
    /// Messages to the manager. A thread receives them, because the queue of the socket is short.
    messages: mpsc::Receiver<String>,
    child: Child,
    log: Option<thread::JoinHandle<String>>,
}

impl Service {
    fn start(scene: &Scene, toml: &str) -> Self {
        Self::start_with(scene, toml, &[])
    }

    fn start_with(scene: &Scene, toml: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(gpumem());
        let machine = Machine::new(scene);
        let notices = machine.path("notices");
        machine.configure(&toml.replace("NOTICES", notices.to_str().unwrap()));
        let manager = UnixDatagram::bind(machine.path("notify")).unwrap();
        let (sender, messages) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length) = manager.recv(&mut bytes) {
                let message = String::from_utf8_lossy(&bytes[..length]).into_owned();
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        clean_environment(&mut command);
        command
            .args(["reap", "--watch", "--no-store"])
            .args(arguments)
            .arg("--nvml-library")
            .arg(machine.library())
            .env("NOTIFY_SOCKET", machine.path("notify"))
            .env("WATCHDOG_USEC", "1000000")
            .env("STATE_DIRECTORY", machine.path("state"))
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        machine.environment(&mut command);
        let mut child = command.spawn().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let log = thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        Self { machine, messages, child, log: Some(log) }
    }

    fn next(&self) -> String {
        self.messages.recv_timeout(PATIENCE).unwrap_or_else(|error| {
            panic!("no message to the manager: {error}; state {:?}", state(self.child.id()))
        })
    }

    /// Waits for `count` new watchdog messages.
    fn wait_for_rounds(&self, count: usize) {
        self.messages.try_iter().for_each(drop);
        for _ in 0..count {
            self.wait_for_message("WATCHDOG=1");
        }
    }

    /// Waits for a message with this prefix. Returns all messages up to that message.
    fn wait_for_message(&self, prefix: &str) -> Vec<String> {
        let mut messages = Vec::new();
        loop {
            messages.push(self.next());
            let last = messages.last().unwrap();
            if last.starts_with(prefix) {
                return messages;
            }
            assert!(messages.len() < 1000, "no message {prefix}: {messages:?}");
        }
    }

    fn signal(&self, signal: Signal) {
        procs::send(self.child.id(), signal);
    }

    /// Stops the service. Returns the log.
    fn stop(mut self) -> String {
        self.signal(Signal::TERM);
        self.wait_for_message("STOPPING=1");
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        self.log.take().unwrap().join().unwrap()
    }

    fn notices(&self) -> PathBuf {
        self.machine.path("notices")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn stopped_process() -> Running {
    let child = Running::sleep();
    procs::send(child.pid(), Signal::STOP);
    child
}

#[test]
fn the_manager_gets_ready_watchdog_reloading_and_stopping() {
    let service = Service::start(&one_gpu(&[]), NOTIFY_ONLY);
    let messages = service.wait_for_message("READY=1");
    assert!(messages.iter().all(|message| !message.starts_with("WATCHDOG")), "{messages:?}");
    service.wait_for_message("WATCHDOG=1");
    service.wait_for_message("WATCHDOG=1");
    service.signal(Signal::HUP);
    service.wait_for_message("RELOADING=1\nMONOTONIC_USEC=");
    service.wait_for_message("READY=1");
    service.machine.configure("[reap]\nwarm = \"1m\"\n");
    service.signal(Signal::HUP);
    service.wait_for_message("RELOADING=1");
    service.wait_for_message("READY=1");
    service.wait_for_message("WATCHDOG=1");
    let log = service.stop();
    assert_eq!(log.matches("the configuration was reloaded").count(), 1);
    // The service logs its configuration at the start and after the reload.
    for line in ["kills nothing: ", "only notifies owners of findings", "audit log: "] {
        assert_eq!(log.matches(line).count(), 2, "{line}: {log}");
    }
    assert!(log.contains("config.toml:2: reap.warm: "), "{log}");
}

/// One process samples, records and serves metrics. The metrics follow a reloaded configuration.
#[test]
fn the_service_records_and_serves_its_samples() {
    let child = stopped_process();
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let options = ["--store", "--serve", &address];
    let mut service = Service::start_with(&one_gpu(&[child.pid()]), NOTIFY_ONLY, &options);
    let served = |path: &str| {
        let answer = http(port, &format!("GET {path} HTTP/1.1\r\n\r\n")).unwrap_or_default();
        if answer.0.starts_with("HTTP/1.1 200") { answer.1 } else { String::new() }
    };
    let finding = "gpumem_finding_active{kind=\"stopped\"";
    wait_until("the finding is served", || served("/metrics").contains(finding));
    let check: Value = serde_json::from_str(&served("/check")).unwrap();
    assert_eq!(check["findings"][0]["process"]["pid"], child.pid());
    // A second recorder fails with a message that contains the pid of the first recorder.
    let mut second = Command::new(gpumem());
    clean_environment(&mut second);
    second.args(["record", "--store", "--nvml-library"]).arg(service.machine.library());
    second.env("STATE_DIRECTORY", service.machine.path("state"));
    service.machine.environment(&mut second);
    let second = second.output().unwrap();
    let refusal = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success(), "{refusal}");
    assert!(refusal.contains(&format!("gpumem (pid {})", service.child.id())), "{refusal}");
    // When its rule is disabled, the finding disappears from the metrics.
    service.machine.configure("[rules.stopped]\nenabled = false\n");
    service.signal(Signal::HUP);
    wait_until("the finding is gone", || {
        let page = served("/metrics");
        page.contains("gpumem_gpu_up") && !page.contains(finding)
    });
    service.signal(Signal::TERM);
    assert_eq!(service.child.wait().unwrap().code(), Some(0));
    let segments = fs::read_dir(service.machine.path("state/store")).unwrap();
    let mut segments = segments.map(|entry| entry.unwrap().path());
    let segment = segments.find(|path| path.to_str().unwrap().ends_with(".zst")).unwrap();
    let replayed = run(&["ps", "--replay", segment.to_str().unwrap(), "--json"]);
    assert_eq!(replayed.json()["processes"][0]["pid"], child.pid(), "{replayed:?}");
}

#[test]
fn a_notify_command_gets_the_finding_and_no_signal_is_sent() {
    let child = stopped_process();
    let service = Service::start(&one_gpu(&[child.pid()]), NOTIFY_ONLY);
    wait_until("the command was notified", || service.notices().exists());
    // Wait long enough for a rule with `action = "reap"` to kill the process.
    service.wait_for_message("STATUS=1 GPU, 1 finding, 1 notified");
    service.wait_for_rounds(6);
    let text = fs::read_to_string(service.notices()).unwrap();
    let notice: Value = serde_json::from_str(&text).expect("exactly one notice");
    assert_eq!(notice["schema"], "gpumem.notice/1");
    assert_eq!((&notice["notice"], &notice["acts_at"]), (&"found".into(), &Value::Null));
    assert_eq!(notice["finding"]["kind"], "stopped");
    assert_eq!(notice["finding"]["process"]["pid"], child.pid());
    assert_eq!(state(child.pid()), Some('T'), "no signal was sent");
    assert!(!service.machine.path("state/reap.jsonl").exists());
    // The warning is saved, so that a restart does not repeat it.
    let warnings = fs::read_to_string(service.machine.path("state/reap-warnings.json")).unwrap();
    assert!(warnings.contains("\"is_of_end\": false"), "{warnings}");
    service.stop();
}

/// In another pid namespace, a pid can belong to another process, so rules kill no process.
#[test]
fn a_reap_rule_ends_a_process_only_on_the_host() {
    let mut child = stopped_process();
    let reap = format!("{NOTIFY_ONLY}action = \"reap\"\n");
    let service = Service::start(&one_gpu(&[child.pid()]), &reap);
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap();
    if namespace.to_str() == Some("pid:[4026531836]") {
        wait_until("the process has ended", || child.0.try_wait().unwrap().is_some());
        service.wait_for_rounds(1);
        let notices = fs::read_to_string(service.notices()).unwrap();
        // On a busy machine, a late sample can cancel the action, and the owner is warned again.
        let warnings = notices.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let kinds: Vec<Value> = warnings.map(|warning| warning["notice"].clone()).collect();
        let is_ordered = |pair: &[Value]| pair[0] == "warning" || pair[1] == "warning";
        assert!(kinds[0] == "warning" && kinds.windows(2).all(is_ordered), "{notices}");
        assert_eq!(kinds[kinds.len() - 1], "last_warning", "{notices}");
        let log = service.stop();
        assert!(log.contains("SIGTERM and SIGCONT to"), "{log}");
        return;
    }
    service.wait_for_message("STATUS=1 GPU, 1 finding");
    service.wait_for_rounds(8);
    assert_eq!(state(child.pid()), Some('T'));
    assert!(!service.notices().exists(), "a warning without an action");
    let log = service.stop();
    assert_eq!(log.matches(&format!("{}: skipped", child.pid())).count(), 1, "{log}");
}

#[test]
fn a_failed_notify_command_counts_as_not_notified() {
    let child = stopped_process();
    let toml = NOTIFY_ONLY.replace("cat >> $0", "cat >> $0; exit 7");
    let service = Service::start(&one_gpu(&[child.pid()]), &toml);
    wait_until("the command was notified", || service.notices().exists());
    service.wait_for_rounds(6);
    assert!(!service.machine.path("state/reap-warnings.json").exists());
    let log = service.stop();
    let failure = "not notified: the notify command /bin/sh failed (exit status: 7)";
    assert_eq!(log.matches(failure).count(), 1, "{log}");
}

#[test]
fn a_missing_driver_is_waited_for() {
    let scene = one_gpu(&[]);
    let service = Service::start(&scene.clone().init_error(9), NOTIFY_ONLY);
    let messages = service.wait_for_message("STATUS=");
    assert!(!messages.contains(&"READY=1".to_owned()), "{messages:?}");
    service.machine.play(&scene);
    service.wait_for_message("READY=1");
    let log = service.stop();
    assert_eq!(log.matches("retrying").count(), 1, "{log}");
}

#[test]
fn options_that_contradict_watch_are_usage_errors() {
    for more in [&["--yes"][..], &["--pid", "1"], &["--kind", "idle"], &["--json"]] {
        run(&[&["reap", "--watch"], more].concat()).exits(2);
    }
}

/// On a signal, writes to a file. The test then changes the driver's scene, as if the process had released memory.
const TRAINER: &str = r#"
import os, signal, sys
def clean(*_):
    with open(sys.argv[1], "a") as file:
        file.write("cleaned\n")
if len(sys.argv) > 1:
    signal.signal(signal.SIGUSR2, clean)
print("ready", flush=True)
while True:
    sum(range(10000))
"#;

#[test]
fn a_training_that_announced_a_signal_releases_memory_on_a_full_gpu() {
    let Some(python) = find("python3", "python3") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let cleaned = folder.path().join("cleaned");
    let start = |announces: bool| {
        let mut command = Command::new(&python);
        command.args(["-u", "-c", TRAINER]);
        if announces {
            command.arg(&cleaned).env("GPUMEM_RELEASE_SIGNAL", "USR2");
        }
        let mut trainer = LineProcess::start(&mut command);
        assert_eq!(trainer.line(), "ready");
        trainer
    };
    // The other process has no handler, so a signal would kill it.
    let (announced, other) = (start(true), start(false));
    let scene = |gib: u64| {
        let gpu = Gpu::new("NVIDIA H100 80GB HBM3")
            .total(80 * GIB)
            .process(Process::compute(announced.running.pid(), gib * GIB))
            .process(Process::compute(other.running.pid(), 2 * GIB));
        Scene::new().gpu(gpu)
    };
    let release = "[sample]\ninterval = \"200ms\"\n[reap]\nwithin = \"10m\"\n\
                  [rules.pressure]\nmin_free = \"79GiB\"\nduration = \"1s\"\naction = \"release\"\n";
    let service = Service::start(&scene(9), release);
    service.wait_for_message("READY=1");
    wait_until("the signal arrived", || {
        fs::read_to_string(&cleaned).is_ok_and(|text| text == "cleaned\n")
    });
    service.machine.play(&scene(3));
    let log = service.machine.path("state").join("reap.jsonl");
    let outcome = || -> Option<Value> {
        let text = fs::read_to_string(&log).ok()?;
        let mut entries = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        entries.find(|entry| entry["outcome"].is_string())
    };
    wait_until("the audit log has an outcome", || outcome().is_some());
    let outcome = outcome().unwrap();
    assert_eq!((&outcome["outcome"], &outcome["bytes"]), (&"released".into(), &(6 * GIB).into()));
    // The other process still fills the GPU, but the service does not repeat the request to the first process so soon.
    thread::sleep(Duration::from_secs(2));
    assert_eq!(fs::read_to_string(&cleaned).unwrap(), "cleaned\n");
    assert!(procs::lives(announced.running.pid()) && procs::lives(other.running.pid()));
    service.stop();
}

#[test]
fn the_example_configuration_is_valid_with_all_settings() {
    let machine = Machine::new(&one_gpu(&[]));
    let commented = fs::read_to_string(packaging("config.toml")).unwrap();
    let setting = |line: &str| {
        line.strip_prefix('#').filter(|text| !text.starts_with([' ', '#'])).map(str::to_owned)
    };
    let lines: Vec<String> =
        commented.lines().map(|line| setting(line).unwrap_or_else(|| line.to_owned())).collect();
    assert!(lines.iter().filter(|line| line.contains(" = ")).count() > 12, "{lines:?}");
    for toml in [commented, lines.join("\n")] {
        let file = machine.path("example.toml");
        fs::write(&file, toml).unwrap();
        machine.run(&["config", "check", file.to_str().unwrap()]).exits(0);
    }
}

#[test]
fn hostile_text_cannot_change_the_mail() {
    let Some(_) = find("python3", "python3") else { return };
    let machine = Machine::new(&one_gpu(&[]));
    let folder = machine.path("bin");
    fs::create_dir(&folder).unwrap();
    for (name, text) in [
        ("sendmail", "#!/bin/sh\necho \"$*\" > $0.arguments\ncat > $0.mail\n"),
        ("systemd-run", "#!/bin/sh\nshift 3\nexec \"$@\"\n"),
    ] {
        write_program(folder.join(name), text);
    }
    let text = "idle: -t\r\nBcc: eve@example.org\n\n.\n~!reboot $(reboot) \u{202e}";
    let notice = json!({
        "schema": "gpumem.notice/1", "notice": "last_warning", "uid": 0, "host": text, "acts_at": text,
        "finding": {"message": text, "process": {"user": text}},
    });
    let path = format!("{}:/usr/bin:/bin", folder.display());
    let mut child = Command::new("python3")
        .arg("-I")
        .arg(packaging("gpumem-mail"))
        .env("PATH", path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(notice.to_string().as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    let arguments = fs::read_to_string(folder.join("sendmail.arguments")).unwrap();
    assert_eq!(arguments, "-i -- root\n");
    let mail = fs::read_to_string(folder.join("sendmail.mail")).unwrap();
    let (head, body) = mail.split_once("\n\n").unwrap();
    let names: Vec<&str> = head.lines().filter_map(|line| Some(line.split_once(": ")?.0)).collect();
    let expected = [
        "To",
        "Subject",
        "Auto-Submitted",
        "Content-Type",
        "Content-Transfer-Encoding",
        "MIME-Version",
    ];
    assert_eq!(names, expected, "{mail}");
    assert!(!body.is_empty());
}

fn packaging(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("packaging").join(file)
}
