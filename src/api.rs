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
        Guarded, Holders, JobUsage, ListedProcess, Ourselves, Processes, Roots, read_all,
        read_clocks, read_guarded, read_host, read_ourselves, read_start_ticks,
    };
}

pub mod model {
    pub use crate::model::family::{Tie, families, member};
    pub use crate::model::finding::{
        Action, Also, Evidence, Finding, FindingGpu, FindingProcess, Kept, Pending, Undecided,
    };
    pub use crate::model::json::{document, is_hostile};
    pub use crate::model::keep::KeptBy;
    pub use crate::model::process::{
        AskedRelease, Container, Descendants, Parent, Relation, Relative, Slurm,
    };
    pub use crate::model::reservation::Reservation;
    pub use crate::model::row::CurrentUser;
    pub use crate::model::snapshot::*;
    pub use crate::model::suspect::{SeenSoFar, StillMissing, SuspectEvidence};
    pub use crate::model::{
        Gpu, GpuProcess, Identity, Kind, Process, Reclaimable, Severity, Snapshot, Start, Suspect,
        Time,
    };
}

pub mod reclaim {
    pub use crate::reclaim::plan::{PlanInput, Why, pids};
    pub use crate::reclaim::process_control::{
        ApprovedProcess, Handle, NotOpened, NotSent, RequestResult,
    };
    pub use crate::reclaim::release::{
        NotReleased, Reference, ReleaseAnswer, ReleaseBy, ReleaseOptions, ReleaseReport,
        ReleaseWay, ServerUnload, find as find_release, perform as perform_release,
        probe as probe_release,
    };
    pub use crate::reclaim::target::{
        Because, KernelAtServer, MemberGpu, Reason, Recipients, Request, Step, TargetProcess,
    };
    pub use crate::reclaim::{
        Act, ActProgress, FindingSelector, Guard, Ledger, Outcome, PidfdControl, Plan, Policy,
        ProcessControl, Protection, Recheck, Refused, Signal, StepInput, Target, Targets,
        ask_server, perform_requests, plan,
    };
    pub mod ledger {
        pub use crate::reclaim::ledger::{
            Actor, Deed, Failure, LedgerProcess, LedgerSummary, PastAct, PastDeed, read,
        };
    }
}

pub mod recording {
    pub use crate::recording::RecordingReader;
    pub use crate::recording::store::{Access, Store, StoreLimits, StoreWriter};
}

pub mod report {
    pub mod check {
        pub use crate::report::check::{
            CheckOutcome, CheckReport, Counts, Limit, LimitVerdict, SCHEMA, WaitVerdict,
        };
    }
    pub mod hosts {
        pub use crate::cli::hosts::HostsReport;
    }
    pub mod totals {
        pub use crate::report::totals::TotalsReport;
    }
    pub mod doctor {
        pub use crate::report::doctor::{
            CheckGroup, CheckStatus, DoctorCheck, DoctorReport, SCHEMA, Topic,
        };
    }
    pub mod explain {
        pub use crate::explain::page::{ExplainPage, SCHEMA};
    }
    pub mod metrics {
        pub use crate::report::metrics::{METRICS, Metric};
    }
    pub mod reap {
        pub use crate::reclaim::release::PlannedTarget;
        pub use crate::report::reap::{ReapHistory, ReapReport, ReapStatus, SCHEMA};
    }
    pub mod run {
        pub use crate::report::run::{RunReport, SCHEMA};
    }
    pub use crate::report::SCHEMAS;
}

pub mod rules {
    pub use crate::rules::dead::DeadEvidence;
    pub use crate::rules::hung::HungEvidence;
    pub use crate::rules::idle::IdleEvidence;
    pub use crate::rules::leak::LeakEvidence;
    pub use crate::rules::orphan::OrphanEvidence;
    pub use crate::rules::placeholder::PlaceholderEvidence;
    pub use crate::rules::pressure::PressureEvidence;
    pub use crate::rules::reserved::ReservedEvidence;
    pub use crate::rules::stopped::StoppedEvidence;
    pub use crate::rules::stuck::StuckEvidence;
    pub use crate::rules::unattributed::{DeviceFileHolder, UnattributedEvidence};
    pub use crate::rules::{Engine, RuleSet, evidence};
}

pub mod source {
    pub use crate::source::live::Live;
    pub use crate::source::replay::Replay;
    pub use crate::source::{Control, NextSnapshot, Origin, Source, SourceError};
    pub mod nvml {
        pub use crate::source::nvml::{NvmlFailure, NvmlOptions};
    }
}

pub mod units {
    pub use crate::units::{MIB, Span};
}

pub mod watch {
    pub use crate::reclaim::worker::{Proposal, ReclaimProgress, ReclaimRequest, ReclaimWorker};
    pub use crate::watch::double_buffer::DoubleBuffer;
    pub use crate::watch::state::{App, Effect, Event, Setup};
    pub use crate::watch::terminal::with_screen;
    pub use crate::watch::theme::Theme;
    pub use crate::watch::ui_state::UiState;
    pub use crate::watch::update::update;
    pub use crate::watch::view::draw;
    pub use crate::watch::{EarlierHistory, Options, WatchError, run};
}
