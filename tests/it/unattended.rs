//! `gpumem reap --watch` as a service: what its manager hears, what a notify command is told, what
//! happens without a driver and on signals.

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

use crate::machine::{GIB, Machine, Running, Talking, one_gpu};
use crate::procs::{self, state};
use crate::support::{
    PATIENCE, clean_environment, find, free_port, gpumem, http, run, wait_until, write_program,
};

/// A stopped process is a finding after a second; nobody is written to.
const TELLS: &str = "[sample]\ninterval = \"200ms\"\n[reap]\nwarn = \"1s\"\ngrace = \"1s\"\n\
                     notify = [\"/bin/sh\", \"-c\", \"cat >> $0\", \"TOLD\"]\n\
                     [rules.stopped]\nduration = \"1s\"\n";

/// A running service, and its manager.
struct Service {
    machine: Machine,
    /// What the manager has heard. It listens on a thread: what is sent to a full queue is lost.
    heard: mpsc::Receiver<String>,
    child: Child,
    complaints: Option<thread::JoinHandle<String>>,
}

impl Service {
    fn start(scene: &Scene, toml: &str) -> Self {
        Self::start_with(scene, toml, &[])
    }

    fn start_with(scene: &Scene, toml: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(gpumem());
        let machine = Machine::new(scene);
        let notices = machine.path("told");
        machine.configure(&toml.replace("TOLD", notices.to_str().unwrap()));
        let manager = UnixDatagram::bind(machine.path("notify")).unwrap();
        let (tell, heard) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length) = manager.recv(&mut bytes) {
                let message = String::from_utf8_lossy(&bytes[..length]).into_owned();
                if tell.send(message).is_err() {
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
        let complaints = thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        Self { machine, heard, child, complaints: Some(complaints) }
    }

    fn next(&self) -> String {
        self.heard.recv_timeout(PATIENCE).unwrap_or_else(|error| {
            panic!("the manager hears nothing: {error}; its state: {:?}", state(self.child.id()))
        })
    }

    /// Waits until the service has said that it is alive so often from now on.
    fn wait_for_rounds(&self, count: usize) {
        self.heard.try_iter().for_each(drop);
        for _ in 0..count {
            self.wait_for_message("WATCHDOG=1");
        }
    }

    /// What the manager hears until something that begins so, which is the last of it.
    fn wait_for_message(&self, begin: &str) -> Vec<String> {
        let mut messages = Vec::new();
        loop {
            messages.push(self.next());
            let last = messages.last().unwrap();
            if last.starts_with(begin) {
                return messages;
            }
            assert!(messages.len() < 1000, "in vain waited for {begin}: {messages:?}");
        }
    }

    fn signal(&self, signal: Signal) {
        procs::send(self.child.id(), signal);
    }

    /// Ends it; what it complained of.
    fn end(mut self) -> String {
        self.signal(Signal::TERM);
        self.wait_for_message("STOPPING=1");
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        self.complaints.take().unwrap().join().unwrap()
    }

    fn notices(&self) -> PathBuf {
        self.machine.path("told")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn stopped() -> Running {
    let child = Running::sleep();
    procs::send(child.pid(), Signal::STOP);
    child
}

#[test]
fn its_manager_gets_ready_alive_reloading_and_stopping() {
    let service = Service::start(&one_gpu(&[]), TELLS);
    let messages = service.wait_for_message("READY=1");
    assert!(messages.iter().all(|it| !it.starts_with("WATCHDOG")), "{messages:?}");
    assert!(messages.contains(&"STATUS=1 GPU, 0 findings, 0 notified".to_owned()), "{messages:?}");
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
    let complaints = service.end();
    assert_eq!(complaints.matches("the configuration was reloaded").count(), 1);
    // What it is going to do, at the start and after the reload.
    for line in [
        "kills nothing: ",
        "only notifies owners of findings of these rules: dead, ",
        "audit log: ",
    ] {
        assert_eq!(complaints.matches(line).count(), 2, "{line}: {complaints}");
    }
    let broken = "config.toml:2: reap.warm: is unknown; did you mean \"warn\"?; allowed: warn, \
                  grace, settle, most, within, notify, never, longest_keep; \
                  the previous configuration stays in force";
    assert!(complaints.contains(broken), "{complaints}");
}

/// One process samples, and what it sees is recorded and served as well, by the rules that are in force.
#[test]
fn it_records_and_serves_what_it_sees() {
    let child = stopped();
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let switches = ["--store", "--serve", &address];
    let mut service = Service::start_with(&one_gpu(&[child.pid()]), TELLS, &switches);
    let served = |path: &str| {
        let answer = http(port, &format!("GET {path} HTTP/1.1\r\n\r\n")).unwrap_or_default();
        if answer.0.starts_with("HTTP/1.1 200") { answer.1 } else { String::new() }
    };
    let finding = "gpumem_finding_active{kind=\"stopped\"";
    wait_until("the finding is served", || served("/metrics").contains(finding));
    let check: Value = serde_json::from_str(&served("/check")).unwrap();
    assert_eq!(check["findings"][0]["process"]["pid"], child.pid());
    // Another one is told who has the store.
    let mut second = Command::new(gpumem());
    clean_environment(&mut second);
    second.args(["record", "--store", "--nvml-library"]).arg(service.machine.library());
    second.env("STATE_DIRECTORY", service.machine.path("state"));
    service.machine.environment(&mut second);
    let second = second.output().unwrap();
    let refusal = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success(), "{refusal}");
    assert!(refusal.contains(&format!("the gpumem with pid {}", service.child.id())), "{refusal}");
    // A rule that is switched off is out of the page, too.
    service.machine.configure("[rules.stopped]\nenabled = false\n");
    service.signal(Signal::HUP);
    wait_until("the finding is gone", || {
        let page = served("/metrics");
        page.contains("gpumem_gpu_up") && !page.contains(finding)
    });
    service.signal(Signal::TERM);
    assert_eq!(service.child.wait().unwrap().code(), Some(0));
    let segments =
        fs::read_dir(service.machine.path("state/store")).unwrap().map(|it| it.unwrap().path());
    let segment = segments.into_iter().find(|it| it.to_str().unwrap().ends_with(".zst")).unwrap();
    let replayed = run(&["ps", "--replay", segment.to_str().unwrap(), "--json"]);
    assert_eq!(replayed.json()["processes"][0]["pid"], child.pid(), "{replayed:?}");
}

#[test]
fn a_notify_command_gets_the_finding_and_nothing_is_sent() {
    let child = stopped();
    let service = Service::start(&one_gpu(&[child.pid()]), TELLS);
    wait_until("the command is told", || service.notices().exists());
    // It would have been ended by now.
    service.wait_for_message("STATUS=1 GPU, 1 finding, 1 notified");
    service.wait_for_rounds(6);
    let text = fs::read_to_string(service.notices()).unwrap();
    let notice: Value = serde_json::from_str(&text).expect("one notice, once");
    assert_eq!(notice["schema"], "gpumem.notice/1");
    assert_eq!((&notice["notice"], &notice["acts_at"]), (&"found".into(), &Value::Null));
    assert_eq!(notice["finding"]["kind"], "stopped");
    assert_eq!(notice["finding"]["process"]["pid"], child.pid());
    assert_eq!(state(child.pid()), Some('T'), "nothing was sent");
    assert!(!service.machine.path("state/reap.jsonl").exists());
    // A restart does not tell it again.
    let warnings = fs::read_to_string(service.machine.path("state/reap-warnings.json")).unwrap();
    assert!(warnings.contains("\"is_of_end\": false"), "{warnings}");
    service.end();
}

/// Whether the pids here are the host's.
fn host_pids() -> bool {
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap();
    namespace.to_str() == Some("pid:[4026531836]")
}

/// By a rule nobody is ended whose pid may be of another namespace, as all are in a container.
#[test]
fn a_rule_that_reaps_kills_a_stopped_process_on_the_host_and_nothing_in_a_container() {
    let mut child = stopped();
    let reaps = format!("{TELLS}action = \"reap\"\n");
    let service = Service::start(&one_gpu(&[child.pid()]), &reaps);
    if host_pids() {
        wait_until("it is ended", || child.0.try_wait().unwrap().is_some());
        service.wait_for_rounds(1);
        let notices = fs::read_to_string(service.notices()).unwrap();
        // A sample that comes too late cancels what was to be done, and its owner is warned again.
        let warnings = notices.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let kinds: Vec<Value> = warnings.map(|it| it["notice"].clone()).collect();
        let is_ordered = |it: &[Value]| it[0] == "warning" || it[1] == "warning";
        assert!(kinds[0] == "warning" && kinds.windows(2).all(is_ordered), "{notices}");
        assert_eq!(kinds[kinds.len() - 1], "last_warning", "{notices}");
        let complaints = service.end();
        assert!(complaints.contains("SIGTERM and SIGCONT to"), "{complaints}");
        return;
    }
    service.wait_for_message("STATUS=1 GPU, 1 finding");
    service.wait_for_rounds(8);
    assert_eq!(state(child.pid()), Some('T'));
    assert!(!service.notices().exists(), "nobody is warned of what will not be");
    let complaints = service.end();
    let left = format!("{}: skipped", child.pid());
    assert_eq!(complaints.matches(&left).count(), 1, "{complaints}");
}

#[test]
fn a_command_that_fails_has_notified_no_owner() {
    let child = stopped();
    let toml = TELLS.replace("cat >> $0", "cat >> $0; exit 7");
    let service = Service::start(&one_gpu(&[child.pid()]), &toml);
    wait_until("the command is told", || service.notices().exists());
    service.wait_for_rounds(6);
    assert!(!service.machine.path("state/reap-warnings.json").exists());
    let complaints = service.end();
    let why = "not notified: the notify command /bin/sh failed (exit status: 7)";
    assert_eq!(complaints.matches(why).count(), 1, "{complaints}");
}

#[test]
fn a_driver_that_is_not_there_is_waited_for() {
    let scene = one_gpu(&[]);
    let service = Service::start(&scene.clone().init_error(9), TELLS);
    let messages = service.wait_for_message("STATUS=");
    assert!(!messages.contains(&"READY=1".to_owned()), "{messages:?}");
    service.machine.play(&scene);
    service.wait_for_message("READY=1");
    let complaints = service.end();
    assert_eq!(complaints.matches("retrying").count(), 1, "{complaints}");
}

#[test]
fn it_ends_at_once_where_there_is_no_driver() {
    let service = Service::start(&one_gpu(&[]).init_error(9), TELLS);
    service.wait_for_message("STATUS=");
    service.end();
}

#[test]
fn what_cannot_be_meant_together_is_refused() {
    for more in [&["--yes"][..], &["--pid", "1"], &["--kind", "idle"], &["--json"]] {
        run(&[&["reap", "--watch"], more].concat()).exits(2);
    }
}

#[test]
fn what_the_configuration_never_kills_a_plan_skips_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    let planned = |toml: &str| {
        fs::write(&path, toml).unwrap();
        let path = path.to_str().unwrap();
        let output = run(&["reap", "--demo", "--json", "--config", path]).exits(0);
        let targets = output.json()["targets"].as_array().unwrap().clone();
        let is_it = |target: &Value| target["leader"] == 448_016;
        targets.iter().any(is_it)
    };
    assert!(planned(""));
    assert!(!planned("[reap]\nnever = [\"python3.12\"]\n"));
    assert!(planned("[reap]\nnever = [\"python3\", \"ython3.12\"]\n"));
}

/// Trains, and frees what it caches when it is told: here, by saying so to the test, which plays the driver.
const TRAINS: &str = r#"
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
fn on_a_full_gpu_training_that_announced_a_signal_cleans_up_and_goes_on() {
    let Some(python) = find("python3", "python3") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let cleaned = folder.path().join("cleaned");
    let start = |announces: bool| {
        let mut command = Command::new(&python);
        command.args(["-u", "-c", TRAINS]);
        if announces {
            command.arg(&cleaned).env("GPUMEM_RELEASE_SIGNAL", "USR2");
        }
        let mut trains = Talking::start(&mut command);
        assert_eq!(trains.line(), "ready");
        trains
    };
    // The other one would die of the signal.
    let (announced, other) = (start(true), start(false));
    let scene = |gib: u64| {
        let gpu = Gpu::new("NVIDIA H100 80GB HBM3")
            .total(80 * GIB)
            .process(Process::compute(announced.running.pid(), gib * GIB))
            .process(Process::compute(other.running.pid(), 2 * GIB));
        Scene::new().gpu(gpu)
    };
    let cleans = "[sample]\ninterval = \"200ms\"\n[reap]\nwithin = \"10m\"\n\
                  [rules.pressure]\nmin_free = \"79GiB\"\nduration = \"1s\"\naction = \"release\"\n";
    let service = Service::start(&scene(9), cleans);
    service.wait_for_message("READY=1");
    wait_until("it was told", || fs::read_to_string(&cleaned).is_ok_and(|it| it == "cleaned\n"));
    service.machine.play(&scene(3));
    let log = service.machine.path("state").join("reap.jsonl");
    let outcome = || -> Option<Value> {
        let text = fs::read_to_string(&log).ok()?;
        let mut entries = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        entries.find(|it| it["outcome"].is_string())
    };
    wait_until("the audit log has what came back", || outcome().is_some());
    let outcome = outcome().unwrap();
    assert_eq!((&outcome["outcome"], &outcome["bytes"]), (&"released".into(), &(6 * GIB).into()));
    // The GPU is as full as before for the other; who was asked is not asked again so soon.
    thread::sleep(Duration::from_secs(2));
    assert_eq!(fs::read_to_string(&cleaned).unwrap(), "cleaned\n");
    assert!(procs::lives(announced.running.pid()) && procs::lives(other.running.pid()));
    service.end();
}

#[test]
fn the_configuration_to_begin_with_is_valid_with_all_its_settings() {
    let machine = Machine::new(&one_gpu(&[]));
    let commented = fs::read_to_string(packaging("config.toml")).unwrap();
    let setting = |line: &str| {
        line.strip_prefix('#').filter(|it| !it.starts_with([' ', '#'])).map(str::to_owned)
    };
    let lines: Vec<String> =
        commented.lines().map(|line| setting(line).unwrap_or_else(|| line.to_owned())).collect();
    assert!(lines.iter().filter(|line| line.contains(" = ")).count() > 12, "{lines:?}");
    for toml in [commented, lines.join("\n")] {
        let file = machine.path("begin.toml");
        fs::write(&file, toml).unwrap();
        machine.run(&["config", "check", file.to_str().unwrap()]).exits(0);
    }
}

#[test]
fn the_mailer_takes_no_text_for_a_header_an_address_or_an_end() {
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
