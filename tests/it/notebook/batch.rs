//! Programs that run a notebook from its first cell to its last.

use std::fs;

use serde_json::Value;

use super::{Place, jupyter};
use crate::machine::{Machine, one_gpu};
use crate::support;

#[test]
fn programs_that_run_a_notebook_through_are_a_batch() {
    let python =
        or_skip!(support::python_with(&["papermill", "nbconvert", "nbclient", "ipykernel"]));
    // One after the other: each looks for ports that are free, and its kernel takes them a while later.
    for (arguments, application) in [
        (&["-m", "papermill", "a.ipynb", "out.ipynb"] as &[&str], "papermill"),
        (&["-m", "nbconvert", "--to", "notebook", "--execute", "a.ipynb"], "nbconvert"),
        (&["-c", "from nbclient.cli import main; main()", "a.ipynb"], "batch"),
    ] {
        let place = Place::new();
        let mut batch = place.run_through(&python, arguments);
        let kernel = batch.kernel;
        let shown = jupyter(&Machine::new(&one_gpu(&[kernel])), kernel);
        fs::write(place.path("done"), "").unwrap();
        assert!(batch.running.0.wait().unwrap().success(), "{application}");
        assert_eq!(shown["application"], application, "{shown}");
        let path = place.path("a.ipynb");
        assert_eq!(shown["notebook_path"], path.to_str().unwrap(), "{shown}");
        assert_eq!(shown["server_alive"], true);
        for name in ["kernel_id", "server_url", "server_error", "execution_state"] {
            assert_eq!(shown[name], Value::Null, "{name}: {shown}");
        }
    }
}
