//! What matches a scope: yes, no and not known.

use super::*;
use crate::model::{Gpu, Time};

#[test]
fn a_star_matches_any_text() {
    for (pattern, text, expected) in [
        ("python train.py", "python train.py", true),
        ("python train.py", "python train.py --x", false),
        ("python *", "python train.py", true),
        ("*train*", "python train.py", true),
        ("*train.py", "python train.py", true),
        ("*", "", true),
        ("", "", true),
        ("", "x", false),
        ("a*b*c", "a1b2b3c", true),
        ("a*bc*c", "abc", false),
        ("ab*ba", "aba", false),
        ("**x**", "x", true),
        ("日*", "日本", true),
    ] {
        assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
    }
}

#[test]
fn everything_named_has_to_fit_and_the_unknown_fits_nothing() {
    let process = Process {
        user: Some("ann".into()),
        framework: Some("pytorch".into()),
        command: Some(["python".into(), "train.py".into()].into()),
        ..Process::default()
    };
    let snapshot = Snapshot::new(Time::default());
    let input = ScopeInput {
        process: Some(&process),
        index: 1,
        uuid: Some("GPU-1"),
        held_bytes: None,
        snapshot: &snapshot,
    };
    let fits = |scope: Scope| scope.fits(&input);
    let ann = Scope { user: Some("ann".into()), ..Scope::default() };
    assert!(fits(ann.clone()));
    assert!(fits(Scope { command: Some("python*".into()), ..ann.clone() }));
    assert!(!fits(Scope { framework: Some("jax".into()), ..ann.clone() }));
    assert!(fits(Scope { gpu: Some(GpuName::Index(1)), ..ann.clone() }));
    assert!(!fits(Scope { gpu: Some(GpuName::Index(0)), ..ann.clone() }));
    assert!(fits(Scope { gpu: Some(GpuName::Uuid("GPU-1".into())), ..ann.clone() }));
    let unknown = Process::default();
    let unknown = ScopeInput { process: Some(&unknown), ..input };
    assert!(!ann.fits(&unknown));
    let any_command = Scope { command: Some("*".into()), ..Scope::default() };
    assert!(!any_command.fits(&unknown));
}

#[test]
fn what_is_not_known_is_neither_yes_nor_no() {
    use crate::model::snapshot::{Container, Jupyter};
    use crate::units::GIB;
    let docker = Container {
        runtime: Some("docker".into()),
        id: Some("3f2a9c0d11e2aabb".into()),
        ..Container::default()
    };
    let notebook =
        |path: Option<&str>| Jupyter { notebook_path: path.map(Arc::from), ..Jupyter::default() };
    let known = Process {
        user: Some("ann".into()),
        uid: Some(1000),
        command: Some(["python".into()].into()),
        gpu_files: Some([].into()),
        container: Some(Arc::new(docker.clone())),
        jupyter: Some(Arc::new(notebook(Some("course/hw4.ipynb")))),
        ..Process::default()
    };
    let hidden = Process {
        container: Some(Arc::new(Container { id: None, ..docker })),
        jupyter: Some(Arc::new(notebook(None))),
        ..Process::default()
    };
    let plain =
        Process { uid: Some(1000), command: Some(["python".into()].into()), ..Process::default() };
    let scope = |change: fn(&mut Scope)| {
        let mut scope = Scope::default();
        change(&mut scope);
        scope
    };
    let listed = |used_bytes| GpuProcess { pid: 7, used_bytes, ..GpuProcess::default() };
    let gpu = Gpu {
        index: 3,
        uuid: Some("GPU-3".into()),
        processes: Some(vec![listed(Some(5 * GIB)), listed(Some(2 * GIB))]),
        ..Gpu::default()
    };
    let snapshot = Snapshot { gpus: vec![gpu], ..Snapshot::new(Time::default()) };
    let (known, hidden) = (Process { pid: 7, ..known }, Process { pid: 8, ..hidden });
    let asked = |text: &str| Scope { selector: Selector::parse(text).unwrap(), ..Scope::default() };
    use Match::{No, Unknown, Yes};
    // Who it is for, then: a process of which all is known, one of which little is, one in no
    // container and no notebook, and a GPU.
    for (scope, expected) in [
        (scope(|_| {}), [Yes, Yes, Yes, Yes]),
        (scope(|it| it.user = Some("ann".into())), [Yes, Unknown, Unknown, No]),
        (scope(|it| it.user = Some("bob".into())), [No, Unknown, Unknown, No]),
        (scope(|it| it.user = Some("1000".into())), [Yes, Unknown, Yes, No]),
        (scope(|it| it.user = Some("1001".into())), [No, Unknown, No, No]),
        (scope(|it| it.framework = Some("jax".into())), [No, Unknown, Unknown, No]),
        (scope(|it| it.container = Some("docker".into())), [Yes, Yes, No, No]),
        (scope(|it| it.container = Some("3f2a9c0d11e2".into())), [Yes, Unknown, No, No]),
        (scope(|it| it.container = Some("3f2a9c0d11e3".into())), [No, Unknown, No, No]),
        (scope(|it| it.container = Some("*".into())), [Yes, Yes, No, No]),
        (scope(|it| it.notebook = Some("course/*".into())), [Yes, Unknown, No, No]),
        (scope(|it| it.notebook = Some("thesis/*".into())), [No, Unknown, No, No]),
        (scope(|it| it.command = Some("py*".into())), [Yes, Unknown, Yes, No]),
        (scope(|it| it.memory_above = Some(Bytes(GIB))), [Yes, Unknown, No, No]),
        (scope(|it| it.memory_below = Some(Bytes(GIB))), [No, Unknown, No, No]),
        (asked("user:ANN"), [Yes, Unknown, Unknown, Unknown]),
        (asked("!user:ann"), [No, Unknown, Unknown, Unknown]),
        (asked("user:1000,bob"), [Yes, Unknown, Yes, Unknown]),
        // Of two shares of a GPU the one that is asked about.
        (asked("mem<4GiB"), [Yes, Unknown, Unknown, Unknown]),
        (asked("gpu:3 user:bob"), [No, Unknown, Unknown, Unknown]),
        (asked("gpu:0"), [No, No, No, No]),
        (asked("gpu:3"), [Yes, Unknown, Unknown, Yes]),
        (scope(|it| it.gpu = Some(GpuName::Index(3))), [Yes, Yes, Yes, Yes]),
        (scope(|it| it.gpu = Some(GpuName::Uuid("GPU-3".into()))), [Yes, Unknown, Yes, Yes]),
    ] {
        let input = |process, uuid, held_bytes| ScopeInput {
            process,
            index: 3,
            uuid,
            held_bytes,
            snapshot: &snapshot,
        };
        let answers = [
            input(Some(&known), Some("GPU-3"), Some(2 * GIB)),
            input(Some(&hidden), None, None),
            input(Some(&plain), Some("GPU-3"), Some(GIB)),
            input(None, Some("GPU-3"), None),
        ];
        assert_eq!(answers.map(|input| scope.answer(&input)), expected, "{scope}");
        assert!(answers.iter().all(|input| scope.fits(input) == (scope.answer(input) == Yes)));
    }
}

#[test]
fn a_scope_is_shown_in_a_line_whatever_is_in_it() {
    let scope = Scope {
        user: Some("ann\n".into()),
        gpu: Some(GpuName::Index(0)),
        memory_above: Some(Bytes(8 << 30)),
        ..Scope::default()
    };
    assert_eq!(scope.to_string(), "user \"ann\\n\", GPU 0, above 8.0 GiB");
    let scope =
        Scope { selector: Selector::parse("user:ann\u{1b} !gpu:0").unwrap(), ..Scope::default() };
    assert_eq!(scope.to_string(), "where \"user:ann\\u{1b} !gpu:0\"");
    assert_eq!(Scope::default().to_string(), "all processes");
}

#[test]
fn a_long_command_line_is_cut_between_characters() {
    let process = Process {
        command: Some(vec![Arc::from("é".repeat(1 << 20)); 4].into()),
        ..Process::default()
    };
    assert_eq!(command_line(&process).unwrap().len(), LONGEST_COMMAND);
}
