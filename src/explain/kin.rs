//! What belongs together with a process, and who started it.

use crate::model::{Process, Snapshot, family};
use crate::report::explain::{FamilyLine, Kin};

use super::subject::holder;

/// Its family as a tree, itself in it; no tree of one that belongs to no family.
pub(super) fn of(process: &Process, snapshot: &Snapshot) -> Kin {
    let families = family::families(snapshot);
    let Some(family) = family::member(&families, process.pid) else {
        return Kin { launcher: process.parent.clone(), ..Kin::default() };
    };
    let ties = family.ties.iter();
    let member = |branch: &family::Branch| FamilyLine {
        depth: branch.depth,
        holder: holder(branch.pid, snapshot),
    };
    Kin {
        ties: ties.map(|tie| tie.words().to_owned()).collect(),
        launcher: family.launcher.clone(),
        members: match family.members.len() {
            0 | 1 => Vec::new(),
            _ => family.tree(snapshot).iter().map(member).collect(),
        },
    }
}
