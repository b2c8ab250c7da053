//! Parks processes: moves the GPU state of a living process to host memory, and later restores it.
//!
//! [`check`] decides whether a process can be parked. [`helper`] performs an operation in a process of its own, which
//! no time limit kills and which finishes even if gpumem exits. [`journal`] records each step before it happens, and
//! `ffi` contains the driver's functions. This file starts the helper and waits for its answer. It prints nothing.

pub mod check;
mod ffi;
mod helper;
pub mod journal;

use std::io::{self, Read as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use helper::{find_room, serves};
use serde::{Deserialize, Serialize};

use self::journal::{Journals, ParkedProcess};
use super::target::{ParkWay, Step, Target};
use crate::deadline::Task;
use crate::host::{Roots, read_host};
use crate::model::process::ParkState;
use crate::units::{Bytes, Span, system_message};

/// Argument that makes gpumem a helper, followed by the [`ParkRequest`].
const ARGUMENT: &str = "park-helper";
/// Maximum size of the helper's answer.
const ANSWER_BYTES: u64 = 64 << 10;
/// Bytes that an H100 moves each second. The host's pageable memory and one thread limit the rate.
const BYTES_PER_SECOND: u64 = 5_000_000_000;
/// How long to wait for the driver to report the state of a process.
const STATE_TIME: Duration = Duration::from_secs(15);

/// Where the helper finds NVML and the journals.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ParkSettings {
    /// State directories with journals. New journals are written to the first.
    pub states: Vec<PathBuf>,
    pub nvml_library: Option<PathBuf>,
    pub nvml_timeout: Duration,
    /// Maximum number of bytes that all parked processes may hold in host memory.
    pub most_bytes: Option<u64>,
}

static SETTINGS: OnceLock<ParkSettings> = OnceLock::new();

impl ParkSettings {
    /// Makes all operations of this program use these settings. Later calls have no effect.
    pub fn install(self) {
        let _ = SETTINGS.set(self);
    }

    pub fn current() -> Option<&'static Self> {
        SETTINGS.get()
    }

    pub fn journals(&self) -> Journals {
        Journals::new(self.states.iter().map(PathBuf::as_path))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParkOperation {
    Park,
    /// Parks a process that is then ended. It may be working.
    ParkToEnd,
    Unpark,
    /// Checks whether the driver has the functions, and whether the process uses CUDA. Changes nothing.
    Probe,
    /// Asks the driver for the state, and writes it to the journal.
    AskState,
}

/// What the helper is to do, and with which process.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ParkRequest {
    operation: ParkOperation,
    #[serde(flatten)]
    way: ParkWay,
    boot_id: Arc<str>,
    settings: ParkSettings,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum ParkAnswer {
    Parked {
        bytes: u64,
        ms: u64,
    },
    /// The process runs. `bytes` were restored, 0 if none had to be.
    Running {
        bytes: u64,
        ms: u64,
    },
    /// Nothing was done.
    Refused {
        why: String,
    },
    /// The process was working, and runs.
    Busy {
        why: String,
    },
    /// Too little memory is free on its GPUs. The process stays parked.
    NoRoom {
        why: String,
    },
    /// The operation failed. `why` says what state the process is in.
    Failed {
        why: String,
    },
    /// The helper has not answered in time, and continues.
    Late {
        helper: u32,
    },
}

impl ParkRequest {
    /// Returns `None` if the program has no settings or the boot is unknown.
    pub fn new(operation: ParkOperation, way: &ParkWay) -> Option<Self> {
        let boot_id = read_host(&Roots::default()).boot_id?;
        let settings = ParkSettings::current()?.clone();
        Some(Self { operation, way: way.clone(), boot_id, settings })
    }

    /// Creates a request for a process in the journals.
    pub fn of_record(operation: ParkOperation, process: &ParkedProcess) -> Option<Self> {
        let request = Self::new(
            operation,
            &ParkWay {
                pid: process.pid,
                start_ticks: process.start_ticks,
                uid: process.uid,
                name: Arc::clone(&process.name),
                notebook: process.notebook.clone(),
                bytes: process.bytes(),
            },
        )?;
        (request.boot_id == process.boot_id).then_some(request)
    }

    /// Starts a helper and waits for its answer. If the time expires, the helper continues.
    pub fn perform(&self, time: Duration) -> ParkAnswer {
        let failed = |error: io::Error| ParkAnswer::Refused {
            why: format!("cannot start the helper: {}", system_message(&error)),
        };
        let request = match serde_json::to_string(self) {
            Ok(request) => request,
            Err(error) => return failed(error.into()),
        };
        let program = std::env::current_exe();
        let mut child = match program.and_then(|program| {
            Command::new(program)
                .args([ARGUMENT, &request])
                .current_dir("/")
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
        }) {
            Ok(child) => child,
            Err(error) => return failed(error),
        };
        let helper = child.id();
        let wait = move || {
            let mut answer = Vec::new();
            if let Some(stdout) = child.stdout.take() {
                let _ = stdout.take(ANSWER_BYTES).read_to_end(&mut answer);
            }
            let _ = child.wait();
            serde_json::from_slice(&answer).ok()
        };
        let answer = match Task::start("park-helper", wait) {
            Ok(task) => task.within(time),
            Err(error) => return failed(error),
        };
        match answer {
            Ok(Some(answer)) => answer,
            Ok(None) => ParkAnswer::Failed {
                why: "the helper died; `gpumem park --list` asks the driver for the state"
                    .to_owned(),
            },
            Err(_) => ParkAnswer::Late { helper },
        }
    }
}

impl ParkAnswer {
    /// Describes the answer as a sentence without a subject or full stop.
    pub fn words(&self) -> String {
        let seconds = |ms: u64| ms as f64 / 1000.0;
        match self {
            Self::Parked { bytes, ms } => {
                format!("parked {} in host memory in {:.1} s", Bytes(*bytes), seconds(*ms))
            }
            Self::Running { bytes: 0, .. } => "running; nothing had to be restored".to_owned(),
            Self::Running { bytes, ms } => {
                format!("restored {} in {:.1} s", Bytes(*bytes), seconds(*ms))
            }
            Self::Refused { why } | Self::Busy { why } | Self::NoRoom { why } => why.clone(),
            Self::Failed { why } => why.clone(),
            Self::Late { helper } => format!(
                "not done yet; the helper ({helper}) continues, and `gpumem park --list` shows the result"
            ),
        }
    }
}

/// Returns about how long it takes to move the bytes, in one direction.
pub fn estimate(bytes: u64) -> Span {
    Span(Duration::from_secs(bytes.div_ceil(BYTES_PER_SECOND).max(1)))
}

/// Returns how long to wait for an operation.
pub fn patience(bytes: u64) -> Duration {
    (estimate(bytes).0 * 4 + Duration::from_secs(30)).max(Duration::from_secs(60))
}

/// Asks the driver whether it can park a target. Returns why not.
pub fn probe(target: &Target) -> Option<String> {
    let way = target.steps.iter().find_map(|step| match step {
        Step::Park { way, .. } => Some(way),
        _ => None,
    })?;
    match ParkRequest::new(ParkOperation::Probe, way)?.perform(STATE_TIME) {
        ParkAnswer::Running { .. } => None,
        answer => Some(answer.words()),
    }
}

/// Returns all records. Asks the driver for states that the journals do not show.
pub fn read_records(settings: &ParkSettings) -> Vec<journal::ParkRecord> {
    let (roots, journals) = (Roots::default(), settings.journals());
    journals.prune(&roots);
    let records = journals.read(&roots);
    let unknown: Vec<_> =
        records.iter().filter(|record| record.state == ParkState::Unknown).collect();
    if unknown.is_empty() {
        return records;
    }
    for record in unknown {
        let request = ParkRequest::of_record(ParkOperation::AskState, &record.process);
        let _ = request.map(|request| request.perform(STATE_TIME));
    }
    journals.read(&roots)
}
