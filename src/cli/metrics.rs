//! `gpumem metrics`: prints the metrics for Prometheus once. `gpumem serve` also uses the [`Publisher`].

use std::io::{self, IsTerminal as _};

use anyhow::Context as _;

use super::args::{Global, MetricsArgs, Recorded, Stored};
use super::check::verdict::{CheckQuestion, CheckVerdict};
use super::exit::Exit;
use super::{config, live, print, recorded, session, store, unreadable};
use crate::config::Config;
use crate::host::replace_file;
use crate::model::Snapshot;
use crate::model::escape::escape;
use crate::model::json::document;
use crate::model::waste::{Reclaimed, Waste};
use crate::reclaim::commands::CommandSource;
use crate::reclaim::{ReclaimLog, ledger};
use crate::report::metrics::{MetricsInput, page};
use crate::rules::RuleSet;
use crate::source::Source as _;
use crate::source::live::Live;

#[derive(Debug)]
pub(super) struct Published {
    pub(super) metrics: String,
    pub(super) check: String,
}

#[derive(Debug)]
pub(super) struct Publisher {
    stored: Stored,
    verdict: CheckVerdict,
    /// Totals of reclaimed memory from the audit log. `None` for a recording, or if the path of the audit log is
    /// unknown.
    reclaims: Option<ReclaimLog>,
    pub(super) waste: Waste,
    is_live: bool,
}

impl Publisher {
    pub(super) fn new(
        config: &Config,
        recorded: &Recorded,
        stored: Stored,
    ) -> anyhow::Result<Self> {
        let commands = CommandSource::new(&config.rules, recorded.is_live());
        let (question, is_live) = (CheckQuestion::default(), recorded.is_live());
        let state = is_live.then(|| store::state().ok()).flatten();
        Ok(Self {
            verdict: CheckVerdict::new(question, config.rules.clone(), commands, is_live),
            stored,
            reclaims: state.map(|folder| ReclaimLog::new(folder.join(ledger::FILE_NAME))),
            waste: Waste::default(),
            is_live,
        })
    }

    pub(super) fn feed(&mut self, live: &Live, global: &Global) -> anyhow::Result<()> {
        let ask = store::Ask {
            quiet: true,
            ..store::Ask::new(global, self.stored, store::MOST_FOR_CHECK)
        };
        self.verdict.feed(live, ask)?;
        Ok(())
    }

    pub(super) fn set_rules(&mut self, rules: &RuleSet) {
        self.verdict.set_rules(rules.clone());
    }

    pub(super) fn observe(&mut self, snapshot: &Snapshot) {
        // Ignore a final result, because metrics are published for every snapshot.
        let _ = self.verdict.observe(snapshot.clone());
        self.waste.observe(snapshot, self.verdict.engine().findings());
    }

    pub(super) fn publish(&mut self, snapshot: &Snapshot) -> anyhow::Result<Published> {
        let check = document(&self.verdict.report(None))?;
        let reclaimed = self.reclaims.as_mut();
        let engine = self.verdict.engine();
        let history = engine.history();
        let metrics = page(&MetricsInput {
            snapshot,
            findings: engine.findings(),
            undecided: &engine.undecided(),
            reclaimable: engine.reclaimable(),
            waste: &self.waste,
            reclaimed: reclaimed.map_or(&Reclaimed::default(), ReclaimLog::sums),
            idle_since: &|who, gpu| history.idle_since(who, gpu),
            is_live: self.is_live,
        });
        Ok(Published { metrics, check })
    }
}

pub(super) fn run(args: &MetricsArgs, global: &Global) -> anyhow::Result<Exit> {
    let config = config::load(global)?;
    let mut publisher = Publisher::new(&config, &args.recorded, args.stored)?;
    let snapshot = match recorded(&args.recorded)? {
        Some(replay) => session::last(replay, |snapshot| publisher.observe(snapshot))?,
        None => {
            let mut live = live(global, config.sample.interval.0)?;
            publisher.feed(&live, global)?;
            let snapshot = live.next()?.context("no sample could be taken; run `gpumem doctor`")?;
            publisher.observe(&snapshot);
            snapshot
        }
    };
    // Omit the waste counters. A counter must never decrease, but the waste in a sample or in the stored history can.
    publisher.waste = Waste::default();
    let published = publisher.publish(&snapshot)?;
    match &args.output {
        // Escape the lines, because a process name may contain control characters.
        None if io::stdout().is_terminal() => {
            let lines = published.metrics.lines();
            print(&lines.map(|line| format!("{}\n", escape(line))).collect::<String>())?;
        }
        None => print(&published.metrics)?,
        Some(path) => replace_file(path, published.metrics.as_bytes(), 0o644)
            .with_context(|| format!("could not write {}; left unchanged", path.display()))?,
    }
    let is_blind = unreadable(&snapshot) && !snapshot.gpus.is_empty();
    Ok(if is_blind { Exit::CannotMeasure } else { Exit::Clean })
}
