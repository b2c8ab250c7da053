//! What may be typed after `gpumem metrics` and `gpumem serve`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::{EXIT_CODES, Recorded, Stored};
use crate::units::Span;

/// Print metrics and findings for Prometheus, once
///
/// Metrics of GPUs, processes and findings, from one sample and the stored history. Unknown values are
/// absent. No label contains a command line or a path. The 512 processes with the most memory have
/// their own series.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct MetricsArgs {
    /// Replace this file atomically, for node_exporter's textfile collector, instead of printing
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,

    /// Where the snapshots come from.
    #[command(flatten)]
    pub recorded: Recorded,

    /// Whether the stored history is used.
    #[command(flatten)]
    pub stored: Stored,
}

/// Serve metrics and the newest verdict over HTTP, for Prometheus
///
/// /metrics is the page of `gpumem metrics` with counters of waste, /check the document of `gpumem check --json`,
/// and /-/healthy tells whether the newest sample is recent. Requests are answered from the newest sample;
/// they never cause one. It runs until SIGINT or SIGTERM.
///
/// With `gpumem record --store --serve ADDRESS`, one process records and serves.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct ServeArgs {
    /// Address to listen on; everyone who can reach it sees users and programs
    #[arg(long, value_name = "ADDRESS", value_parser = address, default_value = "127.0.0.1:9836")]
    pub listen: SocketAddr,

    /// Time between samples [default: 5s]
    #[arg(long, value_name = "DURATION")]
    pub interval: Option<Span>,

    /// Where the snapshots come from; for a recording, its end is served.
    #[command(flatten)]
    pub recorded: Recorded,

    /// Whether the stored history is used.
    #[command(flatten)]
    pub stored: Stored,
}

/// Where to listen. A name may stand for several addresses, and the wrong one is open to others.
pub(super) fn address(typed: &str) -> Result<SocketAddr, String> {
    typed.parse().map_err(|_| "write an IP address and a port: 127.0.0.1:9836".to_owned())
}
