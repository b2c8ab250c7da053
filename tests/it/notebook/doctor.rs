//! What `gpumem doctor` says of servers: real ones, one that hangs, one that only says that it speaks HTTPS, one that is gone.

use serde_json::Value;

use super::{Place, Server, TOKEN, assert_no_secret};
use crate::machine::{Machine, one_gpu};
use crate::support::{finish, wait_until};

/// What is said of servers, by a doctor to whom this folder is known. Those of other tests are among them.
fn checks(place: &Place) -> Vec<Value> {
    let machine = Machine::new(&one_gpu(&[]));
    let mut command = machine.command(&["doctor", "--json"]);
    let output = finish(command.env("JUPYTER_RUNTIME_DIR", place.path("runtime")));
    assert_eq!((output.code, output.stderr.as_str()), (0, ""));
    assert_no_secret(&[&output.stdout]);
    let document = output.json();
    let checks = document["checks"].as_array().unwrap().iter();
    checks.filter(|check| check["id"] == "notebooks").cloned().collect()
}

/// The check that names this, with its verdict.
fn about(place: &Place, name: &str) -> Option<(String, Value)> {
    let found = checks(place);
    let check = found.into_iter().find(|it| it["seen"].as_str().unwrap().contains(name))?;
    Some((check["verdict"].as_str().unwrap().to_owned(), check))
}

fn name(file: &Value, pid: u32) -> String {
    format!("http://localhost:{}/ (process {pid})", file["port"])
}

#[test]
fn a_server_is_asked_with_its_token_and_what_it_leaves_behind_is_stale() {
    let server = or_skip!(Server::start(&[&format!("--IdentityProvider.token={TOKEN}")]));
    let name = name(&server.file, server.running.pid());
    wait_until("the server answers", || {
        about(&server.place, &name).is_some_and(|(verdict, _)| verdict == "ok")
    });
    let file = server.place.server_file().0;
    let Server { place, running, .. } = server;
    drop(running);
    let (_, check) = about(&place, file.to_str().unwrap()).unwrap();
    assert!(check["seen"].as_str().unwrap().contains("left behind"), "{check}");
    assert!(file.exists());
    assert_eq!(about(&place, &name), None);
}

#[test]
fn a_server_that_hangs_and_one_that_only_claims_https_are_limits() {
    for (arguments, words) in [
        (&["hang"][..], "did not answer for 3s"),
        (&["good", "secure=true"], "did not answer for 3s"),
        (&["good", "port=1"], "does not listen on port 1"),
    ] {
        let place = Place::new();
        let fake = or_skip!(place.fake_server(arguments));
        let name = format!("(process {})", fake.server.pid());
        let (verdict, check) = about(&place, &name).unwrap();
        assert_eq!(verdict, "limited", "{check}");
        assert!(check["seen"].as_str().unwrap().contains(words), "{check}");
        assert!(check["next"][0].is_string(), "{check}");
    }
}
