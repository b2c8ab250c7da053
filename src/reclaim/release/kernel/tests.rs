//! Tests which kernels can be asked to release memory.

use super::*;
use crate::model::process::AskedRelease;
use crate::model::snapshot::{Gpu, GpuProcess, Jupyter, Parent};

fn kernel(application: &str, file: Option<&str>) -> Process {
    let mut process = Process { pid: 7, ..Process::default() };
    process.start_ticks = Some(11);
    process.command = Some(["python".into(), "-m".into()].into());
    process.jupyter = Some(
        Jupyter {
            application: Some(application.into()),
            connection_file: file.map(Into::into),
            kernel_id: Some("0a1b".into()),
            ..Jupyter::default()
        }
        .into(),
    );
    process
}

fn find_way(process: &Process) -> Option<Result<ReleaseWay, String>> {
    find(process, &Snapshot::new(crate::model::Time::default()))
}

#[test]
fn a_kernel_with_a_connection_file_can_be_asked() {
    for application in ["jupyter", "vscode", "jupyterhub", "spyder"] {
        let way = find_way(&kernel(application, Some("/run/k.json")));
        let way = way.unwrap().unwrap();
        assert_eq!((way.pid, way.start_ticks), (7, 11));
        assert!(matches!(way.by, ReleaseBy::Kernel { kernel_id: Some(id), .. } if &*id == "0a1b"));
    }
}

#[test]
fn our_earlier_request_is_not_user_activity() {
    let time = crate::model::Time::from_unix_milliseconds;
    let mut process = kernel("jupyter", Some("/run/k.json"));
    let mut jupyter = process.jupyter.as_deref().cloned().unwrap();
    jupyter.last_activity = Some(time(100_500));
    process.jupyter = Some(jupyter.into());
    process.asked = Some(
        AskedRelease {
            since: time(100_000),
            until: time(101_000),
            last_activity: Some(time(7_000)),
        }
        .into(),
    );
    let last_activity = |process: &Process| match find_way(process).unwrap().unwrap().by {
        ReleaseBy::Kernel { last_activity, .. } => last_activity,
        other => panic!("{other:?}"),
    };
    assert_eq!(last_activity(&process), Some(time(7_000)));
    process.asked = None;
    assert_eq!(last_activity(&process), Some(time(100_500)));
}

#[test]
fn a_kernel_that_cannot_be_asked_has_a_reason() {
    let mut plain = kernel("jupyter", Some("/k.json"));
    plain.jupyter = None;
    assert_eq!(find_way(&plain), None);
    let mut unknown = kernel("jupyter", Some("/k.json"));
    unknown.start_ticks = None;
    let mut fork = kernel("jupyter", Some("/k.json"));
    let parent = Parent { pid: 3, command: fork.command.clone(), ..Parent::default() };
    fork.parent = Some(parent.into());
    for (process, word) in [
        (kernel("papermill", Some("/k.json")), "batch job"),
        (kernel("marimo", None), "no connection file"),
        (kernel("jupyter", Some("k.json")), "is a relative path"),
        (unknown, "is unknown"),
        (fork, "forked from kernel 3"),
    ] {
        let why = find_way(&process).unwrap().unwrap_err();
        assert!(why.contains(word), "{why}");
    }
}

#[test]
fn a_kernel_that_computes_is_not_asked() {
    let find_with = |of_process: Option<u32>, of_gpu: Option<u32>, pid: u32| {
        let mut snapshot = Snapshot::new(crate::model::Time::default());
        snapshot.gpus.push(Gpu {
            index: 3,
            gpu_percent: of_gpu,
            processes: Some(vec![GpuProcess {
                pid,
                sm_percent: of_process,
                ..GpuProcess::default()
            }]),
            ..Gpu::default()
        });
        find(&kernel("jupyter", Some("/k.json")), &snapshot).unwrap()
    };
    assert!(find_with(Some(0), Some(99), 7).is_ok(), "another's work");
    assert!(find_with(None, Some(0), 7).is_ok());
    assert!(find_with(None, None, 7).is_ok(), "not known");
    assert!(find_with(Some(5), Some(5), 8).is_ok(), "another's row");
    for (of_process, of_gpu) in [(Some(5), None), (None, Some(5)), (Some(5), Some(0))] {
        let why = find_with(of_process, of_gpu, 7).unwrap_err();
        let used = match of_process {
            Some(_) => "it used GPU 3 in the last sample (SM 5%)",
            None => "GPU 3 was busy in the last sample (5%)",
        };
        assert!(why.starts_with(used), "{why}");
    }
}
