//! Reads the facts that decide whether the CUDA driver can move a process's state to host memory: debuggers, mapped
//! files and variables that load a profiler. `reclaim::park` judges them.

use crate::host::Roots;
use crate::host::proc::environ::ENVIRON_BYTES;
use crate::host::proc::folder::Folder;
use crate::host::proc::framework::MAPS_BYTES;
use crate::host::proc::status::{STATUS_BYTES, parse_tracer};

/// Variables that make the driver load a profiler or debugger into a CUDA program.
const INJECTIONS: [&str; 2] = ["CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"];

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckpointFacts {
    /// Pid of the debugger that traces the process, or 0.
    pub tracer: u32,
    /// Paths of the mapped files, without repetitions.
    pub mapped: Vec<String>,
    /// Name of the variable that loads a profiler, if one is set.
    pub injection: Option<&'static str>,
}

/// Reads the facts about a process. Returns `None` if one of them cannot be read.
pub fn read_checkpoint_facts(roots: &Roots, pid: u32) -> Option<CheckpointFacts> {
    let folder = Folder::open(&roots.proc, pid).ok()?;
    let mut content = Vec::new();
    folder.read(c"status", &mut content, STATUS_BYTES).ok()?;
    let tracer = parse_tracer(&content)?;
    let [_, environment, maps] = folder.read_memory([0, ENVIRON_BYTES, MAPS_BYTES]);
    let (environment, maps) = (environment.ok()?, maps.ok()?);
    // A list that reaches the limit may be incomplete.
    if maps.len() >= MAPS_BYTES || environment.len() >= ENVIRON_BYTES {
        return None;
    }
    let mut mapped: Vec<String> = maps
        .split(|&byte| byte == b'\n')
        .filter_map(|line| {
            // The fields before the path contain no slash.
            let path = &line[line.iter().position(|&byte| byte == b'/')?..];
            Some(String::from_utf8_lossy(path).into_owned())
        })
        .collect();
    mapped.sort_unstable();
    mapped.dedup();
    let is_set = |name: &&str| {
        let mut variables = environment.split(|&byte| byte == 0);
        variables.any(|variable| {
            variable
                .strip_prefix(name.as_bytes())
                .is_some_and(|rest| rest.len() > 1 && rest[0] == b'=')
        })
    };
    Some(CheckpointFacts { tracer, mapped, injection: INJECTIONS.into_iter().find(is_set) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_process_is_not_traced_and_has_mapped_its_program() {
        let facts = read_checkpoint_facts(&Roots::default(), std::process::id()).unwrap();
        let program = std::env::current_exe().unwrap().canonicalize().unwrap();
        assert!(facts.mapped.contains(&program.display().to_string()), "{facts:?}");
        assert_eq!((facts.tracer, facts.injection), (0, None));
        assert_eq!(read_checkpoint_facts(&Roots::default(), u32::MAX), None);
    }
}
