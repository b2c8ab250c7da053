//! The names of users.
//!
//! A name comes from the machine's name service, which may ask a directory over the network: each
//! user is asked for once.

use std::collections::HashMap;
use std::sync::Arc;

use nix::unistd::{Uid, User};

/// How long a failure of the name service is taken as its answer.
const RETRY_NS: u64 = 60_000_000_000;

/// Whether the name service knows no user of this name; where it fails, there may be one.
pub fn is_unknown(name: &str) -> bool {
    matches!(User::from_name(name), Ok(None))
}

/// The names that have been asked for.
#[derive(Debug, Default)]
pub struct Users(HashMap<u32, UserAnswer>);

#[derive(Debug)]
struct UserAnswer {
    name: Option<Arc<str>>,
    /// When to ask again, where the name service failed.
    retry_ns: Option<u64>,
}

impl Users {
    /// The name of a user; `None` where there is none, or the name service failed.
    pub fn name(&mut self, uid: u32, now_ns: u64) -> Option<Arc<str>> {
        self.name_by(uid, now_ns, |uid| {
            User::from_uid(Uid::from_raw(uid)).map(|user| user.map(|user| user.name))
        })
    }

    fn name_by<E>(
        &mut self,
        uid: u32,
        now_ns: u64,
        ask: impl FnOnce(u32) -> Result<Option<String>, E>,
    ) -> Option<Arc<str>> {
        if let Some(answer) = self.0.get(&uid)
            && answer.retry_ns.is_none_or(|retry_ns| now_ns < retry_ns)
        {
            return answer.name.clone();
        }
        let (name, retry_ns) = match ask(uid) {
            Ok(name) => (name.map(Arc::from), None),
            Err(_) => (None, Some(now_ns.saturating_add(RETRY_NS))),
        };
        self.0.insert(uid, UserAnswer { name: name.clone(), retry_ns });
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
        let ann = |_| Ok::<_, ()>(Some("ann".to_owned()));
        let never = |_| -> Result<Option<String>, ()> { panic!("asked again") };
        assert_eq!(users.name_by(7, 0, ann).as_deref(), Some("ann"));
        assert_eq!(users.name_by(7, u64::MAX, never).as_deref(), Some("ann"));
        assert_eq!(users.name_by(8, 0, |_| Err(())), None);
        assert_eq!(users.name_by(8, RETRY_NS - 1, never), None);
        assert_eq!(users.name_by(8, RETRY_NS, ann).as_deref(), Some("ann"));
    }
}
