//! `gpumem release` and `gpumem reap` on notebooks of a real server: from what is typed, or what a rule finds, to
//! what NVML shows afterwards, and to the kernel that lives on.

use gpumem::api::model::Time;

use super::*;
use crate::machine::GIB;
use crate::notebook::{Kernel, Server, TOKEN};
use crate::reap::outcome;
use crate::support::Output;

/// Rules that find an idle notebook within a test.
const IDLE: &str = "[rules.idle]\nmin_memory = \"1GiB\"\nduration = \"2s\"\n";

/// 2 GiB of cache, and a variable beside it.
const CACHE: &str = "import torch\nkept = {'answer': 42}\n\
                     a = torch.empty(512 << 20, device='cuda'); del a";
/// As much, and 1.5 GiB of live tensors.
const LIVE: &str = "import torch\nkept = torch.empty(384 << 20, device='cuda')\n\
                    a = torch.empty(512 << 20, device='cuda'); del a";

/// As much cache again, after a release.
const AGAIN: &str = "a = torch.empty(512 << 20, device='cuda'); del a";

/// A notebook that is open at a server and has run a cell.
struct Notebook {
    machine: Machine,
    server: Server,
    kernel: Kernel,
    client: Client,
    /// Where the audit log is.
    state: PathBuf,
}

impl Notebook {
    /// `None`, after a printed reason, where there is no server; and where these pids may be another's: there it
    /// is seen that nobody is asked.
    fn open(cell: &str, configuration: &str) -> Option<Self> {
        let machine = Machine::new(&Scene::new());
        machine.configure(configuration);
        let token = format!("--IdentityProvider.token={TOKEN}");
        let server = Server::start_with(&[&token], |command| {
            plant(command, &machine);
        })?;
        let kernel = server.open("deep/thought.ipynb");
        let client = Client::connect(&server.place, &server.python, &kernel.connection_file);
        let state = machine.path("state");
        let mut notebook = Self { machine, server, kernel, client, state };
        notebook.again("first", cell);
        if notebook.machine.snapshot(0).0["host"]["pid_namespace"] == "host" {
            return Some(notebook);
        }
        let output = notebook.run(&["release", "--yes", "--json", &notebook.pid()]);
        assert_eq!(output.json()["targets"], json!([]), "{output:?}");
        assert!(notebook.lines().is_empty());
        None
    }

    /// Runs a cell, for what comes with an audit log of its own.
    fn again(&mut self, state: &str, cell: &str) {
        self.state = self.machine.path(state);
        self.client.run(cell);
        support::wait_until("the server has heard that it is idle", || {
            self.model()["execution_state"] == "idle"
        });
    }

    fn pid(&self) -> String {
        self.kernel.pid.to_string()
    }

    /// What the server says of the kernel; `null` where it has none any more.
    fn model(&self) -> Value {
        let kernels = self.server.request("GET", "/api/kernels", &Value::Null);
        let mut kernels = kernels.as_array().unwrap().iter();
        let model = kernels.find(|it| it["id"] == *self.kernel.id);
        model.cloned().unwrap_or_default()
    }

    /// What NVML shows that it holds.
    fn used(&self) -> Option<u64> {
        used(&self.machine, self.kernel.pid)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.machine.command(arguments);
        command.env("STATE_DIRECTORY", &self.state);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let output = support::finish(&mut self.command(arguments));
        let ledger = fs::read_to_string(self.ledger()).unwrap_or_default();
        assert_no_secret(&[&output.stdout, &output.stderr, &ledger]);
        output
    }

    fn ledger(&self) -> PathBuf {
        self.state.join("reap.jsonl")
    }

    /// The audit log's lines that are whole.
    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.ledger()).unwrap_or_default();
        let lines = text.lines().map(serde_json::from_str);
        lines.filter_map(Result::ok).collect()
    }

    /// The deeds that the audit log says were begun.
    fn deeds(&self) -> Vec<Value> {
        let lines = self.lines().into_iter();
        let intended = lines.filter(|line| line["event"] == "intended");
        intended.map(|line| line["deed"].clone()).collect()
    }

    /// What `gpumem reap` finds idle, and how it was known; nothing is done.
    fn idle_since(&self) -> Time {
        let found = self.run(&["check", "--json", "--window", "4s"]);
        let document = found.json();
        let findings = document["findings"].as_array().unwrap().iter();
        let idle = findings.filter(|it| it["kind"] == "idle").collect::<Vec<_>>();
        assert_eq!(idle.len(), 1, "{found:?}");
        let last = idle[0]["evidence"]["last_activity"].as_str();
        last.unwrap_or_else(|| panic!("{found:?}")).parse().unwrap()
    }
}

#[test]
fn a_notebook_with_cache_only_gives_it_back_and_lives() {
    let mut notebook = or_skip!(Notebook::open(CACHE, IDLE));
    one_that_is_named_gives_its_cache_back_and_keeps_its_variables(&mut notebook);
    notebook.again("second", AGAIN);
    a_rule_that_finds_cache_only_ends_with_the_kernel_alive(&mut notebook);
    notebook.again("third", AGAIN);
    one_that_runs_a_cell_is_busy_and_one_that_does_not_return_times_out(&mut notebook);
}

fn one_that_is_named_gives_its_cache_back_and_keeps_its_variables(notebook: &mut Notebook) {
    let before = notebook.client.state();
    assert_eq!(notebook.used(), Some(2 * GIB + 300 * MIB));
    let active: Time = notebook.model()["last_activity"].as_str().unwrap().parse().unwrap();
    let output = notebook.run(&["release", "thought.ipynb", "--yes", "--json"]).exits(0);
    let released = outcome(&output);
    assert_eq!(released["outcome"], "released", "{output:?}");
    assert_eq!(released["bytes"], json!(2 * GIB));
    assert_eq!(released["live_bytes"], 0, "{output:?}");
    assert_eq!(released["cached_bytes_left"], 0, "{output:?}");
    assert_eq!(notebook.used(), Some(300 * MIB));
    assert_eq!(notebook.deeds(), ["release"]);
    let way = &output.json()["targets"][0]["steps"][0]["way"];
    assert_eq!(
        (&way["by"], &way["kernel_id"], &way["notebook"]),
        (&json!("kernel"), &json!(notebook.kernel.id), &json!("deep/thought.ipynb"))
    );
    let kept: Time = way["last_activity"].as_str().unwrap().parse().unwrap();
    assert_eq!(kept, active, "what the server had seen before");
    // Not one name, output, count or line of history is another one.
    assert_eq!(notebook.client.state(), before);
    assert_eq!(notebook.client.run("print(kept['answer'])"), "42\n");
    // Nobody is held up again for nothing.
    let again = notebook.run(&["release", &notebook.pid(), "--yes", "--json"]);
    assert_eq!((again.code, &outcome(&again)["outcome"]), (1, &json!("refused")), "{again:?}");
    let history = notebook.run(&["reap", "--history"]);
    assert!(history.stdout.contains("released 2.0 GiB"), "{history:?}");
}

fn a_rule_that_finds_cache_only_ends_with_the_kernel_alive(notebook: &mut Notebook) {
    let before = notebook.client.state();
    let output =
        notebook.run(&["reap", "--kind", "idle", "--yes", "--json", "--window", "4s"]).exits(0);
    let released = outcome(&output);
    assert_eq!(
        (&released["outcome"], &released["bytes"]),
        (&json!("released"), &json!(2 * GIB)),
        "{output:?}"
    );
    assert_eq!(notebook.deeds(), ["release"]);
    assert_eq!(notebook.used(), Some(300 * MIB));
    assert_eq!(notebook.model()["id"], notebook.kernel.id);
    assert_eq!(notebook.client.state(), before);
    assert_eq!(notebook.client.run("print(kept['answer'])"), "42\n");
}

#[test]
fn a_notebook_with_live_tensors_keeps_them_until_a_rule_has_it_shut() {
    let mut notebook = or_skip!(Notebook::open(LIVE, IDLE));
    a_later_gpumem_does_not_take_a_release_for_the_users_work(&notebook);
    notebook.again("second", AGAIN);
    unattended_a_rule_releases_once_and_kills_no_process(&notebook);
    notebook.again("third", AGAIN);
    a_rule_that_still_holds_after_the_release_has_the_server_shut_the_kernel(&notebook);
}

fn a_rule_that_still_holds_after_the_release_has_the_server_shut_the_kernel(notebook: &Notebook) {
    let output =
        notebook.run(&["reap", "--kind", "idle", "--yes", "--json", "--window", "4s"]).exits(0);
    assert_eq!(outcome(&output)["outcome"], "freed", "{output:?}");
    assert_eq!(notebook.deeds(), ["release", "shut_kernel"]);
    assert_eq!(notebook.model(), Value::Null);
    assert_eq!(notebook.used(), None);
}

fn a_later_gpumem_does_not_take_a_release_for_the_users_work(notebook: &Notebook) {
    let before = notebook.idle_since();
    let output = notebook.run(&["release", &notebook.kernel.id, "--yes", "--json"]);
    let released = outcome(&output);
    assert_eq!(
        (&released["outcome"], &released["live_bytes"]),
        (&json!("released"), &json!(1536 * MIB)),
        "{output:?}"
    );
    let active: Time = notebook.model()["last_activity"].as_str().unwrap().parse().unwrap();
    assert!(active > before, "the server has taken it for activity");
    assert_eq!(notebook.idle_since(), before, "a timer's next run has not");
    // It is the audit log that tells.
    fs::remove_file(notebook.ledger()).unwrap();
    assert!(notebook.idle_since() > before);
}

fn unattended_a_rule_releases_once_and_kills_no_process(notebook: &Notebook) {
    let rule = format!("[sample]\ninterval = \"200ms\"\n{IDLE}action = \"release\"\n");
    notebook.machine.configure(&rule);
    let mut command = notebook.command(&["reap", "--watch", "--no-store"]);
    let service = Running::start(&mut command);
    support::wait_until("it has released", || {
        notebook.lines().iter().any(|line| line["event"] == "ended")
    });
    let lines = notebook.lines();
    let ended = lines.iter().find(|line| line["event"] == "ended").unwrap();
    assert_eq!(ended["outcome"], "released", "{lines:?}");
    assert_eq!(ended["bytes"], json!(2 * GIB), "{lines:?}");
    // What is left is above what the rule asks for, and stays found: it is not asked again, nor killed.
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert_eq!(notebook.deeds(), ["release"]);
    assert_eq!(notebook.used(), Some(1536 * MIB + 300 * MIB));
    assert_eq!(notebook.model()["id"], notebook.kernel.id);
    drop(service);
    notebook.machine.configure(IDLE);
}

fn one_that_runs_a_cell_is_busy_and_one_that_does_not_return_times_out(notebook: &mut Notebook) {
    let done = notebook.machine.path("done");
    let waits = format!("import os, time\nwhile not os.path.exists({done:?}): time.sleep(0.01)");
    notebook.client.send(&json!({"run": waits}));
    support::wait_until("it is busy", || notebook.model()["execution_state"] == "busy");
    let output = notebook.run(&["release", &notebook.pid(), "--yes", "--json"]);
    assert_eq!((output.code, &outcome(&output)["outcome"]), (1, &json!("busy")), "{output:?}");
    assert!(notebook.lines().is_empty(), "nothing was asked of it");
    fs::write(&done, "").unwrap();
    assert_eq!(notebook.client.answer()["status"], "ok");

    notebook.client.run("torch.cuda.empty_cache = lambda: time.sleep(14)");
    let output = notebook.run(&["release", &notebook.pid(), "--yes", "--json", "--wait", "8s"]);
    assert_eq!((output.code, &outcome(&output)["outcome"]), (1, &json!("timed_out")), "{output:?}");
    assert_eq!(notebook.deeds(), ["release"]);
    assert_eq!(notebook.client.run("print(kept['answer'])"), "42\n");
}
