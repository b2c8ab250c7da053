//! `gpumem serve` and `record --serve` over real sockets: metrics, hanging scrapers and limits. Also the file that
//! `gpumem metrics --output` writes.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::machine::{GIB, Machine, Running, one_gpu};
use crate::procs::send;
use crate::support::{self, finish, wait_until};

/// A server of a machine, or of the demo.
struct Served {
    gpumem: Running,
    address: SocketAddr,
}

impl Served {
    fn start(machine: &Machine, arguments: &[&str]) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], support::free_port()));
        let listen = address.to_string();
        let mut command = machine.command(&[arguments, &[&listen]].concat());
        Self::start_at(machine, &mut command, address)
    }

    fn start_at(machine: &Machine, command: &mut Command, address: SocketAddr) -> Self {
        command.env("STATE_DIRECTORY", machine.path("state"));
        let served = Self { gpumem: Running::start(command.stderr(Stdio::null())), address };
        wait_until("the server is healthy", || {
            served.status("/-/healthy").starts_with("HTTP/1.1 200")
        });
        served
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(stream)
    }

    /// Sends a request. Returns the head and the body.
    fn ask(&self, request: &str) -> std::io::Result<(String, String)> {
        support::http(self.address.port(), request)
    }

    fn get(&self, path: &str) -> (String, String) {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")).unwrap_or_default()
    }

    fn status(&self, path: &str) -> String {
        self.get(path).0
    }
}

#[test]
fn only_metrics_the_verdict_and_health_are_served() {
    let machine = Machine::new(&one_gpu(&[]));
    // With --demo, values change, so serve the end of a recording.
    let demo = support::short_demo();
    let served = Served::start(&machine, &["serve", "--replay", demo, "--listen"]);
    let (head, page) = served.get("/metrics");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    // Only a running server counts waste; `gpumem metrics` does not.
    let is_waste = |line: &&str| line.contains("gpumem_waste_byte_seconds_total");
    assert!(page.lines().filter(is_waste).count() > 2, "{page}");
    let others: Vec<&str> = page.lines().filter(|line| !is_waste(line)).collect();
    let printed = machine.run(&["metrics", "--replay", demo]).stdout;
    assert_eq!(others, printed.lines().collect::<Vec<_>>());
    assert!(page.contains("gpumem_finding_active{kind=\"idle\""));
    let (_, check) = served.get("/check");
    let check: Value = serde_json::from_str(&check).unwrap();
    let mut expected = machine.run(&["check", "--replay", demo, "--json"]).json();
    assert_eq!(check["findings"], expected["findings"].take());
    let (head, links) = served.get("/");
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/html"), "{head}");
    assert_eq!(links.lines().count(), 1, "{links}");
    for path in ["/metrics", "/check", "/-/healthy"] {
        assert!(links.contains(&format!("<a href=\"{path}\">")), "{links}");
    }
    assert!(served.status("/etc/passwd").starts_with("HTTP/1.1 404"));
    let (head, _) = served.ask("POST /metrics HTTP/1.1\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 405"), "{head}");
    let (head, body) = served.ask("HEAD /metrics HTTP/1.1\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && body.is_empty(), "{head}");
    // A Host header of a foreign web page is rejected (DNS rebinding).
    for (host, status) in [
        ("127.0.0.1", 200),
        ("[::1]:9836", 200),
        ("LocalHost:1", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example:9836", 403),
        ("localhost\r\nHost: evil.example", 403),
    ] {
        let request = format!("GET /check HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let (head, _) = served.ask(&request).unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{host}: {head}");
    }
    // Noise is rejected, and the server survives.
    let _ = served.ask(&"\0\u{7f}\r\n".repeat(9000));
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(9000));
    assert!(!served.ask(&long).unwrap_or_default().0.starts_with("HTTP/1.1 200"));
    assert!(served.status("/metrics").starts_with("HTTP/1.1 200"));
}

#[test]
fn an_answer_is_compressed_on_request() {
    let machine = Machine::new(&one_gpu(&[]));
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/src/source/demo.jsonl.zst");
    let served = Served::start(&machine, &["serve", "--replay", demo, "--listen"]);
    let answer = |method: &str, path: &str, accepted: &str| {
        let mut stream = served.connect().unwrap();
        let request = format!("{method} {path} HTTP/1.1\r\nAccept-Encoding: {accepted}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let at = answer.windows(4).position(|end| end == b"\r\n\r\n").unwrap();
        let body = answer.split_off(at + 4);
        (String::from_utf8(answer).unwrap(), body)
    };
    let gunzip = |body: &[u8]| {
        let path = machine.path("answer.gz");
        std::fs::write(&path, body).unwrap();
        let output = Command::new("gzip").arg("-dc").arg(path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for path in ["/metrics", "/check", "/-/healthy", "/", "/nothing"] {
        let (_, plain) = served.get(path);
        for accepted in ["gzip", "br, GZip;q=0.5, *;q=0", "deflate,gzip; q=1"] {
            let (head, body) = answer("GET", path, accepted);
            assert!(head.contains("\r\nContent-Encoding: gzip\r\n"), "{accepted}: {head}");
            assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
            assert_eq!(gunzip(&body), plain, "{path}");
            assert!(plain.len() < 2000 || body.len() * 3 < plain.len(), "{path}: {}", body.len());
        }
        for refused in ["", "identity", "gzip;q=0", "br, gzip; q=0.000", "gzipped"] {
            let (head, body) = answer("GET", path, refused);
            assert!(!head.contains("Content-Encoding"), "{refused}: {head}");
            assert_eq!(String::from_utf8(body).unwrap(), plain, "{path}");
        }
        let (head, body) = answer("HEAD", path, "gzip");
        assert!(head.contains("\r\nContent-Encoding: gzip\r\n") && body.is_empty(), "{head}");
    }
}

#[test]
fn the_demos_values_change() {
    let machine = Machine::new(&one_gpu(&[]));
    let served = Served::start(&machine, &["serve", "--demo", "--listen"]);
    let values = |metric: &str| {
        let (_, page) = served.get("/metrics");
        page.lines().filter(|line| line.starts_with(metric)).map(str::to_owned).collect::<Vec<_>>()
    };
    for metric in ["gpumem_gpu_power_watts", "gpumem_waste_byte_seconds_total"] {
        let before = values(metric);
        assert!(!before.is_empty());
        wait_until(metric, || values(metric) != before);
    }
}

#[test]
fn a_scrape_does_not_sample() {
    let machine = Machine::new(&one_gpu(&[]));
    let served = Served::start(&machine, &["serve", "--no-store", "--interval", "1h", "--listen"]);
    // Utilization is read every few seconds; these calls are made once per sample.
    let counts = || {
        let calls = ["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3"];
        calls.map(|call| machine.counts().get(&(call.to_owned(), Some(0))).copied())
    };
    let before = counts();
    assert!(before.iter().all(Option::is_some), "{before:?}");
    for _ in 0..100 {
        for path in ["/metrics", "/check", "/-/healthy"] {
            assert!(served.status(path).starts_with("HTTP/1.1 200"));
        }
    }
    assert_eq!(counts(), before);
}

#[test]
fn hanging_scrapers_are_limited_in_number_and_time() {
    let machine = Machine::new(&one_gpu(&[]));
    let replay = ["serve", "--replay", support::short_demo(), "--listen"];
    let served = Served::start(&machine, &replay);
    // Two thousand clients: silent, with an unfinished header, or never reading the answer.
    let mut hanging = Vec::new();
    for number in 0..2000 {
        let Ok(mut stream) = served.connect() else {
            continue;
        };
        match number % 3 {
            0 => {}
            1 => drop(stream.write_all(b"GET /metrics HTTP/1.1\r\nX: ")),
            _ => drop(stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")),
        }
        hanging.push(stream);
        if hanging.len() > 500 {
            hanging.remove(0);
        }
    }
    let threads = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", served.gpumem.pid())).unwrap();
        tasks.count()
    };
    // At most sixteen are served at a time. The threads of the others end.
    wait_until("few threads are left", || threads() < 40);
    assert!(served.status("/metrics").starts_with("HTTP/1.1 200"));
    drop(hanging);
}

#[test]
fn idle_connections_do_not_block_a_scrape() {
    let machine = Machine::new(&one_gpu(&[]));
    let replay = ["serve", "--replay", support::short_demo(), "--listen"];
    let served = Served::start(&machine, &replay);
    let idle: Vec<TcpStream> = (0..40).map(|_| served.connect().unwrap()).collect();
    // The idle connections stay open, and each request is answered.
    for _ in 0..3 {
        let head = served.status("/metrics");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    }
    // The oldest connections were closed, the newest were not.
    let is_closed = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        matches!(stream.read(&mut [0]), Ok(0))
    };
    wait_until("the oldest connection is closed", || is_closed(&idle[0]));
    assert!(!is_closed(&idle[39]));
}

/// Only the process that writes the store uses the configured address.
#[test]
fn a_recorder_serves_on_the_configured_address() {
    let machine = Machine::new(&one_gpu(&[]));
    std::fs::create_dir(machine.path("state")).unwrap();
    let [configured, typed] =
        [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], support::free_port())));
    machine.configure(&format!("[sample]\ninterval = \"200ms\"\nserve = \"{configured}\"\n"));
    let mut recorder = machine.command(&["record", "--store"]);
    let served = Served::start_at(&machine, &mut recorder, configured);
    assert!(served.get("/metrics").1.contains("gpumem_last_sample_timestamp_seconds "));
    machine.run(&["record", "--duration", "300ms", "-"]).exits(0);
    // A recorder with another store records without serving.
    let store = machine.path("other").display().to_string();
    let recorder = ["record", "--store", "--store-dir", &store, "--duration", "300ms"];
    assert!(machine.run(&recorder).exits(0).stderr.contains("not serving: cannot listen on"));
    let mut other = machine.command(&["serve"]);
    let other = finish(other.args(["--listen", &configured.to_string()]));
    assert!(other.exits(3).stderr.contains("choose another address"));
    drop(served);
    let typed_text = typed.to_string();
    let mut recorder = machine.command(&["record", "--store", "--serve", &typed_text]);
    let _served = Served::start_at(&machine, &mut recorder, typed);
    assert!(TcpStream::connect(configured).is_err(), "the option replaces the configured address");
}

#[test]
fn a_recorder_serves_metrics() {
    let mut sleeper = Command::new("sleep");
    let sleeper = Running::start(sleeper.arg("600"));
    let machine = Machine::new(&one_gpu(&[sleeper.pid()]));
    std::fs::create_dir(machine.path("state")).unwrap();
    let served = Served::start(&machine, &["record", "--store", "--interval", "200ms", "--serve"]);
    let (_, page) = served.get("/metrics");
    let held = page.lines().find(|line| line.starts_with("gpumem_process_memory_bytes")).unwrap();
    assert!(held.contains(&format!("pid=\"{}\"", sleeper.pid())), "{held}");
    assert!(held.contains("command=\"sleep\""), "{held}");
    let bytes: f64 = held.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(bytes >= GIB as f64, "{held}");
    assert!(page.contains("gpumem_last_sample_timestamp_seconds "), "{page}");
    send(served.gpumem.pid(), Signal::TERM);
    let mut gpumem = served.gpumem;
    assert!(gpumem.0.wait().unwrap().success());
    assert!(!machine.path("state/waste.json").exists());
    assert!(machine.path("state/store").is_dir());
    // A second server hints that the recorder could serve.
    let mut second = machine.command(&["serve", "--listen", "127.0.0.1:0"]);
    let stderr = machine.path("stderr");
    second.env("STATE_DIRECTORY", machine.path("state"));
    second.stderr(std::fs::File::create(&stderr).unwrap());
    let second = Running(second.spawn().unwrap());
    wait_until("the hint is printed", || {
        let stderr = std::fs::read_to_string(&stderr).unwrap();
        stderr.contains("a recorder already samples this machine")
    });
    drop(second);
    // The totals of the audit log are on the page as well.
    let act = r#"{"schema":"gpumem.ledger/1","time":"2026-11-20T12:00:00Z","act":"a","#;
    let deed = r#""event":"intended","deed":"shut_kernel","kernel_id":"k"}"#;
    let end = r#""event":"ended","outcome":"freed","bytes":1073741824,"ms":9}"#;
    let log = format!("{act}{deed}\n{act}{end}\n");
    std::fs::write(machine.path("state/reap.jsonl"), log).unwrap();
    let page = machine.path("page.prom");
    let mut command = machine.command(&["metrics", "--output", page.to_str().unwrap()]);
    assert!(command.env("STATE_DIRECTORY", machine.path("state")).status().unwrap().success());
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("gpumem_reclaims_total{how=\"end\",outcome=\"freed\"} 1.0"), "{page}");
    assert!(
        page.contains("gpumem_reclaimed_bytes_total{how=\"end\",user=\"\"} 1073741824.0"),
        "{page}"
    );
}

#[test]
fn a_page_that_cannot_be_written_is_an_error() {
    let machine = Machine::new(&one_gpu(&[]));
    let (folder, demo) = (machine.path("pages"), support::short_demo());
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let output = machine.run(&["metrics", "--replay", demo, "--output", &path("page.prom")]);
    assert_eq!(output.code, 3, "{output:?}");
    std::fs::create_dir_all(folder.join("page.prom")).unwrap();
    let output = machine.run(&["metrics", "--replay", demo, "--output", &path("page.prom")]);
    assert_eq!(output.code, 3, "{output:?}");
    let output = machine.run(&["metrics", "--replay", demo, "--output", "/dev/full"]);
    assert_eq!(output.code, 3, "{output:?}");
    assert!(!std::fs::symlink_metadata("/dev/full").unwrap().is_file());
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
}
