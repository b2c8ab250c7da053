//! What was promised stays promised: what the schemas of `tests/data/schema`, which were written by hand
//! before they were derived, call broken is broken still. A constraint that is lost, be it a field that
//! has to be there, a type, a value, a bound or a form, lets something broken through.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use jsonschema::Validator;
use serde_json::{Value, json};

use super::documents::{diagnosis, report, snapshot};
use super::{explain, reap, valid, validator};
use gpumem::api::report::schema;

/// What may stand where something else should.
fn wrong() -> Vec<Value> {
    vec![
        json!(null),
        json!(true),
        json!(-1),
        json!(0.5),
        json!(1_000_000_000),
        json!("Two Words"),
        json!(""),
        json!([null]),
        json!({}),
    ]
}

/// The places in a document.
fn places(value: &Value, at: &str, places: &mut Vec<String>) {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(object) => object.iter().map(|(name, it)| (name.clone(), it)).collect(),
        // A list's elements are alike, but for the variants of an enum.
        Value::Array(array) => {
            array.iter().enumerate().map(|(n, it)| (n.to_string(), it)).collect()
        }
        _ => Vec::new(),
    };
    for (name, child) in children {
        let at = format!("{at}/{name}");
        self::places(child, &at, places);
        places.push(at);
    }
}

/// The document with one place changed each time, and without it; how many places there are. What is as it
/// was in a place of the same kind is passed over.
fn broken(
    whole: &Value,
    done: &mut BTreeSet<(String, String)>,
    mut each: impl FnMut(&str, &Value),
) -> usize {
    let mut at = Vec::new();
    places(whole, "", &mut at);
    at.retain(|place| {
        let (parent, _) = place.rsplit_once('/').unwrap();
        let kind = place.split('/').filter(|part| part.parse::<u32>().is_err());
        let kind: Vec<&str> = kind.collect();
        done.insert((kind.join("/"), whole.pointer(parent).unwrap().to_string()))
    });
    let mut document = whole.clone();
    for place in &at {
        for wrong in wrong() {
            let right = std::mem::replace(document.pointer_mut(place).unwrap(), wrong);
            each(place, &document);
            *document.pointer_mut(place).unwrap() = right;
        }
        let (parent, name) = place.rsplit_once('/').unwrap();
        if let Some(Value::Object(object)) = document.pointer_mut(parent) {
            let right = object.remove(name).unwrap();
            each(place, &document);
            document.pointer_mut(parent).unwrap()[name] = right;
        }
    }
    at.len()
}

/// A document for each element of these lists of it, with that one only: quickly gone through.
fn thin(whole: &Value, lists: &[&str]) -> Vec<Value> {
    let mut bare = whole.clone();
    for list in lists {
        bare[list] = json!([]);
    }
    let mut documents = vec![bare.clone()];
    for list in lists {
        for element in whole[list].as_array().unwrap() {
            let mut document = bare.clone();
            document[list] = json!([element]);
            documents.push(document);
        }
    }
    documents
}

fn promised(name: &str) -> Validator {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/schema");
    validator(&fs::read_to_string(folder.join(name)).unwrap())
}

#[test]
fn what_was_broken_is_broken_still() {
    let snapshot = serde_json::to_value(snapshot()).unwrap();
    for (name, now, whole, lists) in [
        ("check.json", schema::CHECK, report(), &["findings", "kept"][..]),
        ("doctor.json", schema::DOCTOR, diagnosis(), &[]),
        ("explain.json", schema::EXPLAIN, explain::page(), &[]),
        ("history.json", schema::HISTORY, reap::promised_history(), &["acts"]),
        ("reap.json", schema::REAP, reap::promised_report(), &["targets", "refused"]),
        ("snapshot.json", schema::SNAPSHOT, snapshot, &[]),
    ] {
        let (then, now) = (promised(name), validator(now));
        let (mut places, mut count, mut lost) = (0, 0, Vec::new());
        let mut done = BTreeSet::new();
        for whole in thin(&whole, lists) {
            valid(&then, &whole);
            places += broken(&whole, &mut done, |place, document| {
                if !then.is_valid(document) {
                    count += 1;
                    if now.is_valid(document) {
                        lost.push(format!("{place} = {:?}", document.pointer(place)));
                    }
                }
            });
        }
        assert!(lost.is_empty(), "{name} has lost {lost:#?}");
        assert!(count > 5 * places, "{name}: only {count} in {places} places");
    }
}
