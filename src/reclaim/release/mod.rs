//! Makes processes release memory and keep running.
//!
//! This file lists the methods, and [`way`] contains the data types. Each method is a module with two functions.
//! `find` checks in a snapshot whether a process supports the method. `ask` verifies that the process is idle and, if
//! `is_deed` is set, sends the request, which can take seconds. `ask` therefore runs on a separate thread.
//! `step::release` decides when a release is done, and whether NVML shows an effect.

mod announced;
pub mod kernel;
pub mod server;
pub mod way;

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::target::{Step, Target};
use super::verify::Outcome;
pub use crate::advice::recipe::ReleaseReport;
use crate::deadline::Task;
use crate::host::Roots;
use crate::model::{Gpu, Process, Snapshot};
pub use way::{NotReleased, ReleaseAnswer, ReleaseBy, ReleaseOptions, ReleaseWay, ServerUnload};

const MAX_PROBES: usize = 16;
/// Time limit of a probe. It does not depend on the time limit of a release.
const PROBE_TIME: Duration = Duration::from_secs(10);

/// Chooses the method for a process: a server's unload API, a kernel's shell channel, or an announced signal. If no
/// method works, returns why each method that seemed possible does not.
pub fn find(process: &Process, snapshot: &Snapshot) -> Result<ReleaseWay, String> {
    let mut refusals = Vec::new();
    for find in [server::find, kernel::find, announced::find] {
        match find(process, snapshot) {
            Some(Ok(way)) => return Ok(way),
            Some(Err(why)) => refusals.push(why),
            None => {}
        }
    }
    Err(match refusals.is_empty() {
        true => "it is neither an inference server that can unload its models nor a Jupyter kernel, and announces no \
            signal (GPUMEM_RELEASE_SIGNAL, see gpumem explain --snippet)"
            .to_owned(),
        false => refusals.join("; "),
    })
}

/// If the process is using a GPU, returns the reason not to run the release code in its kernel now. Freeing memory
/// waits for running CUDA kernels, so a CUDA kernel that hangs would block the process forever. If the driver does
/// not report the process's use, the GPU's use decides.
fn at_work(pid: u32, snapshot: &Snapshot) -> Option<String> {
    let works = |gpu: &Gpu| {
        let mut rows = gpu.processes.iter().flatten();
        let row = rows.find(|row| row.pid == pid)?;
        let percent = row.sm_percent.or(gpu.gpu_percent)?;
        let index = gpu.index;
        (percent > 0).then(|| match row.sm_percent {
            Some(_) => format!("it used GPU {index} in the last sample (SM {percent}%)"),
            None => {
                format!("GPU {index} was busy in the last sample ({percent}%), perhaps with it")
            }
        })
    };
    let why = snapshot.gpus.iter().find_map(works)?;
    Some(format!("{why}; try again when it is idle"))
}

/// A target and its outcome.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct PlannedTarget {
    #[serde(flatten)]
    pub target: Target,
    /// Evidence from the probe of `gpumem release` that the target is idle and can be asked; otherwise `null`.
    /// Contains untrusted text: escape it for a terminal.
    pub proved: Option<Arc<str>>,
    /// Outcome for the target, also if a probe shows that the target cannot be asked; `null` if the plan was not
    /// carried out or not completed for the target.
    pub outcome: Option<Outcome>,
}

impl PlannedTarget {
    pub fn new(target: Target) -> Self {
        Self { target, proved: None, outcome: None }
    }

    /// Returns whether the plan must still be carried out for the target: a probe did not determine the outcome.
    pub fn is_due(&self) -> bool {
        self.outcome.is_none()
    }
}

/// Probes whether each target is idle and can be asked, several targets at a time. Changes no process.
pub fn probe_targets(targets: &mut [PlannedTarget]) {
    for batch in targets.chunks_mut(MAX_PROBES) {
        let probes: Vec<_> = batch.iter().map(|planned| begin_probe(&planned.target)).collect();
        for (planned, probe) in batch.iter_mut().zip(probes) {
            match probe.and_then(|probe| probe.within(PROBE_TIME).ok()) {
                Some(Ok(report)) => planned.proved = report.why,
                Some(Err(error)) => planned.outcome = Some(Outcome::of_release(&error)),
                None => {
                    let why = "could not determine in time whether it is idle; nothing was sent";
                    planned.outcome = Some(Outcome::TimedOut { why: why.into() });
                }
            }
        }
    }
}

fn begin_probe(target: &Target) -> Option<Task<ReleaseAnswer>> {
    let Some(Step::Release { way, options, .. }) = target.steps.first() else {
        return None;
    };
    let (way, options) = (way.clone(), options.clone());
    let run_probe = move || probe(&Roots::default(), &way, &options);
    Task::start("release-probe", run_probe).ok()
}

/// Checks whether the process can be asked now. Changes nothing. Can take seconds.
pub fn probe(roots: &Roots, way: &ReleaseWay, options: &ReleaseOptions) -> ReleaseAnswer {
    ask(roots, way, options, false)
}

/// Repeats the checks of [`probe`], then performs the release within the time limit in `options`.
pub fn perform(roots: &Roots, way: &ReleaseWay, options: &ReleaseOptions) -> ReleaseAnswer {
    ask(roots, way, options, true)
}

fn ask(roots: &Roots, way: &ReleaseWay, options: &ReleaseOptions, is_deed: bool) -> ReleaseAnswer {
    match &way.by {
        ReleaseBy::Server(server) => server::ask(roots, way, server, options, is_deed),
        ReleaseBy::Kernel { .. } => kernel::ask(roots, way, options, is_deed),
        ReleaseBy::Signal { signal } => announced::ask(roots, way, *signal, is_deed),
    }
}
