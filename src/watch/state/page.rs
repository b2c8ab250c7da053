//! State of the open page.

use crate::explain::page::ExplainPage;
use crate::history::memory_series::MemorySeries;
use crate::model::field::Field;
use crate::model::finding::Finding;
use crate::model::totals::Total;
use crate::model::{Identity, Time};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum About {
    /// Identified by start time as well as PID, because PIDs are reused.
    Process(Identity),
    Gpu(u32),
    Environment(Identity),
    Totals,
}

impl About {
    pub fn process(self) -> Option<Identity> {
        match self {
            Self::Process(identity) | Self::Environment(identity) => Some(identity),
            Self::Gpu(_) | Self::Totals => None,
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub enum PageContent {
    /// The page of `gpumem explain`.
    Report(Box<ExplainPage>),
    Environment {
        title: String,
        /// The variables, or why they cannot be read. `None` while the worker reads them.
        variables: Option<Result<Vec<(String, String)>, String>>,
    },
    /// Totals for each field that can group rows.
    Totals { title: String, groups: Vec<(Field, Vec<Total>)> },
}

#[derive(Clone, PartialEq, Debug)]
pub struct Page {
    pub about: About,
    /// Wrapped lines with colours, as [`pieces`](crate::report::style::pieces) reads them.
    pub lines: Vec<String>,
    pub offset: usize,
    /// Time of the sample that the page describes.
    pub time: Option<Time>,
    /// Time of the first sample without the page's process or GPU, while the process or GPU is missing.
    pub gone: Option<Time>,
    /// The finding that the user opened. The page shows this finding first.
    pub asked: Option<Finding>,
    pub content: PageContent,
    pub host: MemorySeries,
}

impl Page {
    pub fn has_subject(&self) -> bool {
        self.about.process().is_some() && self.gone.is_none()
    }
}
