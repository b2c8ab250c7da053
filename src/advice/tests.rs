//! Holds the table to its promises, and the lines of findings to the table.

use super::*;
use crate::model::snapshot::Jupyter;
use std::sync::Arc;

fn texts(framework: Option<&str>, notebook: bool) -> Vec<&'static str> {
    let process = Process {
        framework: framework.map(Arc::from),
        jupyter: notebook.then(Arc::<Jupyter>::default),
        ..Process::default()
    };
    lines(&process).iter().map(|line| line.text).collect()
}

#[test]
fn the_gentlest_way_comes_first_and_the_end_last() {
    let lines = texts(Some("pytorch"), true);
    assert!(lines[0].contains("torch.cuda.empty_cache()"));
    assert!(lines[1].starts_with("shut the kernel down"));
    assert_eq!(texts(Some("tensorflow"), false), [END.text]);
    assert_eq!(texts(None, false), [END.text]);
    assert_eq!(texts(None, true), [KERNEL.text]);
}
