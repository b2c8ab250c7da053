//! Helpers for the tests of several modules.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Returns how many random rounds a test runs: `few`, multiplied by `GPUMEM_TEST_ROUNDS`, which CI sets.
pub(crate) fn rounds(few: u64) -> u64 {
    few * std::env::var("GPUMEM_TEST_ROUNDS").map_or(1, |times| times.parse().unwrap())
}

pub(crate) fn environment(variables: &[(&str, &str)]) -> Option<Arc<BTreeMap<Arc<str>, Arc<str>>>> {
    let variables = variables.iter();
    Some(Arc::new(variables.map(|&(name, value)| (name.into(), value.into())).collect()))
}
