//! One target, from the first look to the outcome: a machine that is driven by data.
//!
//! [`Act::advance`] is called again and again, with the time, the newest snapshot and whether the rule
//! still holds; it does what is due, by [`Hands`], and says until when nothing is. It never waits. It
//! is the only sender of signals and requests, and before each it asks anew whether it may: who it is,
//! what protects it, whether what the rule said is still so. What it is about to do is in the ledger
//! before it does it. Who may be sent something is in `held`, how it is sent
//! in `deeds`.

use std::sync::Arc;

use super::deeds::Deeds;
use super::guard::{Call, Guard, Protection};
use super::hands::{Answer, Handle, Hands, NotOpened, Request};
use super::held::Held;
use super::ledger::{self, Actor, Deed, Entry, Event, Failure, Record};
use super::target::{Member, Reason, Step, Target, Whom};
use super::verify::{Back, Baseline, DEADLINE_SECONDS, Outcome, hold_anything};
use crate::model::{GpuProcess, Kind, Snapshot, Time};

/// For how long the GPU and what started the members are watched after the memory is back, at least, in
/// seconds: a supervisor waits a second or more before it starts a process again (systemd's
/// `RestartSec=`, a shell's `sleep 1`).
const LOOK_OUT_SECONDS: f64 = 5.0;

/// For how long it may be unknown whether the rule holds before the act is given up, in seconds.
pub const PATIENCE_SECONDS: f64 = 30.0;

/// Whether what a rule said of a target's members, those that are alive, is still so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It is.
    Holds,
    /// It is not.
    NoLonger,
    /// It cannot be told.
    Unknown,
}

/// What an act is told of the world.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// Now, by the clock of the snapshots.
    pub now: Time,
    /// The newest one.
    pub snapshot: &'a Snapshot,
    /// Whether the rule still holds by it; of no account where the target was named by a person.
    pub stands: Standing,
}

/// How far an act is.
#[derive(Clone, PartialEq, Debug)]
pub enum Progress {
    /// There is nothing to do before then, unless a process exits, or a newer snapshot comes.
    Waiting {
        /// When.
        until: Time,
    },
    /// It is over.
    Ended(Outcome),
}

/// One target being ended.
#[derive(Debug)]
pub struct Act {
    id: Arc<str>,
    guard: Arc<Guard>,
    actor: Actor,
    target: Target,
    stage: Stage,
    held: Held,
    baseline: Option<Baseline>,
    /// When the first deed was done.
    first_deed: Option<Time>,
    /// Since when it is not known whether the rule holds.
    unknown_since: Option<Time>,
    /// The members were made to go on, so that they are stopped no longer.
    has_continued: bool,
    /// The server has shut the kernel down, and will not start it again.
    is_shut: bool,
    /// What somebody was asked and has not answered.
    asked: Option<Deed>,
    /// What was answered last.
    answer: Answer,
    is_begun: bool,
}

#[derive(Clone, PartialEq, Debug)]
enum Stage {
    /// Nothing has been done.
    Fresh,
    /// A step is due.
    Due(usize),
    /// A step was taken, and has until then.
    Taken(usize, Time),
    /// Nobody holds anything, or so it should be.
    Verifying {
        since: Time,
        freed: Option<(u64, Time)>,
    },
    Over(Outcome),
}

/// What comes next within one call.
enum Next {
    Go(Stage),
    Wait(Time),
    End(Outcome),
}

impl Act {
    /// An act upon a target. Nothing is done yet.
    pub fn new(target: Target, guard: Arc<Guard>, actor: Actor) -> Self {
        let boot_id = target.boot_id.clone();
        Self {
            id: "".into(),
            guard,
            actor,
            target,
            stage: Stage::Fresh,
            held: Held::new(boot_id),
            baseline: None,
            first_deed: None,
            unknown_since: None,
            has_continued: false,
            is_shut: false,
            asked: None,
            answer: Answer::Waiting,
            is_begun: false,
        }
    }

    /// Upon what.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// What it came to, once it is over.
    pub fn outcome(&self) -> Option<&Outcome> {
        match &self.stage {
            Stage::Over(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// The members that were alive at the last look: those of whom the rule is asked.
    pub fn alive(&self) -> Vec<&Member> {
        let members = self.target.members.iter();
        members
            .filter(|member| !self.held.has_ended(member.pid))
            .collect()
    }

    /// Does what is due.
    ///
    /// # Errors
    ///
    /// Where the ledger could not be written: what it was to announce was not done, and the act is
    /// over, with whatever was done before.
    pub fn advance(
        &mut self,
        moment: Moment<'_>,
        hands: &mut dyn Hands,
        record: &mut dyn Record,
    ) -> Result<Progress, ledger::Error> {
        if let Stage::Over(outcome) = &self.stage {
            return Ok(Progress::Ended(outcome.clone()));
        }
        let result = self.go_on(moment, hands, record);
        if result.is_err() && self.outcome().is_none() {
            self.stage = Stage::Over(Outcome::StillAlive);
        }
        result
    }

    fn go_on(
        &mut self,
        moment: Moment<'_>,
        hands: &mut dyn Hands,
        record: &mut dyn Record,
    ) -> Result<Progress, ledger::Error> {
        if !self.is_begun {
            self.is_begun = true;
            self.id = format!("{}-{}", moment.now.unix_milliseconds(), self.target.id).into();
            let target = Box::new(self.target.clone());
            let actor = self.actor.clone();
            self.note(moment.now, Event::Begun { actor, target }, record)?;
        }
        self.hear(moment.now, hands, record)?;
        loop {
            let next = match self.stage.clone() {
                Stage::Fresh => self.begin(moment, hands),
                Stage::Due(step) => self.take(step, moment, hands, record)?,
                Stage::Taken(step, until) => self.watch(step, until, moment, hands),
                Stage::Verifying { since, freed } => self.verify(since, freed, moment, hands),
                Stage::Over(outcome) => Next::End(outcome),
            };
            match next {
                Next::Go(stage) => self.stage = stage,
                Next::Wait(until) => return Ok(Progress::Waiting { until }),
                Next::End(outcome) => {
                    self.stage = Stage::Over(outcome.clone());
                    self.note(moment.now, Event::Ended(outcome.clone()), record)?;
                    return Ok(Progress::Ended(outcome));
                }
            }
        }
    }

    fn note(&self, time: Time, event: Event, record: &mut dyn Record) -> Result<(), ledger::Error> {
        let act = Arc::clone(&self.id);
        record.write(&Entry { time, act, event })
    }

    /// Takes hold of everybody, before anything is sent to anybody.
    fn begin(&mut self, moment: Moment<'_>, hands: &mut dyn Hands) -> Next {
        if let Some(Step::Advise { command }) = self.target.steps.first() {
            let command = Arc::clone(command);
            let why = Protection::Owned { command };
            return Next::End(Outcome::Protected { why });
        }
        if let Some(next) = self.ask_whether_it_stands(moment) {
            return next;
        }
        let members = self.target.members.iter().map(|member| (member, true));
        let launcher = self.target.launcher.iter().map(|member| (member, false));
        for (member, is_member) in members.chain(launcher) {
            match self.held.open(member, is_member, hands) {
                // Who has gone needs nothing more.
                Ok(()) | Err(NotOpened::Gone(_)) => {}
                Err(error) => return Next::End(of_not_opened(error)),
            }
        }
        if self.whom(Whom::Family, moment.snapshot, hands).is_empty() {
            return Next::End(Outcome::AlreadyGone);
        }
        // What a person named may have let go in the meantime.
        if self.target.call() == Call::Named
            && hold_anything(&self.target, moment.snapshot) == Some(false)
        {
            return Next::End(Outcome::AlreadyGone);
        }
        for member in &self.target.members {
            let known = moment.snapshot.process(member.pid);
            self.held
                .remember(member.pid, known.and_then(|it| it.executable.clone()));
        }
        let everybody: Vec<Handle> = self.held.alive(hands);
        if let Some(outcome) = self.forbids(&everybody, moment.snapshot, hands) {
            return Next::End(outcome);
        }
        self.held.look_around(moment.snapshot, hands);
        self.baseline = Some(Baseline::of(&self.target, moment.snapshot));
        Next::Go(Stage::Due(0))
    }

    /// What a person named stands; a rule has to hold.
    fn ask_whether_it_stands(&mut self, moment: Moment<'_>) -> Option<Next> {
        if self.target.call() == Call::Named {
            return None;
        }
        match moment.stands {
            Standing::Holds => {
                self.unknown_since = None;
                None
            }
            // They were made to go on, and go on: that is no activity of theirs.
            Standing::NoLonger if self.was_stopped() && !self.is_at_work(moment.snapshot) => None,
            Standing::NoLonger => Some(Next::End(Outcome::RuleNoLongerTrue)),
            Standing::Unknown => {
                let since = *self.unknown_since.get_or_insert(moment.now);
                let until = since.plus_seconds(PATIENCE_SECONDS);
                Some(if moment.now >= until {
                    Next::End(Outcome::RuleNoLongerTrue)
                } else {
                    Next::Wait(until)
                })
            }
        }
    }

    /// Whether all that was said of the members was that they were stopped, until they were made to go
    /// on.
    fn was_stopped(&self) -> bool {
        let Reason::Found { findings } = &self.target.reason else {
            return false;
        };
        self.has_continued && findings.iter().all(|it| it.kind == Kind::Stopped)
    }

    /// Whether NVML has seen a member use the GPU.
    fn is_at_work(&self, snapshot: &Snapshot) -> bool {
        let rows = snapshot.gpus.iter().flat_map(|gpu| &gpu.processes);
        let works = |row: &GpuProcess| {
            let engines = [row.sm_percent, row.encoder_percent, row.decoder_percent];
            engines.into_iter().flatten().any(|percent| percent > 0)
        };
        rows.flatten()
            .filter(|row| self.target.members.iter().any(|it| it.pid == row.pid))
            .any(works)
    }

    /// Why one of them is not touched after all.
    fn forbids(
        &self,
        whom: &[Handle],
        snapshot: &Snapshot,
        hands: &mut dyn Hands,
    ) -> Option<Outcome> {
        let call = self.target.call();
        for &handle in whom {
            let Some(one) = self.held.get(handle) else {
                continue;
            };
            let facts = hands.look(one.pid);
            if hands.has_exited(handle) {
                continue;
            }
            let environment = facts.as_ref().and_then(|it| it.environment.clone());
            // It has not exited: what was read by its number was its own.
            let executable = one.executable.as_deref();
            let mut protection = self
                .guard
                .by_facts(call, one.pid, facts.as_ref(), executable);
            let seen = snapshot
                .process(one.pid)
                .filter(|it| it.start_ticks == Some(one.start_ticks));
            if protection.is_none()
                && let Some(process) = seen
                && one.is_member
            {
                // The environment is that of the program that it runs now, which may be another one than
                // in the snapshot.
                let mut process = process.clone();
                process.environment = environment.or(process.environment);
                protection = self.guard.by_sight(call, &process, snapshot);
            }
            if let Some(protection) = protection {
                return Some(Outcome::of(protection));
            }
        }
        None
    }

    /// Whether a step would end processes that hold a GPU and are not in the plan: the ranks of a launcher,
    /// or, where a rule asks for it, the children of any process.
    fn would_end_others(
        &self,
        handles: &[Handle],
        snapshot: &Snapshot,
        hands: &mut dyn Hands,
    ) -> Option<Outcome> {
        let is_asked = |handle: &&Handle| {
            let one = self.held.get(**handle);
            self.target.call() == Call::Rule || one.is_some_and(|one| !one.is_member)
        };
        let asked: Vec<Handle> = handles.iter().filter(is_asked).copied().collect();
        let pids = self.held.descendants_not_held(&asked, snapshot, hands);
        let why = Protection::Descendants { pids };
        match &why {
            Protection::Descendants { pids } if pids.is_empty() => None,
            _ => Some(Outcome::Protected { why }),
        }
    }

    /// Takes a step, if it still may.
    fn take(
        &mut self,
        step: usize,
        moment: Moment<'_>,
        hands: &mut dyn Hands,
        record: &mut dyn Record,
    ) -> Result<Next, ledger::Error> {
        if let Some(next) = self.is_done(moment, hands) {
            return Ok(next);
        }
        let Some(what) = self.target.steps.get(step).cloned() else {
            return Ok(Next::End(self.alive_at_the_end(hands)));
        };
        if let Some(next) = self.ask_whether_it_stands(moment) {
            return Ok(next);
        }
        let whom = match &what {
            Step::Signal { whom, .. } => self.whom(*whom, moment.snapshot, hands),
            _ => self.held.alive(hands),
        };
        if whom.is_empty() {
            return Ok(Next::Go(Stage::Due(step + 1)));
        }
        if let Some(outcome) = self
            .forbids(&whom, moment.snapshot, hands)
            .or_else(|| self.would_end_others(&whom, moment.snapshot, hands))
        {
            return Ok(Next::End(outcome));
        }
        let grace_seconds = match what {
            Step::Advise { .. } => return Ok(Next::Go(Stage::Due(step + 1))),
            Step::ShutKernel { grace_seconds, .. }
            | Step::TerminateClient { grace_seconds, .. }
            | Step::Signal { grace_seconds, .. } => grace_seconds,
        };
        let even_at_work = self.target.call() == Call::Named;
        let mut deeds = Deeds {
            act: &self.id,
            now: moment.now,
            held: &self.held,
            hands,
            record,
            has_continued: false,
        };
        let mut asked = None;
        let outcome = match what {
            Step::Signal { signal, .. } => deeds.send(signal, &whom)?,
            Step::ShutKernel { kernel, .. } => {
                let request = Request::ShutKernel {
                    kernel,
                    even_at_work,
                };
                asked = Some(deeds.ask(request)?);
                None
            }
            Step::TerminateClient {
                pids,
                pipe_directory,
                ..
            } => {
                let request = Request::TerminateClient {
                    pids,
                    pipe_directory,
                };
                asked = Some(deeds.ask(request)?);
                None
            }
            Step::Advise { .. } => None,
        };
        self.has_continued |= deeds.has_continued;
        // What is signalled after all may be started again.
        self.is_shut &= asked.is_some();
        if asked.is_some() {
            (self.asked, self.answer) = (asked, Answer::Waiting);
        }
        self.first_deed.get_or_insert(moment.now);
        Ok(match outcome {
            Some(outcome) => Next::End(outcome),
            None => Next::Go(Stage::Taken(step, moment.now.plus_seconds(grace_seconds))),
        })
    }

    /// Those of whom it is meant that are alive; of those that were not in the plan, only those that hold
    /// a GPU.
    fn whom(&mut self, whom: Whom, snapshot: &Snapshot, hands: &mut dyn Hands) -> Vec<Handle> {
        let mut alive = self.held.alive(hands);
        alive.retain(|&handle| self.held.is_concerned(handle, snapshot, hands));
        alive.retain(|&handle| {
            self.held.get(handle).is_some_and(|one| match whom {
                Whom::Launcher => !one.is_member,
                Whom::Leader => one.is_member && one.pid == self.target.leader,
                Whom::Family => one.is_member,
            })
        });
        alive
    }

    /// Waits for a step's effect.
    fn watch(
        &mut self,
        step: usize,
        until: Time,
        moment: Moment<'_>,
        hands: &mut dyn Hands,
    ) -> Next {
        // What they have started since is found by those that are alive.
        let call = self.target.call();
        let now = moment.now;
        self.held
            .adopt(call, &self.guard, now, moment.snapshot, hands);
        if let Some(next) = self.is_done(moment, hands) {
            return next;
        }
        let next = Next::Go(Stage::Due(step + 1));
        match self.target.steps.get(step) {
            Some(Step::ShutKernel { .. } | Step::TerminateClient { .. }) => match &self.answer {
                Answer::Waiting | Answer::Done => {}
                Answer::AtWork => return Next::End(Outcome::RuleNoLongerTrue),
                Answer::Failed(_) => return next,
                Answer::Restarts(_) if self.guard.policy.direct => return next,
                Answer::Restarts(why) => return Next::End(Outcome::left_to_server(why)),
            },
            Some(&Step::Signal { whom, .. }) => {
                if self.whom(whom, moment.snapshot, hands).is_empty() {
                    return next;
                }
            }
            Some(Step::Advise { .. }) | None => return next,
        }
        // Activity cancels.
        if moment.stands == Standing::NoLonger
            && let Some(next) = self.ask_whether_it_stands(moment)
        {
            return next;
        }
        if moment.now < until {
            return Next::Wait(until);
        }
        // A server that has said nothing may start again what is ended without it.
        let is_kernel = matches!(self.target.steps[step], Step::ShutKernel { .. });
        if is_kernel && self.answer == Answer::Waiting && !self.guard.policy.direct {
            return Next::End(Outcome::left_to_server("its server has not answered"));
        }
        next
    }

    /// Hears what came of what was asked, and writes it down.
    fn hear(
        &mut self,
        now: Time,
        hands: &mut dyn Hands,
        record: &mut dyn Record,
    ) -> Result<(), ledger::Error> {
        if self.asked.is_none() {
            return Ok(());
        }
        self.answer = hands.answer();
        let error = match &self.answer {
            Answer::Waiting => return Ok(()),
            Answer::Done => None,
            Answer::AtWork => Some("it is at work".to_owned()),
            Answer::Failed(error) | Answer::Restarts(error) => Some(error.clone()),
        };
        let Some(deed) = self.asked.take() else {
            return Ok(());
        };
        self.is_shut |= error.is_none() && matches!(deed, Deed::ShutKernel { .. });
        let failure = error.map(|error| Failure { pid: None, error });
        let failures = failure.into_iter().collect();
        self.note(now, Event::Done { deed, failures }, record)
    }

    /// Whether no member is left, or those that are left have let go. What they have started since may go
    /// on where it holds no GPU: it saves a checkpoint, say.
    fn is_done(&mut self, moment: Moment<'_>, hands: &mut dyn Hands) -> Option<Next> {
        let since = moment.now;
        let alive = self.whom(Whom::Family, moment.snapshot, hands);
        if self.first_deed.is_none() {
            let is_gone = alive.is_empty();
            return is_gone.then_some(Next::End(Outcome::AlreadyGone));
        }
        let is_back = || {
            alive.iter().all(|&handle| !self.held.is_adopted(handle))
                && hold_anything(&self.target, moment.snapshot) == Some(false)
                && matches!(self.compare(moment), Some(Back::Yes(_)))
        };
        (alive.is_empty() || is_back()).then_some(Next::Go(Stage::Verifying { since, freed: None }))
    }

    fn verify(
        &mut self,
        since: Time,
        freed: Option<(u64, Time)>,
        moment: Moment<'_>,
        hands: &mut dyn Hands,
    ) -> Next {
        let freed = freed.or_else(|| match self.compare(moment) {
            Some(Back::Yes(bytes)) => Some((bytes, moment.snapshot.time)),
            _ => None,
        });
        let seconds = if self.is_shut {
            0.0
        } else {
            self.target.respawn_seconds.max(LOOK_OUT_SECONDS)
        };
        let look_out = since.plus_seconds(seconds);
        let deadline = since.plus_seconds(DEADLINE_SECONDS.max(seconds));
        let successor = self.held.successor(&self.target, moment.snapshot, hands);
        match (freed, successor) {
            (Some((bytes, _)), Some(pid)) => {
                let taken = self.taken_by(pid, moment.snapshot);
                let bytes = bytes.saturating_sub(taken);
                Next::End(Outcome::Respawned { pid, bytes })
            }
            (None, Some(pid)) if moment.now >= look_out => {
                Next::End(Outcome::Respawned { pid, bytes: 0 })
            }
            (Some((bytes, at)), None) if moment.now >= look_out => {
                let ms = at - self.first_deed.unwrap_or(since);
                let ms = u64::try_from(ms).unwrap_or(0);
                Next::End(Outcome::Freed { bytes, ms })
            }
            (Some(_), None) | (None, Some(_)) => {
                self.stage = Stage::Verifying { since, freed };
                Next::Wait(look_out)
            }
            (None, None) if moment.now >= deadline => {
                let holders = match self.compare(moment) {
                    Some(Back::NotYet(holders)) => holders,
                    _ => Vec::new(),
                };
                Next::End(Outcome::ExitedNotFreed { holders })
            }
            (None, None) => Next::Wait(deadline),
        }
    }

    /// What a process holds by a snapshot on the GPUs of the target.
    fn taken_by(&self, pid: u32, snapshot: &Snapshot) -> u64 {
        let rows = snapshot.gpus.iter().flat_map(|gpu| &gpu.processes);
        let rows = rows.flatten().filter(|row| row.pid == pid);
        rows.filter_map(|row| row.used_bytes)
            .fold(0, u64::saturating_add)
    }

    /// What a snapshot says that was taken after the first deed; `None` of an older one.
    fn compare(&self, moment: Moment<'_>) -> Option<Back> {
        let baseline = self.baseline.as_ref()?;
        let first_deed = self.first_deed?;
        (moment.snapshot.time > first_deed).then(|| baseline.compare(&self.target, moment.snapshot))
    }

    /// What became of those who outlive everything.
    fn alive_at_the_end(&mut self, hands: &mut dyn Hands) -> Outcome {
        for handle in self.held.alive(hands) {
            let Some(one) = self.held.get(handle) else {
                continue;
            };
            if let Some(wchan) = hands.held_up(one.pid) {
                return Outcome::StuckInDriver {
                    wchan: wchan.into(),
                };
            }
        }
        Outcome::StillAlive
    }
}

fn of_not_opened(error: NotOpened) -> Outcome {
    match error {
        NotOpened::Gone(_) => Outcome::AlreadyGone,
        NotOpened::Changed(_) => Outcome::IdentityChanged,
        NotOpened::NoPidfd(_) => Outcome::Protected {
            why: Protection::NoPidfd,
        },
        NotOpened::Failed { error, .. } => Outcome::Protected {
            why: Protection::NotHeld {
                error: error.into(),
            },
        },
    }
}

#[cfg(test)]
mod tests;
