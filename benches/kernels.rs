//! Sleeping processes, some of which look like notebook kernels without connection files.

use std::env;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

/// Value of `GPUMEM_BENCH_ROLE` for a child process that looks like a kernel.
pub const ROLE: &str = "kernel";

/// Processes that sleep until the value is dropped.
pub struct Sleepers(pub Vec<Child>);

impl Sleepers {
    /// Starts `count` processes, of which `kernels` look like notebook kernels. The kernels are spread evenly.
    pub fn new(count: usize, kernels: usize, stdin: impl Fn() -> Stdio) -> Self {
        let start = |index: usize| {
            let is_kernel = index * kernels / count != (index + 1) * kernels / count;
            let mut command = match is_kernel {
                true => kernel(index),
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

/// Returns a command with the arguments and environment that a notebook server gives its kernels.
fn kernel(index: usize) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    let file = format!("/nowhere/kernel-0a1b2c3d-0123-4567-89ab-{index:012x}.json");
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
