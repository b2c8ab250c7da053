//! `gpumem doctor` with notebook servers that hang, or whose runtime files contain the wrong port or scheme.

use serde_json::Value;

use super::{JupyterHome, assert_no_secret};
use crate::machine::{Machine, one_gpu};
use crate::support::finish;

/// Returns the checks of notebook servers, which can include the servers of other tests.
fn checks(home: &JupyterHome) -> Vec<Value> {
    let machine = Machine::new(&one_gpu(&[]));
    let mut command = machine.command(&["doctor", "--json"]);
    let output = finish(command.env("JUPYTER_RUNTIME_DIR", home.path("runtime")));
    assert_eq!((output.code, output.stderr.as_str()), (0, ""));
    assert_no_secret(&[&output.stdout]);
    let document = output.json();
    let checks = document["checks"].as_array().unwrap().iter();
    checks.filter(|check| check["id"] == "notebooks").cloned().collect()
}

/// Returns the check that mentions `name`.
pub fn check_of(home: &JupyterHome, name: &str) -> Option<Value> {
    checks(home).into_iter().find(|check| check["seen"].as_str().unwrap().contains(name))
}

#[test]
fn doctor_limits_servers_that_hang_or_claim_https() {
    for (arguments, words) in [
        (&["hang"][..], "no answer for 3s"),
        (&["good", "secure=true"], "no answer for 3s"),
        (&["good", "port=1"], "does not listen on port 1"),
    ] {
        let home = JupyterHome::new();
        let fake = or_skip!(home.fake_server(arguments));
        let check = check_of(&home, &format!("(process {})", fake.server.pid())).unwrap();
        assert_eq!(check["verdict"], "limited", "{check}");
        assert!(check["seen"].as_str().unwrap().contains(words), "{check}");
        assert!(check["next"][0].is_string(), "{check}");
    }
}
