//! Work that may hang: on a thread of its own, whose answer is taken within a time or not at all.
//!
//! A file system, a driver or a server that does not answer keeps the thread and nothing else; the thread is
//! left behind, and what it answers then is dropped. [`Task`] is one such piece of work, [`Worker`] a thread
//! that is asked again and again and whose answers are taken when they are there. How many may hang at once is
//! for the caller to bound: this module starts a thread for each call, and none by itself.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How long a sample waits for an answer that usually arrives at once: from a file that may not be cached, or from a
/// server on this machine. A later answer is used with the next sample.
pub const ANSWER_TIME: Duration = Duration::from_millis(25);

/// When something that takes several steps has to be over.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    started: Instant,
    time: Duration,
}

impl Deadline {
    /// So long from now.
    pub fn after(time: Duration) -> Self {
        Self { started: Instant::now(), time }
    }

    /// The time that is left; zero once it is over.
    pub fn left(&self) -> Duration {
        self.time.saturating_sub(self.started.elapsed())
    }
}

/// Work that was begun on a thread of its own.
#[derive(Debug)]
pub struct Task<T> {
    answer: Receiver<T>,
    started: Instant,
}

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoAnswer {
    /// It has not come yet.
    Late,
    /// It will not come: the thread has ended without one, or gave it before.
    Never,
}

impl<T: Send + 'static> Task<T> {
    /// Begins it, on a thread of this name.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started.
    pub fn start(name: &str, work: impl FnOnce() -> T + Send + 'static) -> io::Result<Self> {
        let (sender, answer) = sync_channel(1);
        let started = Instant::now();
        Builder::new().name(name.to_owned()).spawn(move || {
            // The caller may have given up.
            let _ = sender.send(work());
        })?;
        Ok(Self { answer, started })
    }

    /// The answer, waiting for it as long as is given; with no time, only where it is there.
    ///
    /// # Errors
    ///
    /// Where it is not there by then.
    pub fn wait(&self, time: Duration) -> Result<T, NoAnswer> {
        self.answer.recv_timeout(time).map_err(|error| match error {
            RecvTimeoutError::Timeout => NoAnswer::Late,
            RecvTimeoutError::Disconnected => NoAnswer::Never,
        })
    }

    /// The answer of work that may take so long from its start on.
    ///
    /// # Errors
    ///
    /// As [`Self::wait`].
    pub fn within(&self, time: Duration) -> Result<T, NoAnswer> {
        self.wait(time.saturating_sub(self.started.elapsed()))
    }
}

/// A thread that is asked `Q` and answers `A`, each over a queue that is bounded. It ends once it is dropped.
#[derive(Debug)]
pub struct Worker<Q, A> {
    questions: SyncSender<Q>,
    answers: Receiver<A>,
}

/// A question that the worker did not accept.
#[derive(Debug)]
pub enum NotAsked<Q> {
    /// The queue is full; ask again later.
    Busy(Q),
    /// Its thread has ended.
    Ended,
}

/// The queue of a worker's answers. Sending blocks while the queue is full.
pub type Answers<A> = SyncSender<A>;

impl<Q: Send + 'static, A: Send + 'static> Worker<Q, A> {
    /// Starts a thread with this name and these queue lengths. `prepare` returns the function that handles each
    /// question. That function returns `None` if its answers are no longer read.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started.
    pub fn start<W: FnMut(Q) -> Option<()> + Send + 'static>(
        name: &str,
        (questions, answers): (usize, usize),
        prepare: impl FnOnce(Answers<A>) -> W,
    ) -> io::Result<Self> {
        let (sender, asked) = sync_channel(questions);
        let (answering, answers) = sync_channel(answers);
        let mut work = prepare(answering);
        Builder::new().name(name.to_owned()).spawn(move || {
            let _: Option<()> = asked.into_iter().try_for_each(&mut work);
        })?;
        Ok(Self { questions: sender, answers })
    }

    /// Asks without waiting.
    ///
    /// # Errors
    ///
    /// Where it was not taken.
    pub fn ask(&self, question: Q) -> Result<(), NotAsked<Q>> {
        self.questions.try_send(question).map_err(|error| match error {
            TrySendError::Full(question) => NotAsked::Busy(question),
            TrySendError::Disconnected(_) => NotAsked::Ended,
        })
    }

    /// The next answer, waiting for it as long as is given.
    pub fn take(&self, time: Duration) -> Option<A> {
        self.answers.recv_timeout(time).ok()
    }

    /// One whose thread is a test.
    #[cfg(test)]
    pub fn by_hand((questions, answers): (usize, usize)) -> (Self, Receiver<Q>, Answers<A>) {
        let (sender, asked) = sync_channel(questions);
        let (answering, answers) = sync_channel(answers);
        let worker = Self { questions: sender, answers };
        (worker, asked, answering)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::resume_unwind;
    use std::sync::mpsc::channel;
    use std::thread;

    /// Longer than any test may take.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn an_answer_is_taken_in_time_or_later_but_once() {
        let (go_on, may_go_on) = channel::<u8>();
        let work = Task::start("a-name", move || {
            let number = may_go_on.recv().unwrap();
            (number, thread::current().name().map(str::to_owned))
        });
        let work = work.unwrap();
        assert_eq!(work.wait(Duration::ZERO), Err(NoAnswer::Late));
        assert_eq!(work.wait(Duration::from_millis(10)), Err(NoAnswer::Late));
        go_on.send(7).unwrap();
        assert_eq!(work.wait(LONG), Ok((7, Some("a-name".to_owned()))));
        assert_eq!(work.wait(LONG), Err(NoAnswer::Never));
    }

    #[test]
    fn work_that_fails_is_not_waited_for() {
        let work: Task<u8> = Task::start("fails", || resume_unwind(Box::new(()))).unwrap();
        assert_eq!(work.wait(LONG), Err(NoAnswer::Never));
    }

    #[test]
    fn a_deadline_counts_down_to_nothing() {
        let mut deadline = Deadline::after(LONG);
        assert!(deadline.left() > LONG / 2 && deadline.left() <= LONG);
        deadline.started = Instant::now().checked_sub(2 * LONG).unwrap();
        assert_eq!(deadline.left(), Duration::ZERO);
    }

    #[test]
    fn what_was_begun_long_ago_has_no_time_left() {
        let (_keep, never) = channel::<u8>();
        let mut work = Task::start("hangs", move || never.recv()).unwrap();
        work.started = Instant::now().checked_sub(LONG).unwrap();
        let asked = Instant::now();
        assert_eq!(work.within(LONG), Err(NoAnswer::Late));
        assert!(asked.elapsed() < LONG / 2);
    }

    #[test]
    fn a_worker_answers_in_order_and_may_answer_more_than_once() {
        let worker = Worker::start("worker", (4, 8), |answers| {
            let mut before = 0;
            move |number: u32| {
                answers.send((before, number)).ok()?;
                before = number;
                answers.send((number, number)).ok()
            }
        });
        let worker = worker.unwrap();
        for number in [3, 5] {
            worker.ask(number).unwrap();
        }
        let taken: Vec<_> = (0..4).filter_map(|_| worker.take(LONG)).collect();
        assert_eq!(taken, [(0, 3), (3, 3), (3, 5), (5, 5)]);
        assert_eq!(worker.take(Duration::ZERO), None);
    }

    #[test]
    fn a_busy_worker_returns_the_question_and_an_ended_one_is_an_error() {
        let (worker, asked, answers) = Worker::<u8, u8>::by_hand((1, 1));
        worker.ask(1).unwrap();
        assert!(matches!(worker.ask(2), Err(NotAsked::Busy(2))));
        assert_eq!(asked.recv(), Ok(1));
        drop(asked);
        assert!(matches!(worker.ask(3), Err(NotAsked::Ended)));
        // What it has answered before is taken still.
        answers.send(9).unwrap();
        drop(answers);
        assert_eq!(worker.take(LONG), Some(9));
        assert_eq!(worker.take(LONG), None);
    }

    #[test]
    fn a_worker_ends_when_it_is_dropped_or_wants_to() {
        let (ended, has_ended) = channel::<()>();
        let worker = Worker::start("worker", (1, 1), |answers| {
            let ended = ended.clone();
            move |number: u8| {
                let _keep = &ended;
                answers.send(number).ok()
            }
        });
        drop((worker, ended));
        assert_eq!(has_ended.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
        let worker = Worker::<u8, u8>::start("worker", (1, 1), |_| |_| None).unwrap();
        worker.ask(1).unwrap();
        assert_eq!(worker.take(LONG), None, "its queue is closed");
    }
}
