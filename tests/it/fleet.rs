//! What `packaging` has for a fleet, tried by the programs that it is for: promtool and Prometheus on the demo.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::machine::Running;
use crate::support::{self, wait_until};

fn packaging(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("packaging").join(file)
}

fn demo(arguments: &[&str]) -> String {
    let output = support::command(arguments).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn promtool_accepts_the_page_and_the_rules_say_what_they_should() {
    let promtool = or_skip!(support::find("promtool", "prometheus"));
    let page = demo(&["metrics", "--demo"]);
    let mut check = Command::new(&promtool);
    check.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut check = check.stderr(Stdio::piped()).spawn().unwrap();
    check.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");

    let tests = packaging("prometheus/gpumem.tests.yml");
    let output = Command::new(&promtool).args(["test", "rules"]).arg(&tests).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    // Their series are of the demo's page, so that no name drifts.
    let text = fs::read_to_string(tests).unwrap();
    let series = text.lines().filter_map(|line| line.trim().strip_prefix("- series: '"));
    let mut count = 0;
    for series in series.filter_map(|it| it.strip_suffix('\'')) {
        let own = series.replace("job=\"gpumem\",", "").replace("{instance=\"a\"}", "");
        let own = own.replace("instance=\"a\",", "");
        // Prometheus's own, and what the demo has none of.
        let is_of_others = own == "up"
            || own.starts_with("gpumem_last_sample_timestamp")
            // Only what runs counts it; the board's query of it is tried below.
            || own.starts_with("gpumem_waste_byte_seconds_total")
            || own.contains("instance=\"b\"")
            || own.starts_with("gpumem_finding_active{kind=\"unattributed\"");
        assert!(is_of_others || page.contains(&format!("\n{own} ")), "{own}");
        count += 1;
    }
    assert!(count > 5, "{count}");
}

/// A Prometheus that scrapes a recording ten times a second, by the example's configuration.
struct Prometheus {
    port: u16,
    _processes: [Running; 2],
    _folder: tempfile::TempDir,
}

impl Prometheus {
    /// `more` stands at the end of its one scrape configuration.
    fn start(recording: &[&str], more: &str) -> Option<Self> {
        let program = support::find("prometheus", "prometheus")?;
        let folder = tempfile::tempdir().unwrap();
        let (served, port) = (support::free_port(), support::free_port());
        let address = format!("127.0.0.1:{served}");
        let mut gpumem = support::command(&["serve", "--listen", &address]);
        let gpumem = Running::start(gpumem.args(recording).stderr(Stdio::null()));
        let copy = |file: &str, changes: &[(&str, &str)]| {
            let mut text = fs::read_to_string(packaging(&format!("prometheus/{file}"))).unwrap();
            for (from, to) in changes {
                assert!(text.contains(from), "{file}: {from}");
                text = text.replace(from, to);
            }
            fs::write(folder.path().join(file), text).unwrap();
        };
        copy(
            "prometheus.yml",
            &[("127.0.0.1:9836", &address), ("interval: 15s", "interval: 100ms")],
        );
        let configuration = folder.path().join("prometheus.yml");
        let example = fs::read_to_string(&configuration).unwrap();
        fs::write(configuration, example + more).unwrap();
        copy("gpumem.rules.yml", &[("for: 1m", "for: 0s")]);
        let mut command = Command::new(program);
        command
            .arg(format!("--config.file={}", folder.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stderr(Stdio::null());
        let prometheus = Running::start(&mut command);
        wait_until("Prometheus is ready", || {
            let answer = support::http(port, "GET /-/ready HTTP/1.0\r\n\r\n");
            answer.is_ok_and(|(head, _)| head.contains(" 200 "))
        });
        Some(Self { port, _processes: [gpumem, prometheus], _folder: folder })
    }

    /// What it answers to a query now.
    fn query(&self, expression: &str) -> Result<Vec<Value>, String> {
        let mut encoded = String::new();
        for byte in expression.bytes() {
            let _ = write!(encoded, "%{byte:02x}");
        }
        let request = format!("GET /api/v1/query?query={encoded} HTTP/1.0\r\n\r\n");
        let answer = support::http(self.port, &request).map_err(|error| error.to_string())?;
        let answer: Value = serde_json::from_str(&answer.1).map_err(|error| error.to_string())?;
        match answer["status"].as_str() {
            Some("success") => Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default()),
            _ => Err(format!("{expression}: {answer}")),
        }
    }

    /// Waits until it has an answer with something in it.
    fn some(&self, expression: &str) -> Vec<Value> {
        let mut result = Vec::new();
        wait_until(expression, || {
            result = self.query(expression).unwrap();
            !result.is_empty()
        });
        result
    }
}

/// The findings, as (kind, pid).
fn who<'v>(findings: impl Iterator<Item = (&'v Value, String)>) -> BTreeSet<(String, String)> {
    findings.map(|(kind, pid)| (kind.as_str().unwrap().to_owned(), pid)).collect()
}

#[test]
fn a_real_prometheus_reads_the_findings_back_alerts_and_draws_the_board() {
    let prometheus = or_skip!(Prometheus::start(&["--demo"], ""));
    let check: Value = serde_json::from_str(&demo(&["check", "--demo", "--json"])).unwrap();
    let findings = check["findings"].as_array().unwrap();
    let of = |finding: &'static str| {
        let metric = prometheus.some(finding);
        let labels = metric.iter().map(|it| &it["metric"]);
        who(labels.map(|it| (&it["kind"], it["pid"].as_str().unwrap().to_owned())))
    };
    let expected = |is_asked: &dyn Fn(&Value) -> bool| {
        let asked = findings.iter().filter(|it| is_asked(it));
        who(asked.map(|it| (&it["kind"], it["process"]["pid"].to_string())))
    };
    assert_eq!(of("gpumem_finding_active"), expected(&|_| true));
    let alerts = of("ALERTS{alertname=\"GpumemFinding\",alertstate=\"firing\"}");
    assert_eq!(alerts, expected(&|it| it["severity"] != "info"));
    // A scrape that took longer than its tenth of a second is no alert, but pends as one.
    let others = "ALERTS{alertname!=\"GpumemFinding\",alertstate=\"firing\"}";
    assert_eq!(prometheus.query(others), Ok(Vec::new()));

    prometheus.some("count_over_time(gpumem_gpu_up{gpu=\"0\"}[1m]) > 20");
    let board = fs::read_to_string(packaging("grafana/gpumem.json")).unwrap();
    let board: Value = serde_json::from_str(&board).unwrap();
    let panels = board["panels"].as_array().unwrap();
    for expression in panels.iter().flat_map(|it| it["targets"].as_array().unwrap()) {
        let expression = expression["expr"].as_str().unwrap();
        let asked = expression.replace("$instance", ".*").replace("$user", ".*");
        // Of a recording nothing is got back.
        match expression.contains("gpumem_reclaimed_bytes_total") {
            true => assert_eq!(prometheus.query(&asked), Ok(Vec::new())),
            false => drop(prometheus.some(&asked)),
        }
    }
    for variable in board["templating"]["list"].as_array().unwrap() {
        let query = variable["query"].as_str().unwrap();
        let metric = query.strip_prefix("label_values(").and_then(|it| it.split_once(','));
        prometheus.some(metric.unwrap().0);
    }
}

/// As in Kubernetes, where the target is a pod itself, and `honorLabels` of packaging/kubernetes/podmonitor.yaml.
#[test]
fn who_holds_memory_keeps_its_pod_and_gets_none_of_the_scraped() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("a.jsonl");
    let snapshot = r#"{"schema":"gpumem.snapshot/1","time":"2026-11-20T12:00:00Z","gpus":[{"index":0,"uuid":"GPU-a",
        "memory":{"total_bytes":100,"used_bytes":40,"free_bytes":60},"processes":[
        {"pid":7,"type":"compute","used_bytes":6},{"pid":8,"type":"compute","used_bytes":5}]}],
        "processes":[{"pid":7,"start_ticks":1,"kubernetes":{"pod_uid":"u","pod_name":"bert-0",
        "namespace":"train","container_name":"main"}},{"pid":8,"start_ticks":1}]}"#;
    fs::write(&recording, snapshot.replace('\n', "") + "\n").unwrap();
    let more = "        labels: {pod: gpumem-x, namespace: gpumem, container: gpumem}\n    honor_labels: true\n";
    let recording = ["--replay", recording.to_str().unwrap()];
    let prometheus = or_skip!(Prometheus::start(&recording, more));
    let names = |query: &str| {
        let found = prometheus.some(query);
        ["pod", "namespace", "container"].map(|name| found[0]["metric"][name].clone())
    };
    assert_eq!(names("gpumem_process_memory_bytes{pid=\"7\"}"), ["bert-0", "train", "main"]);
    let none = [Value::Null, Value::Null, Value::Null];
    assert_eq!(names("gpumem_process_memory_bytes{pid=\"8\"}"), none);
    assert_eq!(names("gpumem_gpu_memory_total_bytes"), ["gpumem-x", "gpumem", "gpumem"]);
}
