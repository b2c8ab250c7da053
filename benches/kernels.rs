//! Processes that sleep, some of which look like notebooks' kernels whose files are gone.

use std::env;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

/// The part that a process of a benchmark plays which looks like a kernel (`GPUMEM_BENCH_ROLE`).
pub const ROLE: &str = "kernel";

/// Processes that sleep until this is dropped.
pub struct Sleepers(pub Vec<Child>);

impl Sleepers {
    /// So many, so many of them kernels, evenly among the others.
    pub fn new(count: usize, kernels: usize, stdin: impl Fn() -> Stdio) -> Self {
        let start = |at: usize| {
            let is_kernel = at * kernels / count != (at + 1) * kernels / count;
            let mut command = match is_kernel {
                true => kernel(at),
                false => {
                    let mut sleep = Command::new("sleep");
                    sleep.arg("3600");
                    sleep
                }
            };
            command.stdin(stdin()).spawn().unwrap()
        };
        Self((0..count).map(start).collect())
    }
}

/// A kernel as a server starts it, by argv and environment.
fn kernel(at: usize) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    let file = format!("/nowhere/kernel-0a1b2c3d-0123-4567-89ab-{at:012x}.json");
    command
        .arg0("python3")
        .args(["-m", "ipykernel_launcher", "-f", &file])
        .env("GPUMEM_BENCH_ROLE", ROLE)
        .env("JPY_PARENT_PID", std::process::id().to_string());
    command
}

pub fn sleep() -> ! {
    loop {
        std::thread::park();
    }
}

impl Drop for Sleepers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}
