//! Labelled recordings of simulated machines. gpumem's findings must match the labels.
//!
//! [`families`] defines the scenarios, which draw different random numbers for each seed. [`stage`] simulates a
//! scenario, and makes a recording with labels in the format of the corpus. [`judge`] compares gpumem's findings with
//! the labels.
//!
//! `GPUMEM_SCENARIO_SEEDS=7,8` sets the seeds, and `GPUMEM_SCENARIO_FAMILY=leak_` selects families by a prefix.

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

use std::collections::BTreeSet;
use std::{env, fs};

use scenario::Scenario;

use crate::support::run;

/// The kinds of findings that the labels in `expected` cover.
const SCORED: &[&str] =
    &["idle", "leak", "orphan", "stopped", "dead", "stuck", "hung", "unattributed"];

/// The kinds of info findings that the labels in `noted` cover.
const NOTED: &[&str] = &["reserved"];

/// Default seeds. CI uses other seeds.
const SEEDS: &[u64] = &[1, 2];

fn seeds() -> Vec<u64> {
    let text = env::var("GPUMEM_SCENARIO_SEEDS").unwrap_or_default();
    if text.is_empty() {
        return SEEDS.to_vec();
    }
    let number = |word: &str| {
        word.trim().parse().expect("GPUMEM_SCENARIO_SEEDS must be numbers separated by commas")
    };
    text.split(',').map(number).collect()
}

fn chosen_families() -> Vec<families::Family> {
    let prefix = env::var("GPUMEM_SCENARIO_FAMILY").unwrap_or_default();
    let mut chosen = families::all();
    chosen.retain(|family| family.name.starts_with(&prefix));
    assert!(!chosen.is_empty(), "no family has the prefix {prefix:?}");
    chosen
}

fn play() -> impl Iterator<Item = Scenario> {
    let seeds = seeds();
    chosen_families()
        .into_iter()
        .flat_map(move |family| seeds.clone().into_iter().map(move |seed| family.play(seed)))
}

const REPEAT: &str = "repeat one with: GPUMEM_SCENARIO_SEEDS=SEED GPUMEM_SCENARIO_FAMILY=NAME cargo test --test it scenarios";

/// The findings at the end of a recording match the labels. [`prefixes`] also compares the findings at earlier times.
#[test]
fn findings_match_the_labels_and_do_not_flicker() {
    let (mut all, mut wrong, mut failures) = (0, 0, String::new());
    let mut over_time = prefixes::Score::default();
    for scenario in play() {
        let name = format!("{} seed {}", scenario.family, scenario.seed);
        let (found, flickers) =
            over_time.play(scenario.family, &name, &scenario.snapshots, &scenario.labels);
        let mut complaints = judge::complaints(&scenario.labels, &found);
        complaints.extend(flickers);
        all += 1;
        if !complaints.is_empty() {
            wrong += 1;
            failures += &judge::report(&scenario, &found, &complaints);
        }
    }
    failures += &over_time.complaints();
    assert!(failures.is_empty(), "{wrong} of {all} scenarios are wrong\n{failures}\n{REPEAT}");
}

/// Families for which the test runs gpumem: one for each scored kind of finding, and several without findings.
const BINARY_FAMILIES: &[&str] = &[
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
fn the_binary_reports_the_engines_findings() {
    let folder = tempfile::tempdir().unwrap();
    let seed = seeds()[0];
    let mut failures = String::new();
    for name in BINARY_FAMILIES {
        let families = families::all();
        let family = families.iter().find(|family| family.name == *name).expect(name);
        let scenario = family.play(seed);
        let file = folder.path().join(scenario.file());
        fs::write(&file, scenario.to_jsonl()).unwrap();
        let output = run(&["check", "--replay", file.to_str().unwrap(), "--json"]);
        let found = judge::from_json(&output.json()["findings"]);
        let mut complaints = judge::complaints(&scenario.labels, &found);
        let in_process = judge::play(&scenario.snapshots, |_, _| ()).0;
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
    assert!(failures.is_empty(), "{failures}\n{REPEAT}");
}
