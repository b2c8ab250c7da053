//! Programs that execute all cells of a notebook.

use std::fs;

use serde_json::Value;

use super::{JupyterHome, jupyter};
use crate::machine::{Machine, one_gpu};
use crate::support;

#[test]
fn programs_that_execute_notebooks_are_batch_jobs() {
    let python = or_skip!(support::python_with(&["nbconvert", "nbclient", "ipykernel"]));
    // Run one program at a time. Each program looks for free ports, which its kernel binds only later.
    for (arguments, application) in [
        (&["-m", "nbconvert", "--to", "notebook", "--execute", "a.ipynb"] as &[&str], "nbconvert"),
        (&["-c", "from nbclient.cli import main; main()", "a.ipynb"], "batch"),
    ] {
        let home = JupyterHome::new();
        let mut batch = home.run_batch(&python, arguments);
        let kernel = batch.kernel;
        let facts = jupyter(&Machine::new(&one_gpu(&[kernel])), kernel);
        fs::write(home.path("done"), "").unwrap();
        assert!(batch.running.0.wait().unwrap().success(), "{application}");
        assert_eq!(facts["application"], application, "{facts}");
        let path = home.path("a.ipynb");
        assert_eq!(facts["notebook_path"], path.to_str().unwrap(), "{facts}");
        assert_eq!(facts["server_alive"], true);
        for name in ["kernel_id", "server_url", "server_error", "execution_state"] {
            assert_eq!(facts[name], Value::Null, "{name}: {facts}");
        }
    }
}
