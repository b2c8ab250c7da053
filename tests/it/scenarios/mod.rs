//! Labelled recordings of a made-up world, and what gpumem must find in them.
//!
//! [`families`] tells the stories, each with other numbers for each seed; [`stage`] plays one and gives
//! a recording with its labels in the corpus's form; [`audit`] checks the labels against the corpus's table
//! of thresholds; [`judge`] holds what gpumem finds against them.
//!
//! `GPUMEM_SCENARIO_SEEDS=7,8` chooses the seeds, `GPUMEM_SCENARIO_FAMILY=leak_` the families whose names
//! begin so, and `GPUMEM_SCENARIOS_OUT=FOLDER` writes what is chosen as files for `check --replay`.

mod audit;
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
use std::path::Path;
use std::{env, fs};

use gpumem::api::rules::{Engine, RuleSet};
use scenario::{Labels, Scenario};

use crate::support::run;

/// The kinds that labels speak of.
const SCORED: &[&str] =
    &["idle", "leak", "orphan", "stopped", "dead", "stuck", "hung", "unattributed"];

/// The kinds of info that labels speak of.
const NOTED: &[&str] = &["reserved"];

/// The seeds of development; CI brings others.
const SEEDS: &[u64] = &[1, 2, 3, 4];

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

/// How to get the files of a failure.
const HOW: &str = "GPUMEM_SCENARIO_SEEDS=SEED GPUMEM_SCENARIO_FAMILY=NAME GPUMEM_SCENARIOS_OUT=FOLDER \
    cargo test --test it scenarios writes the recording, for gpumem check --replay";

#[test]
fn every_guilty_one_is_found_and_no_others() {
    let mut failures = Vec::new();
    let mut scores: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for scenario in play() {
        let found = judge::in_process(&scenario.snapshots);
        let complaints = judge::complaints(&scenario.labels, &found);
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

/// A recording of each kind: a family and its seed.
const QUOTED: &[(&str, &str, u64)] = &[
    ("dead", "dead_and_listed", 3),
    ("stuck", "stuck_in_the_driver", 3),
    ("orphan", "orphan_dataloader_workers", 3),
    ("stopped", "stopped_in_a_terminal", 3),
    ("hung", "hung_single", 3),
    ("placeholder", "placeholder_keep_gpu", 3),
    ("idle", "idle_notebook_after_training", 3),
    ("leak", "leak_linear", 4),
    ("server-idle", "server_that_nohup_kept", 3),
    ("stray-context", "works_on_another_gpu", 3),
    ("hoard", "preallocated_and_hardly_used", 3),
    ("unattributed", "unattributed_hidden_holder", 3),
    ("pressure", "full_to_the_last_and_busy", 3),
];

/// The manual explains each kind by a line that `check` really writes.
#[test]
fn the_manual_quotes_a_finding_of_each_kind() {
    let manual = include_str!("../../../man/gpumem-rules.1").replace("\\-", "-");
    let families = families::all();
    let kinds: Vec<String> = gpumem::api::rules::catalogue()
        .into_iter()
        .map(|it| it.name)
        // The line of jobs is in the tests of its rule.
        .filter(|it| it != "reserved")
        .collect();
    assert!(kinds.iter().all(|kind| QUOTED.iter().any(|(it, ..)| it == kind)));
    let mut missing = Vec::new();
    for (kind, name, seed) in QUOTED {
        let family = families.iter().find(|family| family.name == *name).unwrap();
        let scenario = family.play(*seed);
        let mut engine = Engine::new(RuleSet::default());
        scenario.snapshots.iter().for_each(|it| engine.observe(it));
        let of_kind = engine.findings().iter().find(|it| it.kind.name() == *kind);
        let finding = of_kind.unwrap_or_else(|| panic!("{name} has no {kind}"));
        let line = format!("{}: {kind}: {}", finding.severity, finding.message);
        if !manual.contains(&line) {
            missing.push(line);
        }
    }
    assert!(missing.is_empty(), "the manual lacks:\n{}", missing.join("\n"));
}

/// What ends and begins again within the minute did neither.
#[test]
fn nothing_flickers() {
    let mut flickers = Vec::new();
    for scenario in play() {
        let of = format!("{} seed {}", scenario.family, scenario.seed);
        for flicker in judge::flickers(&scenario.snapshots, 60.0) {
            flickers.push(format!("{of}: {flicker}"));
        }
    }
    assert!(flickers.is_empty(), "{}\n{HOW}", flickers.join("\n"));
}

#[test]
fn the_labels_are_clear_of_every_threshold() {
    let complaints: Vec<String> = play()
        .flat_map(|scenario| {
            let of = format!("{} seed {}", scenario.family, scenario.seed);
            let complaints = audit::complaints(&scenario);
            complaints.into_iter().map(move |complaint| format!("{of}: {complaint}"))
        })
        .collect();
    assert!(complaints.is_empty(), "{}\n{HOW}", complaints.join("\n"));
}

#[test]
fn a_wrong_verdict_is_complained_of() {
    let families = families::all();
    let family = families.iter().find(|family| family.name == "idle_shared_gpu");
    let scenario = family.expect("the family").play(1);
    let found = judge::in_process(&scenario.snapshots);
    let of = |found: &[judge::Found]| judge::complaints(&scenario.labels, found).join("; ");
    assert_eq!(of(&found), "");
    assert!(of(&[]).starts_with("missed: idle of process"));
    let innocent = scenario.labels.kill_ok.iter().find(|(_, may)| !**may);
    let mut wrong = found[0].clone();
    wrong.subject = scenario::Subject::Process(*innocent.expect("somebody innocent").0);
    let complaints = of(&[found[0].clone(), wrong]);
    assert!(
        complaints.starts_with("accused: idle of process") && complaints.contains("offers to end")
    );
}

#[test]
fn a_wrong_label_is_complained_of() {
    let families = families::all();
    let family = families.iter().find(|family| family.name == "stopped_in_a_terminal");
    let mut scenario = family.expect("the family").play(1);
    assert_eq!(audit::complaints(&scenario), [""; 0]);
    let expected = std::mem::take(&mut scenario.labels.expected);
    assert!(audit::complaints(&scenario)[0].contains("close, and not in the labels"));
    scenario.labels.expected = vec![("stuck", expected[0].1), expected[0]];
    assert!(audit::complaints(&scenario)[0].contains("is not clear"));
}

#[test]
fn there_are_enough_families_of_every_sort() {
    let families = families::all();
    let names: BTreeSet<&str> = families.iter().map(|family| family.name).collect();
    assert_eq!(names.len(), families.len(), "every name is unique");
    let mut guilty: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut innocent = 0;
    for family in &families {
        let scenario = family.play(1);
        innocent += usize::from(scenario.labels.expected.is_empty());
        for (kind, _) in scenario.labels.expected {
            guilty.entry(kind).or_default().insert(family.name);
        }
    }
    for kind in SCORED {
        let count = guilty.get(kind).map_or(0, BTreeSet::len);
        assert!(count >= 3, "{kind} has {count} families");
    }
    assert!(innocent >= 40, "{innocent} families without any guilty one");
}

#[test]
fn a_seed_gives_the_same_world_twice_and_another_one_another() {
    // All of them are set on the same stage; a fifth of them is enough.
    for family in families::all().into_iter().step_by(5) {
        let story = family.play(5).to_jsonl();
        assert!(story == family.play(5).to_jsonl(), "{} differs from itself", family.name);
        assert!(story != family.play(6).to_jsonl(), "{} does not vary", family.name);
    }
}

#[test]
fn a_recording_reads_back_as_it_was_written() {
    for family in families::all().into_iter().step_by(3) {
        let scenario = family.play(9);
        let lines = scenario.to_jsonl();
        let read: Vec<gpumem::api::model::Snapshot> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(read == scenario.snapshots, "{}", family.name);
        let count = read.len();
        assert!((20..=800).contains(&count), "{}: {count} snapshots", family.name);
    }
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
        let in_process = judge::in_process(&scenario.snapshots);
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

#[test]
fn recordings_are_written_where_they_are_asked_for() {
    let asked = env::var_os("GPUMEM_SCENARIOS_OUT");
    let own = tempfile::tempdir().unwrap();
    let folder = asked.as_deref().map_or(own.path(), Path::new);
    let scenarios: Vec<Scenario> = if asked.is_some() {
        play().collect()
    } else {
        families::all().iter().take(2).map(|family| family.play(1)).collect()
    };
    scenario::write_all(folder, &scenarios);
    let labels = fs::read_to_string(folder.join("labels.json")).unwrap();
    let labels: serde_json::Value = serde_json::from_str(&labels).unwrap();
    let traces = labels["traces"].as_array().unwrap();
    assert_eq!(traces.len(), scenarios.len());
    for (trace, scenario) in traces.iter().zip(&scenarios) {
        let text = fs::read_to_string(folder.join(trace["file"].as_str().unwrap())).unwrap();
        assert_eq!(trace["snapshots"], text.lines().count());
        let read = Labels::read(trace);
        let wrote = &scenario.labels;
        assert_eq!(
            (&read.expected, &read.allowed, &read.kill_ok),
            (&wrote.expected, &wrote.allowed, &wrote.kill_ok)
        );
    }
}
