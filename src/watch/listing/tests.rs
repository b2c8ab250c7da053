//! Tests of the listed rows and their order.

use std::sync::Arc;

use super::*;
use crate::model::Snapshot;
use crate::model::process::Parent;
use crate::watch::column::Column;
use crate::watch::sample;

fn screenful(snapshot: Snapshot) -> Screenful {
    let findings = vec![sample::finding(&snapshot, 0, 0)];
    Screenful::new(snapshot, findings, Vec::new(), |_, _| None)
}

fn me(name: &str) -> Me {
    Me { uid: None, name: Some(name.to_owned()) }
}

fn listing(screenful: &Screenful, change: impl FnOnce(&mut Choice)) -> Listing {
    let mut choice = Choice::default();
    change(&mut choice);
    Listing::new(screenful, &Courses::default(), &choice, &me("ann"))
}

fn pids(screenful: &Screenful, listing: &Listing) -> Vec<u32> {
    let rows = listing.lines.iter().map(|line| &screenful.rows[line.row]);
    rows.map(|row| row.key.identity.pid).collect()
}

/// The lines with their tree glyphs: `0 4000`, `1├4001`, `1└4002`.
fn drawn(screenful: &Screenful, listing: &Listing) -> Vec<String> {
    let lines = listing.lines.iter().zip(pids(screenful, listing));
    lines
        .map(|(line, pid)| {
            let bough = match line.branch {
                TreeBranch::Root => ' ',
                TreeBranch::First => '┌',
                TreeBranch::Middle => '├',
                TreeBranch::Last => '└',
            };
            format!("{}{bough}{pid}", line.depth)
        })
        .collect()
}

/// Makes a process of group 4000 the child of another one, or removes its visible parent.
fn launch(snapshot: &mut Snapshot, child: usize, parent: Option<usize>) {
    let parent = parent.map(|at| &snapshot.processes[at]);
    let parent = parent.map(|it| (it.pid, it.start_ticks));
    let process = &mut snapshot.processes[child];
    process.uid = Some(1000);
    process.process_group = Some(4000);
    process.session = Some(4000);
    if let Some((pid, start_ticks)) = parent {
        process.ppid = Some(pid);
        process.parent = Some(Arc::new(Parent { pid, start_ticks, ..Parent::default() }));
    }
}

/// Six processes on a GPU: 4000 launched 4001 and 4003, and 4003 launched 4005. 4002 and 4004 have no relatives.
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
fn each_limit_hides_what_it_names_and_all_of_them_are_listed() {
    let mut snapshot = sample::snapshot(1, 4);
    sample::entry(&mut snapshot, 0, 0).used_bytes = Some(5 * MIB);
    sample::entry(&mut snapshot, 0, 1).used_bytes = Some(5 * MIB);
    sample::entry(&mut snapshot, 0, 2).used_bytes = None;
    let screenful = screenful(snapshot);
    let of = |change: fn(&mut Choice)| {
        let listing = listing(&screenful, change);
        assert_eq!(listing.lines.len() + listing.hidden, 4);
        pids(&screenful, &listing)
    };
    assert_eq!(of(|_| ()), [4003, 4000, 4001, 4002]);
    assert_eq!(of(|it| it.mine = true), [4003, 4000]);
    assert_eq!(of(|it| it.only_findings = true), [4000]);
    // Processes with a finding or of unknown size are not small.
    assert_eq!(of(|it| it.hide_small = true), [4003, 4000, 4002]);
    assert_eq!(of(|it| it.filter = Selector::parse("mem<1GiB").unwrap()), [4000, 4001]);
    let mut choice = Choice {
        mine: true,
        only_findings: true,
        hide_small: true,
        filter: Selector::parse("user:ann").unwrap(),
        ..Choice::default()
    };
    assert_eq!(
        choice.limits().as_deref(),
        Some("mine, with findings, small hidden (<64.0 MiB), filter: user:ann")
    );
    choice.lift();
    assert_eq!((choice.limits(), choice.is_limited()), (None, false));
}

#[test]
fn mine_is_decided_by_uid_and_only_then_by_name() {
    let mut snapshot = sample::snapshot(1, 4);
    snapshot.processes[0].uid = Some(7);
    snapshot.processes[1].uid = Some(1000);
    snapshot.processes[2].user = None;
    let screenful = screenful(snapshot);
    let choice = Choice { mine: true, ..Choice::default() };
    let of = |me: Me| {
        let listing = Listing::new(&screenful, &Courses::default(), &choice, &me);
        pids(&screenful, &listing)
    };
    let ann = |uid| Me { uid, ..me("ann") };
    assert_eq!(of(ann(None)), [4003, 4000]);
    assert_eq!(of(ann(Some(1000))), [4003, 4001]);
    assert_eq!(of(Me::default()), [0; 0]);
}

#[test]
fn a_tree_is_where_its_first_member_would_be_and_children_are_below_their_parents() {
    let screenful = screenful(family());
    let listing = listing(&screenful, |it| it.tree = true);
    assert_eq!(
        drawn(&screenful, &listing),
        ["0 4000", "1├4001", "1└4003", "2└4005", "0 4004", "0 4002"]
    );
    assert_eq!(listing.lines[3].rails, 0, "4003 has no next sibling");
}

#[test]
fn hidden_rows_leave_the_tree_connected() {
    let screenful = screenful(family());
    let of = |filter: &str| {
        listing(&screenful, |it| {
            it.tree = true;
            it.filter = Selector::parse(filter).unwrap();
        })
    };
    let one = of("!pid:4003");
    assert_eq!(drawn(&screenful, &one)[..3], ["0 4000", "1├4001", "1└4005"].map(str::to_owned));
    let headless = of("!pid:4000");
    assert_eq!(drawn(&screenful, &headless), ["1┌4001", "1└4003", "2└4005", "0 4004", "0 4002"]);
    assert_eq!(drawn(&screenful, &of("pid:4005")), ["0 4005"]);
}

#[test]
fn rails_lead_past_children_to_the_next_sibling() {
    let mut lines: Vec<ListingLine> =
        [0, 1, 2, 2, 1, 0].into_iter().map(|depth| root(0, depth)).collect();
    hang(&mut lines[..5]);
    let rails: Vec<u32> = lines.iter().map(|line| line.rails).collect();
    assert_eq!(rails, [0, 0, 2, 2, 0, 0]);
    let boughs: Vec<TreeBranch> = lines.iter().map(|line| line.branch).collect();
    use TreeBranch::{Last, Middle, Root};
    assert_eq!(boughs, [Root, Middle, Middle, Last, Last, Root]);
}

#[test]
fn the_rows_of_one_process_hang_together() {
    let mut snapshot = sample::snapshot(2, 2);
    sample::entry(&mut snapshot, 1, 1).pid = 4000;
    snapshot.processes[0].uid = Some(1000);
    let screenful = screenful(snapshot);
    let drawn = drawn(&screenful, &listing(&screenful, |it| it.tree = true));
    assert_eq!(drawn[..2], ["1┌4000", "1└4000"].map(str::to_owned));
}

#[test]
fn a_deep_tree_stays_within_its_bits() {
    let mut snapshot = sample::snapshot(1, 60);
    for at in 0..60 {
        launch(&mut snapshot, at, at.checked_sub(1));
    }
    let screenful = screenful(snapshot);
    let listing = listing(&screenful, |it| it.tree = true);
    assert_eq!(listing.lines.len(), 60);
    assert!(listing.lines.iter().any(|line| line.depth > 20));
    assert!(listing.lines.iter().all(|line| line.depth < 32));
}

#[test]
fn growth_is_what_the_history_is_sorted_by() {
    let snapshot = sample::snapshot(2, 3);
    let courses = sample::courses(&snapshot, 10);
    let screenful = screenful(snapshot);
    let choice =
        Choice { sort: Sort { column: Column::History, reversed: false }, ..Choice::default() };
    let listing = Listing::new(&screenful, &courses, &choice, &Me::default());
    let mut first = pids(&screenful, &listing);
    first.truncate(2);
    assert_eq!(first, [4101, 4001], "the two that leak");
}
