//! What a finding is about, as every kind of finding names it: the id, the process, the sentence.
//!
//! Names are as the process chose them, only bounded; escaping is for whoever prints them.

use std::fmt::Write as _;
use std::sync::Arc;

use unicode_width::UnicodeWidthChar as _;

use crate::model::finding::FindingGpu;
use crate::model::pool::{is_ray_idle, is_spawned};
use crate::model::program::{file_name, is_interpreter};
use crate::model::{Identity, Process, Start};
use crate::units::Bytes;

/// A name in a sentence is no longer than this many columns.
const LONGEST_NAME: usize = 60;
/// More GPUs than this are counted, not listed.
const MOST_GPUS_LISTED: usize = 4;

/// `rule:uuid:pid:start`: the same for as long as rule, lowest GPU and process are. About a GPU, `rule:uuid`.
pub(super) fn id(rule: &str, gpus: &[FindingGpu], process: Option<&Process>) -> Arc<str> {
    let mut id = format!("{rule}:");
    // Writing to a String cannot fail.
    let _ = match gpus.iter().min_by_key(|gpu| gpu.index) {
        Some(FindingGpu { uuid: Some(uuid), .. }) => write!(id, "{uuid}"),
        Some(gpu) => write!(id, "{}", gpu.index),
        None => Ok(()),
    };
    let _ = match process.map(Process::identity) {
        Some(Identity { pid, start: Start::Ticks(ticks) }) => write!(id, ":{pid}:{ticks}"),
        Some(Identity { pid, start: Start::Time(time) }) => {
            write!(id, ":{pid}:{}", time.unix_seconds())
        }
        Some(Identity { pid, start: Start::Unknown }) => write!(id, ":{pid}:"),
        None => Ok(()),
    };
    id.into()
}

/// `GPU 0`, `GPUs 0 and 1`, `GPUs 0, 1 and 2`, `8 GPUs`.
pub(super) fn gpus(gpus: &[FindingGpu]) -> String {
    if gpus.len() > MOST_GPUS_LISTED {
        return format!("{} GPUs", gpus.len());
    }
    let indices: Vec<String> = gpus.iter().map(|gpu| gpu.index.to_string()).collect();
    match indices.split_last() {
        None => "no GPU".to_owned(),
        Some((only, [])) => format!("GPU {only}"),
        Some((last, others)) => format!("GPUs {} and {last}", others.join(", ")),
    }
}

/// One entry a GPU, the lowest first: under MIG a process may have several rows on one.
pub(super) fn by_gpu(rows: impl Iterator<Item = FindingGpu>) -> Vec<FindingGpu> {
    let mut gpus: Vec<FindingGpu> = Vec::with_capacity(rows.size_hint().1.unwrap_or(0));
    for on in rows {
        match gpus.iter_mut().find(|gpu| gpu.index == on.index) {
            Some(gpu) => {
                let sum = gpu.used_bytes.zip(on.used_bytes);
                gpu.used_bytes = sum.map(|(a, b)| a.saturating_add(b));
            }
            None => gpus.push(on),
        }
    }
    gpus.sort_by_key(|gpu| gpu.index);
    gpus
}

/// What a process holds on all of them; `None` where that is not known of one.
pub(super) fn sum(gpus: &[FindingGpu]) -> Option<u64> {
    gpus.iter().try_fold(0u64, |sum, gpu| Some(sum.saturating_add(gpu.used_bytes?)))
}

/// `20.0 GiB on GPU 0`, `memory on GPU 0` where it is not known how much.
pub(super) fn held(gpus_held: &[FindingGpu]) -> String {
    match sum(gpus_held) {
        Some(bytes) => format!("{} on {}", Bytes(bytes), gpus(gpus_held)),
        None => format!("memory on {}", gpus(gpus_held)),
    }
}

/// What to call a process in a sentence: a notebook by its file, a script by its interpreter and name,
/// a program by its name and what it was asked to do; one that has ended by what it was.
pub fn name(process: &Process) -> String {
    if let Some(ended) = process.ended() {
        return name(&ended.as_named());
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
    if is_ray_idle(program) {
        return format!("idle Ray worker {}", program.trim_end());
    }
    let program = program_name(program);
    if is_spawned(command) {
        let parent = process.parent.as_deref();
        let command = parent.and_then(|parent| parent.command.as_deref());
        return cut(&match command.filter(|it| !is_spawned(it)).and_then(<[_]>::split_first) {
            Some((first, rest)) => format!("worker of {}", program_and_script(first, rest)),
            None => format!("{program} worker (multiprocessing)"),
        });
    }
    let runs = program_and_script(program, arguments);
    // A cell started it, with `!` or as a child: its kernel's server has named the notebook for all of them.
    let environment = process.environment.as_deref();
    let session = environment.and_then(|it| it.get("JPY_SESSION_NAME"));
    match session.map(|path| file_name(path)).filter(|name| name.ends_with(".ipynb")) {
        Some(notebook) => cut(&format!("{runs} of notebook {notebook}")),
        None => cut(&runs),
    }
}

/// The file's name; all of a title that the process gave itself (setproctitle), in which a `/` parts no path.
fn program_name(program: &str) -> &str {
    let is_title = program.contains(' ') && !program.starts_with(['/', '.']);
    if is_title { program } else { file_name(program) }
}

/// `python train.py`, `vllm serve`.
fn program_and_script(program: &str, arguments: &[Arc<str>]) -> String {
    let program = program_name(program);
    let subject = if is_interpreter(program) {
        script(arguments)
    } else {
        // `vllm serve`, `ollama runner`: a word that says what the program was asked to do.
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

/// The script that an interpreter runs: `train.py`, `-m package.module`, `-c`.
fn script(arguments: &[Arc<str>]) -> Option<String> {
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match &**argument {
            "-m" | "-jar" => {
                let module = arguments.next().map_or("", |module| module);
                return Some(format!("{argument} {module}"));
            }
            "-c" | "-e" | "-" => return Some(argument.to_string()),
            // Options of python that take the next argument.
            "-W" | "-X" => drop(arguments.next()),
            option if option.starts_with('-') => {}
            path => return Some(file_name(path).to_owned()),
        }
    }
    None
}

/// Cuts a name to its bound, the last column `…` where anything was cut.
fn cut(name: &str) -> String {
    let mut columns = 0;
    let mut end = 0;
    for (at, c) in name.char_indices() {
        // A control character will be shown escaped; one column stands for it here.
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

    fn of(command: &[&str]) -> String {
        name(&Process {
            command: Some(command.iter().map(|argument| Arc::from(*argument)).collect()),
            ..Process::default()
        })
    }

    #[test]
    fn a_name_shows_what_runs_and_leaves_out_how() {
        for (command, expected) in [
            (&["python", "train.py", "--lr", "1"][..], "python train.py"),
            (
                &["/usr/bin/python3.11", "-u", "-X", "dev", "/home/ann/x/fit.py"],
                "python3.11 fit.py",
            ),
            (&["python", "-m", "package.train", "--x"], "python -m package.train"),
            (&["python", "-c", "import torch\nwhile True: pass"], "python -c"),
            (&["python"], "python"),
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
            assert_eq!(of(command), expected);
        }
    }

    #[test]
    fn a_worker_shows_whose_it_is() {
        let worker = |parent: Option<&[&str]>, command: &[&str], jupyter: Option<Jupyter>| {
            let argv = |words: &[&str]| words.iter().map(|word| Arc::from(*word)).collect();
            name(&Process {
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
    fn a_name_is_bounded_whatever_the_process_calls_itself() {
        let long = of(&["python", &"x".repeat(4 << 20)]);
        assert_eq!(long.chars().count(), LONGEST_NAME);
        assert!(long.ends_with('…'));
        let wide = of(&[&"日".repeat(100)]);
        assert!(wide.chars().count() <= LONGEST_NAME / 2 + 1, "{wide}");
        assert!(of(&[&"\u{301}\n\u{1b}".repeat(1000)]).chars().count() <= 2 * LONGEST_NAME);
    }

    #[test]
    fn a_notebook_is_called_by_its_file_and_a_kernel_thread_by_its_comm() {
        let notebook = Process {
            jupyter: Some(Arc::new(Jupyter {
                notebook_path: Some("course/hw4.ipynb".into()),
                ..Jupyter::default()
            })),
            ..Process::default()
        };
        assert_eq!(name(&notebook), "notebook course/hw4.ipynb");
        let of_a_cell = |session: &str| {
            name(&Process {
                command: Some(["python".into(), "train.py".into()].into()),
                environment: Some(Arc::new([("JPY_SESSION_NAME".into(), session.into())].into())),
                ..Process::default()
            })
        };
        assert_eq!(of_a_cell("/home/ann/hw4.ipynb"), "python train.py of notebook hw4.ipynb");
        assert_eq!(of_a_cell("/home/ann/console"), "python train.py");
        let thread = Process { comm: Some("nv_queue".into()), ..Process::default() };
        assert_eq!(name(&thread), "nv_queue");
    }
}
