//! Remote hosts over ssh: a real sshd on loopback that runs gpumem on the mock driver, and transports that misbehave.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use mock_nvml::scene::{Gpu, Process, Scene};
use serde_json::Value;

use crate::machine::{GIB, Machine, Running, one_gpu};
use crate::procs::state;
use crate::pty::Terminal;
use crate::reap::{OBEYS, Stage};
use crate::support::{self, Output, wait_until};

/// Writes an executable shell script.
fn write_script(path: &Path, text: &str) {
    support::write_program(path, &format!("#!/bin/sh\n{text}\n"));
}

/// An sshd that accepts one key, and a client that connects every host name to this sshd. The client offers a wrong key
/// to the host `nokey`, and uses a wrong port for the host `closed`. The client's configuration contains options that a
/// user can have set: a remote command, a forwarded port that is in use, and agent forwarding.
struct Server {
    folder: tempfile::TempDir,
    _server: Running,
    _agent: Running,
}

impl Server {
    fn start() -> Option<Self> {
        let sshd = support::find("sshd", "openssh-server")?;
        let ssh = support::find("ssh", "openssh-client")?;
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for key in ["host", "user", "other"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path(key));
            assert!(keygen.status().unwrap().success());
        }
        fs::copy(path("user.pub"), path("authorized")).unwrap();
        if rustix::process::geteuid().is_root() {
            // sshd needs this directory, so failing to create it is an error.
            fs::create_dir_all("/run/sshd").unwrap();
        }
        let port = support::free_port();
        let here = folder.path().display();
        let server = format!(
            "ListenAddress 127.0.0.1:{port}\nHostKey {here}/host\nPidFile none\nStrictModes no\n\
             AuthorizedKeysFile {here}/authorized\nUsePAM no\nPasswordAuthentication no\n\
             MaxStartups 200\nPrintMotd no\n"
        );
        fs::write(path("sshd_config"), server).unwrap();
        let client = format!(
            "Host nokey\n  IdentityFile {here}/other\nHost * !nokey\n  IdentityFile {here}/user\n\
             Host closed\n  Port 1\nHost *\n  HostName 127.0.0.1\n  Port {port}\n  \
             IdentitiesOnly yes\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  \
             LogLevel ERROR\n  RemoteCommand sleep 600\n  ForwardAgent yes\n  \
             LocalForward 127.0.0.1:{port} 127.0.0.1:1\n  ExitOnForwardFailure yes\n"
        );
        fs::write(path("ssh_config"), client).unwrap();
        fs::create_dir(path("bin")).unwrap();
        let wrapper = format!("exec {} -F {here}/ssh_config \"$@\"", ssh.display());
        write_script(&path("bin/ssh"), &wrapper);
        let mut command = Command::new(sshd);
        command.args(["-D", "-f"]).arg(path("sshd_config")).stderr(Stdio::null());
        let server = Running::start(&mut command);
        let mut agent = Command::new("ssh-agent");
        agent.args(["-D", "-a"]).arg(path("agent")).stdout(Stdio::null());
        let agent = Running::start(&mut agent);
        wait_until("sshd accepts connections", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        wait_until("the agent's socket exists", || path("agent").exists());
        Some(Self { folder, _server: server, _agent: agent })
    }

    /// Writes a script that runs `command` on the "remote" host. Returns the path of the script.
    fn write_remote_gpumem(&self, command: &Command) -> String {
        let quote = |word: &std::ffi::OsStr| format!("'{}'", word.to_str().unwrap());
        let forwarded = self.folder.path().join("forwarded-agent");
        let mut text = format!(
            "[ -z \"$SSH_AUTH_SOCK\" ] || : > '{}'; exec env -i PATH=\"$PATH\"",
            forwarded.display()
        );
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                text.push_str(&format!(" {}={}", name.to_str().unwrap(), quote(value)));
            }
        }
        text.push_str(&format!(" {}", quote(command.get_program())));
        for word in command.get_args() {
            text.push_str(&format!(" {}", quote(word)));
        }
        let path = self.folder.path().join("gpumem-there");
        write_script(&path, &format!("{text} \"$@\""));
        path.display().to_string()
    }

    /// Returns a command that runs gpumem with this ssh client on PATH.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = with_ssh(support::command(arguments), &self.folder.path().join("bin"));
        command.env("SSH_AUTH_SOCK", self.folder.path().join("agent"));
        command
    }

    /// Returns whether ssh forwarded the local agent to a host, which could then use the agent's keys.
    fn has_forwarded_agent(&self) -> bool {
        self.folder.path().join("forwarded-agent").exists()
    }
}

fn with_ssh(mut command: Command, bin: &Path) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", bin.display()));
    command
}

fn host<'a>(document: &'a Value, name: &str) -> &'a Value {
    let hosts = document["hosts"].as_array().unwrap();
    hosts.iter().find(|host| host["host"] == name).unwrap_or_else(|| panic!("{name}: {document}"))
}

/// Returns `PID@START@BOOT`, which names a process even if the pid is reused.
fn exact_name(snapshot: &Value, pid: u32) -> String {
    let processes = snapshot["processes"].as_array().unwrap();
    let ticks = &processes.iter().find(|process| process["pid"] == pid).unwrap()["start_ticks"];
    format!("{pid}@{ticks}@{}", snapshot["host"]["boot_id"].as_str().unwrap())
}

fn error_of(document: &Value, name: &str) -> String {
    host(document, name)["error"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn hosts_are_listed_and_judged_locally() {
    let server = or_skip!(Server::start());
    let (idle, busy) = (Running::sleep(), Running::sleep());
    let gpu = Gpu::default()
        .utilization(80, 10)
        .process(Process::compute(idle.pid(), 20 * GIB))
        .process(Process::compute(busy.pid(), 20 * GIB).sm(80));
    let machine = Machine::new(&Scene::new().gpu(gpu));
    let store = machine.path("store");
    let remote = server.write_remote_gpumem(&machine.command(&[]));
    let run = |words: &[&str]| -> Output {
        support::finish(&mut server.command(&[words, &["--host-command", &remote]].concat()))
    };

    let listed = run(&["ps", "--json", "--host", "a,b,nokey,closed"]).exits(3);
    let document = listed.json();
    for name in ["a", "b"] {
        let rows = &host(&document, name)["document"]["gpus"][0]["processes"];
        assert_eq!(rows.as_array().map(Vec::len), Some(2), "{document}");
    }
    for (name, reason) in [("nokey", "Permission denied"), ("closed", "Connection refused")] {
        assert!(error_of(&document, name).contains(reason), "{document}");
        assert!(listed.stderr.contains(&format!("gpumem: {name}: ssh failed: ")), "{listed:?}");
        assert!(error_of(&document, name).contains("without a prompt"), "{document}");
    }
    let table = run(&["ps", "--host", "a,b"]).exits(0);
    let pid = idle.pid().to_string();
    assert!(table.stdout.starts_with("a\n") && table.stdout.contains("\nb\n"), "{table:?}");
    assert_eq!(table.stdout.matches(&format!(" {pid} ")).count(), 2, "{table:?}");

    // The remote host has no store, so half a second of samples decides nothing. The local rules apply.
    let config = Machine::new(&one_gpu(&[]));
    config.configure("[rules.idle]\nduration = \"3s\"\n");
    let check = |more: &[&str]| -> Output {
        let words = [&["check", "--json", "--kind", "idle", "--host", "a"], more].concat();
        let mut command = server.command(&[&words[..], &["--host-command", &remote]].concat());
        config.environment(&mut command);
        support::finish(&mut command)
    };
    let short = check(&["--window", "500ms"]).exits(0).json();
    let verdict = |document: &Value| host(document, "a")["document"].clone();
    assert_eq!(verdict(&short)["undecided"][0]["rule"], "idle", "{short}");
    let decides = verdict(&short)["suspects"][0]["command"].as_str().unwrap().to_owned();
    assert!(decides.starts_with(&format!("ssh -t a '{remote} check --kind idle ")), "{decides}");
    let record = ["record", "--store", "--interval", "250ms", "--duration", "5s"];
    let record = [&record[..], &["--store-dir", store.to_str().unwrap()]].concat();
    machine.run(&record).exits(0);
    server.write_remote_gpumem(&machine.command(&["--store-dir", store.to_str().unwrap()]));
    // With a store on the host, the check decides immediately, and the advised command runs on that host.
    let with_store = check(&["--window", "500ms"]).exits(1).json();
    let findings = verdict(&with_store)["findings"].clone();
    let accused: Vec<&Value> =
        findings.as_array().unwrap().iter().map(|finding| &finding["process"]["pid"]).collect();
    assert_eq!(accused, [&Value::from(idle.pid())], "{with_store}");
    let command = findings[0]["commands"][0].as_str().unwrap();
    let name = exact_name(&host(&listed.json(), "a")["document"], idle.pid());
    assert_eq!(command, format!("ssh -t a '{remote} kill {name}'"), "{with_store}");
    assert_eq!(
        verdict(&check(&["--window", "500ms", "--no-store"]).json())["findings"][0],
        Value::Null
    );
    server.write_remote_gpumem(&machine.command(&[]));

    // Names of hosts can contain ranges.
    let file = server.folder.path().join("hosts");
    fs::write(&file, "r[1-2]n[09-10] # racks\nx[3,1].lan, x3.lan\n").unwrap();
    let file = file.display().to_string();
    let listed =
        run(&["ps", "--json", "--host", "n[008-010,7], b", "--hosts", &file]).exits(0).json();
    let listed = listed["hosts"].as_array().unwrap().iter();
    let (names, pids): (Vec<&str>, Vec<&Value>) = listed
        .map(|host| {
            let process = &host["document"]["gpus"][0]["processes"][0];
            (host["host"].as_str().unwrap(), &process["pid"])
        })
        .unzip();
    let expected = "n008 n009 n010 n7 b r1n09 r1n10 r2n09 r2n10 x3.lan x1.lan";
    assert_eq!(names.join(" "), expected);
    assert!(pids.iter().all(|pid| **pid == idle.pid()), "{pids:?}");

    // A screen without a terminal shows one host.
    let once = |host: &str, more: &[&str]| {
        run(&[&["watch", "--once", "--size", "120x40", "--host", host], more].concat())
    };
    let title = format!("process {} on GPU 0", idle.pid());
    let picture = once("a", &["--where", &format!("pid:{pid}"), "--keys", "j"]).exits(0).stdout;
    assert!(picture.contains(&title), "{picture}");
    let svg = run(&["watch", "--once=svg", "--host", "a"]).exits(0).stdout;
    assert!(svg.starts_with("<svg") || svg.starts_with("<?xml"), "{svg}");
    let refused = once("nokey", &[]).exits(3);
    assert!(refused.stderr.contains("gpumem: nokey: ssh failed: "), "{refused:?}");

    // The error of a host contains the ssh command that failed. When the host accepts the key, the command works.
    // The command passes through both shells.
    let remote = format!("quoted='it'\\''s' && {remote}");
    let words = ["ps", "--json", "--host", "nokey", "--host-command", &remote];
    let document = support::finish(&mut server.command(&words)).exits(3).json();
    let error = error_of(&document, "nokey");
    let (_, advised) = error.split_once("without a prompt: ").unwrap();
    let run_advised = || {
        let mut shell = Command::new("sh");
        support::clean_environment(&mut shell);
        let mut shell = with_ssh(shell, &server.folder.path().join("bin"));
        support::finish(shell.args(["-c", advised]))
    };
    assert!(run_advised().exits(255).stderr.contains("Permission denied"));
    fs::copy(server.folder.path().join("other.pub"), server.folder.path().join("authorized"))
        .unwrap();
    assert!(run_advised().exits(0).stdout.starts_with(r#"{"schema":"gpumem.snapshot/1""#));
    assert!(!server.has_forwarded_agent());
}

#[test]
fn broken_transports_are_reported_and_delay_no_host() {
    let machine = Machine::new(&one_gpu(&[Running::sleep().pid()]));
    let line = machine.record(&["--interval", "100ms"]).line();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("line"), format!("{}\n", line.trim_end())).unwrap();
    let newer = line.replacen("gpumem.snapshot/1", "gpumem.snapshot/2", 1);
    fs::write(path("newer"), format!("{newer}\n")).unwrap();
    fs::write(path("older"), newer.replacen("snapshot/2", "snapshot/0", 1) + "\n").unwrap();
    // The name of the host selects the behaviour of this transport.
    let behaviour = r#"
while [ "$1" != -- ]; do shift; done
line() { cat "$FOLDER/line"; }
case "$2" in
hangs) while :; do sleep 1; done ;;
stalls) line; while :; do sleep 1; done ;;
banner) echo 'Welcome!'; echo 'Ask your admin <{"' ; line ;;
talks) yes 'a warning' | head -c 300000 >&2; line ;;
half) line; printf '{"schema":"gpumem.snapshot/1","time":"20'; exit 255 ;;
long) head -c 10000000 /dev/zero | tr '\0' x; echo; line ;;
endless) exec cat /dev/zero ;;
asks) echo 'Permission denied (publickey,password).' >&2; exit 255 ;;
nothing) exit 0 ;;
busy) [ -e "$FOLDER/busy" ] && line || {
  echo 'kex_exchange_identification: Connection closed by remote host' >&2
  echo 'Connection closed by UNKNOWN port 65535' >&2; : > "$FOLDER/busy"; exit 255; } ;;
none) echo 'sh: 1: gpumem: not found' >&2; exit 127 ;;
argument) echo "error: unexpected argument '--history' found" >&2; exit 2 ;;
newer|older) cat "$FOLDER/$2" ;;
*) line ;;
esac
"#;
    fs::create_dir(path("bin")).unwrap();
    write_script(&path("bin/ssh"), &format!("FOLDER='{}'\n{behaviour}", folder.path().display()));
    let broken = [
        ("hangs", "no answer within"),
        ("stalls", "no answer within"),
        ("half", "ssh failed: the connection was lost"),
        ("endless", "no snapshot in more than"),
        ("asks", "Permission denied"),
        ("nothing", "received no snapshot"),
        ("none", "gpumem was not found there"),
        ("argument", "too old for this request"),
        ("newer", "upgrade gpumem here"),
        ("older", "upgrade gpumem there"),
    ];
    let working = ["banner", "talks", "long", "busy"].map(str::to_owned);
    // More hosts than are queried at once.
    let working: Vec<String> =
        working.into_iter().chain((0..270).map(|number| format!("h{number}"))).collect();
    let mut names: Vec<&str> = working.iter().map(String::as_str).collect();
    names.splice(7..7, broken.map(|(name, _)| name));
    fs::write(path("hosts"), names.join("\n# and\n\n")).unwrap();
    let hosts = path("hosts").display().to_string();
    let command = support::command(&["ps", "--json", "--hosts", &hosts]);
    let output = support::finish(&mut with_ssh(command, &path("bin"))).exits(3);
    let document = output.json();
    let listed = document["hosts"].as_array().unwrap().iter();
    let listed: Vec<&str> = listed.filter_map(|host| host["host"].as_str()).collect();
    assert_eq!(listed, names, "hosts keep their order");
    for name in &working {
        let answer = host(&document, name);
        assert_eq!(answer["error"], Value::Null, "{name}");
        assert!(answer["document"]["gpus"][0]["processes"][0]["pid"].is_u64(), "{name}");
    }
    for (name, reason) in broken {
        assert!(error_of(&document, name).contains(reason), "{name}: {}", host(&document, name));
        assert!(output.stderr.contains(&format!("gpumem: {name}: ")), "{name}");
    }
    // All transports have exited.
    let remaining =
        || Command::new("pgrep").args(["-f", &hosts.replace("hosts", "bin/ssh")]).output();
    wait_until("every transport has exited", || remaining().unwrap().stdout.is_empty());
}

/// The transport tries to open the caller's terminal, and starts a background process.
#[test]
fn a_transport_has_no_terminal_and_leaves_no_process() {
    let machine = Machine::new(&one_gpu(&[Running::sleep().pid()]));
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let line = machine.record(&["--interval", "100ms"]).line();
    fs::write(path("line"), line + "\n").unwrap();
    let script_text = format!(
        "cd '{}' || exit\n(: >/dev/tty) 2>/dev/null && echo opened >terminal\n\
         sleep 600 >/dev/null 2>&1 &\necho $! >left; cat line",
        folder.path().display()
    );
    write_script(&path("ssh"), &script_text);
    let command = with_ssh(support::command(&["ps", "--host", "a"]), folder.path());
    let mut terminal = Terminal::start(Terminal::SHELL, &command, 30, 120);
    assert_eq!(terminal.wait_for_exit().code(), Some(0), "{}", terminal.text());
    assert!(!path("terminal").exists(), "the transport opened the terminal");
    let left: u32 = fs::read_to_string(path("left")).unwrap().trim().parse().unwrap();
    wait_until("the background process has ended", || {
        matches!(state(left), None | Some('Z' | 'X'))
    });
}

#[test]
fn invalid_hosts_are_usage_errors() {
    let empty = tempfile::NamedTempFile::new().unwrap();
    let empty = empty.path().to_str().unwrap();
    let many = (0..1025).map(|number| format!("h{number}")).collect::<Vec<_>>().join(",");
    for words in [
        &["ps", "--hosts", "/no/such/file"][..],
        &["ps", "--hosts", empty],
        &["ps", "--host", "a", "--demo"],
        &["check", "--host", "a", "--wait-free", "1GiB"],
        &["check", "--host", "a", "--format", "junit"],
        &["watch", "--host", "a,b", "--once"],
    ] {
        let output = support::run(words).exits(2);
        assert!(!output.stderr.is_empty(), "{words:?}");
    }
    let ranges = "n[1-1025] n[0-99999][0-99999] n[1-4 n1-4] n[] n[4-1] n[+1-4] n[a-c] n[1-4]:22";
    let names = ["-oProxyCommand=id", "a b", "a,", "$(id)", many.as_str()];
    for name in names.into_iter().chain(ranges.split(' ')) {
        let output = support::run(&["ps", &format!("--host={name}")]).exits(2);
        assert!(!output.stderr.is_empty(), "{name}");
    }
    for (name, hint) in [
        ("[::1]", "without brackets and port: ::1"),
        ("n1,ann@gpu1:2222", "write ann@gpu1, and set \"Port 2222\""),
    ] {
        let output = support::run(&["ps", "--host", name]).exits(2);
        assert!(output.stderr.contains(hint), "{output:?}");
    }
}

#[test]
fn an_exact_name_matches_only_its_process() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(OBEYS);
    let ps = support::finish(&mut stage.command(&["ps", "--json"])).json();
    let name = exact_name(&ps, holder.pid);
    let [pid, ticks, boot] = <[&str; 3]>::try_from(Vec::from_iter(name.split('@'))).unwrap();
    let (pid, ticks): (u32, u64) = (pid.parse().unwrap(), ticks.parse().unwrap());
    let kill =
        |name: &str| support::finish(&mut stage.command(&["kill", "--yes", "--grace", "2s", name]));
    let other_boot = boot.replace(|c: char| c.is_ascii_digit(), "a");
    let names = [
        format!("{pid}@{}@{boot}", ticks + 1),
        format!("{pid}@{}@{boot}", ticks - 1),
        format!("{}@{ticks}@{boot}", pid + 1),
        format!("{pid}@{ticks}@{other_boot}"),
        format!("{pid}@{ticks}@"),
        format!("{pid}@{ticks}"),
        format!("{pid}@@{boot}"),
        format!("{pid}@"),
        "@".to_owned(),
    ];
    thread::scope(|scope| {
        let attempts: Vec<_> = names.iter().map(|name| scope.spawn(|| kill(name))).collect();
        for (name, output) in names.iter().zip(attempts) {
            let output = output.join().unwrap();
            assert_ne!(output.code, 0, "{name}: {output:?}");
            assert!(!output.stderr.contains("SIG"), "{name}: {output:?}");
        }
    });
    assert!(holder.is_alive() && stage.lines().is_empty());
    kill(&name);
    assert!(!holder.is_alive());
}

#[test]
fn a_kill_from_the_screen_runs_and_asks_on_the_host() {
    let server = or_skip!(Server::start());
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(OBEYS);
    let remote = server.write_remote_gpumem(&stage.command(&[]));
    let words = ["watch", "--host", "a,b,closed", "--interval", "250ms", "--host-command", &remote];
    let mut terminal = Terminal::start(&[], &server.command(&words), 30, 120);
    let list = terminal.wait_for("the list of hosts", |text| {
        text.contains("3 hosts  1 not answering  2 GPUs") && text.contains("Connection refused")
    });
    assert!(list.lines().any(|line| line.starts_with("b ")), "{list}");
    let pid = holder.pid.to_string();
    // The screen shows the error of the unreachable host, and continues to show the other hosts.
    terminal.press("G\r");
    terminal.wait_for("the host's screen", |text| text.contains("trying again: ssh failed"));
    terminal.press("H");
    terminal.wait_for("the list of hosts", |text| text.contains("3 hosts"));
    terminal.press("gj\r");
    // Wait for the host's table, because the list of hosts can contain the pid, too.
    terminal.wait_for("the screen of b", |text| text.contains("PID USER") && text.contains(&pid));
    let title = format!("process {pid} on GPU 0");
    // Repeat the key, because on a busy machine, the table can still lack the row when the key arrives.
    wait_until("the process is selected", || {
        terminal.press("j");
        thread::sleep(Duration::from_millis(300));
        terminal.text().contains(&title)
    });
    terminal.press("x");
    let plan = terminal.wait_for("the remote plan", |text| text.contains("[y/N]"));
    assert!(plan.contains("should free 2.0 GiB") && plan.contains(&format!("{pid}@")), "{plan}");
    // "n" declines the plan. The plan received the keys, and the screen did not.
    terminal.press("n\r");
    terminal.wait_for("the prompt to go back", |text| text.contains("Press Enter to return"));
    assert!(holder.is_alive() && stage.events().is_empty());
    terminal.press("\r");
    terminal.wait_for("the screen", |text| text.contains(&title));
    terminal.press("x");
    terminal.wait_for("the plan again", |text| text.matches("[y/N]").count() == 2);
    stage.release(&holder, Duration::ZERO);
    terminal.press("y\r");
    let text = terminal.wait_for("the outcome", |text| {
        text.trim_end().ends_with("Press Enter to return to the screen.")
            && text.contains("SIGTERM to")
            && text.contains("freed 2.0 GiB in")
    });
    assert!(text.contains(&format!("{pid}@")), "{text}");
    assert!(!holder.is_alive() && !server.has_forwarded_agent());
    assert_eq!(stage.events(), ["begun", "intended", "done", "ended"]);
    terminal.press("\r");
    terminal.wait_for("the screen", |text| text.contains("F10 Quit"));
    terminal.press("q");
    assert_eq!(terminal.wait_for_exit().code(), Some(0));
    terminal.assert_restored();
}

/// The terminal handles keys while ssh connects or asks for a password.
#[test]
fn an_ssh_command_can_be_stopped_and_interrupted() {
    let holder = Running::sleep();
    let machine = Machine::new(&one_gpu(&[holder.pid()]));
    let folder = tempfile::tempdir().unwrap();
    let line = machine.record(&["--interval", "100ms"]).line();
    fs::write(folder.path().join("line"), line + "\n").unwrap();
    let remote = format!("cat '{}/line'; exec sleep 600", folder.path().display());
    write_script(
        &folder.path().join("ssh"),
        &format!("case \"$*\" in *' -t '*) ;; *) {remote} ;; esac; echo password:; sleep 600"),
    );
    let command = support::command(&["watch", "--host", "a", "--interval", "1h"]);
    let command = with_ssh(command, folder.path());
    let mut terminal = Terminal::start(Terminal::SHELL, &command, 30, 120);
    terminal.wait_for("the process", |text| text.contains(&holder.pid().to_string()));
    terminal.press("jx");
    let shows_command = |text: &str| text.contains("ssh -t a 'gpumem kill");
    terminal.wait_for("the command", shows_command);
    terminal.wait_for("ssh", |text| text.contains("password:"));
    let ssh = terminal.pid().as_raw_nonzero().get().cast_unsigned();
    terminal.press("\x1a");
    wait_until("ssh is stopped", || state(ssh) == Some('T'));
    terminal.press("\r");
    terminal.wait_for("the shell's message about the job", |text| {
        shows_command(text) && text.lines().any(|line| line.trim() == "\"$@\"")
    });
    // Until ssh continues, the shell owns the terminal, and Ctrl-C would end the shell.
    wait_until("ssh continues", || state(ssh) != Some('T'));
    assert_eq!(terminal.interrupt_until_exit().code(), Some(130));
    terminal.assert_restored();
}
