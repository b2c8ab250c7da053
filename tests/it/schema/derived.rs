//! Derives the schemas from the types that gpumem writes, and from their documentation.

use gpumem::api::model::{Also, Finding, Snapshot};
use gpumem::api::report::check::CheckReport;
use gpumem::api::report::doctor::DoctorReport;
use gpumem::api::report::explain::ExplainPage;
use gpumem::api::report::hosts::HostsReport;
use gpumem::api::report::reap::{ReapHistory, ReapReport};
use gpumem::api::report::run::RunReport;
use gpumem::api::report::totals::TotalsReport;
use gpumem::api::rules::evidence;
use schemars::generate::{Contract, SchemaSettings};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Value, json};

pub(crate) fn schema(name: &str) -> String {
    match name {
        "check" => written::<CheckReport>(),
        "doctor" => written::<DoctorReport>(),
        "explain" => written::<ExplainPage>(),
        "history" => written::<ReapHistory>(),
        "hosts" => written::<HostsReport>(),
        "reap" => written::<ReapReport>(),
        "run" => written::<RunReport>(),
        "snapshot" => read::<Snapshot>(),
        "totals" => written::<TotalsReport>(),
        _ => panic!("schema {name} is not derived"),
    }
}

/// Returns the schema of a document that gpumem only writes. A field is required unless its type lets serde omit it.
fn written<T: JsonSchema>() -> String {
    document::<T>(Contract::Serialize)
}

/// Returns the schema of a document that gpumem also reads. A field is required only if it has no default.
fn read<T: JsonSchema>() -> String {
    document::<T>(Contract::Deserialize)
}

fn document<T: JsonSchema>(contract: Contract) -> String {
    let mut settings = SchemaSettings::draft2020_12();
    settings.contract = contract;
    let mut generator = settings.into_generator();
    generator.subschema_for::<T>();
    tie_evidence(&mut generator);
    let mut root = generator.into_root_schema_for::<T>().to_value();
    simplify(&mut root);
    if let Some(name) = root.pointer("/properties/schema/const") {
        let name = name.clone();
        let id = format!("urn:gpumem:schema:{}", name.as_str().unwrap_or_default());
        root["title"] = name;
        root["$id"] = id.into();
    }
    // The conversion puts the title first and the definitions last.
    let ordered = Schema::try_from(root).map(|schema| serde_json::to_string_pretty(&schema));
    ordered.map_or_else(|_| String::new(), Result::unwrap_or_default) + "\n"
}

/// Adds the evidence of each kind to the schema of findings.
fn tie_evidence(generator: &mut SchemaGenerator) {
    for name in [Finding::schema_name(), Also::schema_name()] {
        if !generator.definitions().contains_key(&*name) {
            continue;
        }
        let ties: Vec<Value> = evidence(generator)
            .into_iter()
            .map(|(kind, evidence)| {
                json!({
                    "if": { "properties": { "kind": { "const": kind } } },
                    "then": { "properties": { "evidence": evidence } },
                })
            })
            .collect();
        if let Some(definition) = generator.definitions_mut().get_mut(&*name) {
            definition["allOf"] = ties.into();
        }
    }
}

/// Converts documentation to plain text, and removes Rust's number formats.
fn simplify(schema: &mut Value) {
    match schema {
        Value::Array(schemas) => schemas.iter_mut().for_each(simplify),
        Value::Object(schema) => {
            let is_rust_format = |format: &Value| {
                let format = format.as_str().unwrap_or_default();
                ["int", "uint", "float", "double"].iter().any(|name| format.starts_with(name))
            };
            if schema.get("format").is_some_and(is_rust_format) {
                schema.remove("format");
            }
            for (name, part) in schema {
                match part {
                    Value::String(text) if name == "description" => *text = plain_text(text),
                    _ => simplify(part),
                }
            }
        }
        _ => {}
    }
}

/// Removes line breaks and links from documentation, and replaces Rust's terms with JSON's.
fn plain_text(documentation: &str) -> String {
    let words: Vec<&str> = documentation.split_whitespace().collect();
    let mut text = words.join(" ").replace("`None`", "`null`");
    while let Some(open) = text.find("[`") {
        let Some(close) = text[open..].find("`]").map(|offset| open + offset) else {
            break;
        };
        let mut end = close + 2;
        if text[end..].starts_with('(') {
            end += text[end..].find(')').map_or(0, |offset| offset + 1);
        }
        let name = text[open + 1..close + 1].to_owned();
        text.replace_range(open..end, &name);
    }
    text
}
