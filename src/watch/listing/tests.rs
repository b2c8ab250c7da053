//! Tests of the listed rows and their order.

use crate::units::MIB;
use std::sync::Arc;

use super::*;
use crate::model::Snapshot;
use crate::model::process::Parent;
use crate::watch::sample;

fn screenful(snapshot: Snapshot) -> Screenful {
    let findings = vec![sample::finding(&snapshot, 0, 0)];
    Screenful::new(snapshot, findings, Vec::new(), |_, _| None)
}

fn me(name: &str) -> CurrentUser {
    CurrentUser { uid: None, name: Some(name.to_owned()) }
}

fn listing(screenful: &Screenful, change: impl FnOnce(&mut Choice)) -> Listing {
    let mut choice = Choice::default();
    change(&mut choice);
    Listing::new(screenful, &AllSeries::default(), &choice, &me("ann"))
}

fn pids(screenful: &Screenful, listing: &Listing) -> Vec<u32> {
    let rows = listing.lines.iter().map(|line| &screenful.rows[line.row]);
    rows.map(|row| row.key.identity.pid).collect()
}

/// Returns the lines with their tree glyphs, such as `0 4000`, `1├4001` and `1└4002`.
fn drawn(screenful: &Screenful, listing: &Listing) -> Vec<String> {
    let lines = listing.lines.iter().zip(pids(screenful, listing));
    lines
        .map(|(line, pid)| {
            let glyph = match line.branch {
                TreeBranch::Root => ' ',
                TreeBranch::First => '┌',
                TreeBranch::Middle => '├',
                TreeBranch::Last => '└',
            };
            format!("{}{glyph}{pid}", line.depth)
        })
        .collect()
}

/// Makes `child` a child of `parent` or, without a parent, of a process that is not visible.
fn launch(snapshot: &mut Snapshot, child: usize, parent: Option<usize>) {
    let parent = parent.map(|at| &snapshot.processes[at]);
    let parent = parent.map(|parent| (parent.pid, parent.start_ticks));
    let process = &mut snapshot.processes[child];
    process.uid = Some(1000);
    process.process_group = Some(4000);
    process.session = Some(4000);
    if let Some((pid, start_ticks)) = parent {
        process.ppid = Some(pid);
        process.parent = Some(Arc::new(Parent { pid, start_ticks, ..Parent::default() }));
    }
}

/// Returns six processes on a GPU. Process 4000 started 4001 and 4003, and 4003 started 4005.
fn family() -> Snapshot {
    let mut snapshot = sample::snapshot(1, 6);
    for process in &mut snapshot.processes {
        process.process_group = Some(process.pid);
        process.session = Some(process.pid);
        process.ppid = Some(1);
        process.uid = Some(1000);
    }
    for (child, parent) in [(1, 0), (3, 0), (5, 3)] {
        launch(&mut snapshot, child, Some(parent));
    }
    snapshot
}

#[test]
fn each_limit_hides_its_rows_and_all_limits_are_described() {
    let mut snapshot = sample::snapshot(1, 4);
    sample::entry(&mut snapshot, 0, 0).used_bytes = Some(5 * MIB);
    sample::entry(&mut snapshot, 0, 1).used_bytes = Some(5 * MIB);
    sample::entry(&mut snapshot, 0, 2).used_bytes = None;
    let screenful = screenful(snapshot);
    let pids_with = |change: fn(&mut Choice)| {
        let listing = listing(&screenful, change);
        assert_eq!(listing.lines.len() + listing.hidden, 4);
        pids(&screenful, &listing)
    };
    assert_eq!(pids_with(|_| ()), [4003, 4000, 4001, 4002]);
    assert_eq!(pids_with(|choice| choice.mine = true), [4003, 4000]);
    assert_eq!(pids_with(|choice| choice.only_findings = true), [4000]);
    assert_eq!(
        pids_with(|choice| choice.filter = Selector::parse("mem<1GiB").unwrap()),
        [4000, 4001]
    );
    let mut choice = Choice {
        mine: true,
        only_findings: true,
        filter: Selector::parse("user:ann").unwrap(),
        ..Choice::default()
    };
    assert_eq!(choice.limits().as_deref(), Some("mine, with findings, filter: user:ann"));
    choice.clear_limits();
    assert_eq!((choice.limits(), choice.is_limited()), (None, false));
}

#[test]
fn mine_compares_the_uid_before_the_name() {
    let mut snapshot = sample::snapshot(1, 4);
    snapshot.processes[0].uid = Some(7);
    snapshot.processes[1].uid = Some(1000);
    snapshot.processes[2].user = None;
    let screenful = screenful(snapshot);
    let choice = Choice { mine: true, ..Choice::default() };
    let pids_of = |me: CurrentUser| {
        let listing = Listing::new(&screenful, &AllSeries::default(), &choice, &me);
        pids(&screenful, &listing)
    };
    let ann = |uid| CurrentUser { uid, ..me("ann") };
    assert_eq!(pids_of(ann(None)), [4003, 4000]);
    assert_eq!(pids_of(ann(Some(1000))), [4003, 4001]);
    assert_eq!(pids_of(CurrentUser::default()), [0; 0]);
}

#[test]
fn trees_are_sorted_by_first_member_with_parents_first() {
    let screenful = screenful(family());
    let listing = listing(&screenful, |choice| choice.tree = true);
    assert_eq!(
        drawn(&screenful, &listing),
        ["0 4000", "1├4001", "1└4003", "2└4005", "0 4004", "0 4002"]
    );
    assert_eq!(listing.lines[3].rails, 0, "4003 has no next sibling");
}

#[test]
fn hidden_rows_leave_the_tree_connected() {
    let screenful = screenful(family());
    let with_filter = |filter: &str| {
        listing(&screenful, |choice| {
            choice.tree = true;
            choice.filter = Selector::parse(filter).unwrap();
        })
    };
    let without_middle = with_filter("!pid:4003");
    assert_eq!(
        drawn(&screenful, &without_middle)[..3],
        ["0 4000", "1├4001", "1└4005"].map(str::to_owned)
    );
    let headless = with_filter("!pid:4000");
    assert_eq!(drawn(&screenful, &headless), ["1┌4001", "1└4003", "2└4005", "0 4004", "0 4002"]);
    assert_eq!(drawn(&screenful, &with_filter("pid:4005")), ["0 4005"]);
}

#[test]
fn a_deep_tree_is_limited_to_the_rail_bits() {
    let mut snapshot = sample::snapshot(1, 60);
    for at in 0..60 {
        launch(&mut snapshot, at, at.checked_sub(1));
    }
    let screenful = screenful(snapshot);
    let listing = listing(&screenful, |choice| choice.tree = true);
    assert_eq!(listing.lines.len(), 60);
    assert!(listing.lines.iter().any(|line| line.depth > 20));
    assert!(listing.lines.iter().all(|line| line.depth < 32));
}
