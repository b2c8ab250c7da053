//! Parks processes: moves the GPU state of a living process to host memory, and later restores it.
//!
//! [`check`] decides whether a process can be parked. [`helper`] performs an operation in a separate process. No time
//! limit kills this process, and it finishes even if gpumem exits. [`journal`] records each call that changes a process
//! before the call is made. `ffi` contains the driver's functions. This file starts the helper and waits for its
//! answer. It prints nothing.

pub mod check;
mod ffi;
mod helper;
pub mod journal;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{env, io, mem};

pub use helper::{find_room, run_if_requested};
use serde::{Deserialize, Serialize};

use self::check::find_obstacles;
use self::journal::{Journals, ParkRecord};
use super::plan::Why;
use super::target::{ProcessToPark, Step};
use super::{Plan, Refused, Target};
use crate::deadline::Task;
use crate::host::{Roots, read_host};
use crate::model::Snapshot;
use crate::model::process::ParkState;
use crate::units::{Span, without_error_numbers};

/// Argument that makes gpumem a helper, followed by the [`ParkRequest`].
const ARGUMENT: &str = "park-helper";
/// Bytes that an H100 moves per second. The limits are a single copying thread and pageable host memory.
const BYTES_PER_SECOND: u64 = 5_000_000_000;
/// How long to wait for the driver to report the state of a process.
const STATE_TIME: Duration = Duration::from_secs(15);

/// Paths and limits that the helper and the checks use.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ParkSettings {
    pub journals: Journals,
    pub nvml_library: Option<PathBuf>,
    pub nvml_timeout: Duration,
    /// Maximum number of bytes that all parked processes may hold in host memory.
    pub most_bytes: Option<u64>,
    /// Time between the two checks of the free memory before a restore.
    pub check_interval: Duration,
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
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParkOperation {
    Park,
    /// Parks a process that is then ended. The process may be working.
    ParkToEnd,
    Unpark,
    /// Queries the driver for the state. Writes the state to the journal if the journal does not show it.
    AskState,
}

/// An operation for the helper, with its process and settings.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ParkRequest {
    operation: ParkOperation,
    process: ProcessToPark,
    boot_id: Arc<str>,
    settings: ParkSettings,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParkResult {
    Parked,
    Running,
    /// Nothing was done.
    Refused,
    /// The process was working, and keeps running.
    Busy,
    /// Too little memory is free on the GPUs, or another process is claiming it. The process stays parked.
    NoRoom,
    /// The operation failed. The text says what state the process is in.
    Failed,
    /// The helper has not answered in time, and continues.
    Late,
}

/// Answer of the helper. The text does not name the process and has no full stop.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ParkAnswer {
    pub result: ParkResult,
    pub text: String,
    /// Bytes that were moved; 0 unless a park or an unpark succeeded.
    pub bytes: u64,
    /// Duration of the operation, in milliseconds; 0 unless a park or an unpark succeeded.
    pub ms: u64,
}

impl ParkAnswer {
    pub fn new(result: ParkResult, text: impl Into<String>) -> Self {
        Self { result, text: without_error_numbers(&text.into()), bytes: 0, ms: 0 }
    }

    fn refused(text: impl ToString) -> Self {
        Self::new(ParkResult::Refused, text.to_string())
    }
}

impl ParkRequest {
    /// Returns `None` if the program has no settings or the boot is unknown.
    fn new(operation: ParkOperation, process: &ProcessToPark) -> Option<Self> {
        let boot_id = read_host(&Roots::default()).boot_id?;
        let settings = ParkSettings::current()?.clone();
        Some(Self { operation, process: process.clone(), boot_id, settings })
    }

    /// Starts a helper and waits for its answer. If the time expires, the helper continues.
    fn run_helper(&self, time: Duration) -> io::Result<ParkAnswer> {
        let helper = Command::new(env::current_exe()?)
            .args([ARGUMENT, &serde_json::to_string(self)?])
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let pid = helper.id();
        let wait = move || {
            let output = helper.wait_with_output().ok()?;
            serde_json::from_slice(&output.stdout).ok()
        };
        Ok(match Task::start("park-helper", wait)?.within(time) {
            Ok(Some(answer)) => answer,
            Ok(None) => {
                let text = "the helper died; `gpumem park --list` asks the driver for the state";
                ParkAnswer::new(ParkResult::Failed, text)
            }
            Err(_) => {
                let result = "`gpumem park --list` shows the result";
                let text = format!("not done yet; the helper ({pid}) continues, and {result}");
                ParkAnswer::new(ParkResult::Late, text)
            }
        })
    }
}

/// Performs an operation in a helper, and waits for its answer.
pub fn perform(operation: ParkOperation, process: &ProcessToPark) -> ParkAnswer {
    let time = match operation {
        ParkOperation::AskState => STATE_TIME,
        _ => timeout(process.bytes),
    };
    let Some(request) = ParkRequest::new(operation, process) else {
        return ParkAnswer::refused("there is no state directory for the journal");
    };
    let answer = request.run_helper(time);
    answer.unwrap_or_else(|error| ParkAnswer::refused(format!("cannot start the helper: {error}")))
}

/// Estimates how long it takes to move the bytes in one direction.
pub fn estimate(bytes: u64) -> Span {
    Span(Duration::from_secs(bytes.div_ceil(BYTES_PER_SECOND).max(1)))
}

/// Returns how long to wait for an operation.
pub fn timeout(bytes: u64) -> Duration {
    (estimate(bytes).0 * 4 + Duration::from_secs(30)).max(Duration::from_secs(60))
}

/// Returns all records. Queries the driver for states that the journals do not show.
pub fn read_records(settings: &ParkSettings) -> Vec<ParkRecord> {
    let records = settings.journals.read();
    let is_unknown = |record: &&ParkRecord| record.state() == ParkState::Unknown;
    for record in records.iter().filter(is_unknown) {
        perform(ParkOperation::AskState, &record.process);
    }
    if records.iter().any(|record| is_unknown(&record)) {
        settings.journals.read()
    } else {
        records
    }
}

/// Refuses each target that the plan would park but that cannot be parked. Queries the driver, but does not change any
/// process. Returns how many targets the plan would have parked.
pub fn check_parks(plan: &mut Plan, snapshot: &Snapshot) -> usize {
    let Some(settings) = ParkSettings::current() else { return 0 };
    read_records(settings);
    let (parked, others) = mem::take(&mut plan.targets).into_iter().partition(Target::is_park);
    plan.targets = others;
    let count = Vec::len(&parked);
    for target in parked {
        let Some(Step::Park { process, .. }) = target.steps.first() else { continue };
        let mut obstacles = find_obstacles(settings, snapshot, process.pid, false);
        if obstacles.is_empty() {
            let answer = perform(ParkOperation::AskState, process);
            obstacles.extend((answer.result != ParkResult::Running).then_some(answer.text));
        }
        if obstacles.is_empty() {
            plan.targets.push(target);
            continue;
        }
        plan.refused.push(Refused {
            pid: Some(process.pid),
            user: target.members.first().and_then(|member| member.user.clone()),
            name: Some(Arc::clone(&process.name)),
            finding: None,
            kind: None,
            why: Why::CannotPark { obstacle: obstacles.join("; ").into() },
        });
    }
    count
}
