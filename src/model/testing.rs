//! Helpers with which tests of many rooms build processes.

use std::collections::BTreeMap;
use std::sync::Arc;

/// How many rounds of chance a test plays: `few`, times `GPUMEM_TEST_ROUNDS` where that is set, as in CI.
pub(crate) fn rounds(few: u64) -> u64 {
    few * std::env::var("GPUMEM_TEST_ROUNDS").map_or(1, |times| times.parse().unwrap())
}

/// An environment with these variables.
pub(crate) fn environment(variables: &[(&str, &str)]) -> Option<Arc<BTreeMap<Arc<str>, Arc<str>>>> {
    let variables = variables.iter();
    Some(Arc::new(variables.map(|&(name, value)| (name.into(), value.into())).collect()))
}
