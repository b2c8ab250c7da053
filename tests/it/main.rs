//! The integration tests, in a single binary with one module per subject.

// clippy.toml allows these lints in `#[test]` functions, but not in the functions that tests call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

/// Unwraps an option. On `None`, returns from the test, because a helper has printed why the test is skipped.
macro_rules! or_skip {
    ($found:expr) => {
        match $found {
            Some(found) => found,
            None => return,
        }
    };
}

mod accounting;
mod bombs;
mod bounds;
mod cases;
mod cli;
mod complete;
mod configured;
mod corpus;
mod doctor;
mod ended;
mod explain;
mod faults;
mod fleet;
mod formats;
mod gate;
mod generate;
mod generated;
mod hardware;
mod holders;
mod hosts;
mod kubernetes;
mod live;
mod machine;
mod notebook;
mod once;
mod output_files;
mod owners;
mod park;
mod pipelines;
mod place;
mod platforms;
mod procs;
mod pty;
mod pty_jobs;
mod pty_keys;
mod reap;
mod reap_notebook;
mod reclaim;
mod release;
mod release_kernel;
mod release_real_servers;
mod release_servers;
mod rights;
mod run;
mod run_terminal;
mod scenarios;
mod schema;
mod selection;
mod serve;
mod servers;
mod store;
mod stuck;
mod support;
mod suspects;
mod time_zone;
mod truth;
mod unattended;
mod watch;
mod watch_reap;
