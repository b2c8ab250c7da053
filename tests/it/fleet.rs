//! The Prometheus and Grafana files in `packaging`, tested with the demo, promtool and Prometheus.

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
fn promtool_accepts_the_metrics_and_the_rules() {
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
    // The series in the rule tests must occur in the demo's metrics, so that a renamed metric fails this test.
    let text = fs::read_to_string(tests).unwrap();
    let series = text.lines().filter_map(|line| line.trim().strip_prefix("- series: '"));
    let mut count = 0;
    for series in series.filter_map(|line| line.strip_suffix('\'')) {
        let name = series.replace("job=\"gpumem\",", "").replace("{instance=\"a\"}", "");
        let name = name.replace("instance=\"a\",", "");
        // Series of Prometheus, and series that the demo does not produce.
        let is_elsewhere = name == "up"
            || name.starts_with("gpumem_last_sample_timestamp")
            // Only a running service exports this counter.
            || name.starts_with("gpumem_waste_byte_seconds_total")
            || name.contains("instance=\"b\"")
            || name.starts_with("gpumem_finding_active{kind=\"unattributed\"");
        assert!(is_elsewhere || page.contains(&format!("\n{name} ")), "{name}");
        count += 1;
    }
    assert!(count > 5, "{count}");
}

/// A Prometheus server that uses the example configuration, and scrapes a recording ten times a second.
struct Prometheus {
    port: u16,
    _processes: [Running; 2],
    _folder: tempfile::TempDir,
}

impl Prometheus {
    /// Starts the server. `more` is appended to the scrape configuration.
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

    fn wait_for_results(&self, expression: &str) -> Vec<Value> {
        let mut result = Vec::new();
        wait_until(expression, || {
            result = self.query(expression).unwrap();
            !result.is_empty()
        });
        result
    }
}

/// Returns the kind and pid of each finding.
fn kinds_and_pids<'v>(
    findings: impl Iterator<Item = (&'v Value, String)>,
) -> BTreeSet<(String, String)> {
    findings.map(|(kind, pid)| (kind.as_str().unwrap().to_owned(), pid)).collect()
}

#[test]
fn a_real_prometheus_shows_findings_alerts_and_the_board() {
    let prometheus = or_skip!(Prometheus::start(&["--demo"], ""));
    let check: Value = serde_json::from_str(&demo(&["check", "--demo", "--json"])).unwrap();
    let findings = check["findings"].as_array().unwrap();
    let findings_in = |finding: &'static str| {
        let series = prometheus.wait_for_results(finding);
        let labels = series.iter().map(|series| &series["metric"]);
        kinds_and_pids(
            labels.map(|labels| (&labels["kind"], labels["pid"].as_str().unwrap().to_owned())),
        )
    };
    let expected = |is_expected: &dyn Fn(&Value) -> bool| {
        let chosen = findings.iter().filter(|finding| is_expected(finding));
        kinds_and_pids(
            chosen.map(|finding| (&finding["kind"], finding["process"]["pid"].to_string())),
        )
    };
    assert_eq!(findings_in("gpumem_finding_active"), expected(&|_| true));
    let alerts = findings_in("ALERTS{alertname=\"GpumemFinding\",alertstate=\"firing\"}");
    assert_eq!(alerts, expected(&|finding| finding["severity"] != "info"));
    // A slow scrape makes an alert pending, but not firing.
    let others = "ALERTS{alertname!=\"GpumemFinding\",alertstate=\"firing\"}";
    assert_eq!(prometheus.query(others), Ok(Vec::new()));

    prometheus.wait_for_results("count_over_time(gpumem_gpu_up{gpu=\"0\"}[1m]) > 20");
    let board = fs::read_to_string(packaging("grafana/gpumem.json")).unwrap();
    let board: Value = serde_json::from_str(&board).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let (rows, panels): (Vec<&Value>, Vec<&Value>) =
        panels.iter().partition(|panel| panel["type"] == "row");
    let titles: Vec<&Value> = rows.iter().map(|row| &row["title"]).collect();
    assert_eq!(titles, ["Utilization", "Power", "Temperature"]);
    for expression in panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap()) {
        let expression = expression["expr"].as_str().unwrap();
        prometheus.wait_for_results(&expression.replace("$instance", ".*").replace("$user", ".*"));
    }
    // Grafana resolves the inputs of an imported dashboard, but not those of a provisioned file. A variable selects
    // the data source in both.
    let variables = board["templating"]["list"].as_array().unwrap();
    assert_eq!(
        (&variables[0]["name"], &variables[0]["type"]),
        (&"datasource".into(), &"datasource".into())
    );
    let text = board.to_string();
    assert_eq!(
        text.matches("\"uid\":").count(),
        text.matches("\"uid\":\"${datasource}\"").count() + 1
    );
    for variable in &variables[1..] {
        let query = variable["query"].as_str().unwrap();
        let metric =
            query.strip_prefix("label_values(").and_then(|arguments| arguments.split_once(','));
        prometheus.wait_for_results(metric.unwrap().0);
    }
    for changing in ["gpumem_gpu_power_watts", "gpumem_gpu_memory_bytes{part=\"free\"}"] {
        prometheus.wait_for_results(&format!("changes({changing}[1m]) > 0"));
    }
    prometheus.wait_for_results("gpumem:waste_gpu_hours:7d > 0");
}

/// Parses the dashboard with the models that Grafana publishes.
#[test]
fn the_board_is_valid_for_grafana() {
    let python = or_skip!(support::python_with(&["grafana_foundation_sdk"]));
    let check = |text: &str| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/fleet/check_board.py");
        let output = Command::new(&python).arg(script).arg(file.path()).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let board = fs::read_to_string(packaging("grafana/gpumem.json")).unwrap();
    assert_eq!(check(&board), (true, String::new()));
    for (good, bad, problem) in [
        ("\"expr\":", "\"exprs\":", "unknown key 'exprs'"),
        ("\"mode\": \"normal\"", "\"mode\": \"norml\"", "'norml' is not one of"),
    ] {
        assert!(board.contains(good), "{good}");
        let (is_valid, problems) = check(&board.replace(good, bad));
        assert!(!is_valid && problems.contains(problem), "{bad}: {problems}");
    }
}

/// In Kubernetes, the scraped target is itself in a pod, and `honorLabels` is set
/// (packaging/kubernetes/podmonitor.yaml).
#[test]
fn a_processs_pod_labels_win_over_the_scraped_pods() {
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
        let series = prometheus.wait_for_results(query);
        ["pod", "namespace", "container"].map(|name| series[0]["metric"][name].clone())
    };
    assert_eq!(names("gpumem_process_memory_bytes{pid=\"7\"}"), ["bert-0", "train", "main"]);
    let none = [Value::Null, Value::Null, Value::Null];
    assert_eq!(names("gpumem_process_memory_bytes{pid=\"8\"}"), none);
    assert_eq!(names("gpumem_gpu_memory_total_bytes"), ["gpumem-x", "gpumem", "gpumem"]);
}
