//! Completion of values: the output of `gpumem complete`, and the Tab key in real shells on a terminal.

use std::fs;
use std::path::Path;
use std::process::Command;

use mock_nvml::scene::{Fault, Scene};

use crate::machine::{Machine, Running, one_gpu};
use crate::pty::Terminal;
use crate::support::{self, Output, clean_environment, command, finish};

const PROMPT: &str = "READY>";

/// A machine whose driver is in a directory on the loader's search path.
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

    fn complete(&self, words: &[&str]) -> Output {
        let mut command = command(&["complete", "--", "gpumem"]);
        self.environment(&mut command);
        finish(command.args(words))
    }

    fn values(&self, words: &[&str]) -> Vec<String> {
        let output = self.complete(words);
        assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{words:?}");
        let lines = output.stdout.lines();
        lines.map(|line| line.split_once('\t').unwrap().0.to_owned()).collect()
    }

    /// Starts a shell that reads the committed completions. Returns `None` if the shell is not installed.
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

fn assert_takes_commands(terminal: &mut Terminal) {
    // The quotes distinguish the typed command from the command's output.
    terminal.press("\x15echo ali\"\"ve\r");
    terminal.wait_for("output of echo", |text| text.lines().any(|line| line.trim_end() == "alive"));
}

/// Returns a name that creates the file `made` if a shell evaluates a part of the name.
fn hostile(made: &str) -> String {
    format!("$(touch {made});'\"`touch {made}` && touch {made} #.ipynb")
}

const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

#[test]
fn tab_describes_processes_and_runs_nothing() {
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
        assert_takes_commands(&mut terminal);
        assert!(!made.exists(), "{shell} ran code from a process's name");
    }
}

#[test]
fn a_completed_value_is_one_word() {
    let installed = Installed::new(&one_gpu(&[]));
    let made = installed.folder.path().join("b");
    let demo = support::run(&["ps", "--json", "--replay", support::short_demo()]);
    let mut snapshot = demo.json();
    for process in snapshot["processes"].as_array_mut().unwrap() {
        process["user"] = hostile(made.to_str().unwrap()).into();
    }
    let recording = installed.path("hostile.jsonl");
    fs::write(&recording, snapshot.to_string() + "\n").unwrap();
    for shell in SHELLS {
        let Some(mut terminal) = installed.shell(shell) else {
            continue;
        };
        terminal.press(&format!("gpumem ps --by user --replay {recording} --user \t"));
        terminal.wait_for("user", |text| text.contains("ipynb"));
        terminal.press("\r");
        // gpumem prints this total only if the shell has passed the whole name unchanged.
        terminal.wait_for("total", |text| text.contains("170.9 GiB"));
        assert_takes_commands(&mut terminal);
        assert!(!made.exists(), "{shell} ran code from a user's name");
    }
}

#[test]
fn without_a_driver_completion_is_empty_and_silent() {
    let mut broken = one_gpu(&[]);
    broken.init_error = Some(9);
    let installed = Installed::new(&broken);
    for words in [&["kill", ""][..], &["explain", ""], &["ps", "--gpu", ""]] {
        assert_eq!(installed.values(words), [""; 0], "{words:?}");
    }
    // A library on the command line is not loaded before the user presses Enter.
    let installed = Installed::new(&one_gpu(&[]));
    let library = installed.machine.library().to_str().unwrap();
    let none: [&str; 0] = [];
    assert_eq!(installed.values(&["--nvml-library", library, "ps", "--gpu", ""]), none);
    assert_eq!(installed.values(&["ps", "--replay", "/nonexistent", "--gpu", ""]), none);
    // Completion does not wait for a hung driver.
    let mut hung = one_gpu(&[]);
    hung.faults = vec![Fault::hang("nvmlInit_v2")];
    let installed = Installed::new(&hung);
    assert_eq!(installed.complete(&["kill", ""]).code, 0);
}
