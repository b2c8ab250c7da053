//! Notebook kernels that are ended: real servers are asked, real kernels end, and some are started
//! again. What NVML shows is made here; see `reclaim`.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use gpumem::api::host::Roots;
use gpumem::api::model::Kind;
use gpumem::api::reclaim::ledger::{Deed, LedgerSummary};
use gpumem::api::reclaim::{
    Because, KernelAtServer as Planned, Outcome, Reason, RequestResult, Signal, Step, Target,
    ask_server,
};
use rustix::process::Signal as Number;
use serde_json::{Value, json};

use crate::machine::{Machine, Running, one_gpu};
use crate::notebook::{Kernel, Place, Server, TOKEN, assert_no_secret, jupyter, script};
use crate::procs;
use crate::reclaim::{GIB, Stage, is_freed, sent};
use crate::support::{self, PATIENCE, wait_until};

pub mod kinds;

/// `sha1:SALT:HASH` of a password, as Jupyter keeps it.
const PASSWORD: &str = "open sesame";
const HASHED: &str = "sha1:0123456789ab:fd010cf6748116b1f90db728b0c26bcb33e079b8";

fn server(more: &[&str]) -> Option<Server> {
    let token = format!("--IdentityProvider.token={TOKEN}");
    Server::start(&[&[&*token], more].concat())
}

/// A notebook whose kernel has executed something and is idle.
fn idle(server: &Server) -> Kernel {
    let kernel = server.open("a.ipynb");
    assert!(server.drive(&kernel, "x = 1").0.wait().unwrap().success());
    wait_until("it is idle", || state(server, &kernel) == "idle");
    kernel
}

/// What the server says that a kernel does.
fn state(server: &Server, kernel: &Kernel) -> String {
    let model = server.request("GET", &format!("/api/kernels/{}", kernel.id), &Value::Null);
    model["execution_state"].as_str().unwrap().to_owned()
}

/// Has a kernel execute a cell until the file `done` is there.
fn busy(server: &Server, kernel: &Kernel) -> Running {
    let done = server.place.path("done");
    let code = format!("import os, time\nwhile not os.path.exists({done:?}): time.sleep(0.01)");
    let driver = server.drive(kernel, &code);
    wait_until("it is busy", || state(server, kernel) == "busy");
    driver
}

/// The target as it would be had a rule found it.
fn found(mut target: Target) -> Target {
    target.reason = Reason::Found {
        findings: vec![Because {
            id: "idle".into(),
            rule: "idle".into(),
            kind: Kind::Idle,
            pid: target.leader,
            since: gpumem::api::model::Time::from_unix_milliseconds(0),
            message: String::new(),
            evidence: Value::Null,
        }],
    };
    target
}

/// The kernel that the first step is about.
fn planned(target: &mut Target) -> &mut Planned {
    match target.steps.first_mut() {
        Some(Step::ShutKernel { kernel, .. }) => kernel,
        other => panic!("{other:?}"),
    }
}

/// What came of asking the server, by the ledger: `None` where it was not asked, else what failed.
fn asked(past: &LedgerSummary) -> Option<Vec<String>> {
    let deeds = past.acts.iter().flat_map(|act| &act.deeds);
    let mut asked = deeds.filter(|it| matches!(it.deed, Deed::ShutKernel { .. }));
    let failures = asked.next()?.failures.as_ref().unwrap();
    assert!(asked.next().is_none(), "{past:?}");
    let errors: Vec<String> = failures.iter().map(|it| it.error.clone()).collect();
    let all = format!("{past:?}");
    assert_no_secret(&[&all]);
    Some(errors)
}

/// What the server shows of its kernels and its notebooks.
fn shown(server: &Server) -> (Value, Value) {
    let get = |path| server.request("GET", path, &Value::Null);
    (get("/api/kernels"), get("/api/sessions"))
}

/// Each leaves the server without a kernel for the next one; the last ends the server.
#[test]
fn a_notebook_server_ends_its_kernels() {
    let mut server = or_skip!(server(&[]));
    an_idle_kernel_is_shut(&server);
    the_command_has_a_kernel_shut_and_shows_what_was_freed(&server);
    one_that_has_become_busy_is_left_to_who_named_it(&server);
    one_that_was_busy_since_the_plan_is_left_alone(&server);
    what_a_kernel_has_forked_does_not_cost_the_kernel(&server);
    one_that_was_started_again_is_not_the_one_that_was_meant(&server);
    one_that_is_only_signalled_is_started_again(&server);
    one_whose_server_has_died_since_is_signalled(&mut server);
}

/// Has the server shut a kernel that a test has left alive. One that the server is just starting again survives a
/// request that comes meanwhile, so it is asked until it shows none.
fn shut(server: &Server, kernel: &Kernel) {
    let authorization = format!("Authorization: token {TOKEN}\r\n");
    wait_until("the server has no kernel", || {
        let path = format!("/api/kernels/{}", kernel.id);
        server.answer("DELETE", &path, &Value::Null, &authorization);
        shown(server) == (json!([]), json!([]))
    });
}

fn an_idle_kernel_is_shut(server: &Server) {
    let kernel = idle(server);
    let mut stage = Stage::new(&[kernel.pid]);
    let target = found(stage.target());
    let (outcome, past) = stage.act(target);
    let freed = matches!(outcome, Outcome::Freed { bytes: GIB, .. });
    assert!(freed, "{outcome:?}");
    assert_eq!(asked(&past), Some(vec![]));
    assert!(sent(&past, kernel.pid).is_empty(), "{past:?}");
    assert_eq!(shown(server), (json!([]), json!([])));
    assert!(!kernel.connection_file.exists());
}

fn the_command_has_a_kernel_shut_and_shows_what_was_freed(server: &Server) {
    let kernel = idle(server);
    let machine = Machine::new(&one_gpu(&[kernel.pid]));
    let (process, scene) = (format!("/proc/{}", kernel.pid), machine.path("scene.json"));
    thread::spawn(move || {
        while fs::exists(&process).unwrap_or(false) {
            thread::sleep(Duration::from_millis(10));
        }
        // The test may be over.
        let _ = one_gpu(&[]).write(&scene);
    });
    let output = machine.act(&["reap", "--yes", "--json", "--pid", &kernel.pid.to_string()]);
    let ledger = fs::read_to_string(machine.path("state/reap.jsonl")).unwrap_or_default();
    assert_no_secret(&[&output.stdout, &output.stderr, &ledger]);
    let report = output.json();
    if machine.snapshot(0).0["host"]["pid_namespace"] != "host" {
        // It holds no GPU's file here, so that the number may be another's.
        let why = &report["refused"][0]["why"]["protection"]["reason"];
        assert_eq!(why, "other_namespace", "{output:?}");
        assert_eq!(state(server, &kernel), "idle");
        return shut(server, &kernel);
    }
    assert_eq!(output.code, 0, "{output:?}");
    assert_eq!(report["freed_bytes"], 2 * GIB);
    assert_eq!(shown(server), (json!([]), json!([])));
    assert!(!ledger.contains("SIGTERM"), "{ledger}");
}

fn one_that_has_become_busy_is_left_to_who_named_it(server: &Server) {
    let kernel = idle(server);
    let mut stage = Stage::new(&[kernel.pid]);
    let target = stage.target();
    let _driver = busy(server, &kernel);
    let (outcome, past) = stage.act(found(target.clone()));
    assert_eq!(outcome, Outcome::RuleNoLongerTrue);
    assert_eq!(asked(&past).unwrap(), ["it is working"]);
    assert!(sent(&past, kernel.pid).is_empty(), "{past:?}");
    assert_eq!(state(server, &kernel), "busy");

    let (outcome, _) = stage.act(target);
    assert!(is_freed(&outcome), "{outcome:?}");
    assert_eq!(shown(server), (json!([]), json!([])));
}

fn one_that_was_busy_since_the_plan_is_left_alone(server: &Server) {
    let kernel = idle(server);
    let mut stage = Stage::new(&[kernel.pid]);
    let mut target = found(stage.target());
    let model = server.request("GET", &format!("/api/kernels/{}", kernel.id), &Value::Null);
    let active = model["last_activity"].as_str().unwrap().parse().unwrap();
    planned(&mut target).last_activity = Some(active);
    assert!(server.drive(&kernel, "x = 2").0.wait().unwrap().success());
    wait_until("it is idle again", || state(server, &kernel) == "idle");
    let (outcome, past) = stage.act(target);
    assert_eq!(outcome, Outcome::RuleNoLongerTrue, "{past:?}");
    assert_eq!(state(server, &kernel), "idle");
    shut(server, &kernel);
}

fn one_that_is_only_signalled_is_started_again(server: &Server) {
    let kernel = idle(server);
    let mut stage = Stage::new(&[kernel.pid]);
    // Who insists.
    stage.guard.policy.direct = true;
    stage.guard.policy.signal = Some(Signal::Term);
    let mut target = stage.target();
    // A server on a busy machine is later than the plan expects.
    target.respawn_seconds = PATIENCE.as_secs_f64() / 2.0;
    let (outcome, past) = stage.act(target);
    assert_eq!(asked(&past), None);
    assert_eq!(sent(&past, kernel.pid), [Signal::Term]);
    let Outcome::Respawned { pid, .. } = outcome else {
        panic!("{outcome:?}");
    };
    let again = server.place.pid_with(&format!("kernel-{}.json", kernel.id));
    assert!(pid == again && pid != kernel.pid);
    assert!(outcome.to_string().contains("in its notebook"), "{outcome}");
    let (kernels, _) = shown(server);
    assert_eq!(kernels[0]["id"], kernel.id);
    shut(server, &kernel);
}

fn one_that_was_started_again_is_not_the_one_that_was_meant(server: &Server) {
    let kernel = idle(server);
    let mut stage = Stage::new(&[kernel.pid]);
    let mut target = stage.target();
    let path = format!("/api/kernels/{}/restart", kernel.id);
    server.request("POST", &path, &json!({}));
    let answer = ask_server(&Roots::default(), planned(&mut target), true, &[]);
    let RequestResult::Failed(why) = answer else {
        panic!("{answer:?}");
    };
    assert!(why.contains("not kernel") && why.contains("new plan"), "{why}");
    let (outcome, past) = stage.act(target);
    assert_eq!(outcome, Outcome::AlreadyGone);
    assert_eq!(asked(&past), None);
    let (kernels, _) = shown(server);
    assert_eq!(kernels[0]["id"], kernel.id);
    shut(server, &kernel);
}

fn what_a_kernel_has_forked_does_not_cost_the_kernel(server: &Server) {
    let kernel = idle(server);
    let fork = server.place.path("fork");
    let code = format!(
        "import os, time\npid = os.fork()\nif pid == 0:\n    os.setsid()\n    time.sleep(600)\n\
         open({fork:?}, 'w').write(str(pid))"
    );
    assert!(server.drive(&kernel, &code).0.wait().unwrap().success());
    let fork: u32 = fs::read_to_string(fork).unwrap().parse().unwrap();
    // It is called what it is.
    let machine = Machine::new(&one_gpu(&[kernel.pid, fork]));
    wait_until("both are called what they are", || {
        let output = machine.run(&["ps"]);
        ["[notebook a.ipynb]", "[worker of notebook a.ipynb]"]
            .iter()
            .all(|name| output.stdout.matches(name).count() == 1)
    });
    let mut target = Stage::new(&[kernel.pid]).target();
    let kernel_step = planned(&mut target);
    kernel_step.pid = fork;
    kernel_step.start_ticks =
        gpumem::api::host::read_start_ticks("/proc".as_ref(), fork).unwrap().unwrap();
    let answer = ask_server(&Roots::default(), kernel_step, true, &[]);
    let RequestResult::Restarts(why) = answer else {
        panic!("{answer:?}");
    };
    let expected = format!("process {} was started as the same kernel", kernel.pid);
    assert!(why.contains(&expected), "{why}");
    assert_eq!(state(server, &kernel), "idle");
    procs::send(fork, Number::KILL);
    shut(server, &kernel);
}

#[test]
fn a_kernel_of_a_server_that_takes_a_password_is_left_to_it() {
    let hashed = format!("--PasswordIdentityProvider.hashed_password={HASHED}");
    let server = or_skip!(Server::start(&[&hashed, "--IdentityProvider.token="]));
    let url = format!("http://localhost:{}/", server.file["port"]);
    let mut login = Command::new(&server.python);
    login.arg(script("login.py")).args([&url, PASSWORD, "a.ipynb"]);
    let login = support::finish(&mut login).exits(0);
    let kernel = server.kernel(login.stdout.trim());
    let mut stage = Stage::new(&[kernel.pid]);
    // Its file does not tell that it takes a password, so that the plan asks, and sends nothing after.
    let (outcome, past) = stage.end();
    let errors = asked(&past).unwrap();
    assert!(errors[0].contains("password only"), "{errors:?}");
    assert!(sent(&past, kernel.pid).is_empty(), "{past:?}");
    let words = outcome.to_string();
    assert!(words.contains("in its notebook") && words.contains("password"), "{words}");
    assert!(!outcome.is_success());
    let file = format!("kernel-{}.json", kernel.id);
    assert_eq!(server.place.pid_with(&file), kernel.pid);
}

fn one_whose_server_has_died_since_is_signalled(server: &mut Server) {
    let kernel = idle(server);
    let mut stage = Stage::new(&[kernel.pid]);
    let target = stage.target();
    // As one that cannot see its parent die, because its interpreter is held up.
    procs::send(kernel.pid, Number::STOP);
    server.running.0.kill().unwrap();
    server.running.0.wait().unwrap();
    let file = format!("runtime/jpserver-{}.json", server.running.pid());
    assert!(server.place.path(&file).exists(), "it is stale");
    // A plan that is made now signals the kernel: no server is left to start it again.
    let later = stage.target();
    assert!(!later.is_advice(), "{later:?}");
    let (outcome, past) = stage.act(target);
    assert!(is_freed(&outcome), "{outcome:?}");
    let errors = asked(&past).unwrap();
    assert!(errors[0].contains("has exited"), "{errors:?}");
    assert_eq!(sent(&past, kernel.pid), [Signal::Term, Signal::Cont]);
}

#[test]
fn a_server_that_does_not_answer_is_reported_once() {
    let place = Place::new();
    let fake = or_skip!(place.fake_server(&["deaf"]));
    let shut_requests = || {
        let requests = fs::read_to_string(place.path("requests")).unwrap_or_default();
        requests.matches("DELETE ").count()
    };
    // On a busy machine its answer to the question before may already be late, so that it is not asked further.
    wait_until("it is asked to shut its kernel down", || {
        let (outcome, past) = Stage::new(&[fake.kernel]).end();
        assert!(outcome.to_string().contains("in its notebook"), "{outcome:?}");
        assert!(sent(&past, fake.kernel).is_empty(), "{past:?}");
        shut_requests() > 0
    });
    assert_eq!(shut_requests(), 1);
}

#[test]
fn a_kernel_of_another_program_in_the_servers_folder_is_not_asked_for() {
    let external = tempfile::tempdir().unwrap();
    let folder = external.path().display();
    let allow = [
        "--ServerApp.allow_external_kernels=True".to_owned(),
        format!("--ServerApp.external_connection_dir={folder}"),
    ];
    let server = or_skip!(server(&[&allow[0], &allow[1]]));
    let id = "0a1b2c3d-0123-4567-89ab-00aa11bb22cc";
    let file = external.path().join(format!("kernel-{id}.json"));
    let code = format!(
        "import time\nfrom jupyter_client import KernelManager\n\
         manager = KernelManager(connection_file={:?})\nmanager.start_kernel()\ntime.sleep(600)",
        file.display().to_string()
    );
    let mut command = server.place.command(&server.python);
    let program = Running::start(command.args(["-c", &code]));
    wait_until("its kernel is there", || file.exists() && pid_of(&file).is_some());
    let kernel = pid_of(&file).unwrap();
    wait_until("the server has found it", || {
        let (kernels, _) = shown(&server);
        kernels.as_array().is_some_and(|it| it.len() == 1)
    });
    let mut stage = Stage::new(&[kernel]);
    let target = stage.target();
    assert!(matches!(target.steps[0], Step::Signal { .. }), "{target:?}");
    let (outcome, past) = stage.act(target);
    assert!(is_freed(&outcome), "{outcome:?}");
    assert_eq!(asked(&past), None);
    drop(program);
}

/// The process that was started with this connection file.
fn pid_of(file: &std::path::Path) -> Option<u32> {
    let file = file.to_str()?;
    let all = gpumem::api::host::read_all(&Roots::default()).ok()?;
    let is_it = |pid: &u32| {
        let argv = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let argv = String::from_utf8_lossy(&argv);
        argv.contains("ipykernel_launcher") && argv.contains(file)
    };
    all.iter().map(|it| it.pid).find(is_it)
}

#[test]
fn a_kernel_of_papermill_is_a_batch_and_papermill_reports_that_it_failed() {
    let python = or_skip!(support::python_with(&["papermill", "ipykernel"]));
    let place = Place::new();
    let mut batch = place.run_through(&python, &["-m", "papermill", "a.ipynb", "out.ipynb"]);
    let mut stage = Stage::new(&[batch.kernel]);
    let target = stage.target();
    assert!(matches!(target.steps[0], Step::Signal { .. }), "{target:?}");
    assert_eq!(target.respawn_seconds, 0.0);
    let pids: Vec<u32> = target.members.iter().map(|it| it.pid).collect();
    assert_eq!(pids, [batch.kernel]);
    let (outcome, past) = stage.act(target);
    assert!(is_freed(&outcome), "{outcome:?}");
    assert_eq!(asked(&past), None);
    let status = batch.running.0.wait().unwrap();
    assert!(!status.success(), "{status:?}");
}
