//! The screen's hand: plans as `gpumem reap` makes them, carried out as it does it.
//!
//! One at a time, in the order of the plan, each to its end.
//! It is given each sample with what the rules say of it, and does between two of them what falls due; it
//! prints nothing while the screen is up, and says what was sent when it is told to leave in the
//! middle. Of a recording it only plans.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cli::args::Reap;
use crate::cli::complain;
use crate::cli::reap::acting::{Taken, actor};
use crate::cli::reap::document::Report;
use crate::cli::reap::look::{Scene, Spared, concerned, plan_here, plan_there};
use crate::cli::reap::page;
use crate::cli::reap::refusal::{Place, Reader};
use crate::config::Config;
use crate::host::Roots;
use crate::model::family::{families, member};
use crate::model::{Snapshot, Time};
use crate::reclaim::guard::Call;
use crate::reclaim::ledger::{self, Actor, Entry, Event, Record};
use crate::reclaim::plan::Why;
use crate::reclaim::{
    Act, Guard, Ledger, Moment, Pidfds, Plan, Progress, Refused, Standing, Target, ask_servers,
    standing,
};
use crate::report::style::Style;
use crate::rules::Settings;
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
    rules: Settings,
    spared: Spared,
    is_recording: bool,
    /// Who decided whom the last plan may touch.
    guard: Option<(u64, Guard)>,
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
        let args = Reap {
            pid: pids,
            signal: question.wish.signal,
            all_users: question.wish.all_users,
            direct: question.wish.direct,
            ..Reap::default()
        };
        let mut undecided = Vec::new();
        let mut plan = if args.pid.is_empty() && question.wish.scope != Scope::Findings {
            // Without a name `reap` would ask the rules.
            self.guard = None;
            Plan {
                time: snapshot.time,
                targets: Vec::new(),
                refused: Vec::new(),
            }
        } else {
            let scene = Scene {
                snapshot,
                findings: &question.findings,
                spared: &self.spared,
            };
            let (plan, guard) = match self.is_recording {
                true => plan_there(&args, scene)?,
                false => plan_here(&args, scene)?,
            };
            self.guard = Some((question.number, guard));
            let concerned = concerned(&args, &self.rules);
            undecided.clone_from(&question.undecided);
            undecided.retain(|it| concerned.contains(&it.rule));
            plan
        };
        plan.refused.append(&mut gone);
        let report = Report::new(plan.clone(), undecided, snapshot.errors.clone());
        let (style, reader) = (Style::default(), Reader::at(Place::Screen));
        Ok(Proposal {
            lines: page::plan(&report, style, reader)
                .lines()
                .map(str::to_owned)
                .collect(),
            titles: plan
                .targets
                .iter()
                .map(|it| page::title(it, style))
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
        let guard = self.guard.take().filter(|(of, _)| *of == number);
        let (_, guard) =
            guard.ok_or_else(|| anyhow::anyhow!("there is a newer plan; try again"))?;
        let targets = plan.targets.clone();
        let mut taken = Taken::take_here()?;
        self.resumed = taken.resumed.take().or(self.resumed.take());
        Ok(Batch::new(number, guard, targets, taken, asked))
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
        let words = match batch.has_sent {
            true => "stopped: nothing more is sent",
            false => "undone: nothing was sent",
        };
        self.over(number, Some(words.to_owned()), tell);
    }

    /// Says on standard error what was sent to whom it leaves half way.
    fn leave(&mut self) {
        if let Some(words) = self.resumed.take() {
            complain(&words);
        }
        let Some(batch) = self.batch.take() else {
            return;
        };
        let Some(target) = batch.targets.get(batch.place) else {
            return;
        };
        let sent = match &batch.sent[..] {
            [] => String::new(),
            sent => format!("; it was sent: {}", sent.join(", ")),
        };
        let leader = target.leader;
        complain(&format!("left at {leader}: nothing more is sent{sent}"));
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
    guard: Arc<Guard>,
    /// Who acts; known once a sample is seen.
    actor: Option<Actor>,
    _lock: crate::reclaim::Lock,
    ledger: Ledger,
    targets: Vec<Target>,
    /// Which of them it is at.
    place: usize,
    under_way: Option<(Act, Pidfds)>,
    /// What was told last of the target that it is at.
    said: Option<Stage>,
    /// What was done to it.
    sent: Vec<String>,
    /// Whether something was done to anybody.
    has_sent: bool,
    /// When the yes was said.
    asked: Instant,
    /// The latest that it was; `None` before anything was looked at.
    now: Option<Time>,
}

impl Batch {
    fn new(
        number: u64,
        guard: Guard,
        targets: Vec<Target>,
        Taken { lock, ledger, .. }: Taken,
        asked: Instant,
    ) -> Self {
        Self {
            number,
            guard: Arc::new(guard),
            actor: None,
            _lock: lock,
            ledger,
            targets,
            place: 0,
            under_way: None,
            said: None,
            sent: Vec::new(),
            has_sent: false,
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
    ) -> Result<Option<Duration>, ledger::Error> {
        // A sample takes its time, so that its own may be behind what was reckoned from the one before.
        let reckoned = sight.snapshot.time.plus_seconds(age.as_secs_f64());
        let now = self.now.map_or(reckoned, |now| now.max(reckoned));
        self.now = Some(now);
        let snapshot = &*sight.snapshot;
        let actor = self.actor.get_or_insert_with(|| actor(snapshot)).clone();
        while let Some(target) = self.targets.get(self.place) {
            let (act, hands) = match &mut self.under_way {
                Some((act, hands)) => (act, hands),
                None => {
                    let act = Act::new(target.clone(), Arc::clone(&self.guard), actor.clone());
                    let roots = Roots::default();
                    let hands = Pidfds::new(roots.clone()).with_server(ask_servers(roots));
                    let (act, hands) = self.under_way.insert((act, hands));
                    (act, hands)
                }
            };
            let stands = match (act.target().call(), age > FRESH) {
                // The driver hangs: what rules said may have ceased.
                (Call::Rule, true) => Standing::Unknown,
                _ => standing(act, &sight.found, snapshot),
            };
            let moment = Moment {
                now,
                snapshot,
                stands,
            };
            let before = self.sent.len();
            let mut record = Noted {
                ledger: &mut self.ledger,
                sent: &mut self.sent,
            };
            // Telling may wait for the screen, and must not in the midst of an act.
            let progress = act.advance(moment, hands, &mut record);
            if before == 0 && !self.sent.is_empty() {
                self.has_sent = true;
            }
            for words in &self.sent[before..] {
                tell(News::Sent {
                    number: self.number,
                    place: self.place,
                    words: words.clone(),
                });
            }
            match progress? {
                Progress::Waiting { until } => {
                    self.say(Stage::Waiting { until }, tell);
                    return Ok(Some(TURN));
                }
                Progress::Ended(outcome) => {
                    let words = page::outcome(act.target(), &outcome, Reader::at(Place::Screen))
                        .trim_end()
                        .to_owned();
                    self.say(Stage::Ended { outcome, words }, tell);
                    (self.under_way, self.said) = (None, None);
                    self.sent.clear();
                    self.place += 1;
                }
            }
        }
        Ok(None)
    }

    /// Tells how far the target is, where that is news.
    fn say(&mut self, stage: Stage, tell: &mut dyn FnMut(News)) {
        if self.said.as_ref() != Some(&stage) {
            self.said = Some(stage.clone());
            tell(News::Target {
                number: self.number,
                place: self.place,
                stage,
            });
        }
    }
}

/// The ledger, and what it was told in words.
struct Noted<'a> {
    ledger: &'a mut Ledger,
    sent: &'a mut Vec<String>,
}

impl Record for Noted<'_> {
    fn write(&mut self, entry: &Entry) -> Result<(), ledger::Error> {
        self.ledger.write(entry)?;
        match &entry.event {
            Event::Intended(deed) => self.sent.push(page::deed(deed)),
            Event::Done { failures, .. } if !failures.is_empty() => {
                self.sent.push(page::failures(failures));
            }
            Event::Begun { .. } | Event::Done { .. } | Event::Ended(_) => {}
        }
        Ok(())
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
