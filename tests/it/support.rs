//! What the tests share: running the binary, finding real programs, comparing generated files.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// What a run of gpumem came to.
#[derive(Debug)]
pub struct Output {
    /// Exit code; 128 + N where signal N ended it.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    /// The same, which has to have exited with this code.
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    /// Standard output as one JSON document, which is valid by the schema that it names.
    pub fn json(&self) -> serde_json::Value {
        let document = serde_json::from_str(&self.stdout);
        let document = document.unwrap_or_else(|error| panic!("{error}: {self:?}"));
        crate::schema::check(&document);
        document
    }
}

pub fn gpumem() -> &'static str {
    env!("CARGO_BIN_EXE_gpumem")
}

/// Where nothing of this machine's is.
pub const NOWHERE: &str = env!("CARGO_TARGET_TMPDIR");

/// An environment without this machine's configuration, history, locale and NVML.
pub fn clean_environment(command: &mut Command) {
    let nowhere = NOWHERE;
    for name in ["NO_COLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES", "LD_LIBRARY_PATH"] {
        command.env_remove(name);
    }
    command
        .env("HOME", nowhere)
        .env("XDG_CONFIG_HOME", nowhere)
        .env("XDG_STATE_HOME", nowhere)
        // Or a recorder's history of this machine would be root's.
        .env("STATE_DIRECTORY", nowhere);
    command.env("LC_ALL", "C.UTF-8").env("TZ", "UTC").env("TERM", "xterm-256color");
}

/// gpumem with these arguments, ready to be changed and run.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(gpumem());
    command.args(arguments);
    clean_environment(&mut command);
    command
}

pub fn run(arguments: &[&str]) -> Output {
    finish(&mut command(arguments))
}

/// Has a program that runs others, such as strace, run this one, in its environment.
pub fn before<'a>(command: &'a mut Command, program: &Command) -> &'a mut Command {
    command.arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// Runs a command to its end.
pub fn finish(command: &mut Command) -> Output {
    collect(command.stdin(Stdio::null()).output().unwrap())
}

/// Runs a command to its end on this standard input.
pub fn finish_with_input(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = thread::spawn(move || {
        // gpumem may have seen enough before the end.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    collect(output)
}

fn collect(output: std::process::Output) -> Output {
    use std::os::unix::process::ExitStatusExt as _;
    let status = output.status;
    Output {
        code: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
        stdout: String::from_utf8(output.stdout).expect("standard output is UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("standard error is UTF-8"),
    }
}

/// Where tests may skip for want of a program, and CI must not.
pub fn skip(what: &str, why: &str) {
    assert!(
        env::var_os("GPUMEM_TEST_REQUIRE_ALL").is_none(),
        "{what} is missing ({why}), and nothing may be skipped here"
    );
    eprintln!("skipped: {what} is missing ({why})");
}

/// Whether the tests run as root; `None`, after a printed reason, where they do not.
pub fn root(what: &str) -> Option<()> {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip(what, "run as root");
    }
    is_root.then_some(())
}

/// Whether children react to Ctrl-C; `None`, after a printed reason, where they inherit that it is ignored, as a shell
/// script's background job does.
pub fn interrupts(what: &str) -> Option<()> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
    let is_ignored = u64::from_str_radix(ignored, 16).unwrap()
        & (1 << (rustix::process::Signal::INT.as_raw() - 1))
        != 0;
    if is_ignored {
        skip(what, "run in the foreground: SIGINT is ignored here");
    }
    (!is_ignored).then_some(())
}

/// Starts a program, and waits for the first line that it prints.
pub fn hear(command: &mut Command) -> (Child, String) {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim_end().to_owned())
}

/// Copies a program that is run afterwards. Another process does it: a file that is open for writing here is open in
/// what other threads start at that moment too, and cannot be run until they have closed it.
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let mut copy = Command::new("cp");
    copy.arg("--dereference").arg(from.as_ref()).arg(to.as_ref());
    assert!(copy.status().unwrap().success(), "{copy:?}");
}

/// Writes a script that is run afterwards, in the same way.
pub fn write_program(path: impl AsRef<Path>, text: &str) {
    let mut install = Command::new("install");
    install.args(["-m", "755", "/dev/stdin"]).arg(path.as_ref());
    finish_with_input(&mut install, text.as_bytes()).exits(0);
}

/// A program on the search path; `None`, after a printed reason, where there is none.
pub fn find(program: &str, package: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|folder| folder.join(program)).find(|p| p.is_file());
    if found.is_none() {
        skip(program, &format!("install {package}"));
    }
    found
}

/// A Python that can import these modules: the one of the tests' own environment, or the system's.
pub fn python_with(modules: &[&str]) -> Option<PathBuf> {
    let own = env::var_os("GPUMEM_TEST_VENV").map(|venv| Path::new(&venv).join("bin/python"));
    let candidates = own.into_iter().chain([PathBuf::from("python3")]);
    for python in candidates {
        let imports = format!("import {}", modules.join(", "));
        let imported = Command::new(&python).args(["-c", &imports]).output();
        if imported.is_ok_and(|output| output.status.success()) {
            return Some(python);
        }
    }
    skip("a Python environment", &format!("pip install {}", modules.join(" ")));
    None
}

/// Nothing takes longer on a machine that is alive: notebook servers and Ray start when a busy one of two cores lets
/// them.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until something is so; fails where it does not come.
pub fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE, "in vain waited until {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Head and body of what a server of this machine answers to a request.
pub fn http(port: u16, request: &str) -> io::Result<(String, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok((head.to_owned(), body.to_owned()))
}

/// A port that nothing listens on. Each call gets another one, with the seven that follow: some servers take more than
/// one. The ports are below those that the kernel chooses itself. The check connects and does not listen: this process
/// is an ancestor of the other tests' programs, and a listening ancestor counts as their front end.
pub fn free_port() -> u16 {
    const FIRST: u16 = 10_000;
    const EACH: u16 = 8;
    const COUNT: u16 = 2700;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Another run of the tests begins elsewhere.
    let from = (std::process::id().wrapping_mul(0x9e37_79b9) >> 20) as u16;
    (0..COUNT)
        .map(|_| from.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT)
        .map(|index| FIRST + index * EACH)
        .find(|port| TcpStream::connect(("127.0.0.1", *port)).is_err())
        .expect("a port that is free")
}

/// Makes a certificate that nobody signs, `c.pem`, and its key, `k.pem`, in a folder; `None`, after a printed reason,
/// where there is no program for it.
pub fn certificate(folder: &Path) -> Option<[String; 2]> {
    let openssl = find("openssl", "openssl")?;
    let [certificate, key] = ["c.pem", "k.pem"].map(|name| folder.join(name).display().to_string());
    let mut make = Command::new(openssl);
    make.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]);
    make.args(["-subj", "/CN=stranger.example", "-out", &certificate, "-keyout", &key]);
    assert_eq!(finish(&mut make).code, 0);
    Some([certificate, key])
}

/// Compares a committed file with what generates it; rewrites it where `GPUMEM_BLESS` is set.
pub fn compare_or_bless(path: &str, generated: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if env::var_os("GPUMEM_BLESS").is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, generated).unwrap();
        return;
    }
    let committed = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        committed == generated,
        "{path} is not fresh: GPUMEM_BLESS=1 cargo test --workspace rewrites it\n--- generated\n{generated}"
    );
}
