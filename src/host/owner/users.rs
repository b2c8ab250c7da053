//! Looks up user names.
//!
//! The machine's name service may send a request to a directory server, which can take seconds. Each user is therefore
//! looked up once, on a separate thread. Until the answer arrives, the name is unknown, and samples continue.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use nix::unistd::{Uid, User};

use crate::deadline::{NoAnswer, Task};

/// Time after which a look-up is retried if the name service failed.
const RETRY_NS: u64 = 60_000_000_000;
/// Maximum wait for an answer. After the first timeout, look-ups do not wait for answers any more.
const PATIENCE: Duration = Duration::from_millis(300);

/// Returns whether the name service knows no user with this name. Returns `false` if the name service fails.
pub fn is_unknown(name: &str) -> bool {
    matches!(User::from_name(name), Ok(None))
}

#[derive(Debug, Default)]
pub struct Users {
    answers: HashMap<u32, UserAnswer>,
    is_slow: bool,
}

#[derive(Debug)]
enum UserAnswer {
    Asked(Task<Result<Option<String>, ()>>),
    Known { name: Option<Arc<str>>, retry_ns: Option<u64> },
}

impl Users {
    /// Returns the name of a user. Returns `None` if the user has no name, if the answer has not arrived yet, or if
    /// the name service failed.
    pub fn name(&mut self, uid: u32, now_ns: u64) -> Option<Arc<str>> {
        self.name_by(uid, now_ns, |uid| {
            let user = User::from_uid(Uid::from_raw(uid));
            user.map(|user| user.map(|user| user.name)).map_err(drop)
        })
    }

    fn name_by(
        &mut self,
        uid: u32,
        now_ns: u64,
        ask: impl FnOnce(u32) -> Result<Option<String>, ()> + Send + 'static,
    ) -> Option<Arc<str>> {
        let task = match self.answers.remove(&uid) {
            Some(UserAnswer::Known { name, retry_ns })
                if retry_ns.is_none_or(|retry_ns| now_ns < retry_ns) =>
            {
                self.answers.insert(uid, UserAnswer::Known { name: name.clone(), retry_ns });
                return name;
            }
            Some(UserAnswer::Asked(task)) => Some(task),
            Some(UserAnswer::Known { .. }) | None => {
                Task::start("user-name", move || ask(uid)).ok()
            }
        };
        let patience = if self.is_slow { Duration::ZERO } else { PATIENCE };
        let answer = task.as_ref().map_or(Err(NoAnswer::Never), |task| task.wait(patience));
        if let (Err(NoAnswer::Late), Some(task)) = (&answer, task) {
            self.is_slow = true;
            self.answers.insert(uid, UserAnswer::Asked(task));
            return None;
        }
        let retry_ns = now_ns.saturating_add(RETRY_NS);
        let (name, retry_ns) = match answer {
            Ok(Ok(name)) => (name.map(Arc::<str>::from), None),
            Ok(Err(())) | Err(_) => (None, Some(retry_ns)),
        };
        self.answers.insert(uid, UserAnswer::Known { name: name.clone(), retry_ns });
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_a_name_and_the_last_number_has_none() {
        let mut users = Users::default();
        assert_eq!(users.name(0, 0).as_deref(), Some("root"));
        assert_eq!(users.name(u32::MAX - 7, 0), None);
    }

    #[test]
    fn an_answer_is_kept_and_a_failure_asked_again() {
        let mut users = Users::default();
        let ann = |_| Ok(Some("ann".to_owned()));
        // A second look-up would return a different name.
        let never = |_| Ok(Some("asked again".to_owned()));
        assert_eq!(users.name_by(7, 0, ann).as_deref(), Some("ann"));
        assert_eq!(users.name_by(7, u64::MAX, never).as_deref(), Some("ann"));
        assert_eq!(users.name_by(8, 0, |_| Err(())), None);
        assert_eq!(users.name_by(8, RETRY_NS - 1, never), None);
        assert_eq!(users.name_by(8, RETRY_NS, ann).as_deref(), Some("ann"));
    }

    #[test]
    fn a_slow_user_directory_blocks_no_sample() {
        let mut users = Users::default();
        let (answers, waits) = std::sync::mpsc::channel::<String>();
        let waits = Arc::new(std::sync::Mutex::new(waits));
        let slow = |waits: &Arc<std::sync::Mutex<std::sync::mpsc::Receiver<String>>>| {
            let waits = Arc::clone(waits);
            move |_| Ok(waits.lock().map_err(drop)?.recv().ok())
        };
        let began = std::time::Instant::now();
        for uid in 7..40 {
            assert_eq!(users.name_by(uid, 0, slow(&waits)), None);
        }
        // Waiting for each of these 33 look-ups would take longer.
        assert!(began.elapsed() < 20 * PATIENCE, "one is waited for, at most");
        for _ in 7..40 {
            answers.send("ann".to_owned()).unwrap();
        }
        let known = |users: &mut Users| users.name_by(9, 0, |_| Ok(None)).is_some();
        let deadline = began + Duration::from_secs(120);
        while !known(&mut users) {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
    }
}
