//! `gpumem release` and `gpumem reap` free the memory of notebooks on a real server, and the kernels survive.

use gpumem::api::model::Time;

use super::*;
use crate::machine::GIB;
use crate::notebook::{Kernel, Server, TOKEN};
use crate::reap::outcome;
use crate::support::Output;

/// A rule with a short duration.
const IDLE: &str = "[rules.idle]\nmin_memory = \"1GiB\"\nduration = \"2s\"\n";

/// A cell that leaves 2 GiB of cache and a variable behind.
const CACHE: &str = "import torch\nkept = {'answer': 42}\n\
                     a = torch.empty(512 << 20, device='cuda'); del a";
/// A cell that leaves 2 GiB of cache and 1.5 GiB of live tensors behind.
const LIVE: &str = "import torch\nkept = torch.empty(384 << 20, device='cuda')\n\
                    a = torch.empty(512 << 20, device='cuda'); del a";

/// A cell that fills 2 GiB of cache again.
const CACHE_AGAIN: &str = "a = torch.empty(512 << 20, device='cuda'); del a";

/// A notebook that is open on a server and has run a cell.
struct Notebook {
    machine: Machine,
    server: Server,
    kernel: Kernel,
    client: Client,
    /// The directory of the audit log.
    state: PathBuf,
}

impl Notebook {
    /// Opens a notebook, and runs `cell`. If Jupyter is missing, prints the reason and returns `None`. In another pid
    /// namespace, asserts that gpumem sends no request to the kernel, and returns `None`.
    fn open(cell: &str, configuration: &str) -> Option<Self> {
        let machine = Machine::new(&Scene::new());
        machine.configure(configuration);
        let token = format!("--IdentityProvider.token={TOKEN}");
        let server = Server::start_with(&[&token], |command| {
            use_modules(command, &machine);
        })?;
        let kernel = server.open("deep/thought.ipynb");
        let client = Client::connect(&server.home, &server.python, &kernel.connection_file);
        let state = machine.path("state");
        let mut notebook = Self { machine, server, kernel, client, state };
        notebook.run_cell_with_new_log("first", cell);
        if notebook.machine.snapshot(0).0["host"]["pid_namespace"] == "host" {
            return Some(notebook);
        }
        let output = notebook.run(&["release", "--yes", "--json", &notebook.pid()]);
        assert_eq!(output.json()["targets"], json!([]), "{output:?}");
        assert!(notebook.lines().is_empty());
        None
    }

    /// Runs a cell, and switches to a new audit log.
    fn run_cell_with_new_log(&mut self, state: &str, cell: &str) {
        self.state = self.machine.path(state);
        self.client.run(cell);
        support::wait_until("the server reports the kernel as idle", || {
            self.model()["execution_state"] == "idle"
        });
    }

    fn pid(&self) -> String {
        self.kernel.pid.to_string()
    }

    /// Returns the server's data about the kernel, or `null` if the kernel is gone.
    fn model(&self) -> Value {
        let kernels = self.server.request("GET", "/api/kernels", &Value::Null);
        let mut kernels = kernels.as_array().unwrap().iter();
        let model = kernels.find(|kernel| kernel["id"] == *self.kernel.id);
        model.cloned().unwrap_or_default()
    }

    fn used_bytes(&self) -> Option<u64> {
        used_bytes(&self.machine, self.kernel.pid)
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

    /// Returns the complete lines of the audit log.
    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.ledger()).unwrap_or_default();
        let lines = text.lines().map(serde_json::from_str);
        lines.filter_map(Result::ok).collect()
    }

    /// Returns the actions that gpumem has begun, according to the audit log.
    fn deeds(&self) -> Vec<Value> {
        let lines = self.lines().into_iter();
        let intended = lines.filter(|line| line["event"] == "intended");
        intended.map(|line| line["deed"].clone()).collect()
    }

    /// Returns the time of the last activity in the only idle finding.
    fn idle_since(&self) -> Time {
        let check = self.run(&["check", "--json", "--window", "4s"]);
        let document = check.json();
        let findings = document["findings"].as_array().unwrap().iter();
        let idle = findings.filter(|finding| finding["kind"] == "idle").collect::<Vec<_>>();
        assert_eq!(idle.len(), 1, "{check:?}");
        let last = idle[0]["evidence"]["last_activity"].as_str();
        last.unwrap_or_else(|| panic!("{check:?}")).parse().unwrap()
    }
}

#[test]
fn a_notebook_with_only_cache_frees_it_and_lives() {
    let mut notebook = or_skip!(Notebook::open(CACHE, IDLE));
    assert_release_frees_the_cache_and_keeps_variables(&mut notebook);
    notebook.run_cell_with_new_log("second", CACHE_AGAIN);
    assert_reap_frees_only_the_cache(&mut notebook);
    notebook.run_cell_with_new_log("third", CACHE_AGAIN);
    assert_busy_and_slow_kernels_are_reported(&mut notebook);
}

fn assert_release_frees_the_cache_and_keeps_variables(notebook: &mut Notebook) {
    let before = notebook.client.state();
    assert_eq!(notebook.used_bytes(), Some(2 * GIB + 300 * MIB));
    let active: Time = notebook.model()["last_activity"].as_str().unwrap().parse().unwrap();
    let output = notebook.run(&["release", "thought.ipynb", "--yes", "--json"]).exits(0);
    let released = outcome(&output);
    assert_eq!(released["outcome"], "released", "{output:?}");
    assert_eq!(released["bytes"], json!(2 * GIB));
    assert_eq!(released["live_bytes"], 0, "{output:?}");
    assert_eq!(released["cached_bytes_left"], 0, "{output:?}");
    assert_eq!(notebook.used_bytes(), Some(300 * MIB));
    assert_eq!(notebook.deeds(), ["release"]);
    let way = &output.json()["targets"][0]["steps"][0]["way"];
    assert_eq!(
        (&way["by"], &way["kernel_id"], &way["notebook"]),
        (&json!("kernel"), &json!(notebook.kernel.id), &json!("deep/thought.ipynb"))
    );
    let kept: Time = way["last_activity"].as_str().unwrap().parse().unwrap();
    assert_eq!(kept, active, "the server's last activity before the release");
    // The release changed no name, output, count or history in the kernel.
    assert_eq!(notebook.client.state(), before);
    assert_eq!(notebook.client.run("print(kept['answer'])"), "42\n");
    // gpumem refuses a second request, which would free nothing.
    let again = notebook.run(&["release", &notebook.pid(), "--yes", "--json"]);
    assert_eq!((again.code, &outcome(&again)["outcome"]), (1, &json!("refused")), "{again:?}");
}

fn assert_reap_frees_only_the_cache(notebook: &mut Notebook) {
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
    assert_eq!(notebook.used_bytes(), Some(300 * MIB));
    assert_eq!(notebook.model()["id"], notebook.kernel.id);
    assert_eq!(notebook.client.state(), before);
    assert_eq!(notebook.client.run("print(kept['answer'])"), "42\n");
}

#[test]
fn a_notebook_with_live_tensors_is_shut_down_by_a_rule() {
    let mut notebook = or_skip!(Notebook::open(LIVE, IDLE));
    assert_a_release_is_not_taken_for_activity(&notebook);
    notebook.run_cell_with_new_log("second", CACHE_AGAIN);
    assert_the_service_releases_once_and_kills_no_process(&notebook);
    notebook.run_cell_with_new_log("third", CACHE_AGAIN);
    assert_reap_shuts_the_kernel_down_after_the_release(&notebook);
}

fn assert_reap_shuts_the_kernel_down_after_the_release(notebook: &Notebook) {
    let output =
        notebook.run(&["reap", "--kind", "idle", "--yes", "--json", "--window", "4s"]).exits(0);
    assert_eq!(outcome(&output)["outcome"], "freed", "{output:?}");
    assert_eq!(notebook.deeds(), ["release", "shut_kernel"]);
    assert_eq!(notebook.model(), Value::Null);
    assert_eq!(notebook.used_bytes(), None);
}

fn assert_a_release_is_not_taken_for_activity(notebook: &Notebook) {
    let before = notebook.idle_since();
    let output = notebook.run(&["release", &notebook.kernel.id, "--yes", "--json"]);
    let released = outcome(&output);
    assert_eq!(
        (&released["outcome"], &released["live_bytes"]),
        (&json!("released"), &json!(1536 * MIB)),
        "{output:?}"
    );
    let active: Time = notebook.model()["last_activity"].as_str().unwrap().parse().unwrap();
    assert!(active > before, "the server counts the release as activity");
    assert_eq!(notebook.idle_since(), before, "gpumem does not");
    // Without the audit log, gpumem mistakes its own request for activity.
    fs::remove_file(notebook.ledger()).unwrap();
    assert!(notebook.idle_since() > before);
}

fn assert_the_service_releases_once_and_kills_no_process(notebook: &Notebook) {
    let rule = format!("[sample]\ninterval = \"200ms\"\n{IDLE}action = \"release\"\n");
    notebook.machine.configure(&rule);
    let mut command = notebook.command(&["reap", "--watch", "--no-store"]);
    let service = Running::start(&mut command);
    support::wait_until("the release has ended", || {
        notebook.lines().iter().any(|line| line["event"] == "ended")
    });
    let lines = notebook.lines();
    let ended = lines.iter().find(|line| line["event"] == "ended").unwrap();
    assert_eq!(ended["outcome"], "released", "{lines:?}");
    assert_eq!(ended["bytes"], json!(2 * GIB), "{lines:?}");
    // The kernel still holds more than the rule's minimum, but gpumem neither repeats the request nor kills the kernel.
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert_eq!(notebook.deeds(), ["release"]);
    assert_eq!(notebook.used_bytes(), Some(1536 * MIB + 300 * MIB));
    assert_eq!(notebook.model()["id"], notebook.kernel.id);
    drop(service);
    notebook.machine.configure(IDLE);
}

fn assert_busy_and_slow_kernels_are_reported(notebook: &mut Notebook) {
    let done = notebook.machine.path("done");
    let cell = format!("import os, time\nwhile not os.path.exists({done:?}): time.sleep(0.01)");
    notebook.client.send(&json!({"run": cell}));
    support::wait_until("the kernel is busy", || notebook.model()["execution_state"] == "busy");
    let output = notebook.run(&["release", &notebook.pid(), "--yes", "--json"]);
    assert_eq!((output.code, &outcome(&output)["outcome"]), (1, &json!("busy")), "{output:?}");
    assert!(notebook.lines().is_empty(), "a busy kernel must not be asked");
    fs::write(&done, "").unwrap();
    assert_eq!(notebook.client.answer()["status"], "ok");

    notebook.client.run("torch.cuda.empty_cache = lambda: time.sleep(14)");
    let output = notebook.run(&["release", &notebook.pid(), "--yes", "--json", "--wait", "8s"]);
    assert_eq!((output.code, &outcome(&output)["outcome"]), (1, &json!("timed_out")), "{output:?}");
    assert_eq!(notebook.deeds(), ["release"]);
    assert_eq!(notebook.client.run("print(kept['answer'])"), "42\n");
}
