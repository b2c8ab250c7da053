//! Helpers with which tests of many rooms build processes.

use std::collections::BTreeMap;
use std::sync::Arc;

/// An environment with these variables.
pub(crate) fn environment(variables: &[(&str, &str)]) -> Option<Arc<BTreeMap<Arc<str>, Arc<str>>>> {
    let variables = variables.iter();
    Some(Arc::new(variables.map(|&(name, value)| (name.into(), value.into())).collect()))
}
