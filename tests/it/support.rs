//! Shared helpers of the tests: running gpumem, finding programs, and comparing generated files.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

#[derive(Debug)]
pub struct Output {
    /// The exit code, or 128 + N if signal N ended the program.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    /// Parses standard output as one JSON document, and validates the document against its schema.
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

/// A directory without configuration, history and state.
pub const NOWHERE: &str = env!("CARGO_TARGET_TMPDIR");

/// Hides this machine's configuration, history, locale and NVML from a program.
pub fn clean_environment(command: &mut Command) {
    let nowhere = NOWHERE;
    for name in ["NO_COLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES", "LD_LIBRARY_PATH"] {
        command.env_remove(name);
    }
    command
        .env("HOME", nowhere)
        .env("XDG_CONFIG_HOME", nowhere)
        .env("XDG_STATE_HOME", nowhere)
        // Otherwise, root would read the history of a recorder on this machine.
        .env("STATE_DIRECTORY", nowhere);
    command.env("LC_ALL", "C.UTF-8").env("TZ", "UTC").env("TERM", "xterm-256color");
}

/// Returns a command that runs gpumem in a clean environment.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(gpumem());
    command.args(arguments);
    clean_environment(&mut command);
    command
}

pub fn run(arguments: &[&str]) -> Output {
    finish(&mut command(arguments))
}

/// Appends `program` with its environment to a command that runs another program, such as strace.
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

pub fn finish(command: &mut Command) -> Output {
    collect(command.stdin(Stdio::null()).output().unwrap())
}

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
        // Ignore the error: gpumem can exit before it has read the input.
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

/// Returns the path of a recording with every eighth snapshot of the demo. An unoptimized gpumem takes seconds to read
/// the whole demo.
pub fn short_demo() -> &'static str {
    const PATH: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/short-demo.jsonl");
    static WRITTEN: LazyLock<()> = LazyLock::new(|| {
        let demo =
            include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/source/demo.jsonl.zst"));
        let demo = String::from_utf8(zstd::decode_all(&demo[..]).unwrap()).unwrap();
        let lines: Vec<&str> = demo.split_inclusive('\n').collect();
        // Counting from the end includes the last snapshot.
        let chosen: Vec<&str> = lines.into_iter().rev().step_by(8).collect();
        let file = tempfile::NamedTempFile::new_in(NOWHERE).unwrap();
        fs::write(&file, chosen.into_iter().rev().collect::<String>()).unwrap();
        file.persist(PATH).unwrap();
    });
    LazyLock::force(&WRITTEN);
    PATH
}

/// Prints why a test is skipped. Panics in CI, where no test may be skipped.
pub fn skip(name: &str, reason: &str) {
    assert!(
        env::var_os("GPUMEM_TEST_REQUIRE_ALL").is_none(),
        "{name} is missing ({reason}), and no test may be skipped here"
    );
    eprintln!("skipped: {name} is missing ({reason})");
}

/// If the tests do not run as root, prints the reason and returns `None`.
pub fn root(purpose: &str) -> Option<()> {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip(purpose, "run as root");
    }
    is_root.then_some(())
}

/// If children inherit an ignored SIGINT, as in a background job of a script, prints the reason and returns `None`.
pub fn interrupts(purpose: &str) -> Option<()> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
    let is_ignored = u64::from_str_radix(ignored, 16).unwrap()
        & (1 << (rustix::process::Signal::INT.as_raw() - 1))
        != 0;
    if is_ignored {
        skip(purpose, "run in the foreground: SIGINT is ignored here");
    }
    (!is_ignored).then_some(())
}

/// Starts a program, and reads the first line of output.
pub fn start_and_read_line(command: &mut Command) -> (Child, String) {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim_end().to_owned())
}

/// Copies a program with cp(1). If this process wrote the file, children of other threads could inherit the open
/// file, and execve(2) would fail with ETXTBSY.
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let mut copy = Command::new("cp");
    copy.arg("--dereference").arg(from.as_ref()).arg(to.as_ref());
    assert!(copy.status().unwrap().success(), "{copy:?}");
}

/// Writes an executable script with install(1), for the same reason as in [`copy_program`].
pub fn write_program(path: impl AsRef<Path>, text: &str) {
    let mut install = Command::new("install");
    install.args(["-m", "755", "/dev/stdin"]).arg(path.as_ref());
    finish_with_input(&mut install, text.as_bytes()).exits(0);
}

/// Returns the path of a program on PATH. If the program is missing, prints the reason and returns `None`.
pub fn find(program: &str, package: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|folder| folder.join(program)).find(|p| p.is_file());
    if found.is_none() {
        skip(program, &format!("install {package}"));
    }
    found
}

/// Returns a Python that can import these modules, from the tests' virtual environment or from the system.
pub fn python_with(modules: &[&str]) -> Option<PathBuf> {
    let venv = env::var_os("GPUMEM_TEST_VENV").map(|venv| Path::new(&venv).join("bin/python"));
    let candidates = venv.into_iter().chain([PathBuf::from("python3")]);
    for python in candidates {
        // Importing the modules would take seconds.
        let find =
            "import sys, importlib.util as u; sys.exit(not all(map(u.find_spec, sys.argv[1:])))";
        let found = Command::new(&python).args(["-c", find]).args(modules).output();
        if found.is_ok_and(|output| output.status.success()) {
            return Some(python);
        }
    }
    skip("a Python environment", &format!("pip install {}", modules.join(" ")));
    None
}

/// Time limit of every wait. On a busy machine with two cores, notebook servers and Ray start slowly.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until a condition is met. Panics after [`PATIENCE`].
pub fn wait_until(description: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    loop {
        let checked = Instant::now();
        if condition() {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "timed out waiting for: {description}");
        // A condition that runs gpumem takes CPU time from the program that the test waits for.
        let pause = checked.elapsed().clamp(Duration::from_millis(20), Duration::from_millis(300));
        thread::sleep(pause);
    }
}

/// Sends a request to a local server. Returns the head and the body of the answer.
pub fn http(port: u16, request: &str) -> io::Result<(String, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok((head.to_owned(), body.to_owned()))
}

/// Returns a port without a listener. Other calls in this process return different ports. The following seven ports
/// are also free, because some servers use several ports. All ports are below the kernel's ephemeral range. The
/// function connects and does not listen, because this process is an ancestor of other tests' programs, and a
/// listening ancestor would make them look like servers.
pub fn free_port() -> u16 {
    const FIRST: u16 = 10_000;
    const EACH: u16 = 8;
    const COUNT: u16 = 2700;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Concurrent test runs start at different offsets.
    let offset = (std::process::id().wrapping_mul(0x9e37_79b9) >> 20) as u16;
    (0..COUNT)
        .map(|_| offset.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT)
        .map(|index| FIRST + index * EACH)
        .find(|port| TcpStream::connect(("127.0.0.1", *port)).is_err())
        .expect("a free port")
}

/// Creates a self-signed certificate `c.pem` and its key `k.pem`. If openssl is missing, prints the reason and
/// returns `None`.
pub fn certificate(folder: &Path) -> Option<[String; 2]> {
    let openssl = find("openssl", "openssl")?;
    let [certificate, key] = ["c.pem", "k.pem"].map(|name| folder.join(name).display().to_string());
    let mut make = Command::new(openssl);
    make.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]);
    make.args(["-subj", "/CN=stranger.example", "-out", &certificate, "-keyout", &key]);
    assert_eq!(finish(&mut make).code, 0);
    Some([certificate, key])
}

/// Compares a committed file with generated content. If `GPUMEM_BLESS` is set, writes the content to the file.
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
        "{path} is out of date: GPUMEM_BLESS=1 cargo test --workspace rewrites it\n--- generated\n{generated}"
    );
}
