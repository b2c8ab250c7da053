//! The screen's hand: plans as `gpumem reap` makes them, carried out as it does it.
//!
//! It hands each sample, with what the rules say of it, to the executor, and tells the screen what that
//! does; it prints nothing while the screen is up, and says what was sent when it is told to leave in the
//! middle. Of a recording it only plans.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cli::reap::execute::{actor, tools_here};
use crate::cli::reap::json::ReapReport;
use crate::cli::reap::observe::{PlanSource, Spared, concerned, plan_here, plan_there};
use crate::cli::reap::refusal::{RefusalPlace, RefusalReader};
use crate::cli::reap::text;
use crate::cli::warn;
use crate::config::Config;
use crate::model::family::{families, member};
use crate::model::{Snapshot, Time};
use crate::reclaim::ledger::{self, Actor, Deed, Failure};
use crate::reclaim::plan::Why;
use crate::reclaim::{
    ActProgress, Executor, FindingSelector, Guard, JudgedSample, Observer, Outcome, Plan, Policy,
    Refused, Target, Targets,
};
use crate::report::style::Style;
use crate::rules::{RuleSet, serves};
use crate::units::Span;
use crate::watch::hand::{Ask, Hand, News, Proposal, Question, Scope, Sight, Stage};

/// How often it is seen whether somebody has exited, while that is waited for.
const TURN: Duration = Duration::from_millis(250);
/// A sample that is older says nothing any more of what rules see.
const FRESH: Duration = Duration::from_secs(5);
/// A yes that could not be acted upon for so long is none any more: whoever gave it has gone on.
const YES: Duration = Duration::from_secs(30);

/// Makes plans, and carries them out on this machine.
pub(super) struct Acting {
    rules: RuleSet,
    spared: Spared,
    is_recording: bool,
    /// The number of the last plan, who decided whom it may touch, and who would act.
    guard: Option<(u64, Guard, Actor)>,
    batch: Option<Batch>,
    /// The newest sample, and when it came.
    sight: Option<(Sight, Instant)>,
    /// Whom an earlier gpumem had left stopped, and who go on; said when the screen is gone.
    resumed: Option<String>,
}

impl Acting {
    /// A hand that has nothing to do.
    pub(super) fn new(config: &Config, is_recording: bool) -> Self {
        Self {
            rules: config.rules.clone(),
            spared: Spared {
                keeps: config.rules.keeps().to_vec(),
                never: config.reap.never.clone(),
            },
            is_recording,
            guard: None,
            batch: None,
            sight: None,
            resumed: None,
        }
    }

    fn propose(&mut self, question: &Question) -> anyhow::Result<Proposal> {
        let snapshot = &*question.snapshot;
        let (pids, mut gone) = whom(&question.wish.scope, snapshot);
        let targets = match question.wish.scope {
            Scope::Findings => Some(Targets::Found(FindingSelector::default())),
            Scope::Processes(_) | Scope::Families(_) => Targets::of_pids(&pids),
        };
        let mut undecided = Vec::new();
        let mut plan = if let Some(targets) = targets {
            let concerned = concerned(&targets, &self.rules);
            let policy = Policy {
                signal: question.wish.signal,
                all_users: question.wish.all_users,
                direct: question.wish.direct,
                ..Policy::new(targets, serves)
            };
            let scene = PlanSource {
                snapshot,
                findings: &question.findings,
                spared: &self.spared,
                selected: None,
            };
            let (plan, guard) = match self.is_recording {
                true => plan_there(policy, scene),
                false => plan_here(policy, scene)?,
            };
            self.guard = Some((question.number, guard, actor(snapshot)));
            undecided.clone_from(&question.undecided);
            undecided.retain(|it| concerned.contains(&it.rule));
            plan
        } else {
            self.guard = None;
            Plan {
                time: snapshot.time,
                targets: Vec::new(),
                refused: Vec::new(),
            }
        };
        plan.refused.append(&mut gone);
        let report = ReapReport::new(plan.clone(), undecided, snapshot.errors.clone());
        let (style, reader) = (Style::default(), RefusalReader::at(RefusalPlace::Screen));
        Ok(Proposal {
            lines: text::plan(&report, style, reader)
                .lines()
                .map(str::to_owned)
                .collect(),
            titles: plan
                .targets
                .iter()
                .map(|it| text::title(it, style))
                .collect(),
            plan: Arc::new(plan),
        })
    }

    /// Begins a plan to which a yes was said then.
    fn begin(&mut self, number: u64, plan: &Plan, asked: Instant) -> anyhow::Result<Batch> {
        anyhow::ensure!(
            !self.is_recording,
            "of a recording nothing is killed; run gpumem watch on the machine itself"
        );
        anyhow::ensure!(
            self.batch.is_none(),
            "something is being killed already; wait for it"
        );
        let guard = self.guard.take().filter(|(of, ..)| *of == number);
        let (_, guard, actor) =
            guard.ok_or_else(|| anyhow::anyhow!("there is a newer plan; try again"))?;
        let (tools, resumed) = tools_here()?;
        self.resumed = resumed.or(self.resumed.take());
        let executor = Executor::new(plan.targets.clone(), guard, actor, tools);
        Ok(Batch::new(number, executor, asked))
    }

    /// Does what is due, and says for how long nothing is.
    fn advance(&mut self, tell: &mut dyn FnMut(News)) -> Option<Duration> {
        let batch = self.batch.as_mut()?;
        let number = batch.number;
        let error = if batch.now.is_none() && batch.asked.elapsed() > YES {
            let yes = Span(YES);
            Some(format!(
                "nothing was sent: no sample came for {yes}; try again"
            ))
        } else {
            // Nothing is done before it is seen how things stand.
            let Some((sight, at)) = &self.sight else {
                return Some(TURN);
            };
            match batch.advance(sight, at.elapsed(), tell) {
                Ok(Some(wait)) => return Some(wait),
                Ok(None) => None,
                Err(error) => Some(error.to_string()),
            }
        };
        self.over(number, error, tell);
        None
    }

    /// Nothing more is done of what is under way.
    fn over(&mut self, number: u64, error: Option<String>, tell: &mut dyn FnMut(News)) {
        (self.batch, self.sight) = (None, None);
        tell(News::Over { number, error });
    }

    /// Sends nothing more.
    fn stop(&mut self, number: u64, tell: &mut dyn FnMut(News)) {
        let Some(batch) = self.batch.as_ref().filter(|batch| batch.number == number) else {
            return;
        };
        let words = match batch.told.has_sent {
            true => "stopped: nothing more is sent",
            false => "undone: nothing was sent",
        };
        self.over(number, Some(words.to_owned()), tell);
    }

    /// Says on standard error what was sent to whom it leaves half way.
    fn leave(&mut self) {
        if let Some(words) = self.resumed.take() {
            warn(&words);
        }
        let Some(batch) = self.batch.take() else {
            return;
        };
        let Some(target) = batch.executor.target() else {
            return;
        };
        let sent = match &batch.told.sent[..] {
            [] => String::new(),
            sent => format!("; it was sent: {}", sent.join(", ")),
        };
        let leader = target.leader;
        warn(&format!("left at {leader}: nothing more is sent{sent}"));
    }
}

impl Hand for Acting {
    fn go_on(
        &mut self,
        ask: Option<(Ask, Duration)>,
        tell: &mut dyn FnMut(News),
    ) -> Option<Duration> {
        let (ask, waited) = ask.unzip();
        let now = Instant::now();
        let asked = waited.and_then(|it| now.checked_sub(it)).unwrap_or(now);
        match ask {
            Some(Ask::Plan(question)) => {
                let plan = self
                    .propose(&question)
                    .map_err(|error| format!("{error:#}"));
                let number = question.number;
                tell(News::Planned { number, plan });
            }
            Some(Ask::Begin { number, plan }) => match self.begin(number, &plan, asked) {
                Ok(batch) => {
                    // What was seen before is of no account.
                    (self.batch, self.sight) = (Some(batch), None);
                    tell(News::Begun { number });
                }
                Err(error) => tell(News::Over {
                    number,
                    error: Some(format!("nothing was sent: {error:#}")),
                }),
            },
            Some(Ask::Look(sight)) if self.batch.is_some() => {
                self.sight = Some((sight, asked));
            }
            Some(Ask::Look(_)) | None => {}
            Some(Ask::Stop { number }) => self.stop(number, tell),
            Some(Ask::Leave) => {
                self.leave();
                return None;
            }
        }
        self.advance(tell)
    }
}

/// A plan that is being carried out.
struct Batch {
    number: u64,
    executor: Executor,
    told: ScreenObserver,
    /// When the yes was said.
    asked: Instant,
    /// The latest that it was; `None` before anything was looked at.
    now: Option<Time>,
}

impl Batch {
    fn new(number: u64, executor: Executor, asked: Instant) -> Self {
        Self {
            number,
            executor,
            told: ScreenObserver {
                number,
                ..ScreenObserver::default()
            },
            asked,
            now: None,
        }
    }

    /// Does what is due by a sample of some age; for how long nothing is, `None` where all is done.
    fn advance(
        &mut self,
        sight: &Sight,
        age: Duration,
        tell: &mut dyn FnMut(News),
    ) -> Result<Option<Duration>, ledger::LedgerError> {
        // A sample takes its time, so that its own may be behind what was reckoned from the one before.
        let reckoned = sight.snapshot.time.plus_seconds(age.as_secs_f64());
        let now = self.now.map_or(reckoned, |now| now.max(reckoned));
        self.now = Some(now);
        let sample = JudgedSample {
            now,
            snapshot: &sight.snapshot,
            // Where the driver hangs, what rules said may have ceased.
            found: (age <= FRESH).then(|| sight.found.iter().collect()),
        };
        loop {
            let progress = self.executor.advance(&sample, &mut self.told);
            // Telling may wait for the screen, and must not in the midst of an act.
            self.told.news.drain(..).for_each(&mut *tell);
            match progress? {
                Some(ActProgress::Waiting { .. }) => return Ok(Some(TURN)),
                Some(ActProgress::Ended(_)) => {}
                None => return Ok(None),
            }
        }
    }
}

/// What the screen is told, once an act has done what was due.
#[derive(Default)]
struct ScreenObserver {
    number: u64,
    news: Vec<News>,
    /// What was told last of how far the target is.
    said: Option<Stage>,
    /// What was done to the target, in words.
    sent: Vec<String>,
    /// Whether something was done to anybody.
    has_sent: bool,
}

impl ScreenObserver {
    fn send(&mut self, place: usize, words: String) {
        self.has_sent = true;
        self.sent.push(words.clone());
        let number = self.number;
        self.news.push(News::Sent {
            number,
            place,
            words,
        });
    }

    /// Tells how far the target is, where that is news.
    fn say(&mut self, place: usize, stage: Stage) {
        if self.said.as_ref() != Some(&stage) {
            self.said = Some(stage.clone());
            let number = self.number;
            self.news.push(News::Target {
                number,
                place,
                stage,
            });
        }
    }
}

impl Observer for ScreenObserver {
    fn intended(&mut self, place: usize, deed: &Deed) {
        self.send(place, text::deed(deed));
    }

    fn failed(&mut self, place: usize, failures: &[Failure]) {
        self.send(place, text::failures(failures));
    }

    fn waiting(&mut self, place: usize, until: Time) {
        self.say(place, Stage::Waiting { until });
    }

    fn ended(&mut self, place: usize, target: &Target, outcome: &Outcome) {
        let words = text::outcome(target, outcome, RefusalReader::at(RefusalPlace::Screen));
        let (outcome, words) = (outcome.clone(), words.trim_end().to_owned());
        self.say(place, Stage::Ended { outcome, words });
        self.said = None;
        self.sent.clear();
    }
}

/// The processes that a scope names, as they are still the ones that were meant; and those that are not.
fn whom(scope: &Scope, snapshot: &Snapshot) -> (Vec<u32>, Vec<Refused>) {
    let (rows, is_family) = match scope {
        Scope::Findings => return (Vec::new(), Vec::new()),
        Scope::Processes(rows) => (rows, false),
        Scope::Families(rows) => (rows, true),
    };
    let families = match is_family {
        true => families(snapshot),
        false => Vec::new(),
    };
    let (mut pids, mut gone): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
    for row in rows {
        let pid = row.identity.pid;
        let process = snapshot.process(pid);
        if process.is_none_or(|process| process.identity() != row.identity) {
            gone.push(pid);
            continue;
        }
        pids.push(pid);
        let kin = member(&families, pid).map(|family| &family.members);
        // Who is there for the others comes along with them; see `reclaim::plan`.
        let is_on_gpu = |pid: &&u32| {
            let mut rows = snapshot.gpus.iter().flat_map(|gpu| &gpu.processes);
            rows.any(|rows| rows.iter().any(|row| row.pid == **pid))
        };
        pids.extend(kin.into_iter().flatten().filter(is_on_gpu));
    }
    pids.sort_unstable();
    pids.dedup();
    gone.sort_unstable();
    gone.dedup();
    let refused = |pid| Refused {
        pid: Some(pid),
        user: None,
        name: None,
        finding: None,
        kind: None,
        why: Why::Gone,
    };
    (pids, gone.into_iter().map(refused).collect())
}

#[cfg(test)]
mod tests;
