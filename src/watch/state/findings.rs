//! The list of findings: which of them is selected, and from which on they are visible.

use std::sync::Arc;

use crate::model::finding::Finding;

/// The list of findings.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FindingsState {
    /// The selected finding's id.
    pub selected: Option<Arc<str>>,
    /// The first finding that is visible.
    pub offset: usize,
}

impl FindingsState {
    /// The selected one of these and its place; `None` where it is no more.
    pub fn selected_of<'a>(&self, findings: &'a [Finding]) -> Option<(usize, &'a Finding)> {
        let id = self.selected.as_ref()?;
        let mut findings = findings.iter().enumerate();
        findings.find(|(_, finding)| finding.id == *id)
    }

    /// Selects the one at this place, or the last one.
    pub(in crate::watch) fn select(&mut self, at: usize, findings: &[Finding]) {
        let finding = findings.get(at).or(findings.last());
        self.selected = finding.map(|finding| Arc::clone(&finding.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::sample;

    #[test]
    fn a_finding_is_selected_by_place_and_known_by_its_id() {
        let snapshot = sample::snapshot(1, 3);
        let mut findings: Vec<Finding> =
            (0..3).map(|at| sample::finding(&snapshot, 0, at)).collect();
        let mut list = FindingsState::default();
        assert!(list.selected_of(&findings).is_none());
        for (place, selected) in [(1, 1), (9, 2), (0, 0)] {
            list.select(place, &findings);
            let (at, finding) = list.selected_of(&findings).unwrap();
            assert_eq!((at, &finding.id), (selected, &findings[selected].id));
        }
        findings.rotate_left(1);
        assert_eq!(list.selected_of(&findings).unwrap().0, 2, "it has moved");
        findings.pop();
        assert!(list.selected_of(&findings).is_none(), "it has ceased");
        list.select(0, &[]);
        assert_eq!(list.selected, None);
    }
}
