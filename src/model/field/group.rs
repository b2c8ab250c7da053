//! A row's group, for the fields by which totals are computed.

use super::Field;
use super::read::is_known;
use crate::model::process::Slurm;
use crate::model::row::ProcessRow;
use crate::model::snapshot::Process;

/// The fields by which rows are added up, in the help's order.
pub const GROUPED: [Field; 4] = [Field::User, Field::Job, Field::Container, Field::Framework];

/// Digits of a container's id, as its runtime shows it.
const ID_CHARS: usize = 12;

/// A row's group.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum GroupName {
    /// May be chosen by a process: escape it for a terminal.
    Named(String),
    /// Known to be in none.
    None,
    Unknown,
}

impl Field {
    /// Its value as a group's name, for the fields in [`GROUPED`].
    pub fn group(self, row: &ProcessRow<'_>) -> GroupName {
        let name = match (self, row.process.ok()) {
            (Self::User, _) => self.text(row),
            (Self::Job, Some(process)) => process.slurm.as_deref().and_then(Slurm::id),
            (Self::Container, Some(process)) => process.container.as_deref().and_then(|it| {
                let id = || it.id.as_deref().map(|id| id.chars().take(ID_CHARS).collect());
                it.name.as_deref().map(str::to_owned).or_else(id)
            }),
            (Self::Framework, Some(process)) => process.framework.as_deref().map(str::to_owned),
            _ => None,
        };
        let has_none = |process: &Process| {
            let is_unnamed = match self {
                Self::Job => process.slurm.is_some(),
                Self::Container => process.container.is_some(),
                // Every process has an owner.
                Self::User => true,
                _ => false,
            };
            is_known(self, process) && !is_unnamed
        };
        match name {
            Some(name) => GroupName::Named(name),
            None if row.process.is_ok_and(has_none) => GroupName::None,
            None => GroupName::Unknown,
        }
    }
}
