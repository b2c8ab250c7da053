//! The open page: what it is about, its text, and how far it is scrolled.

use crate::explain::page::ExplainPage;
use crate::history::memory_series::MemorySeries;
use crate::model::field::Field;
use crate::model::finding::Finding;
use crate::model::totals::Total;
use crate::model::{Identity, Time};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum About {
    /// A process by identity, so that a reused PID does not matter.
    Process(Identity),
    /// A GPU by NVML's index.
    Gpu(u32),
    Environment(Identity),
    /// The totals of users, jobs, containers and frameworks.
    Totals,
}

impl About {
    pub fn process(self) -> Option<Identity> {
        match self {
            Self::Process(who) | Self::Environment(who) => Some(who),
            Self::Gpu(_) | Self::Totals => None,
        }
    }
}

/// The content of a page before it is wrapped.
#[derive(Clone, PartialEq, Debug)]
pub enum PageContent {
    /// The page of `gpumem explain`.
    Report(Box<ExplainPage>),
    Environment {
        title: String,
        /// Variables by name; or why they cannot be read; `None` while they are being read.
        variables: Option<Result<Vec<(String, String)>, String>>,
    },
    /// Totals by each field that rows can be grouped by.
    Totals { title: String, groups: Vec<(Field, Vec<Total>)> },
}

#[derive(Clone, PartialEq, Debug)]
pub struct Page {
    pub about: About,
    /// Its lines, with the colour marks that [`pieces`](crate::report::style::pieces) reads.
    pub lines: Vec<String>,
    /// Lines scrolled out of sight above.
    pub offset: usize,
    /// The time of the sample that it was made from.
    pub time: Option<Time>,
    /// The first sample without its subject; the page stays as it was before.
    pub gone: Option<Time>,
    /// The finding that it was opened from, which comes first.
    pub asked: Option<Finding>,
    pub content: PageContent,
    /// Host memory and CPU of its process, from the samples that are kept.
    pub host: MemorySeries,
}

impl Page {
    /// Whether its process still exists.
    pub fn has_subject(&self) -> bool {
        self.about.process().is_some() && self.gone.is_none()
    }
}
