//! `gpumem metrics`: the page for Prometheus, once. What `gpumem serve` serves is made here, too.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Parser as _;
use serde::{Deserialize, Serialize};

use super::args::{CheckArgs, Cli, Command, Global, MetricsArgs, Recorded, Stored};
use super::check::verdict::CheckVerdict;
use super::commands::CommandSource;
use super::exit::Exit;
use super::{config, live, print, recorded, session, store, unreadable, warn};
use crate::config::Config;
use crate::host::{replace_file, replace_own_file};
use crate::model::json::document;
use crate::model::reclaimed::Reclaimed;
use crate::model::waste::{Waste, WasteKey};
use crate::model::{Snapshot, Time};
use crate::reclaim::{ReclaimLog, ledger};
use crate::report::metrics::{MetricsInput, classic, openmetrics};
use crate::rules::RuleSet;
use crate::source::Source as _;
use crate::source::live::Live;
use crate::source::replay::PlaybackPace;

/// The largest file that is read.
const MOST_BYTES: u64 = 4 << 20;
/// How often the waste counters are saved, in seconds.
const SAVE_SECONDS: f64 = 60.0;
const SCHEMA: &str = "gpumem.waste/1";

/// The published documents for one sample.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) openmetrics: String,
    pub(super) classic: String,
    /// The verdict as JSON, as from `gpumem check`.
    pub(super) check: String,
}

/// Applies rules to samples and publishes the results.
#[derive(Debug)]
pub(super) struct Publisher {
    args: CheckArgs,
    verdict: CheckVerdict,
    waste: Waste,
    /// File of the waste counters; `None` for a recording, or if there is no place for it.
    file: Option<PathBuf>,
    saved: Option<Time>,
    /// Reclaimed memory; `None` in the same cases.
    reclaims: Option<ReclaimLog>,
    is_live: bool,
}

/// The waste counters, as saved across restarts.
#[derive(Serialize, Deserialize)]
struct WasteDocument {
    schema: String,
    until: Time,
    waste: Vec<WasteLine>,
}

#[derive(Serialize, Deserialize)]
struct WasteLine {
    #[serde(flatten)]
    key: WasteKey,
    byte_seconds: f64,
}

impl Publisher {
    /// Uses the rules of the configuration, as `gpumem check` does without options.
    pub(super) fn new(
        config: &Config,
        recorded: &Recorded,
        stored: Stored,
    ) -> anyhow::Result<Self> {
        let typed = Cli::try_parse_from(["gpumem", "check", "--quiet"])?.command;
        let Some(Command::Check(mut args)) = typed else {
            anyhow::bail!("check is no command");
        };
        (args.stored, args.recorded) = (stored, recorded.clone());
        let commands = CommandSource::new(config, recorded);
        let is_live = recorded.is_live();
        let state = is_live.then(|| store::state().ok()).flatten();
        let file = state.as_ref().map(|it| it.join("waste.json"));
        Ok(Self {
            verdict: CheckVerdict::new(&args, config.rules.clone(), commands)?,
            args,
            waste: file.as_deref().map(read).unwrap_or_default(),
            file,
            saved: None,
            reclaims: state.map(|it| ReclaimLog::new(it.join(ledger::FILE_NAME))),
            is_live,
        })
    }

    /// Feeds the stored history, and adds its waste since the counters were last saved.
    pub(super) fn feed(&mut self, live: &Live, global: &Global) -> anyhow::Result<()> {
        let waste = &mut self.waste;
        waste.resume(live.now());
        self.verdict.feed(live, &self.args, global, |engine, snapshot| {
            waste.observe(snapshot.time, engine.findings().iter());
        })?;
        Ok(())
    }

    /// Applies these rules from now on.
    pub(super) fn set_rules(&mut self, rules: &RuleSet) {
        self.verdict.set_rules(rules.clone());
    }

    /// Applies the rules to the next sample.
    pub(super) fn observe(&mut self, snapshot: &Snapshot) {
        self.verdict.observe(snapshot.clone());
        self.waste.observe(snapshot.time, self.verdict.engine().findings().iter());
    }

    /// The documents for the last sample.
    pub(super) fn publish(&mut self, snapshot: &Snapshot) -> anyhow::Result<Published> {
        let check = document(&self.verdict.report(None))?;
        let reclaimed = self.reclaims.as_mut();
        let engine = self.verdict.engine();
        let history = engine.history();
        let page = openmetrics(&MetricsInput {
            snapshot,
            findings: engine.findings(),
            undecided: &engine.undecided(),
            reclaimable: engine.reclaimable(),
            waste: &self.waste,
            reclaimed: reclaimed.map_or(&Reclaimed::default(), ReclaimLog::sums),
            idle_since: &|who, gpu| history.idle_since(who, gpu),
            is_live: self.is_live,
        });
        let page = page.context("the page cannot be encoded")?;
        Ok(Published { classic: classic(&page), openmetrics: page, check })
    }

    /// Saves the waste counters, once a minute or `now`.
    pub(super) fn save(&mut self, now: bool) {
        let (Some(file), Some(until)) = (&self.file, self.waste.until()) else {
            return;
        };
        let is_due = self.saved.is_none_or(|saved| until.seconds_since(saved) >= SAVE_SECONDS);
        if !is_due && !now {
            return;
        }
        let line =
            |(key, byte_seconds): (&WasteKey, f64)| WasteLine { key: key.clone(), byte_seconds };
        let waste = self.waste.sums().map(line).collect();
        let written = document(&WasteDocument { schema: SCHEMA.to_owned(), until, waste })
            .map_err(anyhow::Error::from)
            .and_then(|text| Ok(replace_own_file(file, text.as_bytes())?));
        if let Err(error) = written {
            warn(&format!("{}: the waste counters are not saved: {error:#}", file.display()));
        }
        self.saved = Some(until);
    }
}

/// The counters that were saved; zero, after a warning, if they cannot be read.
fn read(file: &Path) -> Waste {
    saved(file).unwrap_or_else(|error| {
        warn(&format!("{}: the waste counters start at 0: {error:#}", file.display()));
        Waste::default()
    })
}

fn saved(file: &Path) -> anyhow::Result<Waste> {
    let mut text = String::new();
    match File::open(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Waste::default()),
        file => file?.take(MOST_BYTES).read_to_string(&mut text)?,
    };
    let document: WasteDocument = serde_json::from_str(&text)?;
    anyhow::ensure!(document.schema == SCHEMA, "another format");
    let sums = document.waste.into_iter().map(|line| (line.key, line.byte_seconds));
    Ok(Waste::since(document.until, sums))
}

pub(super) fn run(args: &MetricsArgs, global: &Global) -> anyhow::Result<Exit> {
    let config = config::load(global)?;
    let mut publisher = Publisher::new(&config, &args.recorded, args.stored)?;
    let snapshot = match recorded(&args.recorded, PlaybackPace::AsFast)? {
        Some(replay) => session::last(replay, |snapshot| publisher.observe(snapshot))?,
        None => {
            let mut live = live(global, config.sample.interval.0)?;
            publisher.feed(&live, global)?;
            let snapshot = live.next()?.context("the driver gave no snapshot")?;
            publisher.observe(&snapshot);
            snapshot
        }
    };
    let published = publisher.publish(&snapshot)?;
    match &args.output {
        None => print(&published.classic)?,
        Some(path) => {
            replace_file(path, published.classic.as_bytes(), 0o644)
                .with_context(|| format!("{} is not written, and is as it was", path.display()))?;
            publisher.save(true);
        }
    }
    let is_blind = unreadable(&snapshot) && !snapshot.gpus.is_empty();
    Ok(if is_blind { Exit::CannotMeasure } else { Exit::Clean })
}
