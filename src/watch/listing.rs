//! Selects and orders the table's rows: sorted, filtered, or as process trees.
//!
//! In a tree, families are ordered by their first members in the table. Parents precede their children, and older
//! siblings precede younger ones. A process whose parent is hidden hangs below its nearest visible ancestor.

use std::collections::HashMap;

use super::view_model::{RowKey, Screenful, Sort, Subject};
use crate::history::memory_series::AllSeries;
use crate::model::family::{Family, families};
use crate::model::row::CurrentUser;
use crate::model::{Process, Selector};

/// Maximum number of generations in a tree, limited by the bits of [`ListingLine::rails`].
const DEEPEST: usize = 31;

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Choice {
    pub sort: Sort,
    pub tree: bool,
    /// Whether to hide processes of other users and of unknown users.
    pub mine: bool,
    pub only_findings: bool,
    pub filter: Option<Selector>,
}

impl Choice {
    pub fn is_limited(&self) -> bool {
        self.mine || self.only_findings || self.filter.is_some()
    }

    pub fn clear_limits(&mut self) {
        self.mine = false;
        self.only_findings = false;
        self.filter = None;
    }

    /// Describes the limits, such as `mine, with findings, filter: gpu:0`, without escaping the filter.
    pub fn limits(&self) -> Option<String> {
        let filter = self.filter.as_ref();
        let parts = [
            self.mine.then(|| "mine".to_owned()),
            self.only_findings.then(|| "with findings".to_owned()),
            filter.map(|filter| format!("filter: {filter}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    fn matches(&self, subject: &Subject<'_>, me: &CurrentUser) -> bool {
        (!self.mine || subject.is_of(me) == Some(true))
            && (!self.only_findings || subject.finding.is_some())
            && self.filter.as_ref().is_none_or(|filter| filter.fits(subject, me))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListingLine {
    pub row: usize,
    /// Number of visible ancestors in a tree, plus 1 in a family with several roots.
    pub depth: u16,
    pub branch: TreeBranch,
    /// Bit `d`, for `d` less than `depth`, is set if the branch at depth `d` continues below this line.
    pub rails: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TreeBranch {
    /// A root of a tree, or a row outside a tree.
    Root,
    /// The first of several roots of a family.
    First,
    /// A row that is followed by a sibling.
    Middle,
    /// The last sibling.
    Last,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Listing {
    pub lines: Vec<ListingLine>,
    pub hidden: usize,
}

impl Listing {
    pub fn new(
        screenful: &Screenful,
        all_series: &AllSeries,
        choice: &Choice,
        me: &CurrentUser,
    ) -> Self {
        let mut order = screenful.order(choice.sort, all_series);
        if choice.is_limited() {
            order.retain(|&row| {
                let subject = screenful.subject(row);
                subject.is_some_and(|subject| choice.matches(&subject, me))
            });
        }
        let hidden = screenful.rows.len() - order.len();
        if choice.tree {
            return Self { lines: Trees::new(screenful, &order).grow(&order), hidden };
        }
        Self { lines: order.into_iter().map(|row| root(row, 0)).collect(), hidden }
    }

    /// Returns the line of a row. The key can come from an earlier snapshot.
    pub fn position(&self, screenful: &Screenful, key: &RowKey) -> Option<usize> {
        let is_match = |line: &ListingLine| {
            screenful.rows.get(line.row).is_some_and(|row| row.key.may_be(key))
        };
        self.lines.iter().position(is_match)
    }
}

struct Trees<'a> {
    screenful: &'a Screenful,
    families: Vec<Family>,
    family_of: HashMap<u32, usize>,
    /// The visible rows of each PID, in table order.
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
        // Of several processes with one PID, keep the first, as `Snapshot::process` does.
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

    fn add(&self, family: &Family, lines: &mut Vec<ListingLine>) {
        let start = lines.len();
        if let [pid] = family.members[..] {
            let rows = self.rows_of.get(&pid).into_iter().flatten();
            lines.extend(rows.map(|&row| root(row, 0)));
            connect(&mut lines[start..]);
            return;
        }
        let tree = family.tree_of(|pid| self.process_of.get(&pid).copied());
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
        connect(&mut lines[start..]);
    }
}

/// Sets the branches of a family's lines. If there are several roots, the roots become siblings.
fn connect(lines: &mut [ListingLine]) {
    let roots = lines.iter().filter(|line| line.depth == 0).count();
    if roots > 1 {
        for line in &mut *lines {
            line.depth += 1;
        }
    }
    // Depths at which a branch continues below the current line.
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

fn root(row: usize, depth: u16) -> ListingLine {
    ListingLine { row, depth, branch: TreeBranch::Root, rails: 0 }
}

#[cfg(test)]
mod tests;
