//! Items exported for the integration tests and benchmarks.
//!
//! This is not a stable API. All other modules are private, so that the compiler reports unused code.

pub mod advice {
    pub use crate::advice::find;
}

pub mod cli {
    pub use crate::cli::args::{Cli, Shell};
}

pub mod history {
    pub use crate::history::History;
}

pub mod host {
    pub use crate::host::jupyter::{KernelCandidate, read_kernel};
    pub use crate::host::{
        Guarded, JobUsage, ListedProcess, Ourselves, Processes, Roots, read_all, read_clocks,
        read_guarded, read_host, read_ourselves, read_start_ticks,
    };
}

pub mod model {
    pub use crate::model::family::{Tie, families, member};
    pub use crate::model::finding::{Action, Also, Evidence, Finding, FindingGpu, FindingProcess};
    pub use crate::model::json::{document, is_hostile};
    pub use crate::model::process::{Container, Descendants, Parent, Relation, Relative, Slurm};
    pub use crate::model::reservation::Reservation;
    pub use crate::model::row::CurrentUser;
    pub use crate::model::snapshot::*;
    pub use crate::model::{
        Gpu, GpuProcess, Kind, Process, Severity, Snapshot, Start, Suspect, Time,
    };
}

pub mod reclaim {
    pub use crate::reclaim::plan::{PlanInput, pids};
    pub use crate::reclaim::process_control::{
        ApprovedProcess, Handle, NotOpened, NotSent, RequestResult,
    };
    pub use crate::reclaim::release::{
        NotReleased, ReleaseAnswer, ReleaseBy, ReleaseOptions, ReleaseReport, ReleaseWay,
        ServerUnload, find as find_release, perform as perform_release, probe as probe_release,
    };
    pub use crate::reclaim::target::{Because, KernelAtServer, Reason, Request, Step};
    pub use crate::reclaim::{
        Act, ActProgress, FindingSelector, Guard, Ledger, Outcome, PidfdControl, Plan, Policy,
        ProcessControl, Recheck, Refused, Signal, StepInput, Target, Targets, ask_server, plan,
    };
    pub mod ledger {
        pub use crate::reclaim::ledger::{Actor, Deed, LedgerSummary, read};
    }
}

pub mod recording {
    pub use crate::recording::RecordingReader;
    pub use crate::recording::store::{Access, Store, StoreLimits, StoreWriter};
}

pub mod report {
    pub mod check {
        pub use crate::report::check::{CheckReport, Counts, Limit};
    }
    pub mod hosts {
        pub use crate::cli::hosts::HostsReport;
    }
    pub mod totals {
        pub use crate::report::totals::TotalsReport;
    }
    pub mod doctor {
        pub use crate::report::doctor::DoctorReport;
    }
    pub mod explain {
        pub use crate::explain::page::ExplainPage;
    }
    pub mod metrics {
        pub use crate::report::metrics::{METRICS, Metric};
    }
    pub mod reap {
        pub use crate::report::reap::{ReapHistory, ReapReport};
    }
    pub mod run {
        pub use crate::report::run::RunReport;
    }
    pub use crate::report::SCHEMAS;
}

pub mod rules {
    pub use crate::rules::stopped::StoppedEvidence;
    pub use crate::rules::{Engine, RuleSet, evidence};
}

pub mod source {
    pub use crate::source::live::Live;
    pub use crate::source::replay::Replay;
    pub use crate::source::{Source, SourceError};
    pub mod nvml {
        pub use crate::source::nvml::{NvmlFailure, NvmlOptions};
    }
}

pub mod units {
    pub use crate::units::MIB;
}

pub mod watch {
    pub use crate::reclaim::worker::{Proposal, ReclaimProgress, ReclaimRequest};
    pub use crate::watch::double_buffer::DoubleBuffer;
    pub use crate::watch::state::{App, Effect, Event, Setup};
    pub use crate::watch::terminal::with_screen;
    pub use crate::watch::update::update;
    pub use crate::watch::view::draw;
    pub use crate::watch::{Options, run};
}
