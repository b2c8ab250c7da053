//! What a server says of its kernels: asked for, and put into what is known of each.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::host::Roots;
use crate::host::jupyter::{Client, KernelState, Server, ServerError};
use crate::model::snapshot::Jupyter;

/// How long a server has for all that it is asked.
const SERVER_TIME: Duration = Duration::from_secs(3);

/// Asks a server for its kernels; for those without a session only where one of them is wanted.
pub(super) fn ask(
    roots: &Roots,
    server: &Server,
    wanted: &[Arc<str>],
) -> Result<HashMap<String, KernelState>, ServerError> {
    let begun = Instant::now();
    let client = Client::new(roots, server)?;
    let left = || {
        let left = SERVER_TIME.saturating_sub(begun.elapsed());
        left.max(Duration::from_millis(1))
    };
    let by_id = |states: Vec<KernelState>| states.into_iter().map(|it| (it.id.clone(), it));
    let mut states: HashMap<String, KernelState> = by_id(client.sessions(left())?).collect();
    if wanted.iter().any(|id| !states.contains_key(&**id)) {
        for (id, state) in by_id(client.kernels(left())?) {
            states.entry(id).or_insert(state);
        }
    }
    Ok(states)
}

/// Puts a server's answer into what is known of a kernel.
pub(super) fn apply(
    jupyter: &mut Jupyter,
    result: &Result<HashMap<String, KernelState>, ServerError>,
) {
    let states = match result {
        Ok(states) => states,
        Err(error) => {
            jupyter.server_error = Some(error.to_string().into());
            return;
        }
    };
    let Some(state) = jupyter.kernel_id.as_deref().and_then(|id| states.get(id)) else {
        jupyter.server_error = Some(ServerError::UnknownKernel.to_string().into());
        return;
    };
    if let Some(path) = &state.path {
        jupyter.notebook_path = Some(path.as_str().into());
    }
    jupyter.execution_state = state.execution_state.as_deref().map(Into::into);
    jupyter.last_activity = state.last_activity;
    jupyter.connections = state.connections;
}
