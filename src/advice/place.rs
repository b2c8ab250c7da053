//! What ends a process where it runs: the command for its job, container, unit or notebook.

use crate::model::Process;

/// What ends this process through whoever started it, in words to type; empty where nobody is known.
pub fn place_lines(process: &Process) -> Vec<String> {
    let job = process.slurm.as_ref().and_then(|it| it.job_id.as_deref());
    job.map(|job| format!("end its Slurm job: `scancel {}`", quote(job)))
        .into_iter()
        .collect()
}

/// A word as a POSIX shell takes it.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
