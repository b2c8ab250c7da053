//! The page of explanation that is open, as it was made of the last sample.

use crate::model::field::Field;
use crate::model::finding::Finding;
use crate::model::totals::Total;
use crate::model::{Identity, Time};
use crate::report::explain::ExplainReport;

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

/// What a page has to say.
#[derive(Clone, PartialEq, Debug)]
pub enum PageContent {
    /// The page of `gpumem explain`.
    Report(Box<ExplainReport>),
    /// Variables of a process.
    Environment {
        /// Whose.
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
    /// Its lines as [`Style`](crate::report::style::Style) colours them, which [`pieces`](crate::report::style::pieces) takes apart.
    pub lines: Vec<String>,
    /// Lines that are scrolled away.
    pub offset: usize,
    /// The time of the sample that it is of.
    pub time: Option<Time>,
    /// When it was missed first; the page stays what it was before.
    pub gone: Option<Time>,
    /// What was asked about, which comes first.
    pub asked: Option<Finding>,
    /// The page itself.
    pub content: PageContent,
}

impl Page {
    /// Whether it is about a process that is still there.
    pub fn has_subject(&self) -> bool {
        self.about.process().is_some() && self.gone.is_none()
    }

    /// Changes the offset, given itself and the lines that a screenful of `height` has beside one that
    /// stays.
    pub fn scroll(&mut self, height: usize, change: impl FnOnce(usize, usize) -> usize) {
        let last = self.lines.len().saturating_sub(height);
        let step = height.saturating_sub(1).max(1);
        self.offset = change(self.offset, step).min(last);
    }
}
