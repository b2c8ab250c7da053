//! Names of processes for findings, plans and messages.
//!
//! Processes can choose their names, so this module limits their length, and the writer must escape them.

use std::sync::Arc;

use unicode_width::UnicodeWidthChar as _;

use super::process::{Parent, Process};
use super::program::{file_name, is_interpreter, is_spawned};

const LONGEST_NAME: usize = 60;

/// Returns a process's name for use in a sentence: a notebook's file, an interpreter with its script, or a program
/// with its subcommand. A process that has exited is named after its last known command line.
pub fn name_of(process: &Process) -> String {
    if let Some(ended) = process.ended() {
        return name_of(&ended.as_named());
    }
    let jupyter = process.jupyter.as_ref();
    if let Some(path) = jupyter.and_then(|jupyter| jupyter.notebook_path.as_deref()) {
        return cut(&match process.kernel_forked_from() {
            Some(_) => format!("worker of notebook {path}"),
            None => format!("notebook {path}"),
        });
    }
    let command = process.command.as_deref().unwrap_or_default();
    let Some((program, arguments)) =
        command.split_first().filter(|(program, _)| !program.is_empty())
    else {
        let name = process.comm.as_deref();
        let name = name.or_else(|| process.executable.as_deref().map(file_name));
        return cut(name.unwrap_or("process"));
    };
    if program.trim_end() == "ray::IDLE" {
        return format!("idle Ray worker {}", program.trim_end());
    }
    let program = program_name(program);
    if is_spawned(command) {
        let parent = process.parent.as_deref();
        let command = parent.and_then(|parent| parent.command.as_deref());
        return cut(&match command.filter(|argv| !is_spawned(argv)).and_then(<[_]>::split_first) {
            Some((first, rest)) => format!("worker of {}", program_and_script(first, rest)),
            None => format!("{program} worker (multiprocessing)"),
        });
    }
    let runs = program_and_script(program, arguments);
    // If the variable is set, the process was started from a notebook cell, with `!` or as a child process. The
    // notebook server sets the variable for the kernel, and the kernel's children inherit it.
    let environment = process.environment.as_deref();
    let session = environment.and_then(|variables| variables.get("JPY_SESSION_NAME"));
    match session.map(|path| file_name(path)).filter(|name| name.ends_with(".ipynb")) {
        Some(notebook) => cut(&format!("{runs} of notebook {notebook}")),
        None => cut(&runs),
    }
}

pub(super) fn name_of_parent(parent: &Parent) -> Option<String> {
    let command = parent.command.as_deref().and_then(<[_]>::split_first);
    match command {
        Some((program, arguments)) => Some(cut(&program_and_script(program, arguments))),
        None => parent.comm.as_deref().map(cut),
    }
}

/// Returns the file name of a program. A title set with setproctitle is returned whole, because a `/` in it does not
/// separate directories.
fn program_name(program: &str) -> &str {
    let is_title = program.contains(' ') && !program.starts_with(['/', '.']);
    if is_title { program } else { file_name(program) }
}

fn program_and_script(program: &str, arguments: &[Arc<str>]) -> String {
    let program = program_name(program);
    let subject = if is_interpreter(program) {
        script(program, arguments)
    } else {
        arguments
            .first()
            .map(ToString::to_string)
            .filter(|word| word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
    };
    match subject {
        Some(subject) if !subject.is_empty() => format!("{program} {subject}"),
        _ => program.to_owned(),
    }
}

/// Returns the script that an interpreter runs, such as `train.py`, `-m package.module`, `-c` or `com.example.Main`.
/// Returns `None` if the command line names no script.
fn script(program: &str, all: &[Arc<str>]) -> Option<String> {
    let mut arguments = all.iter().map(|argument| &**argument).peekable();
    while let Some(argument) = arguments.next() {
        match argument {
            "-m" | "-jar" => {
                let module = arguments.next().unwrap_or_default();
                return Some(format!("{argument} {module}"));
            }
            "-c" | "-e" | "-" => return Some(argument.to_owned()),
            "launch" if program == "accelerate" => {}
            option if option.starts_with('-') => {
                let value = arguments.peek().filter(|value| takes(program, option, value));
                if value.is_some() {
                    arguments.next();
                }
            }
            list if program == "java" && list.starts_with('@') => {}
            path => {
                let name = file_name(path);
                let rest = &all[all.len() - arguments.len()..];
                let runs = is_interpreter(name).then(|| script(name, rest)).flatten();
                return Some(runs.map_or_else(|| name.to_owned(), |runs| format!("{name} {runs}")));
            }
        }
    }
    None
}

fn takes(program: &str, option: &str, next: &str) -> bool {
    match program.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.') {
        "python" | "pypy" => matches!(option, "-W" | "-X"),
        "java" if option.starts_with("--") => !option.contains('=') && option != "--enable-preview",
        "java" => matches!(option, "-cp" | "-classpath" | "-p"),
        "julia" => matches!(option, "-t" | "--threads" | "-p" | "--procs" | "-J" | "--sysimage"),
        "node" => matches!(option, "-r" | "--require" | "--import" | "--loader"),
        "ruby" | "perl" => matches!(option, "-I" | "-r"),
        // Most options of these launchers take a value. The next argument is not a value if it is another option or a
        // Python script.
        "torchrun" | "accelerate" | "deepspeed" => {
            !option.contains('=') && !next.starts_with('-') && !next.ends_with(".py")
        }
        _ => false,
    }
}

/// Cuts a name that is too long, and ends it with `…`.
fn cut(name: &str) -> String {
    let mut columns = 0;
    let mut end = 0;
    for (at, c) in name.char_indices() {
        // Count a control character as one column, although it will be longer when the writer escapes it.
        columns += c.width().unwrap_or(1);
        if columns > LONGEST_NAME {
            return format!("{}…", &name[..end]);
        }
        if columns < LONGEST_NAME {
            end = at + c.len_utf8();
        }
    }
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::snapshot::{Jupyter, Parent};

    fn name_of_command(command: &[&str]) -> String {
        name_of(&Process {
            command: Some(command.iter().map(|argument| Arc::from(*argument)).collect()),
            ..Process::default()
        })
    }

    #[test]
    fn a_name_shows_the_script_without_options() {
        for (command, expected) in [
            (&["python", "train.py", "--lr", "1"][..], "python train.py"),
            (
                &["/usr/bin/python3.11", "-u", "-X", "dev", "/home/ann/x/fit.py"],
                "python3.11 fit.py",
            ),
            (&["python", "-m", "package.train", "--x"], "python -m package.train"),
            (&["python", "-c", "import torch\nwhile True: pass"], "python -c"),
            (&["python"], "python"),
            (
                &["/usr/bin/java", "-Xmx4g", "-cp", "/a.jar:/b/*", "com.example.Main", "x"],
                "java com.example.Main",
            ),
            (&["java", "@jvm.txt", "-jar", "app.jar"], "java -jar app.jar"),
            (&["julia", "-t", "8", "--project=.", "fit.jl"], "julia fit.jl"),
            (&["node", "-r", "ts-node/register", "app.js"], "node app.js"),
            (
                &["torchrun", "--standalone", "--nproc_per_node", "8", "/x/train.py"],
                "torchrun train.py",
            ),
            (&["accelerate", "launch", "--multi_gpu", "train.py"], "accelerate train.py"),
            (&["python", "/v/bin/torchrun", "--nnodes=1", "fit.py"], "python torchrun fit.py"),
            (&["vllm", "serve", "meta/llama"], "vllm serve"),
            (&["/opt/bin/llama-server", "-m", "x.gguf"], "llama-server"),
            (&["VLLM::EngineCore"], "VLLM::EngineCore"),
            (&["trainer: shard 3/8"], "trainer: shard 3/8"),
            (&["sshd: ann@pts/3", ""], "sshd: ann@pts/3"),
            (&["/opt/my tools/fit 2/run"], "run"),
            (&[""], "process"),
            (&[], "process"),
            (&["///"], "///"),
            (&["ray::IDLE"], "idle Ray worker ray::IDLE"),
            (&["ray::IDLE  "], "idle Ray worker ray::IDLE"),
            (&["ray::IDLE_SpillWorker"], "ray::IDLE_SpillWorker"),
            (&["ray::Idler.step"], "ray::Idler.step"),
            (&["ray::train"], "ray::train"),
        ] {
            assert_eq!(name_of_command(command), expected);
        }
    }

    #[test]
    fn a_worker_is_named_after_its_starter() {
        let worker = |parent: Option<&[&str]>, command: &[&str], jupyter: Option<Jupyter>| {
            let argv = |words: &[&str]| words.iter().map(|word| Arc::from(*word)).collect();
            name_of(&Process {
                command: Some(argv(command)),
                jupyter: jupyter.map(Arc::new),
                parent: parent.map(|parent| {
                    Arc::new(Parent { pid: 7, command: Some(argv(parent)), ..Parent::default() })
                }),
                ..Process::default()
            })
        };
        let code =
            "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)";
        let spawned = ["/v/bin/python3", "-c", code, "--multiprocessing-fork"];
        let train = ["python", "-u", "/home/ann/train.py", "--lr", "1"];
        assert_eq!(worker(Some(&train), &spawned, None), "worker of python train.py");
        let unknown = "python3 worker (multiprocessing)";
        assert_eq!(worker(Some(&spawned), &spawned, None), unknown);
        assert_eq!(worker(None, &spawned, None), unknown);
        assert_eq!(worker(None, &["python", "-c", "import os"], None), "python -c");
        let kernel = ["python", "-m", "ipykernel_launcher", "-f", "/r/kernel-1.json"];
        let notebook = || {
            Some(Jupyter {
                connection_file: Some("/r/kernel-1.json".into()),
                notebook_path: Some("a.ipynb".into()),
                ..Jupyter::default()
            })
        };
        assert_eq!(worker(Some(&kernel), &kernel, notebook()), "worker of notebook a.ipynb");
        assert_eq!(worker(Some(&train), &kernel, notebook()), "notebook a.ipynb");
    }

    #[test]
    fn a_name_is_bounded() {
        let long = name_of_command(&["python", &"x".repeat(4 << 20)]);
        assert_eq!(long.chars().count(), LONGEST_NAME);
        assert!(long.ends_with('…'));
        let wide = name_of_command(&[&"日".repeat(100)]);
        assert!(wide.chars().count() <= LONGEST_NAME / 2 + 1, "{wide}");
        assert!(
            name_of_command(&[&"\u{301}\n\u{1b}".repeat(1000)]).chars().count() <= 2 * LONGEST_NAME
        );
    }

    #[test]
    fn notebooks_are_named_by_file_and_kernel_threads_by_comm() {
        let notebook = Process {
            jupyter: Some(Arc::new(Jupyter {
                notebook_path: Some("course/hw4.ipynb".into()),
                ..Jupyter::default()
            })),
            ..Process::default()
        };
        assert_eq!(name_of(&notebook), "notebook course/hw4.ipynb");
        let of_a_cell = |session: &str| {
            name_of(&Process {
                command: Some(["python".into(), "train.py".into()].into()),
                environment: Some(Arc::new([("JPY_SESSION_NAME".into(), session.into())].into())),
                ..Process::default()
            })
        };
        assert_eq!(of_a_cell("/home/ann/hw4.ipynb"), "python train.py of notebook hw4.ipynb");
        assert_eq!(of_a_cell("/home/ann/console"), "python train.py");
        let thread = Process { comm: Some("nv_queue".into()), ..Process::default() };
        assert_eq!(name_of(&thread), "nv_queue");
    }
}
