//! Completion of values: what `gpumem complete` prints, and real shells on a terminal that press Tab.

use std::fs;
use std::path::Path;
use std::process::Command;

use mock_nvml::scene::{Fault, Scene};

use crate::machine::{Machine, Running, one_gpu};
use crate::pty::Terminal;
use crate::support::{self, Output, clean_environment, command, finish};

/// What a shell prints where it takes a command.
const PROMPT: &str = "READY>";

/// A machine whose driver is where the loader looks for it.
struct Installed {
    machine: Machine,
    folder: tempfile::TempDir,
}

impl Installed {
    fn new(scene: &Scene) -> Self {
        let machine = Machine::new(scene);
        let folder = tempfile::tempdir().unwrap();
        let drivers = folder.path().join("lib");
        fs::create_dir(&drivers).unwrap();
        fs::copy(machine.library(), drivers.join("libnvidia-ml.so.1")).unwrap();
        Self { machine, folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn environment(&self, command: &mut Command) {
        clean_environment(command);
        self.machine.environment(command);
        let program = Path::new(support::gpumem()).parent().unwrap();
        let path = std::env::var("PATH").unwrap();
        command
            .env("LD_LIBRARY_PATH", self.folder.path().join("lib"))
            .env("PATH", format!("{}:{path}", program.display()))
            .env("HOME", self.folder.path())
            .env("ZDOTDIR", self.folder.path())
            .env("XDG_DATA_HOME", self.folder.path())
            .current_dir(self.folder.path());
    }

    /// What is offered at the end of these words.
    fn complete(&self, words: &[&str]) -> Output {
        let mut command = command(&["complete", "--", "gpumem"]);
        self.environment(&mut command);
        finish(command.args(words))
    }

    /// What is offered, without descriptions.
    fn values(&self, words: &[&str]) -> Vec<String> {
        let output = self.complete(words);
        assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{words:?}");
        let lines = output.stdout.lines();
        lines.map(|line| line.split_once('\t').unwrap().0.to_owned()).collect()
    }

    /// A shell that has read the committed completions; `None` where it is not installed.
    fn shell(&self, name: &str) -> Option<Terminal> {
        let shell = support::find(name, name)?;
        let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/completions");
        let mut command = Command::new(shell);
        match name {
            "bash" => {
                let rc = self.path("bashrc");
                let text = format!(
                    "source {scripts}/gpumem.bash\nbind 'set show-all-if-ambiguous on'\n\
                     bind 'set bell-style none'\nPS1='{PROMPT} '\n"
                );
                fs::write(&rc, text).unwrap();
                command.args(["--noprofile", "--rcfile", &rc, "-i"]);
            }
            "zsh" => {
                let text = format!(
                    "fpath=({scripts} $fpath)\nautoload -U compinit\ncompinit -u -D\nunsetopt beep list_ambiguous\n\
                     PS1='{PROMPT} '\n"
                );
                fs::write(self.path(".zshrc"), text).unwrap();
                command.arg("-i");
            }
            _ => {
                let start = format!(
                    "source {scripts}/gpumem.fish; function fish_prompt; echo '{PROMPT} '; end; \
                     set fish_greeting"
                );
                command.args(["--no-config", "--init-command", &start]);
            }
        }
        self.environment(&mut command);
        let terminal = Terminal::start(&[], &command, 40, 160);
        terminal.wait_for("prompt", |text| text.contains(PROMPT));
        Some(terminal)
    }
}

/// A shell that takes commands prints this, whatever was typed before.
fn still_takes_commands(terminal: &mut Terminal) {
    // As a line of its own: not what is typed.
    terminal.press("\x15echo ali\"\"ve\r");
    terminal.wait_for("sign of life", |text| text.lines().any(|line| line.trim_end() == "alive"));
}

/// A name that makes this file where a shell runs a part of it.
fn hostile(made: &str) -> String {
    format!("$(touch {made});'\"`touch {made}` && touch {made} #.ipynb")
}

const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

#[test]
fn tab_offers_the_processes_with_what_they_are_and_runs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("a");
    let name = format!("\n9999\tno pid\x1b[31m{}", hostile(made.to_str().unwrap()));
    let quiet = Running::sleep();
    let named = {
        let mut command = Command::new("sleep");
        std::os::unix::process::CommandExt::arg0(&mut command, &name);
        Running::start(command.arg("600"))
    };
    let installed = Installed::new(&one_gpu(&[quiet.pid(), named.pid()]));
    let pids = [quiet.pid().to_string(), named.pid().to_string()];
    for shell in SHELLS {
        let Some(mut terminal) = installed.shell(shell) else {
            continue;
        };
        terminal.press("gpumem kill \t");
        let text = terminal.wait_for("pids", |text| pids.iter().all(|pid| text.contains(pid)));
        for part in ["sleep 600", "2.0 GiB", "GPU 0", "\\n9999\\tno pid\\e[31m"] {
            assert!(text.contains(part), "{shell} shows no {part}:\n{text}");
        }
        still_takes_commands(&mut terminal);
        assert!(!made.exists(), "{shell} has run a process's name");
    }
}

#[test]
fn the_largest_process_is_offered_first() {
    let installed = Installed::new(&one_gpu(&[]));
    for shell in SHELLS {
        let Some(mut terminal) = installed.shell(shell) else {
            continue;
        };
        terminal.press("gpumem reap --demo --pid \t");
        let text = terminal.wait_for("pids", |text| text.contains("2914"));
        // By their numbers the last would be among the first.
        let places = ["412301", "398120", "207344", "402519", "2914"].map(|pid| text.find(pid));
        assert!(places.is_sorted() && places[0].is_some(), "{shell}:\n{text}");
        still_takes_commands(&mut terminal);
    }
}

#[test]
fn what_is_inserted_is_one_word_whatever_is_in_it() {
    let installed = Installed::new(&one_gpu(&[]));
    let made = installed.folder.path().join("b");
    let demo = support::run(&["ps", "--json", "--demo"]);
    let mut snapshot = demo.json();
    let processes = snapshot["processes"].as_array_mut().unwrap().iter_mut();
    for process in processes.filter(|process| !process["jupyter"].is_null()) {
        process["jupyter"]["notebook_path"] = hostile(made.to_str().unwrap()).into();
    }
    let recording = installed.path("hostile.jsonl");
    fs::write(&recording, snapshot.to_string() + "\n").unwrap();
    for shell in SHELLS {
        let Some(mut terminal) = installed.shell(shell) else {
            continue;
        };
        let typed = format!("gpumem reap --dry-run --replay {recording} --notebook ");
        terminal.press(&format!("{typed}\t"));
        terminal.wait_for("notebook", |text| text.contains("ipynb"));
        terminal.press("\r");
        // It was found by this name: every character of it arrived.
        terminal.wait_for("plan", |text| text.contains("you named it"));
        still_takes_commands(&mut terminal);
        assert!(!made.exists(), "{shell} has run a notebook's name");
    }
}

#[test]
fn words_with_colons_and_equal_signs_are_completed_and_the_rest_is_as_before() {
    let installed = Installed::new(&one_gpu(&[]));
    for shell in SHELLS {
        let Some(mut terminal) = installed.shell(shell) else {
            continue;
        };
        for (typed, completed) in [
            ("explain gpu:", "gpumem explain gpu:0"),
            ("ps --gpu=", "gpumem ps --gpu=0"),
            ("ps --gpu ", "gpumem ps --gpu 0"),
            ("explain --framework xla-nothing", "gpumem explain --framework xla-nothing"),
            ("explain --framework vl", "gpumem explain --framework vllm"),
            ("ps --where fin", "gpumem ps --where finding:"),
            ("ps --where 'finding:stra", "gpumem ps --where 'finding:stray-context'"),
            ("complet", "gpumem completions"),
            ("ps --sort cpu", "gpumem ps --sort cpu-time"),
        ] {
            terminal.press(&format!("\x15\x0cgpumem {typed}\t"));
            terminal.wait_for(completed, |text| text.contains(completed));
        }
        still_takes_commands(&mut terminal);
    }
}

#[test]
fn values_are_offered_where_they_are_typed() {
    let installed = Installed::new(&one_gpu(&[]));
    let demo = |words: &[&str]| {
        let (first, rest) = words.split_first().unwrap();
        installed.values(&[&[*first, "--demo"], rest].concat())
    };
    let pids = demo(&["reap", "--pid", ""]);
    assert!(pids.contains(&"412301".to_owned()), "{pids:?}");
    let more = demo(&["reap", "--pid", "412301,"]);
    assert!(more.contains(&"412301,398120".to_owned()), "{more:?}");
    let others = demo(&["reap", "--pid", "412301", "--pid", ""]);
    assert_eq!(others.len(), pids.len() - 1, "one is typed once");
    assert_eq!(demo(&["ps", "--gpu", ""]), ["0", "1", "2", "3"]);
    assert_eq!(demo(&["ps", "--gpu", "GPU-7"]).len(), 4);
    assert!(demo(&["ps", "--user", ""]).contains(&"ann".to_owned()));
    assert_eq!(demo(&["reap", "--notebook", ""]), ["thesis/fine-tune.ipynb"]);
    assert_eq!(demo(&["reap", "--kernel", ""]), ["4b1f6f0e-2a57-4c3d-9be4-d08a51c7f2e6"]);
    let terms = demo(&["ps", "--where", "!gpu:0 user:ann,"]);
    assert!(terms.contains(&"!gpu:0 user:ann,ben".to_owned()), "{terms:?}");
    let fields = demo(&["ps", "--where", ""]);
    for field in ["user:", "mem>4GiB", "container:", "job:"] {
        assert!(fields.contains(&field.to_owned()), "{fields:?}");
    }
    assert_eq!(demo(&["check", "--wait-free", "8GiB:"])[3], "8GiB:3");
    let findings = demo(&["explain", "orphan"]);
    let is_orphan = |id: &String| id.starts_with("orphan:GPU-");
    assert!(findings.iter().any(is_orphan), "{findings:?}");
    assert_eq!(installed.values(&["ps", "--gpu", ""]), ["0"], "this machine's");
    assert!(installed.values(&["rules", ""]).contains(&"leak".to_owned()));
    assert!(installed.values(&["man", ""]).contains(&"kill".to_owned()));
    // Files, options and commands are the shell's.
    for words in [&["ps", "--replay", ""][..], &["config", "check", ""], &["ki"], &["kill", "--"]] {
        let output = installed.complete(words);
        let expected = (1, "", "");
        let got = (output.code, output.stdout.as_str(), output.stderr.as_str());
        assert_eq!(got, expected, "{words:?}");
    }
}

#[test]
fn without_a_driver_nothing_is_offered_and_nothing_is_written() {
    let mut broken = one_gpu(&[]);
    broken.init_error = Some(9);
    let installed = Installed::new(&broken);
    for words in [&["kill", ""][..], &["explain", ""], &["ps", "--gpu", ""], &["explain", "id"]] {
        assert_eq!(installed.values(words), [""; 0], "{words:?}");
    }
    // A library that is only typed is not loaded.
    let installed = Installed::new(&one_gpu(&[]));
    let library = installed.machine.library().to_str().unwrap();
    let none: [&str; 0] = [];
    assert_eq!(installed.values(&["--nvml-library", library, "ps", "--gpu", ""]), none);
    assert_eq!(installed.values(&["ps", "--replay", "/nonexistent", "--gpu", ""]), none);
    // Nor is a hung driver waited for.
    let mut hung = one_gpu(&[]);
    hung.faults = vec![Fault::hang("nvmlInit_v2")];
    let installed = Installed::new(&hung);
    let begun = std::time::Instant::now();
    assert_eq!(installed.complete(&["kill", ""]).code, 0);
    // Other commands give it ten seconds to start.
    assert!(begun.elapsed().as_secs() < 9, "{:?}", begun.elapsed());
}
