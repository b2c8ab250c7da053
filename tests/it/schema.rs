//! The published schemas: what gpumem writes is valid, what is broken is not, and they name exactly
//! the fields that are written.

pub(crate) mod derived;
mod documents;
mod explain;
mod promised;
mod reap;
mod release;

use std::collections::BTreeSet;
use std::fs;

use gpumem::api::report::schema;
use jsonschema::Validator;
use serde_json::{Value, json};

use self::documents::{diagnosis, report, snapshot};
use crate::machine::{Machine, Running, one_gpu};
use crate::support::run;

fn schema(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn validator(text: &str) -> Validator {
    let schema = schema(text);
    jsonschema::draft202012::meta::validate(&schema).unwrap();
    jsonschema::draft202012::options().should_validate_formats(true).build(&schema).unwrap()
}

#[track_caller]
fn valid(validator: &Validator, document: &Value) {
    let errors: Vec<String> = validator
        .iter_errors(document)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{errors:?} in {document}");
}

fn corpus() -> Vec<std::path::PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/corpus");
    let files = fs::read_dir(folder).unwrap();
    let recordings: Vec<_> = files
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
        .collect();
    assert!(recordings.len() >= 14);
    recordings
}

#[test]
fn they_are_printed_as_they_are_committed() {
    for (name, text) in [
        ("check", schema::CHECK),
        ("doctor", schema::DOCTOR),
        ("explain", schema::EXPLAIN),
        ("history", schema::HISTORY),
        ("reap", schema::REAP),
        ("release", schema::RELEASE),
        ("snapshot", schema::SNAPSHOT),
        ("totals", schema::TOTALS),
    ] {
        let printed = run(&["schema", name]);
        assert_eq!((printed.code, printed.stdout.as_str()), (0, text));
    }
    let unknown = run(&["schema", "findings"]);
    assert_eq!(unknown.code, 2);
    assert!(
        unknown.stderr.contains("check, doctor, explain, history, reap, release, snapshot, totals"),
        "{unknown:?}"
    );
}

/// Totals in which nothing is left out.
fn totals() -> Value {
    let mut totals = run(&["ps", "--demo", "--by", "user", "--json"]).json();
    totals["errors"] = json!([{"gpu": 0, "call": "nvmlDeviceGetMemoryInfo_v2", "error": "lost"}]);
    totals
}

#[test]
fn totals_of_every_kind_are_valid() {
    let validator = validator(schema::TOTALS);
    for by in ["user", "job", "container", "framework"] {
        valid(&validator, &run(&["ps", "--demo", "--by", by, "--json"]).json());
    }
    let mut broken = totals();
    broken["totals"][0]["memory_bytes"] = json!(-1);
    assert!(!validator.is_valid(&broken));
}

#[test]
fn every_snapshot_is_valid() {
    let validator = validator(schema::SNAPSHOT);
    for path in corpus() {
        for line in fs::read_to_string(path).unwrap().lines() {
            valid(&validator, &serde_json::from_str(line).unwrap());
        }
    }
    let mut demo =
        gpumem::api::source::Replay::demo(gpumem::api::source::PlaybackPace::AsFast).unwrap();
    while let Some(snapshot) = gpumem::api::source::Source::next(&mut demo).unwrap() {
        valid(&validator, &serde_json::to_value(snapshot).unwrap());
    }
    let child = Running::sleep();
    let machine = Machine::new(&one_gpu(&[child.pid(), 4_190_000]));
    valid(&validator, &machine.snapshot(0).0);
    let lost = one_gpu(&[]).fault(mock_nvml::scene::Fault::error("*", 15));
    valid(&validator, &Machine::new(&lost).snapshot(3).0);
}

#[test]
fn every_verdict_is_valid() {
    let validator = validator(schema::CHECK);
    let check = |arguments: &[&str]| {
        let output = run(&[&["check", "--json"], arguments].concat());
        valid(&validator, &output.json());
    };
    for path in corpus() {
        check(&[
            "--replay",
            path.to_str().unwrap(),
            "--max-used",
            "50%",
            "--max-unattributed",
            "0",
        ]);
    }
    check(&["--demo", "--fail-on", "info"]);
    check(&["--demo", "--wait-free", "1GiB", "--wait-free", "79GiB:0"]);
    check(&["--demo", "--gpu", "9"]);
    check(&["--rule", "idel"]);
    check(&["--jsn"]);
    check(&["--replay", "/nonexistent.jsonl"]);
    check(&["--nvml-library", "/nonexistent/libnvidia-ml.so.1"]);
    let lost = one_gpu(&[]).fault(mock_nvml::scene::Fault::error("*", 15));
    let output =
        Machine::new(&lost).run(&["check", "--json", "--window", "0s", "--max-used", "1%"]);
    assert_eq!(output.code, 3);
    valid(&validator, &output.json());
    valid(&validator, &report());
}

#[test]
fn every_diagnosis_is_valid() {
    let validator = validator(schema::DOCTOR);
    let none = run(&["doctor", "--json", "--nvml-library", "/nonexistent/libnvidia-ml.so.1"]);
    assert_eq!(none.code, 3, "{none:?}");
    valid(&validator, &none.json());
    let lost = mock_nvml::scene::Fault::error("*", 15).on(0);
    let one_lost = one_gpu(&[]).gpu(mock_nvml::scene::Gpu::default()).fault(lost);
    for scene in [one_gpu(&[7]), one_lost, one_gpu(&[]).init_error(18)] {
        valid(&validator, &Machine::new(&scene).run(&["doctor", "--json"]).json());
    }
    valid(&validator, &diagnosis());
}

#[test]
fn what_is_broken_is_not_valid() {
    let snapshots = validator(schema::SNAPSHOT);
    let checks = validator(schema::CHECK);
    let (snapshot, report) = (serde_json::to_value(snapshot()).unwrap(), report());
    let (doctors, diagnosis) = (validator(schema::DOCTOR), diagnosis());
    for (validator, whole, pointer, wrong) in [
        (&snapshots, &snapshot, "/schema", json!("gpumem.snapshot/2")),
        (&snapshots, &snapshot, "/time", json!(1_763_706_000)),
        (&snapshots, &snapshot, "/time", json!("yesterday")),
        (&snapshots, &snapshot, "/gpus", json!({})),
        (&snapshots, &snapshot, "/gpus/0/index", json!(-1)),
        (&snapshots, &snapshot, "/gpus/0/memory/used_bytes", json!(null)),
        (&snapshots, &snapshot, "/gpus/0/memory/used_bytes", json!("5 GiB")),
        (&snapshots, &snapshot, "/gpus/0/processes/0/sm_percent", json!(-1)),
        (&snapshots, &snapshot, "/gpus/0/mig_devices/0/memory", json!(7)),
        (&snapshots, &snapshot, "/processes/0/command", json!("python train.py")),
        (&snapshots, &snapshot, "/processes/0/state", json!("sleeping")),
        (&snapshots, &snapshot, "/errors/0", json!({"gpu": 0})),
        (&checks, &report, "/schema", json!("gpumem.check/2")),
        (&checks, &report, "/status", json!("fine")),
        (&checks, &report, "/counts", json!({"info": 0})),
        (&checks, &report, "/findings/0/kind", json!("lazy")),
        (&checks, &report, "/findings/0/severity", json!("fatal")),
        (&checks, &report, "/findings/0/gpus/0/index", json!("0")),
        (&checks, &report, "/findings/0/evidence", json!({})),
        (&checks, &report, "/findings/0/also/0/evidence", json!({})),
        (&checks, &report, "/limits/0/exceeded", json!("yes")),
        (&checks, &report, "/wait/0/satisfied", json!(null)),
        (&checks, &report, "/errors/0", json!("it failed")),
        (&doctors, &diagnosis, "/schema", json!("gpumem.doctor/2")),
        (&doctors, &diagnosis, "/works", json!("yes")),
        (&doctors, &diagnosis, "/checks/0/id", json!("Two Words")),
        (&doctors, &diagnosis, "/checks/0/verdict", json!("fine")),
        (&doctors, &diagnosis, "/checks/0/seen", json!(null)),
        (&doctors, &diagnosis, "/checks/0/gpus/0", json!("0")),
        (&doctors, &diagnosis, "/checks/0/next", json!("reboot")),
    ] {
        valid(validator, whole);
        let mut broken = whole.clone();
        *broken.pointer_mut(pointer).unwrap() = wrong.clone();
        assert!(!validator.is_valid(&broken), "{pointer} = {wrong}");
    }
    // A reader ignores what it does not know.
    let mut later = report.clone();
    later["findings"][0]["colour"] = json!("red");
    valid(&checks, &later);
}

/// The dotted names of all fields that a document holds; `[]` is each element.
fn written(value: &Value, path: &str, fields: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let path = format!("{path}.{name}");
                fields.insert(path.clone());
                // Its names are data.
                if name != "environment" {
                    written(value, &path, fields);
                }
            }
        }
        Value::Array(array) => {
            for value in array {
                written(value, &format!("{path}[]"), fields);
            }
        }
        _ => {}
    }
}

/// The same of a schema; every field has to say what it means.
fn described(root: &Value, whole: &Value, path: &str, fields: &mut BTreeSet<String>) {
    let schema = whole;
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.pointer(reference.trim_start_matches('#'));
        described(root, target.expect(reference), path, fields);
    }
    for part in ["allOf", "anyOf", "oneOf"] {
        for schema in schema[part].as_array().into_iter().flatten() {
            described(root, schema, path, fields);
        }
    }
    // What a kind's evidence holds; the kinds themselves are described already.
    if schema.get("then").is_some() {
        described(root, &schema["then"], path, fields);
    }
    if schema.get("items").is_some() {
        described(root, &schema["items"], &format!("{path}[]"), fields);
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let described_names = schema.to_string();
        // What tells variants apart is described with each of them.
        let is_tag = schema.get("const").is_some() && whole["description"].is_string();
        assert!(
            is_tag || described_names.contains("description") || described_names.contains("$ref"),
            "{path} is not described"
        );
        fields.insert(path.clone());
        described(root, schema, &path, fields);
    }
}

#[test]
fn they_name_exactly_the_fields_that_are_written() {
    for (text, document) in [
        (schema::SNAPSHOT, serde_json::to_value(snapshot()).unwrap()),
        (schema::CHECK, report()),
        (schema::DOCTOR, diagnosis()),
        (schema::EXPLAIN, explain::page()),
        (schema::REAP, reap::report()),
        (schema::RELEASE, release::document()),
        (schema::HISTORY, reap::history()),
        (schema::TOTALS, totals()),
    ] {
        let schema = schema(text);
        let (mut is, mut described_names) = (BTreeSet::new(), BTreeSet::new());
        written(&document, "", &mut is);
        described(&schema, &schema, "", &mut described_names);
        let missing: Vec<_> = is.difference(&described_names).collect();
        let invented: Vec<_> = described_names.difference(&is).collect();
        assert!(missing.is_empty(), "not in the schema: {missing:?}");
        assert!(invented.is_empty(), "never written: {invented:?}");
        for (name, definition) in schema["$defs"].as_object().unwrap() {
            assert!(definition["description"].is_string(), "{name} is not described");
        }
    }
}
