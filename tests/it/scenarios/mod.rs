//! Labelled recordings of a made-up world, and what gpumem must find in them.
//!
//! [`families`] tells the stories, each with other numbers for each seed; [`stage`] plays one and gives
//! a recording with its labels in the corpus's form; [`judge`] holds what gpumem finds against them.
//!
//! `GPUMEM_SCENARIO_SEEDS=7,8` chooses the seeds, `GPUMEM_SCENARIO_FAMILY=leak_` the families whose names
//! begin so.

mod bystanders;
mod doing;
mod families;
pub mod judge;
mod machine;
mod people;
mod prefixes;
pub mod random;
pub mod scenario;
mod stage;

use std::collections::{BTreeMap, BTreeSet};
use std::{env, fs};

use scenario::Scenario;

use crate::support::run;

/// The kinds that labels speak of.
const SCORED: &[&str] =
    &["idle", "leak", "orphan", "stopped", "dead", "stuck", "hung", "unattributed"];

/// The kinds of info that labels speak of.
const NOTED: &[&str] = &["reserved"];

/// The seeds of development; CI brings others.
const SEEDS: &[u64] = &[1, 2];

fn seeds() -> Vec<u64> {
    let given = env::var("GPUMEM_SCENARIO_SEEDS").unwrap_or_default();
    if given.is_empty() {
        return SEEDS.to_vec();
    }
    let number = |word: &str| {
        word.trim().parse().expect("GPUMEM_SCENARIO_SEEDS holds numbers with commas between")
    };
    given.split(',').map(number).collect()
}

fn chosen() -> Vec<families::Family> {
    let prefix = env::var("GPUMEM_SCENARIO_FAMILY").unwrap_or_default();
    let mut chosen = families::all();
    chosen.retain(|family| family.name.starts_with(&prefix));
    assert!(!chosen.is_empty(), "no family's name begins with {prefix:?}");
    chosen
}

fn play() -> impl Iterator<Item = Scenario> {
    let seeds = seeds();
    chosen()
        .into_iter()
        .flat_map(move |family| seeds.clone().into_iter().map(move |seed| family.play(seed)))
}

const HOW: &str = "GPUMEM_SCENARIO_SEEDS=SEED GPUMEM_SCENARIO_FAMILY=NAME cargo test --test it scenarios repeats one";

/// What ends and begins again within the minute did neither.
#[test]
fn every_guilty_one_is_found_and_no_others_and_nothing_flickers() {
    let mut failures = Vec::new();
    let mut scores: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for scenario in play() {
        let (found, flickers) = judge::play(&scenario.snapshots, 60.0);
        let mut complaints = judge::complaints(&scenario.labels, &found);
        complaints.extend(flickers);
        let score = scores.entry(scenario.family).or_default();
        score.0 += usize::from(complaints.is_empty());
        score.1 += 1;
        if !complaints.is_empty() {
            failures.push(judge::report(&scenario, &found, &complaints));
        }
    }
    let right: usize = scores.values().map(|(right, _)| right).sum();
    let all: usize = scores.values().map(|(_, all)| all).sum();
    let table: String = scores
        .iter()
        .filter(|(_, (right, all))| right < all)
        .map(|(family, (right, all))| format!("  {right} of {all} right: {family}\n"))
        .collect();
    assert!(
        failures.is_empty(),
        "{right} of {all} scenarios are right\n{table}\n{}\n{HOW}",
        failures.join("\n")
    );
}

/// Families that go through the binary: a variant of each kind, and innocents of every sort.
const THROUGH_THE_BINARY: &[&str] = &[
    "idle_notebook_after_training",
    "leak_linear",
    "orphan_dataloader_workers",
    "stopped_in_a_terminal",
    "dead_zombie",
    "stuck_in_the_driver",
    "hung_single",
    "unattributed_hidden_holder",
    "steady_training",
    "vllm_never_used",
    "nohup_active",
    "slept_for_an_hour",
    "doubled_and_disordered",
    "empty_container",
];

#[test]
fn the_binary_reports_the_same_and_exits_by_it() {
    let folder = tempfile::tempdir().unwrap();
    let seed = seeds()[0];
    let mut failures = String::new();
    for name in THROUGH_THE_BINARY {
        let families = families::all();
        let family = families.iter().find(|family| family.name == *name).expect(name);
        let scenario = family.play(seed);
        let file = folder.path().join(scenario.file());
        fs::write(&file, scenario.to_jsonl()).unwrap();
        let output = run(&["check", "--replay", file.to_str().unwrap(), "--json"]);
        let found = judge::from_json(&output.json()["findings"]);
        let mut complaints = judge::complaints(&scenario.labels, &found);
        let in_process = judge::play(&scenario.snapshots, 60.0).0;
        if BTreeSet::from_iter(&found) != BTreeSet::from_iter(&in_process) {
            complaints.push(format!("the engine finds {in_process:?}"));
        }
        let is_grave = found.iter().any(|found| found.severity != "info");
        if output.code != i32::from(is_grave) {
            complaints.push(format!("exits with {}: {}", output.code, output.stderr));
        }
        if !complaints.is_empty() {
            failures += &judge::report(&scenario, &found, &complaints);
        }
    }
    assert!(failures.is_empty(), "{failures}\n{HOW}");
}
