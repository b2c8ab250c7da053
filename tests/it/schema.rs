//! The published schemas are valid, describe every field, and reject invalid documents. [`check`] validates every
//! document that a test reads from gpumem.

pub(crate) mod derived;

use std::collections::HashMap;
use std::fs;
use std::sync::LazyLock;

use gpumem::api::model::Snapshot;
use gpumem::api::report::SCHEMAS;
use serde_json::{Value, json};

use crate::machine::{Machine, Running, one_gpu};
use crate::support::{run, short_demo};

static PARSED: LazyLock<HashMap<String, Value>> = LazyLock::new(|| {
    let parse = |(name, _, text): &(&str, &str, &str)| {
        (format!("gpumem.{name}/1"), serde_json::from_str(text).unwrap())
    };
    SCHEMAS.iter().map(parse).collect()
});

fn errors(document: &Value) -> Vec<String> {
    let name = document["schema"].as_str().unwrap_or_default();
    let root = PARSED.get(name).unwrap_or_else(|| panic!("no schema {name:?}"));
    let mut errors = Vec::new();
    validate(root, root, document, "", &mut errors);
    errors
}

fn is_valid(root: &Value, schema: &Value, value: &Value) -> bool {
    let mut errors = Vec::new();
    validate(root, schema, value, "", &mut errors);
    errors.is_empty()
}

/// Validates a value. Supports only the JSON Schema keywords that gpumem's schemas use, and panics on other keywords.
fn validate(root: &Value, schema: &Value, value: &Value, path: &str, errors: &mut Vec<String>) {
    let Some(keywords) = schema.as_object() else {
        if schema == &json!(false) {
            errors.push(format!("{path}: not allowed"));
        }
        return;
    };
    for (keyword, rule) in keywords {
        let rules = || rule.as_array().unwrap();
        let matching = || rules().iter().filter(|rule| is_valid(root, rule, value)).count();
        let bound = rule.as_f64().unwrap_or_default();
        let number = value.as_f64();
        let length = value.as_str().map(|text| text.chars().count() as f64);
        let items = value.as_array();
        let holds = match keyword.as_str() {
            "$id" | "$schema" | "$defs" | "title" | "description" | "default" | "then" => true,
            "$ref" => {
                let path = rule.as_str().unwrap().trim_start_matches('#');
                validate(root, root.pointer(path).unwrap(), value, path, errors);
                true
            }
            "allOf" => {
                rules().iter().for_each(|rule| validate(root, rule, value, path, errors));
                true
            }
            "anyOf" => matching() > 0,
            "oneOf" => matching() == 1,
            "if" => {
                if let Some(then) = keywords.get("then").filter(|_| is_valid(root, rule, value)) {
                    validate(root, then, value, path, errors);
                }
                true
            }
            "const" => value == rule,
            "enum" => rules().contains(value),
            "type" => match rule {
                Value::Array(names) => names.iter().any(|name| is_of_type(value, name)),
                name => is_of_type(value, name),
            },
            "minimum" => number.is_none_or(|number| number >= bound),
            "maximum" => number.is_none_or(|number| number <= bound),
            "minLength" => length.is_none_or(|length| length >= bound),
            "maxLength" => length.is_none_or(|length| length <= bound),
            "minItems" => items.is_none_or(|items| items.len() as f64 >= bound),
            "maxItems" => items.is_none_or(|items| items.len() as f64 <= bound),
            // The only pattern in the schemas matches lowercase words joined by hyphens.
            "pattern" => value.as_str().is_none_or(|text| {
                rule == "^[a-z]+(-[a-z]+)*$"
                    && text.split('-').all(|word| {
                        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase())
                    })
            }),
            "format" => {
                assert_eq!(rule, "date-time");
                value.as_str().is_none_or(|text| text.parse::<jiff::Timestamp>().is_ok())
            }
            "required" => value.as_object().is_none_or(|object| {
                rules().iter().all(|name| object.contains_key(name.as_str().unwrap()))
            }),
            "properties" => {
                for (name, rule) in rule.as_object().unwrap() {
                    if let Some(value) = value.get(name) {
                        validate(root, rule, value, &format!("{path}/{name}"), errors);
                    }
                }
                true
            }
            "additionalProperties" => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    if schema["properties"].get(name).is_none() {
                        validate(root, rule, value, &format!("{path}/{name}"), errors);
                    }
                }
                true
            }
            "prefixItems" => {
                for (value, rule) in items.into_iter().flatten().zip(rules()) {
                    validate(root, rule, value, path, errors);
                }
                true
            }
            "items" => {
                for (index, value) in items.into_iter().flatten().enumerate() {
                    validate(root, rule, value, &format!("{path}/{index}"), errors);
                }
                true
            }
            _ => panic!("unsupported keyword {keyword:?}: {schema}"),
        };
        if !holds {
            errors.push(format!("{path}: {value} violates {keyword} {rule}"));
        }
    }
}

fn is_of_type(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("unsupported type {other:?}"),
    }
}

/// Panics if a document is invalid according to the published schema that it names.
pub fn check(document: &Value) {
    if document["schema"].as_str().is_some_and(|name| PARSED.contains_key(name)) {
        let errors = errors(document);
        assert!(errors.is_empty(), "{errors:?} in {document}");
    }
}

#[test]
fn schemas_are_printed_as_committed() {
    for (name, _, text) in SCHEMAS {
        let printed = run(&["schema", name]);
        assert_eq!((printed.code, printed.stdout.as_str()), (0, text));
    }
    assert_eq!(run(&["schema", "findings"]).code, 2);
}

/// Asserts that `copy` contains every value of `original` that is not null.
fn assert_kept(original: &Value, copy: &Value, path: &str) {
    match (original, copy) {
        (Value::Object(original), Value::Object(copy)) => {
            for (key, value) in original.iter().filter(|(_, value)| !value.is_null()) {
                let kept = copy.get(key).unwrap_or(&Value::Null);
                assert_kept(value, kept, &format!("{path}.{key}"));
            }
        }
        (Value::Array(original), Value::Array(copy)) => {
            assert_eq!(original.len(), copy.len(), "{path}");
            for (n, (original, copy)) in original.iter().zip(copy).enumerate() {
                assert_kept(original, copy, &format!("{path}[{n}]"));
            }
        }
        (Value::Number(original), Value::Number(copy)) => {
            assert_eq!(original.as_f64(), copy.as_f64(), "{path}");
        }
        _ => assert_eq!(original, copy, "{path}"),
    }
}

/// Recordings by earlier versions are valid, and reading and writing them loses no value.
#[test]
fn every_recorded_snapshot_is_valid_and_kept() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/corpus");
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|end| end == "jsonl") {
            for line in fs::read_to_string(&path).unwrap().lines() {
                let original = serde_json::from_str(line).unwrap();
                check(&original);
                let snapshot: Snapshot = serde_json::from_str(line).unwrap();
                assert_kept(&original, &serde_json::to_value(&snapshot).unwrap(), "snapshot");
            }
        }
    }
}

#[test]
fn every_commands_json_is_valid_even_on_failure() {
    let nowhere = ["--nvml-library", "/nonexistent/libnvidia-ml.so.1"];
    let child = Running::sleep();
    let lost = one_gpu(&[child.pid()]).fault(mock_nvml::scene::Fault::error("*", 15));
    let machine = Machine::new(&lost);
    for (arguments, schema) in [
        (&["ps", "--by", "user", "--replay", short_demo()][..], "totals"),
        (&[&["check"], &nowhere[..]].concat(), "check"),
        (&[&["doctor"], &nowhere[..]].concat(), "doctor"),
        (&["explain", "--replay", short_demo(), "gpu:3"], "explain"),
        (&["explain", "--framework", "pytorch"], "explain"),
        (
            &["reap", "--replay", short_demo(), "--kind", "dead,stuck,pressure,unattributed,leak"],
            "reap",
        ),
        (&["reap", "--replay", short_demo(), "--pid", "1,412301"], "reap"),
        (&[&["reap"], &nowhere[..]].concat(), "reap"),
        (&["reap", "--history"], "history"),
        (&[&["release", "4242"], &nowhere[..]].concat(), "reap"),
    ] {
        let document = run(&[arguments, &["--json"]].concat()).json();
        assert_eq!(document["schema"], format!("gpumem.{schema}/1"), "{arguments:?}");
    }
    for arguments in [&["ps"][..], &["doctor"], &["check", "--window", "0s", "--max-used", "1%"]] {
        machine.run(&[arguments, &["--json"]].concat()).json();
    }
}

#[test]
fn invalid_documents_are_rejected() {
    let check = run(&["check", "--replay", short_demo(), "--json"]).json();
    let reap = run(&["reap", "--replay", short_demo(), "--json"]).json();
    let snapshot = run(&["ps", "--replay", short_demo(), "--json"]).json();
    for (whole, pointer, wrong) in [
        (&snapshot, "/time", json!("yesterday")),
        (&snapshot, "/gpus/0/index", json!(-1)),
        (&snapshot, "/gpus/0/memory/used_bytes", json!("5 GiB")),
        (&snapshot, "/processes/0/command", json!("python train.py")),
        (&check, "/status", json!("fine")),
        (&check, "/findings/0/kind", json!("lazy")),
        (&check, "/findings/0/evidence", json!({})),
        (&reap, "/targets/0/leader", json!(null)),
        (&reap, "/targets/0/steps/0/step", json!("ask")),
        (&reap, "/refused/0/why/why", json!("because")),
    ] {
        let mut broken = whole.clone();
        *broken.pointer_mut(pointer).unwrap_or_else(|| panic!("no {pointer} in {whole}")) = wrong;
        assert!(!errors(&broken).is_empty(), "{pointer}");
    }
    // Unknown fields are valid, so that later versions can add fields.
    let mut extended = check.clone();
    extended["findings"][0]["colour"] = json!("red");
    assert_eq!(errors(&extended), [""; 0]);
}

/// Asserts that every field has a description or refers to a type.
fn assert_described(schema: &Value, path: &str) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let text = field.to_string();
        let is_tag = field.get("const").is_some();
        let is_described = text.contains("description") || text.contains("$ref");
        assert!(is_tag || is_described, "{path}.{name} has no description");
    }
    match schema {
        Value::Object(parts) => {
            for (name, part) in parts {
                assert_described(part, &format!("{path}.{name}"));
            }
        }
        Value::Array(parts) => parts.iter().for_each(|part| assert_described(part, path)),
        _ => {}
    }
}

#[test]
fn every_field_is_described() {
    for (name, _, text) in SCHEMAS {
        assert_described(&serde_json::from_str(text).unwrap(), name);
    }
}
