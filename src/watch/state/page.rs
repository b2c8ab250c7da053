//! State of the open page: subject, text and scroll position.

use crate::explain::page::ExplainPage;
use crate::history::memory_series::MemorySeries;
use crate::model::field::Field;
use crate::model::finding::Finding;
use crate::model::totals::Total;
use crate::model::{Identity, Time};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum About {
    /// A process, identified by more than its PID. A reused PID does not match.
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
        /// Variables by name, or why they cannot be read. `None` while they are being read.
        variables: Option<Result<Vec<(String, String)>, String>>,
    },
    /// Totals for each field by which rows can be grouped.
    Totals { title: String, groups: Vec<(Field, Vec<Total>)> },
}

#[derive(Clone, PartialEq, Debug)]
pub struct Page {
    pub about: About,
    /// Wrapped lines, with the colour marks that [`pieces`](crate::report::style::pieces) reads.
    pub lines: Vec<String>,
    pub offset: usize,
    /// Time of the sample that the page describes.
    pub time: Option<Time>,
    /// Time of the first sample without the subject. The page is not updated after this time.
    pub gone: Option<Time>,
    /// The finding that the page was opened from. The page shows it first.
    pub asked: Option<Finding>,
    pub content: PageContent,
    pub host: MemorySeries,
}

impl Page {
    pub fn has_subject(&self) -> bool {
        self.about.process().is_some() && self.gone.is_none()
    }
}
