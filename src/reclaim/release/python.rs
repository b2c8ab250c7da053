//! A way: a CPython 3.14 process runs a recipe through its debugger protocol (PEP 768).
//!
//! For programs that are neither servers nor notebook kernels. The interpreter runs it between two bytecodes of
//! its main thread; if that sleeps, nothing runs, then or later. `host::python` implements the protocol.

use std::time::Duration;

use serde::Deserialize;

use super::at_work;
use super::way::{NotReleased, ReleaseAnswer, ReleaseBy, ReleaseOptions, ReleaseWay};
use crate::advice::recipe::{self, RecipeOptions};
use crate::host::Roots;
use crate::host::python::{PythonError, PythonProcess, ScriptResult};
use crate::model::release::ReleaseReport;
use crate::model::{Process, Snapshot, Time};

/// The minor version of CPython 3 that has the protocol and is supported.
const MINOR: u32 = 14;

/// The way, if the snapshot shows a Python: its program's name has the version, or a probe finds it. A notebook
/// kernel is asked as one, never past its queue.
pub(super) fn find(process: &Process, snapshot: &Snapshot) -> Option<Result<ReleaseWay, String>> {
    if process.jupyter.is_some() {
        return None;
    }
    let name = process.executable.as_deref()?.rsplit('/').next()?;
    let version = name.strip_prefix("python")?;
    let start_ticks = process.start_ticks?;
    let (minor, is_free_threaded) = minor(version)?;
    let refused = match minor {
        Some(minor) if minor < MINOR => Some(format!(
            "it runs Python 3.{minor}, and gpumem can attach to 3.{MINOR} only (PEP 768)"
        )),
        Some(minor) if minor > MINOR => Some(format!(
            "it runs Python 3.{minor}, and gpumem can attach to 3.{MINOR} only so far"
        )),
        _ if is_free_threaded => Some(
            "it runs free-threaded Python (no global lock), which gpumem does not attach to"
                .to_owned(),
        ),
        _ => None,
    };
    let refused = refused.or_else(|| at_work(process.pid, snapshot));
    let way = || ReleaseWay { pid: process.pid, start_ticks, by: ReleaseBy::Python };
    Some(refused.map_or_else(|| Ok(way()), Err))
}

/// Whether the program's name already tells that it supports the protocol.
pub fn is_shown(process: &Process) -> bool {
    let name = process.executable.as_deref().and_then(|it| it.rsplit('/').next());
    let version = name.and_then(|name| name.strip_prefix("python"));
    version.and_then(minor) == Some((Some(MINOR), false))
}

/// Parses what follows `python` in a program's name: `3.14`, `3.14t`, `3`, or nothing. Returns the minor
/// version, if present, and whether it is the free-threaded build; `None` for anything else.
fn minor(version: &str) -> Option<(Option<u32>, bool)> {
    let (version, is_free_threaded) = match version.strip_suffix('t') {
        Some(version) => (version, true),
        None => (version, false),
    };
    let minor = match version {
        "" | "3" => None,
        version => Some(version.strip_prefix("3.")?.parse().ok()?),
    };
    Some((minor, is_free_threaded))
}

/// Checks that the interpreter can be asked, and has it run the recipe, if `is_deed`. Whether the process is
/// busy does not matter: it is interrupted between two bytecodes.
pub(super) fn ask(
    roots: &Roots,
    way: &ReleaseWay,
    options: &ReleaseOptions,
    is_deed: bool,
) -> ReleaseAnswer {
    let process =
        PythonProcess::open(roots, way.pid, way.start_ticks).map_err(|error| failed(&error))?;
    if !is_deed {
        return Ok(ReleaseReport::default());
    }
    let time = Duration::from_millis(options.wait_ms);
    let seconds = time.as_secs_f64();
    let script = process.run(time, |last_ms| recipe(options, last_ms));
    match script.map_err(|error| failed(&error))? {
        ScriptResult::Answered(answer) => read(&answer).map_err(NotReleased::Refused),
        ScriptResult::NotBegun => Err(NotReleased::TimedOut(format!(
            "its main thread ran no Python code within {seconds:.0}s, because it waits in a call, or an audit hook forbids the script; the request was withdrawn and will not run later; try again when it is active"
        ))),
        ScriptResult::NotDone => Err(NotReleased::TimedOut(format!(
            "the script has started and is not done after {seconds:.0}s; it will still finish; give it longer (--wait)"
        ))),
    }
}

/// Sorts errors by what they mean for a release.
fn failed(error: &PythonError) -> NotReleased {
    let why = error.to_string();
    match error {
        PythonError::Gone
        | PythonError::Changed
        | PythonError::NoInterpreter
        | PythonError::Replaced
        | PythonError::NoFolder
        | PythonError::NotStarted { .. }
        | PythonError::NoAnswer
        | PythonError::Unreadable(_) => NotReleased::NoWayIn(why),
        PythonError::OtherUser
        | PythonError::Yama { .. }
        | PythonError::NotPermitted(_)
        | PythonError::Refused(_)
        | PythonError::Malformed => NotReleased::Refused(why),
        PythonError::HeldUp => NotReleased::Busy(why),
    }
}

/// Parses what the script leaves. The process may have put anything there.
fn read(answer: &[u8]) -> Result<ReleaseReport, String> {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(default)]
        out: serde_json::Value,
        error: Option<String>,
    }
    let answer: Answer =
        serde_json::from_slice(answer).map_err(|_| PythonError::Malformed.to_string())?;
    if let Some(error) = answer.error {
        let error: String = error.chars().take(80).collect();
        return Err(format!("the script failed in it: {error}"));
    }
    recipe::parse(answer.out.to_string().as_bytes())
}

/// The recipe, which does nothing after `last_ms`, in milliseconds of Unix time.
fn recipe(options: &ReleaseOptions, last_ms: i64) -> String {
    recipe::source(&RecipeOptions {
        collects: options.collects,
        references: options.references,
        deadline: Time::from_unix_milliseconds(last_ms),
        pci_bus_ids: options.pci_bus_ids.clone(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::snapshot::Jupyter;

    fn found(executable: &str) -> Option<Result<ReleaseWay, String>> {
        let process = Process {
            pid: 7,
            start_ticks: Some(70),
            executable: Some(executable.into()),
            ..Process::default()
        };
        find(&process, &Snapshot::new(Time::default()))
    }

    #[test]
    fn a_python_is_known_by_its_program() {
        for executable in ["/usr/bin/python3.14", "/opt/v/bin/python3", "/x/python"] {
            let way = ReleaseWay { pid: 7, start_ticks: 70, by: ReleaseBy::Python };
            assert_eq!(found(executable), Some(Ok(way)), "{executable}");
        }
        for (executable, word) in [
            ("/usr/bin/python3.11", "3.11"),
            ("/usr/bin/python3.15", "3.15"),
            ("/usr/bin/python3.14t", "free-threaded"),
        ] {
            let why = found(executable).unwrap().unwrap_err();
            assert!(why.contains(word), "{executable}: {why}");
        }
        for executable in ["/usr/bin/python2.7", "/usr/bin/ipython", "/bin/pythonx", "/x/ruby"] {
            assert_eq!(found(executable), None, "{executable}");
        }
    }

    #[test]
    fn a_kernel_is_asked_as_a_kernel() {
        let kernel = Process {
            pid: 7,
            start_ticks: Some(70),
            executable: Some("/usr/bin/python3.14".into()),
            jupyter: Some(Arc::new(Jupyter::default())),
            ..Process::default()
        };
        assert_eq!(find(&kernel, &Snapshot::new(Time::default())), None);
    }

    #[test]
    fn an_answer_is_a_report_or_words() {
        let done = read(br#"{"out": {"late": false, "live_bytes": 5, "cached_bytes_left": 0, "references": []}}"#);
        let report = ReleaseReport {
            live_bytes: Some(5),
            cached_bytes_left: Some(0),
            ..ReleaseReport::default()
        };
        assert_eq!(done, Ok(report));
        let long = format!(r#"{{"error": "{}"}}"#, "x".repeat(10_000));
        for refused in [
            &b""[..],
            b"\xff\xff",
            b"[1]",
            b"{}",
            br#"{"out": null}"#,
            br#"{"out": {"late": false, "live_bytes": -1, "references": []}}"#,
            br#"{"out": {"late": true, "references": []}}"#,
            br#"{"out": 7, "error": "MemoryError"}"#,
            long.as_bytes(),
        ] {
            let Err(why) = read(refused) else {
                panic!("{:?}", String::from_utf8_lossy(refused));
            };
            assert!(!why.is_empty() && why.len() < 200, "{why}");
        }
    }
}
