//! Matches of a scope: yes, no and unknown.

use std::sync::Arc;

use super::*;
use crate::model::{Gpu, Time};
use crate::rules::testing::scope;

#[test]
fn unknown_facts_give_neither_yes_nor_no() {
    use crate::model::snapshot::Jupyter;
    use crate::units::GIB;
    let notebook =
        |path: Option<&str>| Jupyter { notebook_path: path.map(Arc::from), ..Jupyter::default() };
    let known = Process {
        pid: 7,
        user: Some("ann".into()),
        uid: Some(1000),
        command: Some(["python".into()].into()),
        gpu_files: Some([].into()),
        jupyter: Some(Arc::new(notebook(Some("course/hw4.ipynb")))),
        ..Process::default()
    };
    let hidden = Process { pid: 8, jupyter: Some(Arc::new(notebook(None))), ..Process::default() };
    let plain =
        Process { uid: Some(1000), command: Some(["python".into()].into()), ..Process::default() };
    let listed = |used_bytes| GpuProcess { pid: 7, used_bytes, ..GpuProcess::default() };
    let gpu = Gpu {
        index: 3,
        uuid: Some("GPU-3".into()),
        processes: Some(vec![listed(Some(5 * GIB)), listed(Some(2 * GIB))]),
        ..Gpu::default()
    };
    let snapshot = Snapshot { gpus: vec![gpu], ..Snapshot::new(Time::default()) };
    const YES: Option<bool> = Some(true);
    const NO: Option<bool> = Some(false);
    // Matched against a process of which everything is known, one of which little is, one outside a notebook,
    // and a GPU.
    for (text, expected) in [
        ("user:ANN", [YES, None, None, None]),
        ("user=ann", [YES, None, None, None]),
        ("!user:ann", [NO, None, None, None]),
        ("user:1000,bob", [YES, None, YES, None]),
        ("notebook:course/", [YES, None, NO, None]),
        ("framework:jax", [NO, None, None, None]),
        // Of two entries on a GPU the one in question.
        ("mem<4GiB", [YES, None, None, None]),
        ("gpu:3 user:bob", [NO, None, None, None]),
        ("gpu:0", [NO, NO, NO, NO]),
        ("gpu:3", [YES, None, None, YES]),
    ] {
        let input =
            |process, held_bytes| ScopeInput { process, index: 3, held_bytes, snapshot: &snapshot };
        let answers = [
            input(Some(&known), Some(2 * GIB)),
            input(Some(&hidden), None),
            input(Some(&plain), Some(GIB)),
            input(None, None),
        ];
        let scope = scope(text);
        assert_eq!(answers.map(|input| scope.answer(&input)), expected, "{scope}");
        assert!(answers.iter().all(|input| scope.fits(input) == (scope.answer(input) == YES)));
        assert!(answers.iter().all(|input| Scope::default().fits(input)));
    }
}

#[test]
fn a_scope_is_shown_in_a_line_whatever_is_in_it() {
    assert_eq!(scope("user:ann\u{1b} !gpu:0").to_string(), "\"user:ann\\u{1b} !gpu:0\"");
    assert_eq!(Scope::default().to_string(), "all processes");
}
