//! Runs operations that can block forever in separate threads, with timeouts.
//!
//! A thread cannot be killed, so callers must limit the number of blocked threads. A [`Task`] produces one answer, and
//! a [`Worker`] answers a series of questions.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Maximum time that a sample waits for files or local servers, which usually answer immediately. A late answer is
/// used in the next sample.
pub const ANSWER_TIME: Duration = Duration::from_millis(25);

/// Time limit for an operation that consists of several steps.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    started: Instant,
    time: Duration,
}

impl Deadline {
    pub fn after(time: Duration) -> Self {
        Self { started: Instant::now(), time }
    }

    /// Returns the remaining time, or zero after the deadline.
    pub fn left(&self) -> Duration {
        self.time.saturating_sub(self.started.elapsed())
    }
}

#[derive(Debug)]
pub struct Task<T> {
    answer: Receiver<T>,
    started: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoAnswer {
    Late,
    /// The thread ended without an answer, or the answer had already been taken.
    Never,
}

impl<T: Send + 'static> Task<T> {
    pub fn start(name: &str, work: impl FnOnce() -> T + Send + 'static) -> io::Result<Self> {
        let (sender, answer) = sync_channel(1);
        let started = Instant::now();
        Builder::new().name(name.to_owned()).spawn(move || {
            // Sending fails if the caller has dropped the task.
            let _ = sender.send(work());
        })?;
        Ok(Self { answer, started })
    }

    pub fn wait(&self, time: Duration) -> Result<T, NoAnswer> {
        self.answer.recv_timeout(time).map_err(|error| match error {
            RecvTimeoutError::Timeout => NoAnswer::Late,
            RecvTimeoutError::Disconnected => NoAnswer::Never,
        })
    }

    /// Waits for the answer until `time` has passed since the start of the work.
    pub fn within(&self, time: Duration) -> Result<T, NoAnswer> {
        self.wait(time.saturating_sub(self.started.elapsed()))
    }
}

/// A thread that answers questions of type `Q` with answers of type `A`. The thread ends after the `Worker` is dropped.
#[derive(Debug)]
pub struct Worker<Q, A> {
    questions: SyncSender<Q>,
    answers: Receiver<A>,
}

#[derive(Debug)]
pub enum NotAsked<Q> {
    Busy(Q),
    Ended,
}

pub type Answers<A> = SyncSender<A>;

impl<Q: Send + 'static, A: Send + 'static> Worker<Q, A> {
    /// Starts a thread called `name`. The pair contains the capacities of the two queues. `prepare` receives the sender
    /// for answers, which blocks while the queue is full. `prepare` returns the function that handles a question. When
    /// this function returns `None`, the thread ends.
    pub fn start<W: FnMut(Q) -> Option<()> + Send + 'static>(
        name: &str,
        (questions, answers): (usize, usize),
        prepare: impl FnOnce(Answers<A>) -> W,
    ) -> io::Result<Self> {
        let (sender, received) = sync_channel(questions);
        let (answering, answers) = sync_channel(answers);
        let mut work = prepare(answering);
        Builder::new().name(name.to_owned()).spawn(move || {
            let _: Option<()> = received.into_iter().try_for_each(&mut work);
        })?;
        Ok(Self { questions: sender, answers })
    }

    /// Sends a question without waiting.
    pub fn ask(&self, question: Q) -> Result<(), NotAsked<Q>> {
        self.questions.try_send(question).map_err(|error| match error {
            TrySendError::Full(question) => NotAsked::Busy(question),
            TrySendError::Disconnected(_) => NotAsked::Ended,
        })
    }

    pub fn take(&self, time: Duration) -> Option<A> {
        self.answers.recv_timeout(time).ok()
    }

    /// Creates a worker without a thread, for tests that answer the questions themselves.
    #[cfg(test)]
    pub fn by_hand((questions, answers): (usize, usize)) -> (Self, Receiver<Q>, Answers<A>) {
        let (sender, received) = sync_channel(questions);
        let (answering, answers) = sync_channel(answers);
        let worker = Self { questions: sender, answers };
        (worker, received, answering)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::resume_unwind;
    use std::sync::mpsc::channel;
    use std::thread;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn an_answer_is_returned_once() {
        let (permit, permitted) = channel::<u8>();
        let work = Task::start("a-name", move || {
            let number = permitted.recv().unwrap();
            (number, thread::current().name().map(str::to_owned))
        });
        let work = work.unwrap();
        assert_eq!(work.wait(Duration::ZERO), Err(NoAnswer::Late));
        assert_eq!(work.wait(Duration::from_millis(10)), Err(NoAnswer::Late));
        permit.send(7).unwrap();
        assert_eq!(work.wait(LONG), Ok((7, Some("a-name".to_owned()))));
        assert_eq!(work.wait(LONG), Err(NoAnswer::Never));
    }

    #[test]
    fn waiting_for_failed_work_ends_at_once() {
        let work: Task<u8> = Task::start("fails", || resume_unwind(Box::new(()))).unwrap();
        assert_eq!(work.wait(LONG), Err(NoAnswer::Never));
    }

    #[test]
    fn a_deadline_counts_down_to_zero() {
        let mut deadline = Deadline::after(LONG);
        assert!(deadline.left() > LONG / 2 && deadline.left() <= LONG);
        deadline.started = Instant::now().checked_sub(2 * LONG).unwrap();
        assert_eq!(deadline.left(), Duration::ZERO);
    }

    #[test]
    fn an_old_task_has_no_time_left() {
        let (_keep, never) = channel::<u8>();
        let mut work = Task::start("hangs", move || never.recv()).unwrap();
        work.started = Instant::now().checked_sub(LONG).unwrap();
        let start = Instant::now();
        assert_eq!(work.within(LONG), Err(NoAnswer::Late));
        assert!(start.elapsed() < LONG / 2);
    }

    #[test]
    fn a_worker_answers_in_order_and_several_times() {
        let worker = Worker::start("worker", (4, 8), |answers| {
            let mut last = 0;
            move |number: u32| {
                answers.send((last, number)).ok()?;
                last = number;
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
    fn a_busy_or_ended_worker_refuses_questions() {
        let (worker, questions, answers) = Worker::<u8, u8>::by_hand((1, 1));
        worker.ask(1).unwrap();
        assert!(matches!(worker.ask(2), Err(NotAsked::Busy(2))));
        assert_eq!(questions.recv(), Ok(1));
        drop(questions);
        assert!(matches!(worker.ask(3), Err(NotAsked::Ended)));
        // Answers sent before the worker ended can still be received.
        answers.send(9).unwrap();
        drop(answers);
        assert_eq!(worker.take(LONG), Some(9));
        assert_eq!(worker.take(LONG), None);
    }

    #[test]
    fn a_worker_ends_when_dropped_or_on_its_own() {
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
        assert_eq!(worker.take(LONG), None, "the queue is closed");
    }
}
