//! Which rows of a [`Screenful`] the table has, and in which order: sorted, filtered, as trees of families.
//!
//! Pure, and made once for each sample or choice, not for each frame. A line is a row of the screenful by
//! its place; what it says is made in `view/table.rs`.
//!
//! In a tree the families come in the order of their first members, and within a family whoever started
//! another is above it, the older before the younger. What is hidden is left out of the tree: a
//! process is under the nearest ancestor that is shown.

use std::collections::HashMap;

use super::view_model::{RowKey, Screenful, Sort, Subject};
use crate::history::memory_series::Courses;
use crate::model::family::{Family, families};
use crate::model::row::Me;
use crate::model::{Process, Selector};
use crate::units::{Bytes, MIB};

/// What holds less on a GPU is small: a context without anything in it holds more on most GPUs.
const SMALL_BYTES: u64 = 64 * MIB;
/// Generations that a tree tells apart; the bits of [`ListingLine::rails`].
const DEEPEST: usize = 31;

/// Which rows are wanted, and in which order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Choice {
    /// The order.
    pub sort: Sort,
    /// Families as trees.
    pub tree: bool,
    /// Only one's own processes; of those whose owner is not known, none.
    pub mine: bool,
    /// Only processes of which something was found.
    pub only_findings: bool,
    /// Without those that are known to hold less than 64 MiB and of which nothing was found.
    pub hide_small: bool,
    /// Only those that fit what was typed.
    pub filter: Option<Selector>,
}

impl Choice {
    /// Whether rows are hidden by it.
    pub fn is_limited(&self) -> bool {
        self.mine || self.only_findings || self.hide_small || self.filter.is_some()
    }

    /// Hides no row any more.
    pub fn lift(&mut self) {
        self.mine = false;
        self.only_findings = false;
        self.hide_small = false;
        self.filter = None;
    }

    /// What limits the rows: `mine, with findings, filter: gpu:0`; `None` where nothing does. The
    /// filter is as it was typed, to be escaped.
    pub fn limits(&self) -> Option<String> {
        let filter = self.filter.as_ref();
        let parts = [
            self.mine.then(|| "mine".to_owned()),
            self.only_findings.then(|| "with findings".to_owned()),
            self.hide_small.then(|| format!("small hidden (<{})", Bytes(SMALL_BYTES))),
            filter.map(|filter| format!("filter: {filter}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    fn wants(&self, subject: &Subject<'_>, me: &Me) -> bool {
        (!self.mine || subject.is_of(me) == Some(true))
            && (!self.only_findings || subject.finding.is_some())
            && !(self.hide_small && is_small(subject))
            && self.filter.as_ref().is_none_or(|filter| filter.fits(subject, me))
    }
}

/// Whether a row holds little and is no one's business. What it holds where that is not known may be
/// much.
fn is_small(subject: &Subject<'_>) -> bool {
    let held = subject.row.entry.used_bytes;
    subject.finding.is_none() && held.is_some_and(|bytes| bytes < SMALL_BYTES)
}

/// A line of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListingLine {
    /// The row, by its place in the screenful.
    pub row: usize,
    /// Generations above it that are shown; 0 outside trees. Where who started a family's oldest is not
    /// shown, these are at 1, as if it were.
    pub depth: u16,
    /// How it hangs on the tree.
    pub branch: TreeBranch,
    /// For each generation above, from bit 1, whether a later line hangs there.
    pub rails: u32,
}

/// How a line hangs on its tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TreeBranch {
    /// It is a root, or there is no tree.
    Root,
    /// The first of a family that hangs on no one who is shown.
    First,
    /// Another follows at its depth.
    Middle,
    /// The last one of its depth.
    Last,
}

/// The table's lines.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Listing {
    /// From top to bottom.
    pub lines: Vec<ListingLine>,
    /// Rows of the screenful that are hidden.
    pub hidden: usize,
}

impl Listing {
    /// Chooses and orders. How memory moved is in `courses`; `me` is who looks.
    pub fn new(screenful: &Screenful, courses: &Courses, choice: &Choice, me: &Me) -> Self {
        let mut order = screenful.order(choice.sort, courses);
        if choice.is_limited() {
            order.retain(|&row| {
                let subject = screenful.subject(row);
                subject.is_some_and(|subject| choice.wants(&subject, me))
            });
        }
        let hidden = screenful.rows.len() - order.len();
        if choice.tree {
            return Self { lines: Trees::new(screenful, &order).grow(&order), hidden };
        }
        Self { lines: order.into_iter().map(|row| root(row, 0)).collect(), hidden }
    }

    /// The line of a row, which may be of another snapshot.
    pub fn position(&self, screenful: &Screenful, key: &RowKey) -> Option<usize> {
        let is_it = |line: &ListingLine| {
            screenful.rows.get(line.row).is_some_and(|row| row.key.may_be(key))
        };
        self.lines.iter().position(is_it)
    }
}

/// The families of a screenful, and where their rows are.
struct Trees<'a> {
    screenful: &'a Screenful,
    families: Vec<Family>,
    /// The family of a pid, by position.
    family_of: HashMap<u32, usize>,
    /// The rows of a pid that are shown, in order.
    rows_of: HashMap<u32, Vec<usize>>,
    process_of: HashMap<u32, &'a Process>,
}

impl<'a> Trees<'a> {
    fn new(screenful: &'a Screenful, order: &[usize]) -> Self {
        let families = families(&screenful.snapshot);
        let mut family_of = HashMap::with_capacity(screenful.snapshot.processes.len());
        for (at, family) in families.iter().enumerate() {
            family_of.extend(family.members.iter().map(|&pid| (pid, at)));
        }
        let mut rows_of: HashMap<u32, Vec<usize>> = HashMap::with_capacity(order.len());
        for &row in order {
            let pid = screenful.rows[row].key.identity.pid;
            rows_of.entry(pid).or_default().push(row);
        }
        // Of several with one pid the first counts, as in `Snapshot::process`.
        let processes = screenful.snapshot.processes.iter().rev();
        let process_of = processes.map(|process| (process.pid, process)).collect();
        Self { screenful, families, family_of, rows_of, process_of }
    }

    fn grow(&self, order: &[usize]) -> Vec<ListingLine> {
        let mut lines: Vec<ListingLine> = Vec::with_capacity(order.len());
        let mut grown = vec![false; self.families.len()];
        for &row in order {
            let pid = self.screenful.rows[row].key.identity.pid;
            match self.family_of.get(&pid) {
                Some(&family) if grown[family] => continue,
                Some(&family) => {
                    grown[family] = true;
                    self.add(&self.families[family], &mut lines);
                }
                None => lines.push(root(row, 0)),
            }
        }
        lines
    }

    /// Adds a family's lines, each under the nearest ancestor that is shown.
    fn add(&self, family: &Family, lines: &mut Vec<ListingLine>) {
        let start = lines.len();
        if let [pid] = family.members[..] {
            let rows = self.rows_of.get(&pid).into_iter().flatten();
            lines.extend(rows.map(|&row| root(row, 0)));
            // One process on several GPUs.
            hang(&mut lines[start..]);
            return;
        }
        let tree = family.tree_of(|pid| self.process_of.get(&pid).copied());
        // The generations of the shown ancestors of the next branch.
        let mut above: Vec<usize> = Vec::new();
        for branch in &tree {
            while above.last().is_some_and(|&depth| depth >= branch.depth) {
                above.pop();
            }
            let Some(rows) = self.rows_of.get(&branch.pid) else {
                continue;
            };
            let depth = above.len().min(DEEPEST - 1) as u16;
            lines.extend(rows.iter().map(|&row| root(row, depth)));
            above.push(branch.depth);
        }
        hang(&mut lines[start..]);
    }
}

/// Joins the lines of a family. Several roots hang side by side.
fn hang(lines: &mut [ListingLine]) {
    let roots = lines.iter().filter(|line| line.depth == 0).count();
    if roots > 1 {
        for line in &mut *lines {
            line.depth += 1;
        }
    }
    // From the last line up: at which depths one was seen that hangs on the same branch.
    let mut follows = 0u32;
    for line in lines.iter_mut().rev() {
        let bit = 1u32 << line.depth;
        let above = bit - 1;
        line.rails = follows & above;
        line.branch = match (line.depth, follows & bit) {
            (0, _) => TreeBranch::Root,
            (_, 0) => TreeBranch::Last,
            _ => TreeBranch::Middle,
        };
        follows = (follows & above) | bit;
    }
    if roots > 1 {
        lines[0].branch = TreeBranch::First;
    }
}

/// A line that hangs on nothing yet.
fn root(row: usize, depth: u16) -> ListingLine {
    ListingLine { row, depth, branch: TreeBranch::Root, rails: 0 }
}

#[cfg(test)]
mod tests;
