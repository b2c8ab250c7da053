//! How a process gives memory back and lives on.
//!
//! This file lists the ways; [`way`] has their plain data. Each way is a file with two functions: `find` tells
//! from a snapshot whether the process has it, and `ask` proves that the process is idle and, if told to, does
//! it. `ask` takes seconds and runs on its own thread. `step::release` decides when a release is done, and
//! whether it helped as NVML sees it.

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
use crate::deadline::Task;
use crate::host::Roots;
pub use crate::model::release::{Reference, ReleaseReport};
use crate::model::{Gpu, Process, Snapshot};
pub use way::{NotReleased, ReleaseAnswer, ReleaseBy, ReleaseOptions, ReleaseWay, ServerUnload};

/// The most targets probed at once.
const MOST_PROBES: usize = 16;
/// Time limit of a probe, however long a release may take.
const PROBE_TIME: Duration = Duration::from_secs(10);

/// The way by which a process gives memory back: a server's own unload, a kernel's channel or an announced
/// signal. Pure.
///
/// # Errors
///
/// Why not, for each way that might have applied.
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

/// Why a process that computes on a GPU runs no recipe: freeing memory waits for the computation, and a hanging
/// CUDA kernel would block the process forever. By the process's own samples or, if the driver has none, by the
/// GPU's.
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

/// A target, the result of the probe before the request, and its outcome.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct ProbedTarget {
    /// The target.
    #[serde(flatten)]
    pub target: Target,
    /// Proof that the target is idle and can be asked. Contains text from others: escape it for a
    /// terminal.
    pub proved: Option<Arc<str>>,
    /// Outcome of the target, also if the probe showed that it cannot be asked; `null` if the plan was
    /// not carried out for it, or not to the end.
    pub outcome: Option<Outcome>,
}

impl ProbedTarget {
    /// A target with the result of its probe.
    fn new(target: Target, answer: Option<ReleaseAnswer>) -> Self {
        let (proved, outcome) = match answer {
            Some(Ok(report)) => (report.why, None),
            Some(Err(error)) => (None, Some(Outcome::of_release(&error))),
            None => {
                let why = "it did not show in time whether it is idle; nothing was sent".into();
                (None, Some(Outcome::TimedOut { why }))
            }
        };
        Self { target, proved, outcome }
    }

    /// Whether it is to be asked.
    pub fn is_due(&self) -> bool {
        self.outcome.is_none()
    }
}

/// Probes whether each target is idle and can be asked, some at once; that changes nothing.
pub fn probe_targets(targets: Vec<Target>) -> Vec<ProbedTarget> {
    let mut all = Vec::with_capacity(targets.len());
    let mut left = targets.into_iter().peekable();
    while left.peek().is_some() {
        let some: Vec<Target> = left.by_ref().take(MOST_PROBES).collect();
        let looks: Vec<_> = some.iter().map(begin_probe).collect();
        for (target, look) in some.into_iter().zip(looks) {
            let answer = look.and_then(|look| look.within(PROBE_TIME).ok());
            all.push(ProbedTarget::new(target, answer));
        }
    }
    all
}

fn begin_probe(target: &Target) -> Option<Task<ReleaseAnswer>> {
    let Some(Step::Release { way, options, .. }) = target.steps.first() else {
        return None;
    };
    let (way, options) = (way.clone(), options.clone());
    let look = move || probe(&Roots::default(), &way, &options);
    Task::start("release-probe", look).ok()
}

/// Whether it could be done now. Changes nothing; may take seconds.
pub fn probe(roots: &Roots, way: &ReleaseWay, options: &ReleaseOptions) -> ReleaseAnswer {
    ask(roots, way, options, false)
}

/// Checks again whether it may be done, and does it; may take as long as the options say.
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
