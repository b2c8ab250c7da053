//! Recognises a Jupyter kernel, and the program that runs it, only from command lines. `jupyter` reads files and
//! sends requests to the server.
//!
//! A server starts a kernel with the path of a connection file, `…/kernel-ID.json`, in its arguments. If ID is a
//! UUID, it is the kernel's id in the server's API. Programs that run a notebook from the first cell to the last
//! (papermill, nbconvert) give the connection file another name and disable the history. Which of these programs runs
//! the notebook is known only from the parent's command line.

use std::sync::Arc;

use crate::host::proc::cmdline::{self, Program};
use crate::model::names::NAMES;
use crate::model::program::file_name;
use crate::model::snapshot::Jupyter;

/// Module that marimo uses to start a kernel in a separate environment (marimo: `marimo/_ipc/launch_kernel.py`).
const MARIMO_LAUNCHER: &str = "marimo._ipc.launch_kernel";

const SPAWNED: &str = "--multiprocessing-fork";

/// Option with which nbclient disables a kernel's history (`NotebookClient.create_kernel_manager`). papermill and
/// nbconvert use nbclient.
const NO_HISTORY: &str = "--HistoryManager.hist_file=:memory:";

const FLAGS: [&str; 6] =
    ["-f", "--f", "--file", "--connection-file", "--control_file", "--IPKernelApp.connection_file"];

/// Words that precede the connection file in the command lines of kernels that take it as an argument: IJulia,
/// IRkernel, IHaskell, Deno and .NET. Without such a word, the program may be one that merely reads the file, such as
/// an editor.
const BEFORE_FILE: [&str; 4] = ["kernel.jl", "--args", "kernel", "jupyter"];

/// Returns the kernel that a command line starts. Returns `None` for other programs, including clients of a kernel
/// (`--existing`).
pub fn parse_kernel<S: AsRef<str>>(arguments: &[S]) -> Option<Jupyter> {
    let mut launcher = None;
    let mut named = None;
    let mut any = None;
    let mut keeps_history = true;
    let mut takes_file = false;
    let mut flag = "";
    for argument in arguments {
        let argument = argument.as_ref();
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) if name.starts_with('-') => (name, value),
            _ => (flag, argument),
        };
        if name == "--existing" {
            return None;
        }
        let is_kernels = |name| is_uuid(name) || is_from_vscode(name);
        if takes_file && kernel_name(value).is_some_and(is_kernels) {
            named = named.or(Some(value));
        }
        if FLAGS.contains(&name) && value.ends_with(".json") {
            any = any.or(Some(value));
            if kernel_name(value).is_some() {
                named = named.or(Some(value));
            }
        }
        if argument == MARIMO_LAUNCHER {
            return Some(with_application("marimo"));
        }
        launcher = launcher.or_else(|| NAMES.kernels.get_key_value(program(argument)));
        keeps_history &= argument != NO_HISTORY;
        takes_file |= BEFORE_FILE.contains(&file_name(argument));
        flag = argument;
    }
    // A file whose name is not that of a connection file is accepted only if the program is a kernel launcher.
    let connection_file = named.or(any.filter(|_| launcher.is_some()));
    if launcher.is_none() && connection_file.is_none() {
        return None;
    }
    let name = connection_file.and_then(kernel_name);
    let only_application = launcher.map_or("", |(_, application)| &**application);
    let application = if !only_application.is_empty() {
        Some(only_application)
    } else if name.is_some_and(is_from_vscode) {
        Some("vscode")
    } else if name.is_some() {
        Some("jupyter")
    } else if connection_file.is_some() && !keeps_history {
        Some("batch")
    } else if connection_file.is_none()
        && launcher.is_some_and(|(program, _)| program.starts_with("ipykernel"))
    {
        // A program that starts a kernel for a notebook passes a connection file or ports. Without these, a user
        // started the kernel.
        Some("ipykernel")
    } else {
        None
    };
    Some(Jupyter {
        application: application.map(Arc::from),
        kernel_id: name.filter(|name| is_uuid(name)).map(Arc::from),
        connection_file: connection_file.map(Arc::from),
        ..Jupyter::default()
    })
}

pub fn connection_argument<S: AsRef<str>>(arguments: &[S]) -> Option<&str> {
    let mut values = arguments.iter().rev().map(|argument| {
        let argument = argument.as_ref();
        argument.split_once('=').map_or(argument, |(_, value)| value)
    });
    values.find(|value| value.ends_with(".json"))
}

/// Returns whether a process may be a kernel of marimo. Python starts marimo's kernels like any other spawned
/// process, so only the parent's command line can identify them ([`parse_child_of_marimo`]).
pub fn may_be_marimo<S: AsRef<str>>(arguments: &[S]) -> bool {
    arguments.iter().any(|argument| argument.as_ref() == SPAWNED)
}

/// Recognises a process spawned by marimo as a kernel, from its parent's command line, such as `marimo edit
/// notebook.py`. Returns `None` if the parent is not a marimo editor. `marimo run` runs notebooks in threads, not
/// processes.
pub fn parse_child_of_marimo<S: AsRef<str>>(parent: &[S]) -> Option<Jupyter> {
    let (program, arguments) = parse_program(parent)?;
    if program != "marimo" {
        return None;
    }
    let mut arguments = arguments
        .iter()
        .map(AsRef::as_ref)
        .skip_while(|argument| !matches!(*argument, "edit" | "new" | "tutorial"));
    let command = arguments.next()?;
    let notebook =
        arguments.find(|argument| argument.ends_with(".py") || argument.ends_with(".md"));
    Some(Jupyter {
        notebook_path: notebook.filter(|_| command == "edit").map(Arc::from),
        ..with_application("marimo")
    })
}

/// Returns the program that runs a notebook from the first cell to the last, and the notebook. Examples of command
/// lines are `papermill in.ipynb out.ipynb` and `jupyter nbconvert --execute a.ipynb`. Returns `batch` for an unknown
/// program.
pub fn parse_batch<S: AsRef<str>>(arguments: &[S]) -> (&'static str, Option<&str>) {
    let (program, arguments) = parse_program(arguments).unwrap_or(("", arguments));
    let application = match program {
        "papermill" => "papermill",
        "nbconvert" | "jupyter-nbconvert" => "nbconvert",
        _ => "batch",
    };
    let notebook = arguments
        .iter()
        .map(AsRef::as_ref)
        .find(|argument| argument.ends_with(".ipynb") && !argument.starts_with('-'));
    (application, notebook)
}

/// Returns the console that a command line starts, or `None` for other programs. Consoles start kernels without a
/// server.
pub fn parse_console<S: AsRef<str>>(arguments: &[S]) -> Option<&'static str> {
    Some(match parse_program(arguments)?.0 {
        "jupyter-console" | "jupyter_console" => "jupyter-console",
        "jupyter-qtconsole" | "qtconsole" => "jupyter-qtconsole",
        "spyder" | "spyder3" | "spyder.app.start" => "spyder",
        _ => return None,
    })
}

/// Returns the kernel server that a command line starts, if that server does not write its address to a file, or
/// `None` for other programs.
pub fn parse_fileless_server<S: AsRef<str>>(arguments: &[S]) -> Option<&'static str> {
    Some(match parse_program(arguments)?.0 {
        "voila" | "jupyter-voila" => "voila",
        "kernel_gateway" | "kernelgateway" | "jupyter-kernelgateway" => "kernelgateway",
        _ => return None,
    })
}

pub fn is_server<S: AsRef<str>>(arguments: &[S]) -> bool {
    let names = [
        "jupyter-lab",
        "jupyterlab",
        "jupyter-notebook",
        "notebook",
        "jupyter-nbclassic",
        "nbclassic",
        "jupyter-server",
        "jupyter_server",
    ];
    parse_program(arguments).is_some_and(|(program, _)| names.contains(&program))
        || parse_fileless_server(arguments).is_some()
        || is_hub_server(arguments)
}

pub fn is_hub_server<S: AsRef<str>>(arguments: &[S]) -> bool {
    matches!(
        parse_program(arguments),
        Some(("jupyterhub-singleuser" | "jupyterhub.singleuser" | "jupyter-labhub" | "labhub", _))
    )
}

/// Returns the program that a command line starts, and its arguments. For Python, the program is the script or
/// module. For `jupyter nbconvert`, it is `nbconvert`.
fn parse_program<S: AsRef<str>>(arguments: &[S]) -> Option<(&str, &[S])> {
    let Program { name, arguments, .. } = cmdline::parse_program(arguments)?;
    match (program(name), arguments.split_first()) {
        ("jupyter", Some((command, rest))) => Some((program(command.as_ref()), rest)),
        (name, _) => Some((name, arguments)),
    }
}

fn with_application(name: &str) -> Jupyter {
    Jupyter { application: Some(name.into()), ..Jupyter::default() }
}

fn program(path: &str) -> &str {
    let name = file_name(path);
    name.strip_suffix(".py").unwrap_or(name)
}

fn kernel_name(path: &str) -> Option<&str> {
    file_name(path).strip_prefix("kernel-")?.strip_suffix(".json")
}

/// Returns whether VS Code assigned this id, such as `v2-4711AbCd`. VS Code starts kernels without a server
/// (vscode-jupyter: `kernelProcess.node.ts`).
fn is_from_vscode(name: &str) -> bool {
    let version = name.strip_prefix('v');
    version.is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
}

pub(in crate::host) fn is_uuid(text: &str) -> bool {
    let mut groups = text.split('-');
    let is_hexadecimal = |group: &str| group.bytes().all(|byte| byte.is_ascii_hexdigit());
    [8, 4, 4, 4, 12].iter().all(|&digits| {
        groups.next().is_some_and(|group| group.len() == digits && is_hexadecimal(group))
    }) && groups.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0a1b2c3d-0123-4567-89ab-00aa11bb22cc";

    fn kernel(line: &str) -> Option<(Option<String>, Option<String>)> {
        let arguments: Vec<&str> = line.split(' ').collect();
        let owned = |text: Option<Arc<str>>| text.map(|text| text.to_string());
        parse_kernel(&arguments)
            .map(|kernel| (owned(kernel.kernel_id), owned(kernel.connection_file)))
    }

    #[test]
    fn kernels_are_recognised_by_their_connection_files() {
        let file = format!("/home/ann/.local/share/jupyter/runtime/kernel-{ID}.json");
        let expected = Some((Some(ID.to_owned()), Some(file.clone())));
        for line in [
            format!("/opt/conda/bin/python -m ipykernel_launcher -f {file}"),
            format!("python3 -Xfrozen_modules=off -m ipykernel_launcher --f={file}"),
            format!("python /x/site-packages/ipykernel_launcher.py -f {file} --debug"),
            format!("python3 -m colab_kernel_launcher -f {file}"),
            format!("xpython -f {file}"),
            format!("python -m ipykernel --IPKernelApp.connection_file={file}"),
            format!("python /x/posit/positron_language_server.py -f {file} --logfile /tmp/k.log"),
            // Kernels for Julia, R, C++, Rust, Haskell, Scala, Deno and .NET
            format!("/opt/julia/bin/julia -i --project=@. /p/IJulia/src/kernel.jl {file}"),
            format!("/usr/lib/R/bin/exec/R --no-echo -e IRkernel::main() --args {file}"),
            format!("/opt/conda/bin/xcpp -f {file} -std=c++17"),
            format!("evcxr_jupyter --control_file {file}"),
            format!("ihaskell kernel {file} --ghclib /x"),
            format!("java -cp almond.jar almond.ScalaKernel --connection-file {file}"),
            format!("deno jupyter --kernel --conn {file}"),
            format!("dotnet-interactive jupyter --verbose {file}"),
        ] {
            assert_eq!(kernel(&line), expected, "{line}");
        }
    }

    #[test]
    fn a_kernel_without_a_uuid_has_no_id() {
        // VS Code starts kernels with such a command line.
        let file = "/tmp/kernel-v2-4711AbCd.json";
        assert_eq!(
            kernel(&format!("python -m ipykernel_launcher -f {file}")),
            Some((None, Some(file.to_owned())))
        );
        assert_eq!(kernel("python -m ipykernel"), Some((None, None)));
    }

    fn application(line: &str) -> Option<Arc<str>> {
        let arguments: Vec<&str> = line.split(' ').collect();
        parse_kernel(&arguments).and_then(|kernel| kernel.application)
    }

    #[test]
    fn the_kernels_application_is_recognised_by_its_argv() {
        let launch = "/opt/conda/bin/python -m ipykernel_launcher";
        for (line, expected) in [
            (format!("{launch} -f /run/kernel-{ID}.json"), Some("jupyter")),
            (format!("{launch} -f /run/kernel-4711.json"), Some("jupyter")),
            (format!("{launch} --f=/r/kernel-v2-12AbCd.json"), Some("vscode")),
            (
                format!("{launch} --f=/home/ann/.local/share/jupyter/runtime/kernel-v3{ID}.json"),
                Some("vscode"),
            ),
            // papermill 2.7, nbconvert 7.17 and nbclient 0.11 start kernels with such a command line.
            (format!("{launch} -f /tmp/tmpzg22om0z.json {NO_HISTORY}"), Some("batch")),
            (format!("{launch} -f /tmp/tmpzg22om0z.json"), None),
            (format!("python3 -m colab_kernel_launcher -f /run/kernel-{ID}.json"), Some("colab")),
            ("/venv/bin/python -m marimo._ipc.launch_kernel".to_owned(), Some("marimo")),
            (
                "python /x/posit/positron_language_server.py -f /t/connection_python-1.json"
                    .to_owned(),
                Some("positron"),
            ),
            (launch.to_owned(), Some("ipykernel")),
            ("python -m ipykernel --debug".to_owned(), Some("ipykernel")),
            (
                format!(
                    "/databricks/python/bin/python \
                     /databricks/python_shell/scripts/db_ipykernel_launcher.py \
                     -f /databricks/kernel-connections/{ID}.json"
                ),
                Some("databricks"),
            ),
        ] {
            assert_eq!(application(&line).as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn other_file_names_count_only_for_kernel_programs() {
        assert_eq!(kernel("python train.py -f /tmp/tmpzg22om0z.json"), None);
        assert_eq!(kernel("python train.py kernel-3x3.json"), None);
        assert_eq!(kernel("python train.py --size kernel-v.json"), None);
        // Editors of the file and clients of a kernel are not kernels.
        let file = format!("/run/kernel-{ID}.json");
        assert_eq!(kernel(&format!("vim {file}")), None);
        assert_eq!(kernel(&format!("python inspect.py {file}")), None);
        assert_eq!(kernel(&format!("jupyter-console --existing {file}")), None);
        assert_eq!(kernel(&format!("jupyter-qtconsole --existing={file}")), None);
        assert_eq!(
            kernel("python -m ipykernel_launcher -f /tmp/tmpzg22om0z.json"),
            Some((None, Some("/tmp/tmpzg22om0z.json".to_owned())))
        );
    }

    #[test]
    fn batch_runners_are_recognised_by_their_argv() {
        for (line, expected) in [
            ("/v/bin/python3 /v/bin/papermill a.ipynb out.ipynb", ("papermill", Some("a.ipynb"))),
            ("python -m papermill -p x 1 in/a.ipynb out.ipynb", ("papermill", Some("in/a.ipynb"))),
            (
                "/v/bin/python3 /v/bin/jupyter-nbconvert --to notebook --execute a.ipynb --output o",
                ("nbconvert", Some("a.ipynb")),
            ),
            ("jupyter nbconvert --execute a.ipynb", ("nbconvert", Some("a.ipynb"))),
            (
                "/v/bin/python3 /v/bin/jupyter-execute a.ipynb --output=o.ipynb",
                ("batch", Some("a.ipynb")),
            ),
            ("python pipeline.py papermill", ("batch", None)),
            ("python pipeline.py --engine papermill", ("batch", None)),
        ] {
            let arguments: Vec<&str> = line.split(' ').collect();
            assert_eq!(parse_batch(&arguments), expected, "{line}");
        }
    }

    #[test]
    fn marimo_kernels_are_recognised_by_the_parents_argv() {
        let spawned = ["python", "-c", "from multiprocessing.spawn …", SPAWNED];
        assert!(may_be_marimo(&spawned) && parse_kernel(&spawned).is_none());
        assert!(!may_be_marimo(&["python", "train.py"]));
        for (parent, expected) in [
            ("/v/bin/python /v/bin/marimo edit a/b.py", Some(Some("a/b.py"))),
            ("python -m marimo --log-level=info edit --port 1 b.py", Some(Some("b.py"))),
            ("marimo edit", Some(None)),
            ("marimo run b.py", None),
            ("python train.py edit", None),
            ("", None),
        ] {
            let arguments: Vec<&str> = parent.split(' ').collect();
            let kernel = parse_child_of_marimo(&arguments);
            let path = kernel.map(|kernel| kernel.notebook_path);
            let path = path.as_ref().map(Option::as_deref);
            assert_eq!(path, expected, "{parent}");
        }
    }

    #[test]
    fn servers_and_consoles_are_recognised_by_their_argv() {
        for (line, console, fileless, [is_a_server, is_a_hub_server]) in [
            ("/v/bin/python /v/bin/jupyter-console", Some("jupyter-console"), None, [false; 2]),
            ("python -m qtconsole --kernel x", Some("jupyter-qtconsole"), None, [false; 2]),
            ("/usr/bin/python3 /usr/bin/spyder", Some("spyder"), None, [false; 2]),
            ("/v/bin/python /v/bin/jupyter-lab --port 1", None, None, [true, false]),
            ("python -m jupyter_server", None, None, [true, false]),
            ("jupyter notebook", None, None, [true, false]),
            ("/opt/conda/bin/jupyterhub-singleuser --port=1", None, None, [true; 2]),
            ("python -m jupyterhub.singleuser", None, None, [true; 2]),
            ("/v/bin/python /v/bin/voila --no-browser a.ipynb", None, Some("voila"), [true, false]),
            ("jupyter voila a.ipynb", None, Some("voila"), [true, false]),
            ("jupyter kernelgateway", None, Some("kernelgateway"), [true, false]),
            ("python -m kernel_gateway", None, Some("kernelgateway"), [true, false]),
            ("python drive.py spyder", None, None, [false; 2]),
            ("", None, None, [false; 2]),
        ] {
            let arguments: Vec<&str> = line.split(' ').collect();
            assert_eq!(parse_console(&arguments), console, "{line}");
            assert_eq!(parse_fileless_server(&arguments), fileless, "{line}");
            let servers = [is_server(&arguments), is_hub_server(&arguments)];
            assert_eq!(servers, [is_a_server, is_a_hub_server], "{line}");
        }
    }
}
