//! Decides which requests to send to a server, and what to do after each answer. A [`ServerChannel`] supplies the
//! network and the clock.
//!
//! The conversation first verifies that the server is the expected one, supports unloading, and is idle. A server is
//! idle if no check shows a running or queued request, and its counters of finished requests stay constant for the
//! configured idle time. A state that cannot be read is treated as work. Then the server is told to unload, and the
//! result is verified. Only the pause, unload and resume requests change anything, and no unload request is repeated.

use std::sync::Arc;
use std::time::Duration;

use crate::advice::recipe::ReleaseReport;
use crate::advice::unload::{
    AnswerVerdict, Question, ServerFacts, ServerRequest, UnloadAnswer, UnloadApi, UnloadServer,
};
use crate::reclaim::release::{NotReleased, ReleaseAnswer, ReleaseOptions};
use crate::units::Bytes;

/// Minimum time limit for a query. A server under load takes seconds to answer.
const QUERY_TIME: Duration = Duration::from_secs(8);
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Interval between checks whether the unload is complete.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

pub trait ServerChannel {
    /// Sends a request and waits for the answer, at most for `limit`.
    fn ask(&mut self, request: &ServerRequest, limit: Duration) -> Result<UnloadAnswer, AskFailed>;
    fn command(&self) -> &[Arc<str>];
    fn connections(&mut self) -> Option<usize>;
    /// Returns how much host memory the server could allocate, in bytes.
    fn available_bytes(&mut self) -> Option<u64>;
    fn pause(&mut self, time: Duration);
    fn left(&self) -> Duration;
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AskFailed {
    Late,
    /// The server cannot be reached or does not speak HTTP. Contains an explanation.
    NotReached(String),
}

pub struct Conversation<'a, C> {
    row: &'a UnloadServer,
    api: &'a UnloadApi,
    /// Address of the server as shown in commands for the user.
    base: &'a str,
    held_bytes: Option<u64>,
    options: &'a ReleaseOptions,
    channel: &'a mut C,
    known: ServerFacts,
    has_answered: bool,
    /// Whether an unload request was sent and not answered.
    may_still_unload: bool,
}

type AskResult<T = ()> = Result<T, NotReleased>;

impl<'a, C: ServerChannel> Conversation<'a, C> {
    pub fn new(
        row: &'a UnloadServer,
        api: &'a UnloadApi,
        base: &'a str,
        held_bytes: Option<u64>,
        options: &'a ReleaseOptions,
        channel: &'a mut C,
    ) -> Self {
        Self {
            row,
            api,
            base,
            held_bytes,
            options,
            channel,
            known: ServerFacts::default(),
            has_answered: false,
            may_still_unload: false,
        }
    }

    pub fn run(mut self, is_deed: bool) -> ReleaseAnswer {
        self.check_terms()?;
        self.identify()?;
        self.prove_idle(is_deed)?;
        self.check_host_memory()?;
        if is_deed {
            self.unload()?;
        }
        Ok(ReleaseReport {
            wake: Some(self.wake().into()),
            why: self.api.risk.as_deref().filter(|_| !is_deed).map(Arc::from),
            ..ReleaseReport::default()
        })
    }

    fn check_terms(&self) -> AskResult {
        let (title, name) = (&self.row.title, &self.row.name);
        if let (Some(risk), false) = (&self.api.risk, self.options.is_named) {
            return Err(NotReleased::Refused(format!(
                "gpumem asks {title} to unload only if you name it, because {risk}: gpumem release {name}"
            )));
        }
        let Some(flag) = &self.api.flag else {
            return Ok(());
        };
        let has = |word: &Arc<str>| word.split('=').next() == Some(flag);
        match self.channel.command().iter().any(has) {
            true => Ok(()),
            false => Err(self.to_error(AnswerVerdict::Absent, None)),
        }
    }

    fn identify(&mut self) -> AskResult {
        for (index, question) in self.api.identify.iter().enumerate() {
            self.question(question, "", index == 0)?;
        }
        let Some(since) = self.api.since else {
            return Ok(());
        };
        let title = &self.row.title;
        let minimum = format!("{}.{}", since.0, since.1);
        match self.known.version {
            Some((major, minor, _)) if (major, minor) >= since => Ok(()),
            Some((major, minor, patch)) => Err(NotReleased::Refused(format!(
                "{title} {major}.{minor}.{patch} aborts running requests when it unloads; upgrade to {minimum} or later"
            ))),
            None => Err(NotReleased::Refused(format!(
                "the version of {title} is unknown, and {title} before {minimum} aborts running requests when it unloads; \
                 check that it is {minimum} or later"
            ))),
        }
    }

    /// Checks that the server is idle: twice for a probe, and for the whole idle time before an unload. The idle time
    /// includes the time spent waiting for answers, so a slow server is asked less often. The last check begins after
    /// the idle time.
    fn prove_idle(&mut self, is_deed: bool) -> AskResult {
        self.read_idle_answers()?;
        self.check_connections()?;
        let before = self.known.clone();
        let idle = Duration::from_millis(self.options.idle_ms);
        let idle = if is_deed { idle } else { idle.min(CHECK_INTERVAL) };
        let Some(left_at_end) = self.channel.left().checked_sub(idle) else {
            return Err(self.too_slow());
        };
        let mut is_watched = idle.is_zero();
        while !is_watched {
            let remaining = self.channel.left().saturating_sub(left_at_end);
            self.channel.pause(remaining.min(CHECK_INTERVAL));
            is_watched = self.channel.left() <= left_at_end;
            self.read_idle_answers()?;
            self.check_connections()?;
            if (&before.marks, &before.models) != (&self.known.marks, &self.known.models) {
                return Err(self.busy("it handled a request while it was being watched"));
            }
        }
        Ok(())
    }

    fn read_idle_answers(&mut self) -> AskResult {
        self.known.marks.clear();
        for (index, question) in self.api.idle.iter().enumerate() {
            self.question(question, "", index == 0 && self.api.identify.is_empty())?;
        }
        Ok(())
    }

    /// Checks the connections of a server that does not report its activity in any other way.
    fn check_connections(&mut self) -> AskResult {
        if !self.api.is_idle_unconnected {
            return Ok(());
        }
        match self.channel.connections() {
            Some(0) => Ok(()),
            Some(1) => Err(self.busy("a client is connected to it")),
            Some(count) => Err(self.busy(&format!("{count} clients are connected to it"))),
            None => {
                let unknown =
                    AnswerVerdict::Unknown("its connections cannot be counted".to_owned());
                Err(self.to_error(unknown, None))
            }
        }
    }

    fn check_host_memory(&mut self) -> AskResult {
        if !self.api.needs_host_memory {
            return Ok(());
        }
        let title = &self.row.title;
        let available = self.channel.available_bytes();
        match (self.held_bytes, available) {
            // Only the weights are moved, which are usually a small part of the memory. The server does not report
            // their size.
            (Some(held), Some(available)) if available >= held || self.options.insists => Ok(()),
            (Some(held), Some(available)) => Err(NotReleased::Refused(format!(
                "{title} would move its weights, a part of {}, to host memory, which has {} available; if you know that they fit: \
                 gpumem release --force {}",
                Bytes(held),
                Bytes(available),
                self.row.name
            ))),
            _ => Err(NotReleased::Refused(format!(
                "{title} would move its weights to host memory, and it is unknown whether they fit; see free -h"
            ))),
        }
    }

    fn unload(&mut self) -> AskResult {
        if let Some(question) = &self.api.at_deed {
            for model in self.known.models.clone() {
                self.question(question, &model, false)?;
            }
        }
        let hold = self.api.hold.as_ref().filter(|hold| self.known.version >= Some(hold.since));
        let held = hold.map_or(Ok(()), |hold| {
            self.command_server(&hold.pause.request(""), self.query_time())?;
            self.read_idle_answers()
        });
        let unloaded = held.and_then(|()| self.send_deeds());
        if let (Err(error), Some(hold)) = (&unloaded, hold) {
            // If the unload timed out, the server stays paused: it may still unload, and requests during the unload
            // would end it. Otherwise, resume the server, because a paused server holds back new requests. A pause that
            // timed out may still take effect, so resume the server in this case, too.
            if !self.may_still_unload {
                let _ = self.channel.ask(&hold.resume.request(""), QUERY_TIME);
            } else if let NotReleased::TimedOut(why) = error {
                let wake = self.wake();
                return Err(NotReleased::TimedOut(format!(
                    "{why}; it is paused; to wake it: {wake}"
                )));
            }
        }
        unloaded?;
        self.wait_until_done()
    }

    fn send_deeds(&mut self) -> AskResult {
        for request in &self.api.deeds(&self.known) {
            // Check immediately before the unload, to leave clients little time to connect.
            self.check_connections()?;
            match self.command_server(request, self.channel.left()) {
                Err(NotReleased::TimedOut(_)) => {
                    self.may_still_unload = true;
                    return Err(NotReleased::TimedOut(format!(
                        "{} was asked to unload and has not answered; it may still do so; increase --wait",
                        self.row.title
                    )));
                }
                answer => answer?,
            }
        }
        Ok(())
    }

    /// Sends a request that changes the server's state, which must succeed.
    fn command_server(&mut self, request: &ServerRequest, limit: Duration) -> AskResult {
        let answer = self.ask(request, limit)?;
        answer.success().map_err(|verdict| self.to_error(verdict, Some(request)))
    }

    fn wait_until_done(&mut self) -> AskResult {
        let Some(done) = &self.api.done else {
            return Ok(());
        };
        let request = done.request("");
        loop {
            let late = || {
                NotReleased::TimedOut(format!(
                    "{} was asked to unload and has not reported that it did; it may still do so; increase --wait",
                    self.row.title
                ))
            };
            if self.channel.left().is_zero() {
                return Err(late());
            }
            // Some servers cannot answer while they unload.
            let answer = match self.channel.ask(&request, self.channel.left()) {
                Ok(answer) => answer,
                Err(AskFailed::Late) => return Err(late()),
                Err(AskFailed::NotReached(why)) => return Err(self.unreached(&why)),
            };
            match done.check_done(&answer, &mut self.known) {
                Ok(()) => return Ok(()),
                Err(AnswerVerdict::NotYet | AnswerVerdict::Busy(_)) => {
                    self.channel.pause(POLL_INTERVAL);
                }
                Err(verdict) => return Err(self.to_error(verdict, Some(&request))),
            }
        }
    }

    fn question(&mut self, question: &Question, model: &str, is_first: bool) -> AskResult {
        let request = question.request(model);
        let answer = self.ask(&request, self.query_time())?;
        question.check(&answer, &mut self.known).map_err(|verdict| match verdict {
            AnswerVerdict::Absent if is_first => self
                .to_error(AnswerVerdict::Another(format!("no {}", request.path)), Some(&request)),
            verdict => self.to_error(verdict, Some(&request)),
        })
    }

    /// Sends a request. If the server does not know it, sends the request of an older version of the server, if there
    /// is one.
    fn ask(&mut self, request: &ServerRequest, limit: Duration) -> AskResult<UnloadAnswer> {
        let limit = limit.min(self.channel.left());
        let answer = self.channel.ask(request, limit);
        let answer = match (&answer, request.as_older()) {
            (Ok(UnloadAnswer { status: 404 | 405, .. }), Some(older)) => {
                self.channel.ask(&older, limit)
            }
            _ => answer,
        };
        self.has_answered |= answer.is_ok();
        answer.map_err(|failed| match failed {
            AskFailed::Late if self.has_answered => self.too_slow(),
            AskFailed::Late => NotReleased::TimedOut(format!(
                "{} did not answer {} {} within {:.0} s and was not asked to unload; it hangs, or is too slow to be \
                 proved idle",
                self.row.title,
                request.verb,
                request.path,
                limit.as_secs_f64()
            )),
            AskFailed::NotReached(why) => self.unreached(&why),
        })
    }

    fn too_slow(&self) -> NotReleased {
        NotReleased::TimedOut(format!(
            "{} answers too slowly to be proved idle in time, and was not asked to unload; increase --wait",
            self.row.title
        ))
    }

    /// Returns the time limit for a query: four fifths of the request's time limit, but at least [`QUERY_TIME`].
    fn query_time(&self) -> Duration {
        QUERY_TIME.max(Duration::from_millis(self.options.wait_ms) * 4 / 5)
    }

    fn wake(&self) -> String {
        self.api.wake.replace("BASE", self.base)
    }

    fn unreached(&self, why: &str) -> NotReleased {
        NotReleased::NoWayIn(format!("{} cannot be asked: {why}", self.row.title))
    }

    fn busy(&self, why: &str) -> NotReleased {
        self.to_error(AnswerVerdict::Busy(why.to_owned()), None)
    }

    fn to_error(&self, verdict: AnswerVerdict, request: Option<&ServerRequest>) -> NotReleased {
        let title = &self.row.title;
        let start = &self.api.start;
        match verdict {
            AnswerVerdict::Busy(why) => {
                NotReleased::Busy(format!("{title}: {why}; try again later"))
            }
            AnswerVerdict::Nothing(why) => NotReleased::NoWayIn(format!("{title}: {why}")),
            AnswerVerdict::Another(difference) => NotReleased::NoWayIn(format!(
                "the answer there is not what {title} sends ({difference}); check which program listens on that port"
            )),
            AnswerVerdict::Unknown(reason) => {
                let command = self.command(request);
                let advice =
                    command.map(|command| format!("; if you know that it is idle: `{command}`"));
                let advice = advice.unwrap_or_default();
                NotReleased::Refused(format!(
                    "cannot tell whether {title} is idle: {reason}{advice}"
                ))
            }
            AnswerVerdict::Key => NotReleased::Refused(format!(
                "{title} requires a key, which gpumem does not have{}",
                self.command(request)
                    .map(|command| format!("; with your key: `{command}`"))
                    .unwrap_or_default()
            )),
            AnswerVerdict::Absent => NotReleased::Refused(format!(
                "{title} can unload only if it was started with {start}"
            )),
            AnswerVerdict::Declined(why) => NotReleased::Refused(format!(
                "{title} refused: {why}; it has to be started with {start}"
            )),
            AnswerVerdict::NotYet => NotReleased::NoWayIn(format!("{title} has nothing to unload")),
        }
    }

    /// Returns the unload request, or `request` if there is none, as a command that the user can run.
    fn command(&self, request: Option<&ServerRequest>) -> Option<String> {
        let mut known = self.known.clone();
        if known.models.is_empty() {
            known.models.push("MODEL".to_owned());
        }
        let deeds = self.api.deeds(&known);
        deeds.first().or(request)?.command(self.base, self.api.key())
    }
}
