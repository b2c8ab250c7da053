//! What a server's answers mean: JSON and Prometheus' text of strangers, bounded, and never taken for rest where
//! they do not show it.

use serde_json::Value;

use super::Known;

/// A server has fewer models.
const MOST_MODELS: usize = 256;
/// The longest name of one.
const NAME_BYTES: usize = 512;

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnloadAnswer {
    /// `200`.
    pub status: u16,
    /// Its body.
    pub body: Vec<u8>,
}

/// Why a question has not come out as it has to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AnswerVerdict {
    /// It is at work. Why.
    Busy(String),
    /// It gives nothing back. Why.
    Nothing(String),
    /// It is not this server, or does not answer as it does. What is seen.
    Another(String),
    /// It does not show what has to be seen. What.
    Unknown(String),
    /// It wants a key.
    Key,
    /// It knows no such request.
    Absent,
    /// It refuses. What it says.
    Declined(String),
    /// Not yet done.
    NotYet,
    /// This model holds nothing.
    Skip,
}

/// What a question has come to.
pub type AnswerCheckResult = Result<(), AnswerVerdict>;

impl UnloadAnswer {
    /// Whether it is one of success.
    pub fn success(&self) -> AnswerCheckResult {
        match self.status {
            200..=299 => Ok(()),
            300..=399 => {
                Err(AnswerVerdict::Another("a redirect, which is not followed".to_owned()))
            }
            401 | 403 => Err(AnswerVerdict::Key),
            404 | 405 | 501 => Err(AnswerVerdict::Absent),
            status => Err(AnswerVerdict::Declined(match self.message() {
                Some(message) => format!("status {status}, {message}"),
                None => format!("status {status}"),
            })),
        }
    }

    /// What an error says of itself: a line of text in the usual places of JSON.
    fn message(&self) -> Option<String> {
        let value: Value = serde_json::from_slice(&self.body).ok()?;
        let places = ["/error/message", "/error", "/detail", "/message"];
        let text = places.iter().find_map(|at| value.pointer(at)?.as_str())?;
        let line = text.lines().next()?;
        Some(line.chars().take(200).collect())
    }

    /// Its JSON.
    pub(super) fn json(&self) -> Result<Value, AnswerVerdict> {
        self.success()?;
        let another = |_| AnswerVerdict::Another("an answer that is not JSON".to_owned());
        serde_json::from_slice(&self.body).map_err(another)
    }

    /// Its text.
    pub(super) fn text(&self) -> Result<&str, AnswerVerdict> {
        self.success()?;
        let another = |_| AnswerVerdict::Another("an answer that is not text".to_owned());
        std::str::from_utf8(&self.body).map_err(another)
    }

    /// The sum of what each of these is in Prometheus' text; a list of other names of the same is one of
    /// alternatives. Unknown where one is not there.
    pub(super) fn metrics(&self, wanted: &[&[&str]]) -> Result<f64, AnswerVerdict> {
        let text = self.text()?;
        let mut sum = 0.0;
        for names in wanted {
            let found = names.iter().find_map(|name| metric(text, name));
            let missing = || AnswerVerdict::Unknown(format!("its metrics have no {}", names[0]));
            sum += found.ok_or_else(missing)?;
        }
        Ok(sum)
    }
}

/// The sum of a metric over its labels; `None` where it is not there or is no number of things.
pub(super) fn metric(text: &str, name: &str) -> Option<f64> {
    let mut sum = None;
    for line in text.lines() {
        let Some(rest) = line.strip_prefix(name) else {
            continue;
        };
        let value = match rest.as_bytes().first() {
            Some(b'{') => &rest[rest.rfind('}')? + 1..],
            Some(b' ' | b'\t') => rest,
            _ => continue,
        };
        let value: f64 = value.split_ascii_whitespace().next()?.parse().ok()?;
        if !value.is_finite() || value < 0.0 {
            return None;
        }
        sum = Some(sum.unwrap_or(0.0) + value);
    }
    sum
}

/// `0.17.1rc2+cu129` is 0, 17, 1.
pub(super) fn version(text: &str) -> Option<(u32, u32, u32)> {
    let mut parts = text.trim_start_matches('v').split('.');
    let number = |part: Option<&str>| {
        let part = part?;
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part[..end].parse::<u32>().ok()
    };
    Some((number(parts.next())?, number(parts.next())?, number(parts.next()).unwrap_or(0)))
}

/// A list in an answer.
pub(super) fn list<'v>(value: &'v Value, at: &str) -> Result<&'v Vec<Value>, AnswerVerdict> {
    let list = value.pointer(at).and_then(Value::as_array);
    list.ok_or_else(|| AnswerVerdict::Another(format!("no list at {at}")))
}

/// A text in an answer.
pub(super) fn text<'v>(value: &'v Value, at: &str) -> Result<&'v str, AnswerVerdict> {
    let text = value.pointer(at).and_then(Value::as_str);
    text.ok_or_else(|| AnswerVerdict::Another(format!("no text at {at}")))
}

/// A yes or no in an answer.
pub(super) fn flag(value: &Value, at: &str) -> Result<bool, AnswerVerdict> {
    let flag = value.pointer(at).and_then(Value::as_bool);
    flag.ok_or_else(|| AnswerVerdict::Another(format!("no true or false at {at}")))
}

/// A count in an answer.
pub(super) fn count(value: &Value, at: &str) -> Result<i64, AnswerVerdict> {
    let count = value.pointer(at).and_then(Value::as_i64);
    count.ok_or_else(|| AnswerVerdict::Another(format!("no number at {at}")))
}

impl Known {
    /// Keeps the names of what is loaded.
    pub(super) fn load(&mut self, names: Vec<String>) -> AnswerCheckResult {
        let is_sound = |name: &String| !name.is_empty() && name.len() <= NAME_BYTES;
        if names.len() > MOST_MODELS || !names.iter().all(is_sound) {
            return Err(AnswerVerdict::Another("a list of models in another form".to_owned()));
        }
        self.models = names;
        match self.models.is_empty() {
            true => Err(AnswerVerdict::Nothing("it has no model loaded".to_owned())),
            false => Ok(()),
        }
    }

    /// That nothing is loaded any more.
    pub(super) fn unloaded(&mut self, names: Vec<String>) -> AnswerCheckResult {
        match self.load(names) {
            Err(AnswerVerdict::Nothing(_)) => Ok(()),
            Ok(()) => Err(AnswerVerdict::NotYet),
            Err(other) => Err(other),
        }
    }
}

/// So many of something that is at work.
pub(super) fn busy(what: &str) -> AnswerVerdict {
    AnswerVerdict::Busy(what.to_owned())
}
