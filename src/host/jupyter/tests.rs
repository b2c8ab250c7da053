//! Tests reading kernels and servers from a fake /proc.

use super::super::testing::Proc;
use super::*;
use crate::host::parse_kernel;

const ID: &str = "0a1b2c3d-0123-4567-89ab-00aa11bb22cc";
const TOKEN: &str = "s3cret";

fn candidate(connection_file: &str) -> KernelCandidate {
    let argv = ["python", "-m", "ipykernel_launcher", "-f", connection_file];
    KernelCandidate { pid: 90, start_ticks: 900, jupyter: parse_kernel(&argv).map(Arc::new) }
}

/// Creates kernel 90 and its server 50, with additional environment variables. The server's file is in `/rt`.
fn machine(kernel: &[&str], server: &[&str]) -> (Proc, KernelCandidate) {
    let proc = Proc::new();
    proc.process(50, 1, 500, server);
    proc.process(90, 50, 900, &[kernel, &["JPY_PARENT_PID=50"]].concat());
    let connection = format!("/rt/kernel-{ID}.json");
    let session = r#"{"ip": "127.0.0.1", "transport": "tcp", "key": "k3y",
        "jupyter_session": "/home/ann/a/b.ipynb"}"#;
    proc.write(90, &connection, session);
    proc.write(50, "/rt/jpserver-50.json", &server_file(""));
    (proc, candidate(&connection))
}

fn server_file(more: &str) -> String {
    format!(
        r#"{{"base_url": "/x/", "hostname": "localhost", "pid": 50, "port": 8888, {more}
            "root_dir": "/home/ann", "token": "{TOKEN}"}}"#
    )
}

fn error(kernel: &LocalKernel) -> &str {
    kernel.jupyter.server_error.as_deref().unwrap_or_default()
}

#[test]
fn a_kernels_server_is_its_starter() {
    let (proc, candidate) = machine(&[], &[]);
    let kernel = read_kernel(&proc.roots(), &candidate).unwrap();
    let jupyter = &kernel.jupyter;
    assert_eq!(jupyter.application.as_deref(), Some("jupyter"));
    assert_eq!(jupyter.kernel_id.as_deref(), Some(ID));
    assert_eq!(jupyter.notebook_path.as_deref(), Some("a/b.ipynb"));
    assert_eq!(jupyter.server_url.as_deref(), Some("http://localhost:8888/x/"));
    assert_eq!(jupyter.server_pid, Some(50));
    assert_eq!(jupyter.server_alive, Some(true));
    assert_eq!(jupyter.server_root.as_deref(), Some("/home/ann"));
    assert_eq!(error(&kernel), "");
    let server = kernel.server.as_ref().unwrap();
    assert_eq!((server.listener.pid, server.listener.start_ticks), (50, 500));
    let debug = format!("{kernel:?}");
    assert!(!debug.contains(TOKEN) && !debug.contains("k3y"), "{debug}");
}

#[test]
fn the_servers_environment_names_another_runtime_folder() {
    let proc = Proc::new();
    proc.process(50, 1, 500, &["JUPYTER_RUNTIME_DIR=/elsewhere"]);
    proc.process(90, 50, 900, &["JPY_PARENT_PID=50", "HOME=/home/ann"]);
    proc.write(90, "/tmp/kernel-1.json", "{}");
    proc.write(50, "/elsewhere/nbserver-50.json", &server_file(""));
    let kernel = read_kernel(&proc.roots(), &candidate("/tmp/kernel-1.json")).unwrap();
    assert!(kernel.server.is_some(), "{kernel:?}");

    proc.write(50, "/elsewhere/nbserver-50.json", "torn {");
    let kernel = read_kernel(&proc.roots(), &candidate("/tmp/kernel-1.json")).unwrap();
    assert!(error(&kernel).contains("not written by Jupyter"), "{kernel:?}");
    assert!(kernel.server.is_none());
}

#[test]
fn a_hub_servers_token_is_read_from_its_environment() {
    let hub =
        ["JUPYTERHUB_SERVICE_PREFIX=/user/ann/", "JUPYTERHUB_API_TOKEN=hubs", "JUPYTER_TOKEN=own"];
    for (variables, application, token) in [
        (&hub[..], "jupyterhub", Some("hubs")),
        (&hub[2..], "jupyter", Some("own")),
        (&[], "jupyter", None),
    ] {
        let (proc, candidate) = machine(&[], variables);
        let file = server_file("").replace(TOKEN, "");
        proc.write(50, "/rt/jpserver-50.json", &file);
        let kernel = read_kernel(&proc.roots(), &candidate).unwrap();
        assert_eq!(kernel.jupyter.application.as_deref(), Some(application));
        let server = kernel.server.as_ref().unwrap();
        assert_eq!(server.token, token.and_then(Token::new));
    }
}

#[test]
fn another_users_server_is_not_used() {
    let (proc, candidate) = machine(&[], &[]);
    let uid = rustix::process::getuid().as_raw() + 1;
    let status = format!("Uid:\t{uid}\t{uid}\nNSpid:\t50\n");
    std::fs::write(proc.folder(50).join("status"), status).unwrap();
    // A server file in the kernel's root directory must not lead to another user's process either.
    proc.write(90, "/rt/jpserver-50.json", &server_file(""));
    let kernel = read_kernel(&proc.roots(), &candidate).unwrap();
    assert!(error(&kernel).contains("is another user's"), "{kernel:?}");
    assert!(kernel.server.is_none());
    assert_eq!(kernel.jupyter.server_pid, None);
    assert_eq!(kernel.jupyter.server_url, None);
    let path = kernel.jupyter.notebook_path.as_deref();
    assert_eq!(path, Some("/home/ann/a/b.ipynb"));
}

#[test]
fn a_token_is_read_from_the_file_named_by_the_environment() {
    let variables = ["JUPYTER_TOKEN_FILE=/run/secrets/token"];
    let (proc, candidate) = machine(&[], &variables);
    let file = server_file("").replace(TOKEN, "");
    proc.write(50, "/rt/jpserver-50.json", &file);
    let kernel = read_kernel(&proc.roots(), &candidate).unwrap();
    assert!(error(&kernel).contains("cannot read /run/secrets/token"));
    proc.write(50, "/run/secrets/token", "filed\n");
    let kernel = read_kernel(&proc.roots(), &candidate).unwrap();
    assert_eq!(kernel.server.unwrap().token, Token::new("filed"));
    // A symbolic link could lead to another user's file, so gpumem does not follow it.
    let token = proc.root_of(50).join("run/secrets/token");
    std::fs::rename(&token, token.with_file_name("other")).unwrap();
    std::os::unix::fs::symlink("other", &token).unwrap();
    let kernel = read_kernel(&proc.roots(), &candidate).unwrap();
    assert!(error(&kernel).contains("does not belong to the kernel"), "{kernel:?}");
    // The token in the server's file takes precedence over the token file.
    proc.write(50, "/rt/jpserver-50.json", &server_file(""));
    let kernel = read_kernel(&proc.roots(), &candidate).unwrap();
    assert_eq!(kernel.server.unwrap().token, Token::new(TOKEN));
}

/// Creates a kernel whose server has exited. `ip` is the address in the connection file.
fn orphan(variables: &[&str], ip: &str) -> (Proc, KernelCandidate) {
    let (proc, candidate) = machine(&[], &[]);
    std::fs::remove_dir_all(proc.folder(50)).unwrap();
    proc.process(90, 1, 900, &[variables, &["JPY_PARENT_PID=50"]].concat());
    let connection = format!(r#"{{"ip": "{ip}", "transport": "tcp"}}"#);
    proc.write(90, &format!("/rt/kernel-{ID}.json"), &connection);
    (proc, candidate)
}

fn refresh(kernel: &mut LocalKernel, proc: &Proc) -> bool {
    kernel.refresh(&proc.roots())
}

#[test]
fn a_server_without_a_process_is_gone() {
    let (proc, candidate) = orphan(&[], "127.0.0.1");
    let mut kernel = read_kernel(&proc.roots(), &candidate).unwrap();
    assert_eq!(kernel.jupyter.server_alive, Some(false));
    assert!(kernel.server.is_none());
    assert!(error(&kernel).contains("has exited"), "{kernel:?}");
    assert!(refresh(&mut kernel, &proc));
    assert_eq!(kernel.jupyter.server_alive, Some(false));
}

#[test]
fn a_kernel_started_from_another_machine_is_not_orphaned() {
    for (variables, ip) in [(&["SLURM_JOB_ID=7"][..], "127.0.0.1"), (&[], "10.0.0.7"), (&[], "")] {
        let (proc, candidate) = orphan(variables, ip);
        let mut kernel = read_kernel(&proc.roots(), &candidate).unwrap();
        for _ in 0..3 {
            assert!(refresh(&mut kernel, &proc));
            assert_eq!(kernel.jupyter.server_alive, None, "{variables:?} {ip}");
        }
    }
}

#[test]
fn a_server_that_exits_is_no_longer_used() {
    let (proc, candidate) = machine(&[], &[]);
    let mut kernel = read_kernel(&proc.roots(), &candidate).unwrap();
    assert!(refresh(&mut kernel, &proc) && kernel.server.is_some());
    std::fs::remove_dir_all(proc.folder(50)).unwrap();
    proc.process(90, 1, 900, &["JPY_PARENT_PID=50"]);
    assert!(refresh(&mut kernel, &proc));
    assert_eq!((kernel.jupyter.server_alive, &kernel.server), (Some(false), &None));
    assert!(error(&kernel).contains("has exited"), "{kernel:?}");
    // The pid has been reused.
    proc.process(90, 1, 901, &[]);
    assert!(!refresh(&mut kernel, &proc));
    assert!(read_kernel(&proc.roots(), &candidate).is_none());
}

#[test]
fn vscode_is_not_mistaken_for_the_inherited_server() {
    let (proc, _) = machine(&[], &[]);
    proc.write(90, "/rt/kernel-v2-1.json", r#"{"jupyter_session": "/a.ipynb"}"#);
    let kernel = read_kernel(&proc.roots(), &candidate("/rt/kernel-v2-1.json")).unwrap();
    assert_eq!(kernel.jupyter.application.as_deref(), Some("vscode"));
    assert_eq!(kernel.jupyter.notebook_path.as_deref(), Some("/a.ipynb"));
    assert_eq!((kernel.jupyter.server_alive, error(&kernel)), (None, ""));
}

#[test]
fn an_unreadable_environment_is_reported_and_argv_is_kept() {
    let (proc, candidate) = machine(&[], &[]);
    std::fs::remove_file(proc.folder(90).join("environ")).unwrap();
    let kernel = read_kernel(&proc.roots(), &candidate).unwrap();
    assert!(error(&kernel).contains("that requires root"), "{kernel:?}");
    assert_eq!(kernel.jupyter.kernel_id.as_deref(), Some(ID));
    assert_eq!(kernel.jupyter.server_alive, None);
}

#[test]
fn only_a_known_server_without_a_file_is_an_error() {
    let (proc, candidate) = machine(&[], &[]);
    std::fs::remove_file(proc.root_of(50).join("rt/jpserver-50.json")).unwrap();
    for (command, application, server_pid, expected) in [
        ("python /v/bin/jupyter-console", "jupyter-console", None, None),
        ("/usr/bin/python3 /usr/bin/spyder", "spyder", None, None),
        ("python my_client.py", "jupyter", None, None),
        ("/v/bin/python /v/bin/jupyter-lab", "jupyter", Some(50), Some("no file in /rt")),
    ] {
        proc.command(50, command);
        let kernel = read_kernel(&proc.roots(), &candidate).unwrap();
        let jupyter = &kernel.jupyter;
        assert_eq!(jupyter.application.as_deref(), Some(application));
        assert_eq!(jupyter.server_pid, server_pid, "{command}");
        let has_reason = expected.is_some_and(|part| error(&kernel).contains(part));
        assert_eq!(
            (has_reason, error(&kernel).is_empty()),
            (expected.is_some(), expected.is_none())
        );
        // gpumem must still report that the server is alive.
        assert_eq!(jupyter.server_alive, Some(true));
    }
    // A file that contains a different pid is not used either.
    proc.write(50, "/rt/jpserver-50.json", &server_file("").replace("50,", "51,"));
    let kernel = read_kernel(&proc.roots(), &candidate).unwrap();
    assert!(kernel.server.is_none());
    assert!(error(&kernel).contains("not written by Jupyter"));
}

#[test]
fn a_marimo_kernel_is_recognised_by_its_parent() {
    let proc = Proc::new();
    proc.process(50, 1, 500, &[]);
    proc.command(50, "python /v/bin/marimo edit a.py");
    std::os::unix::fs::symlink("/home/ann", proc.folder(50).join("cwd")).unwrap();
    proc.process(90, 50, 900, &[]);
    let spawned = KernelCandidate { pid: 90, start_ticks: 900, jupyter: None };
    let kernel = read_kernel(&proc.roots(), &spawned).unwrap();
    assert_eq!(kernel.jupyter.application.as_deref(), Some("marimo"));
    assert_eq!(kernel.jupyter.notebook_path.as_deref(), Some("/home/ann/a.py"));
    proc.command(50, "python train.py");
    assert!(read_kernel(&proc.roots(), &spawned).is_none());
}

#[test]
fn a_kernel_of_any_language_is_recognised_by_its_starter() {
    let proc = Proc::new();
    proc.process(50, 1, 500, &[]);
    proc.command(50, "python /v/bin/papermill a.ipynb out.ipynb");
    std::os::unix::fs::symlink("/home/ann", proc.folder(50).join("cwd")).unwrap();
    proc.process(90, 50, 900, &["JPY_PARENT_PID=50"]);
    proc.process(91, 90, 950, &["JPY_PARENT_PID=50"]);
    for (pid, start_ticks, command, is_kernel) in [
        (90, 900, "julia -i /p/IJulia/src/kernel.jl /tmp/tmpzg22om0z.json", true),
        (90, 900, "xcpp --connection=/tmp/tmpzg22om0z.json -std=c++17", true),
        (90, 900, "python train.py", false),
        // The kernel started this program, which inherited its environment.
        (91, 950, "python train.py config.json", false),
    ] {
        proc.command(pid, command);
        let candidate = KernelCandidate { pid, start_ticks, jupyter: None };
        let kernel = read_kernel(&proc.roots(), &candidate).map(|kernel| kernel.jupyter);
        let facts = kernel.map(|kernel| (kernel.application, kernel.notebook_path));
        let expected =
            is_kernel.then(|| (Some("papermill".into()), Some("/home/ann/a.ipynb".into())));
        assert_eq!(facts, expected, "{command}");
    }
}

#[test]
fn check_detects_a_twin_and_a_replaced_process() {
    let (proc, candidate) = machine(&[], &[]);
    let roots = proc.roots();
    let line = format!("python -m ipykernel_launcher -f /rt/kernel-{ID}.json");
    proc.command(90, &line);
    let kernel = read_kernel(&roots, &candidate).unwrap();
    assert_eq!(kernel.check(&roots), Ok(()));
    assert_eq!(KernelCandidate::read(&roots, 90, 900), Some(candidate));
    assert_eq!(KernelCandidate::read(&roots, 90, 901), None);
    assert_eq!(KernelCandidate::read(&roots, 91, 900), None);
    // A child forked by the kernel has the same command line, but is not the kernel.
    proc.process(95, 90, 950, &["JPY_PARENT_PID=50"]);
    proc.command(95, &line);
    assert_eq!(kernel.check(&roots), Ok(()));
    let fork = KernelCandidate::read(&roots, 95, 950).unwrap();
    proc.write(95, &format!("/rt/kernel-{ID}.json"), "{}");
    let fork = read_kernel(&roots, &fork).unwrap();
    assert_eq!(fork.check(&roots), Err(ServerError::Twin { pid: 90 }));
    // The process runs another program, or its pid has been reused.
    let replaced = Err(ServerError::Replaced { pid: 90 });
    proc.command(90, "python train.py");
    assert_eq!(kernel.check(&roots), replaced);
    proc.command(90, &line);
    proc.process(90, 50, 901, &[]);
    assert_eq!(kernel.check(&roots), replaced);
}

#[test]
fn a_token_is_sent_only_as_a_valid_header() {
    let token = Token::new("s3cret").unwrap();
    assert_eq!(format!("{token:?} {:?}", token.header()), "Token(…) Some(Sensitive)");
    assert_eq!(token.header().unwrap().as_bytes(), b"token s3cret");
    assert_eq!(Token::new(""), None);
    assert_eq!(Token::new("a\r\nHost: elsewhere").unwrap().header(), None);
}
