//! Recognises programs that only occupy a GPU to keep other processes off it.
//!
//! Only published programs are listed, and they are recognised by the whole name of a program, script or module. A
//! program that runs other work, such as `nvertake run`, is not a placeholder. The names of users' own scripts prove
//! nothing.

use std::sync::Arc;

use super::Process;
use super::pool::{is_spawned, tool};

impl Process {
    pub fn placeholder(&self) -> Option<&'static str> {
        let command = self.command.as_deref()?;
        named(command).or_else(|| {
            let parent = self.parent.as_deref()?.command.as_deref()?;
            is_spawned(command).then(|| named(parent)).flatten()
        })
    }
}

/// Returns the placeholder that a command line runs, by the name in its documentation.
fn named(command: &[Arc<str>]) -> Option<&'static str> {
    let (name, arguments) = tool(command)?;
    Some(match name {
        // pypi.org/project/keep-gpu
        "keep-gpu"
        | "keep-gpu-mcp-server"
        | "keep_gpu"
        | "keep_gpu.cli"
        | "keep_gpu.mcp.server" => "keep-gpu",
        // github.com/TideDra/doma
        "doma" => "doma",
        // Without a subcommand, the program of pypi.org/project/nvertake only fills memory.
        "nvertake" | "nvertake.cli" if fills_only(arguments) => "nvertake",
        // pypi.org/project/occgpu
        "occgpu" | "occgpu.cli" => "occgpu",
        // pypi.org/project/occupiedgpus
        "occupiedgpus.core" => "occupiedgpus",
        // github.com/wilicc/gpu-burn, and pypi.org/project/gpu-burn
        "gpu_burn" | "gpu-burn" | "gpu_burn.cli" => "gpu-burn",
        _ => return None,
    })
}

/// Returns whether these arguments make nvertake only fill memory. An unlisted argument may be a command to run.
fn fills_only(arguments: &[Arc<str>]) -> bool {
    let mut fills = false;
    let mut rest = arguments.iter().map(|argument| &**argument);
    while let Some(argument) = rest.next() {
        match argument {
            "--filled" | "-f" => {
                fills = true;
                rest.next();
            }
            "--device" | "-d" | "--nice" | "-n" => drop(rest.next()),
            "--quiet" | "-q" => {}
            argument if argument.starts_with("--filled=") => fills = true,
            argument if argument.starts_with("--device=") || argument.starts_with("--nice=") => {}
            _ => return false,
        }
    }
    fills
}
