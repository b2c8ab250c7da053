//! The page of explanation that is open: what it is about, its text, and how far it is scrolled.

use crate::explain::page::ExplainPage;
use crate::history::memory_series::MemorySeries;
use crate::model::field::Field;
use crate::model::finding::Finding;
use crate::model::totals::Total;
use crate::model::{Identity, Time};

/// What a page is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum About {
    /// A process, whatever becomes of its number.
    Process(Identity),
    /// A GPU, by NVML's index.
    Gpu(u32),
    /// The environment of a process.
    Environment(Identity),
    /// What users, jobs, containers and frameworks hold together.
    Totals,
}

impl About {
    /// The process that it is about.
    pub fn process(self) -> Option<Identity> {
        match self {
            Self::Process(who) | Self::Environment(who) => Some(who),
            Self::Gpu(_) | Self::Totals => None,
        }
    }
}

/// The text of a page, before it is broken into lines.
#[derive(Clone, PartialEq, Debug)]
pub enum PageContent {
    /// The page of `gpumem explain`.
    Report(Box<ExplainPage>),
    /// Variables of a process.
    Environment {
        title: String,
        /// By name; or why they cannot be read; `None` while they are being read.
        variables: Option<Result<Vec<(String, String)>, String>>,
    },
    /// Totals by each of the fields that rows can be grouped by.
    Totals {
        /// Of what.
        title: String,
        /// By field.
        groups: Vec<(Field, Vec<Total>)>,
    },
}

/// A page of explanation.
#[derive(Clone, PartialEq, Debug)]
pub struct Page {
    /// What it is about.
    pub about: About,
    /// Its lines, with the colours that [`pieces`](crate::report::style::pieces) takes apart.
    pub lines: Vec<String>,
    /// Lines that are scrolled away above.
    pub offset: usize,
    /// The time of the sample that it was made of.
    pub time: Option<Time>,
    /// The first sample that its subject was missing from; the page stays as it was before.
    pub gone: Option<Time>,
    /// The finding that it was opened from, which comes first.
    pub asked: Option<Finding>,
    /// The page itself.
    pub content: PageContent,
    /// Host memory and CPU of its process, as far back as samples are kept.
    pub host: MemorySeries,
}

impl Page {
    /// Whether it is about a process that is still there.
    pub fn has_subject(&self) -> bool {
        self.about.process().is_some() && self.gone.is_none()
    }
}
