//! Reading and writing the recordings in `tests/data/corpus` with the public API loses no value.

use std::fs;
use std::path::{Path, PathBuf};

use gpumem::api::recording::RecordingReader;
use serde_json::Value;

fn corpus() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/corpus");
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .collect();
    files.sort();
    assert!(files.len() >= 14, "the corpus is incomplete: {files:?}");
    files
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

#[test]
fn reading_and_writing_the_corpus_loses_no_value() {
    for path in corpus() {
        let text = fs::read_to_string(&path).unwrap();
        let mut reader = RecordingReader::open(&path).unwrap();
        let mut lines = 0;
        for line in text.lines() {
            lines += 1;
            let location = format!("{}:{lines}", path.display());
            let snapshot = reader.next().expect(&location).expect(&location);
            let original = serde_json::from_str(line).expect(&location);
            assert_kept(&original, &serde_json::to_value(&snapshot).unwrap(), &location);
        }
        assert!(reader.next().is_none(), "{}", path.display());
        assert_eq!(reader.damage(), []);
    }
}
