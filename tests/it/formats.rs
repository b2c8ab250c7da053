//! `check` for CI servers and scripts: JUnit XML, annotations, `--print` and `--baseline`.

use std::process::Command;

use mock_nvml::scene::{Gpu, Process, Scene};
use serde_json::Value;

use crate::machine::{GIB, Machine, Running, one_gpu};
use crate::support::{self, Output, run};

/// Validates JUnit XML against the requirements of both published schemas, junit-10.xsd of Jenkins and JUnit.xsd of
/// Windy Road. Prints the numbers of failures and errors.
const VALID: &str = r"
import re, sys
import xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
assert root.tag == 'testsuites' and not root.attrib
[suite] = root
assert set(suite.attrib) == {'name', 'package', 'id', 'timestamp', 'hostname', 'tests', 'failures', 'errors',
                             'skipped', 'time'}
assert re.fullmatch(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d', suite.get('timestamp')) and suite.get('hostname').strip()
tags = [part.tag for part in suite]
cases = suite.findall('testcase')
assert tags == ['properties'] + ['testcase'] * len(cases) + ['system-out', 'system-err']
seconds = [suite.get('time')] + [case.get('time') for case in cases]
assert all(re.fullmatch(r'\d{1,3}(\d{3})*\.\d+|\d+\.\d+', time) for time in seconds)
assert len({(case.get('classname'), case.get('name')) for case in cases}) == len(cases)
for case in cases:
    assert set(case.attrib) == {'classname', 'name', 'time'} and len(case) <= 1
    for result in case:
        assert result.tag in {'skipped', 'failure', 'error'} and result.get('message')
        assert result.tag == 'skipped' or result.get('type') and len(result) == 0
counted = [len(cases)] + [len(suite.findall('testcase/' + tag)) for tag in ('failure', 'error', 'skipped')]
assert counted == [int(suite.get(key)) for key in ('tests', 'failures', 'errors', 'skipped')]
print(counted[1], counted[2])
";

/// Returns the number of failed tests, and of tests that could not be measured.
fn counts(output: &Output, python: &std::path::Path) -> (u32, u32) {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.xml");
    std::fs::write(&page, &output.stdout).unwrap();
    let read = support::finish(Command::new(python).args(["-c", VALID]).arg(&page));
    assert_eq!(read.code, 0, "{}\n{}", read.stderr, output.stdout);
    let (failures, errors) = read.stdout.trim().split_once(' ').unwrap();
    (failures.parse().unwrap(), errors.parse().unwrap())
}

#[test]
fn junit_and_annotations_agree_with_the_exit_code() {
    let python = or_skip!(support::find("python3", "python3"));
    let folder = tempfile::tempdir().unwrap();
    let before = folder.path().join("before.json");
    let before = before.to_str().unwrap();
    let demo = support::short_demo();
    let ps = run(&["ps", "--replay", demo, "--json", "--gpu", "0"]);
    std::fs::write(before, ps.stdout).unwrap();
    // The name contains markup, a workflow command, and characters that XML forbids.
    let hostile = "]]></failure>&x;<!--\u{0}\u{1}\u{1b}[31m\u{fffe}\u{202e}\"'\n::add-path::/tmp%0A::error::\r##[";
    let recording = folder.path().join("hostile.jsonl");
    let spoil = |line: &str| {
        let mut snapshot: Value = serde_json::from_str(line).unwrap();
        snapshot["host"]["hostname"] = hostile.into();
        for process in snapshot["processes"].as_array_mut().unwrap() {
            for field in ["user", "comm"] {
                process[field] = hostile.into();
            }
            process["command"] = serde_json::json!([hostile, hostile]);
        }
        format!("{snapshot}\n")
    };
    let lines = std::fs::read_to_string(demo).unwrap();
    std::fs::write(&recording, lines.lines().map(spoil).collect::<String>()).unwrap();
    let recording = recording.to_str().unwrap();
    let baseline = format!("--baseline={before}");
    for (replay, options, codes) in [
        (demo, vec![], 1),
        (demo, vec!["--fail-on=critical"], 0),
        (recording, vec![], 1),
        (recording, vec![&*baseline], 3),
        (demo, vec![&*baseline, "--gpu=0"], 0),
        (demo, vec!["--baseline=/dev/null"], 2),
        (demo, vec!["--max-used=1GiB", "--max-unattributed=90%"], 1),
        (demo, vec!["--wait-free=60GiB", "--wait-free=1GiB:2"], 1),
        (demo, vec!["--wait-free=1GiB", "--wait-free=1GiB:2"], 0),
        ("/nonexistent", vec![], 2),
    ] {
        let arguments = &[&options[..], &["--replay", replay]].concat()[..];
        let page = run(&[&["check", "--format=junit"], arguments].concat());
        assert_eq!(page.code, codes, "{arguments:?}: {page:?}");
        let (failures, errors) = counts(&page, &python);
        let expected = if errors > 0 { 3 } else { i32::from(failures > 0) };
        assert_eq!(expected, codes.min(3).max(if codes == 2 { 3 } else { 0 }), "{arguments:?}");
        // All lines of the annotations but the last are workflow commands.
        let annotated = run(&[&["check", "--format", "github"], arguments].concat());
        assert_eq!(annotated.code, codes, "{arguments:?}");
        let lines: Vec<&str> = annotated.stdout.lines().collect();
        let (summary, commands) = lines.split_last().unwrap();
        assert!(!summary.contains("::") && !summary.contains("##["), "{summary}");
        let is_ours = |line: &&str| {
            let levels = ["error", "warning", "notice"];
            levels
                .iter()
                .any(|level| line.starts_with(&format!("::{level} title=gpumem check%3A ")))
        };
        assert!(commands.iter().all(is_ours), "{arguments:?}: {annotated:?}");
        let is_error = commands.iter().any(|line| line.starts_with("::error "));
        assert_eq!(is_error, codes != 0, "{arguments:?}: {annotated:?}");
    }
}

#[test]
fn print_gives_scripts_only_the_free_gpus() {
    let gpu =
        |used: u64| Gpu::new("NVIDIA H100").total(80 * GIB).process(Process::compute(1, used));
    let machine = Machine::new(&Scene::new().gpu(gpu(70 * GIB)).gpu(gpu(GIB)));
    let check = |more: &[&str]| machine.run(&[&["check", "--timeout", "0s"], more].concat());
    let uuid = machine.snapshot(0).gpu(1)["uuid"].as_str().unwrap().to_owned();
    let late = check(&["--wait-free", "20GiB:0", "--format", "junit"]).exits(1).stdout;
    let failure = late.split("<failure").nth(1).unwrap().split("</failure>").next().unwrap();
    assert!(failure.contains("of 80.0 GiB free\nPID"), "{late}");
    let by_uuid = check(&["--wait-free", "20GiB", "--print", "uuid"]).exits(0);
    assert_eq!(by_uuid.stdout, format!("{uuid}\n"));
    let two = ["--wait-free", "1GiB:0", "--wait-free", "1GiB", "--wait-free", "1GiB:1"];
    let two = check(&[&two[..], &["--print", "index", "-q"]].concat()).exits(0);
    assert_eq!((two.stdout.as_str(), two.stderr.as_str()), ("0,1\n", ""));
    for (arguments, code) in [
        (&["--wait-free", "20GiB:0", "--print", "index"][..], 1),
        (&["--wait-free", "20GiB", "--max-used", "1%", "--print", "index"], 1),
        (&["--print", "index"], 2),
        (&["--wait-free", "20GiB:7", "--print", "index"], 2),
    ] {
        let output = check(arguments);
        assert_eq!((output.code, output.stdout.as_str()), (code, ""), "{arguments:?}: {output:?}");
    }
}

#[test]
fn baseline_fails_on_new_holders() {
    let old = Running::sleep();
    let machine = Machine::new(&one_gpu(&[old.pid()]));
    let before = machine.path("before.json");
    let check = |file: &str| machine.run(&["check", "--json", "--no-store", "--baseline", file]);
    let taken = machine.run(&["ps", "--json"]).exits(0).stdout;
    std::fs::write(&before, &taken).unwrap();
    let before = before.to_str().unwrap();
    let same = check(before).exits(0).json();
    assert_eq!(
        (&same["new_holders"], &same["rules_applied"]),
        (&serde_json::json!([]), &false.into())
    );
    let new = Running::sleep();
    machine.play(&one_gpu(&[old.pid(), new.pid()]));
    let found = check(before).exits(1).json();
    let holders = found["new_holders"].as_array().unwrap();
    assert_eq!(holders.len(), 1, "{found}");
    assert_eq!(holders[0]["pid"], new.pid());
    // A process that reuses the pid of a holder is new.
    let mut recycled: Value = serde_json::from_str(&taken).unwrap();
    recycled["processes"][0]["start_ticks"] = 1.into();
    machine.play(&one_gpu(&[old.pid()]));
    let check_document = |name: &str, document: &Value| {
        std::fs::write(machine.path(name), document.to_string()).unwrap();
        check(machine.path(name).to_str().unwrap())
    };
    assert_eq!(
        check_document("recycled", &recycled).exits(1).json()["new_holders"][0]["pid"],
        old.pid()
    );
    // A document without processes of this boot is not a baseline.
    let mut rebooted: Value = serde_json::from_str(&taken).unwrap();
    rebooted["host"]["boot_id"] = "0".into();
    for output in [
        check_document("rebooted", &rebooted),
        check_document("verdict", &same),
        check_document("empty", &Value::Null),
        check("/nonexistent"),
    ] {
        let error = output.exits(2).json()["errors"][0]["error"].to_string();
        assert!(error.contains("gpumem ps --json"), "{error}");
    }
    let mut blind: Value = serde_json::from_str(&taken).unwrap();
    blind["gpus"] = serde_json::json!([]);
    assert_eq!(check_document("blind", &blind).exits(3).json()["status"], "error");
}
