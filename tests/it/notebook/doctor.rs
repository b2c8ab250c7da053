//! `gpumem doctor` with real notebook servers, a server that hangs, a server that wrongly announces HTTPS, and a
//! stale file.

use serde_json::Value;

use super::{JupyterHome, Server, TOKEN, assert_no_secret};
use crate::machine::{Machine, one_gpu};
use crate::support::{finish, wait_until};

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

/// Returns the check that mentions `name`, and its verdict.
fn check_of(home: &JupyterHome, name: &str) -> Option<(String, Value)> {
    let all = checks(home);
    let check = all.into_iter().find(|check| check["seen"].as_str().unwrap().contains(name))?;
    Some((check["verdict"].as_str().unwrap().to_owned(), check))
}

#[test]
fn doctor_checks_a_live_server_and_reports_a_stale_file() {
    let server = or_skip!(Server::start(&[&format!("--IdentityProvider.token={TOKEN}")]));
    let name =
        format!("http://localhost:{}/ (process {})", server.file["port"], server.running.pid());
    wait_until("the server answers", || {
        check_of(&server.home, &name).is_some_and(|(verdict, _)| verdict == "ok")
    });
    let file = server.home.server_file().0;
    let Server { home, running, .. } = server;
    drop(running);
    let (_, check) = check_of(&home, file.to_str().unwrap()).unwrap();
    assert!(check["seen"].as_str().unwrap().contains("left behind"), "{check}");
    assert!(file.exists());
    assert_eq!(check_of(&home, &name), None);
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
        let name = format!("(process {})", fake.server.pid());
        let (verdict, check) = check_of(&home, &name).unwrap();
        assert_eq!(verdict, "limited", "{check}");
        assert!(check["seen"].as_str().unwrap().contains(words), "{check}");
        assert!(check["next"][0].is_string(), "{check}");
    }
}
