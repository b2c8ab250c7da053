//! Other machines by ssh: a real sshd on loopback whose machine is the mock driver's, and transports that misbehave.

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

/// Writes a script that a program is.
fn script(path: &Path, text: &str) {
    support::write_program(path, &format!("#!/bin/sh\n{text}\n"));
}

/// A server of ssh that lets this user in with one key, and a client that takes every host for it. `nokey` is shown
/// another key, and `closed` another port. The client's configuration is that of a person: it starts a command, forwards
/// a port that is taken, and lends the agent.
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
            // Where it has no rights.
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
        script(&path("bin/ssh"), &wrapper);
        let mut command = Command::new(sshd);
        command.args(["-D", "-f"]).arg(path("sshd_config")).stderr(Stdio::null());
        let server = Running::start(&mut command);
        let mut agent = Command::new("ssh-agent");
        agent.args(["-D", "-a"]).arg(path("agent")).stdout(Stdio::null());
        let agent = Running::start(&mut agent);
        wait_until("ssh is served", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        wait_until("there is an agent", || path("agent").exists());
        Some(Self { folder, _server: server, _agent: agent })
    }

    /// A script that runs gpumem there as this command does here.
    fn gpumem_there(&self, command: &Command) -> String {
        let quote = |word: &std::ffi::OsStr| format!("'{}'", word.to_str().unwrap());
        let lent = self.folder.path().join("lent-agent");
        let mut text = format!(
            "[ -z \"$SSH_AUTH_SOCK\" ] || : > '{}'; exec env -i PATH=\"$PATH\"",
            lent.display()
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
        script(&path, &format!("{text} \"$@\""));
        path.display().to_string()
    }

    /// gpumem here, which finds this client.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = with_ssh(support::command(arguments), &self.folder.path().join("bin"));
        command.env("SSH_AUTH_SOCK", self.folder.path().join("agent"));
        command
    }

    /// Whether a machine could use the keys of the agent here.
    fn has_lent_agent(&self) -> bool {
        self.folder.path().join("lent-agent").exists()
    }
}

fn with_ssh(mut command: Command, bin: &Path) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", bin.display()));
    command
}

fn host<'a>(document: &'a Value, name: &str) -> &'a Value {
    let hosts = document["hosts"].as_array().unwrap();
    hosts.iter().find(|it| it["host"] == name).unwrap_or_else(|| panic!("{name}: {document}"))
}

/// What a process in a snapshot is called, and no other.
fn exact_name(snapshot: &Value, pid: u32) -> String {
    let processes = snapshot["processes"].as_array().unwrap();
    let ticks = &processes.iter().find(|it| it["pid"] == pid).unwrap()["start_ticks"];
    format!("{pid}@{ticks}@{}", snapshot["host"]["boot_id"].as_str().unwrap())
}

/// Why there is no answer of a host.
fn error_of(document: &Value, name: &str) -> String {
    host(document, name)["error"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn hosts_are_listed_and_judged_here_by_what_they_record() {
    let server = or_skip!(Server::start());
    let (idle, busy) = (Running::sleep(), Running::sleep());
    let gpu = Gpu::default()
        .utilization(80, 10)
        .process(Process::compute(idle.pid(), 20 * GIB))
        .process(Process::compute(busy.pid(), 20 * GIB).sm(80));
    let machine = Machine::new(&Scene::new().gpu(gpu));
    let store = machine.path("store");
    let there = server.gpumem_there(&machine.command(&[]));
    let run = |words: &[&str]| -> Output {
        support::finish(&mut server.command(&[words, &["--host-command", &there]].concat()))
    };

    let listed = run(&["ps", "--json", "--host", "a,b,nokey,closed"]).exits(3);
    let document = listed.json();
    for name in ["a", "b"] {
        let rows = &host(&document, name)["document"]["gpus"][0]["processes"];
        assert_eq!(rows.as_array().map(Vec::len), Some(2), "{document}");
    }
    for (name, why) in [("nokey", "Permission denied"), ("closed", "Connection refused")] {
        assert!(error_of(&document, name).contains(why), "{document}");
        assert!(listed.stderr.contains(&format!("gpumem: {name}: ssh failed: ")), "{listed:?}");
        assert!(error_of(&document, name).contains("without a prompt"), "{document}");
    }
    let table = run(&["ps", "--host", "a,b"]).exits(0);
    let pid = idle.pid().to_string();
    assert!(table.stdout.starts_with("a\n") && table.stdout.contains("\nb\n"), "{table:?}");
    assert_eq!(table.stdout.matches(&format!(" {pid} ")).count(), 2, "{table:?}");

    // Nothing is stored there: half a second decides nothing. The rules are those of here.
    let config = Machine::new(&one_gpu(&[]));
    config.configure("[rules.idle]\nduration = \"3s\"\n");
    let check = |more: &[&str]| -> Output {
        let words = [&["check", "--json", "--kind", "idle", "--host", "a"], more].concat();
        let mut command = server.command(&[&words[..], &["--host-command", &there]].concat());
        config.environment(&mut command);
        support::finish(&mut command)
    };
    let short = check(&["--window", "500ms"]).exits(0).json();
    let verdict = |document: &Value| host(document, "a")["document"].clone();
    assert_eq!(verdict(&short)["undecided"][0]["rule"], "idle", "{short}");
    let decides = verdict(&short)["suspects"][0]["command"].as_str().unwrap().to_owned();
    assert!(decides.starts_with(&format!("ssh -t a '{there} check --kind idle ")), "{decides}");
    let kept = ["record", "--store", "--interval", "250ms", "--duration", "5s"];
    let kept = [&kept[..], &["--store-dir", store.to_str().unwrap()]].concat();
    machine.run(&kept).exits(0);
    server.gpumem_there(&machine.command(&["--store-dir", store.to_str().unwrap()]));
    // What is stored there decides at once, and what to type about it goes there.
    let at_once = check(&["--window", "500ms"]).exits(1).json();
    let findings = verdict(&at_once)["findings"].clone();
    let accused: Vec<&Value> =
        findings.as_array().unwrap().iter().map(|it| &it["process"]["pid"]).collect();
    assert_eq!(accused, [&Value::from(idle.pid())], "{at_once}");
    let command = findings[0]["commands"][0].as_str().unwrap();
    let name = exact_name(&host(&listed.json(), "a")["document"], idle.pid());
    assert_eq!(command, format!("ssh -t a '{there} kill {name}'"), "{at_once}");
    assert_eq!(
        verdict(&check(&["--window", "500ms", "--no-store"]).json())["findings"][0],
        Value::Null
    );
    assert!(!server.has_lent_agent());
}

#[test]
fn transports_that_misbehave_are_named_and_delay_nobody() {
    let machine = Machine::new(&one_gpu(&[Running::sleep().pid()]));
    let line = machine.record(&["--interval", "100ms"]).line();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("line"), format!("{}\n", line.trim_end())).unwrap();
    let newer = line.replacen("gpumem.snapshot/1", "gpumem.snapshot/2", 1);
    fs::write(path("newer"), format!("{newer}\n")).unwrap();
    fs::write(path("older"), newer.replacen("snapshot/2", "snapshot/0", 1) + "\n").unwrap();
    // The name of the host says what its transport does; the command is the last argument.
    let says = r#"
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
    script(&path("bin/ssh"), &format!("FOLDER='{}'\n{says}", folder.path().display()));
    let odd = [
        ("hangs", "no answer within"),
        ("stalls", "no answer within"),
        ("half", "ssh failed: the connection was lost"),
        ("endless", "no snapshot so far"),
        ("asks", "Permission denied"),
        ("nothing", "received no snapshot"),
        ("none", "gpumem was not found there"),
        ("argument", "too old for this request"),
        ("newer", "upgrade gpumem here"),
        ("older", "upgrade gpumem there"),
    ];
    let fine = ["banner", "talks", "long", "busy"].map(str::to_owned);
    let fine: Vec<String> = fine.into_iter().chain((0..51).map(|at| format!("h{at}"))).collect();
    let mut names: Vec<&str> = fine.iter().map(String::as_str).collect();
    names.splice(7..7, odd.map(|(name, _)| name));
    fs::write(path("hosts"), names.join("\n# and\n\n")).unwrap();
    let hosts = path("hosts").display().to_string();
    let command = support::command(&["ps", "--json", "--hosts", &hosts]);
    let output = support::finish(&mut with_ssh(command, &path("bin"))).exits(3);
    let document = output.json();
    let listed: Vec<&str> =
        document["hosts"].as_array().unwrap().iter().filter_map(|it| it["host"].as_str()).collect();
    assert_eq!(listed, names, "in the order in which they were named");
    for name in &fine {
        let answer = host(&document, name);
        assert_eq!(answer["error"], Value::Null, "{name}");
        assert!(answer["document"]["gpus"][0]["processes"][0]["pid"].is_u64(), "{name}");
    }
    for (name, why) in odd {
        assert!(error_of(&document, name).contains(why), "{name}: {}", host(&document, name));
        assert!(output.stderr.contains(&format!("gpumem: {name}: ")), "{name}");
    }
    // None of them is left behind.
    let left = || Command::new("pgrep").args(["-f", &hosts.replace("hosts", "bin/ssh")]).output();
    wait_until("no transport is left", || left().unwrap().stdout.is_empty());
}

/// A transport that opens the caller's terminal, and leaves a process behind.
#[test]
fn a_transport_has_no_terminal_and_leaves_nothing_behind() {
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
    script(&path("ssh"), &script_text);
    let command = with_ssh(support::command(&["ps", "--host", "a"]), folder.path());
    let mut terminal = Terminal::start(Terminal::SHELL, &command, 30, 120);
    assert_eq!(terminal.end().code(), Some(0), "{}", terminal.text());
    assert!(!path("terminal").exists(), "it has opened the terminal");
    let left: u32 = fs::read_to_string(path("left")).unwrap().trim().parse().unwrap();
    wait_until("nothing is left behind", || matches!(state(left), None | Some('Z' | 'X')));
}

#[test]
fn what_is_no_host_is_wrong_usage() {
    let empty = tempfile::NamedTempFile::new().unwrap();
    let empty = empty.path().to_str().unwrap();
    let many = (0..300).map(|at| format!("h{at}")).collect::<Vec<_>>().join(",");
    for words in [
        &["ps", "--host=-oProxyCommand=id"][..],
        &["ps", "--host", "a b"],
        &["ps", "--host", "a,"],
        &["ps", "--host", "$(id)"],
        &["ps", "--hosts", "/no/such/file"],
        &["ps", "--hosts", empty],
        &["ps", "--host", &many],
        &["ps", "--host", "a", "--demo"],
        &["check", "--host", "a", "--wait-free", "1GiB"],
        &["check", "--host", "a", "--format", "junit"],
        &["watch", "--host", "a", "--once"],
    ] {
        let output = support::run(words).exits(2);
        assert!(!output.stderr.is_empty(), "{words:?}");
    }
}

/// Whose name is one that only this process has, or nobody's.
#[test]
fn an_exact_name_is_of_one_process_and_no_other() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(OBEYS);
    let ps = support::finish(&mut stage.command(&["ps", "--json"])).json();
    let name = exact_name(&ps, holder.pid);
    let [pid, ticks, boot] = <[&str; 3]>::try_from(Vec::from_iter(name.split('@'))).unwrap();
    let (pid, ticks): (u32, u64) = (pid.parse().unwrap(), ticks.parse().unwrap());
    let kill =
        |name: &str| support::finish(&mut stage.command(&["kill", "--yes", "--grace", "2s", name]));
    let other = boot.replace(|c: char| c.is_ascii_digit(), "a");
    let names = [
        format!("{pid}@{}@{boot}", ticks + 1),
        format!("{pid}@{}@{boot}", ticks - 1),
        format!("{}@{ticks}@{boot}", pid + 1),
        format!("{pid}@{ticks}@{other}"),
        format!("{pid}@{ticks}@"),
        format!("{pid}@{ticks}"),
        format!("{pid}@@{boot}"),
        format!("{pid}@"),
        "@".to_owned(),
    ];
    thread::scope(|scope| {
        let tried: Vec<_> = names.iter().map(|name| scope.spawn(|| kill(name))).collect();
        for (name, output) in names.iter().zip(tried) {
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
fn a_kill_from_the_screen_goes_to_its_host_and_asks_there() {
    let server = or_skip!(Server::start());
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(OBEYS);
    let there = server.gpumem_there(&stage.command(&[]));
    let words = ["watch", "--host", "a,b,closed", "--interval", "250ms", "--host-command", &there];
    let mut terminal = Terminal::start(&[], &server.command(&words), 30, 120);
    let list = terminal.wait_for("the list", |text| {
        text.contains("3 hosts  1 not answering  2 GPUs") && text.contains("Connection refused")
    });
    assert!(list.lines().any(|line| line.starts_with("b ")), "{list}");
    let pid = holder.pid.to_string();
    // The one that cannot be reached has nothing to show, and the others go on.
    terminal.press("G\r");
    terminal.wait_for("its own screen", |text| text.contains("trying again: ssh failed"));
    terminal.press("H");
    terminal.wait_for("the list", |text| text.contains("3 hosts"));
    terminal.press("gj\r");
    // Its table, not the list of hosts, which may name the process as well.
    terminal.wait_for("the screen of b", |text| text.contains("PID USER") && text.contains(&pid));
    let title = format!("process {pid} on GPU 0");
    // On a busy machine a sample may lack the row just when the key comes; whoever sits there presses it again.
    wait_until("it is selected", || {
        terminal.press("j");
        thread::sleep(Duration::from_millis(300));
        terminal.text().contains(&title)
    });
    terminal.press("x");
    let plan = terminal.wait_for("the plan of there", |text| text.contains("[y/N]"));
    assert!(plan.contains("should free 2.0 GiB") && plan.contains(&format!("{pid}@")), "{plan}");
    // No is no, and the keys were the plan's.
    terminal.press("n\r");
    terminal.wait_for("the way back", |text| text.contains("Press Enter to return"));
    assert!(holder.is_alive() && stage.events().is_empty());
    terminal.press("\r");
    terminal.wait_for("the screen", |text| text.contains(&title));
    terminal.press("x");
    terminal.wait_for("the plan again", |text| text.matches("[y/N]").count() == 2);
    stage.release(&holder, Duration::ZERO);
    terminal.press("y\r");
    let text = terminal.wait_for("what came of it", |text| {
        text.trim_end().ends_with("Press Enter to return to the screen.")
            && text.contains("SIGTERM to")
            && text.contains("freed 2.0 GiB in")
    });
    assert!(text.contains(&format!("{pid}@")), "{text}");
    assert!(!holder.is_alive() && !server.has_lent_agent());
    assert_eq!(stage.events(), ["begun", "intended", "done", "ended"]);
    terminal.press("\r");
    terminal.wait_for("the screen", |text| text.contains("F10 Quit"));
    terminal.press("q");
    assert_eq!(terminal.end().code(), Some(0));
    terminal.assert_restored();
}

/// As where it asks for a password, or is not connected yet: its keys are the terminal's.
#[test]
fn a_command_on_a_host_is_stopped_and_ended_as_any_job() {
    let holder = Running::sleep();
    let machine = Machine::new(&one_gpu(&[holder.pid()]));
    let folder = tempfile::tempdir().unwrap();
    let line = machine.record(&["--interval", "100ms"]).line();
    fs::write(folder.path().join("line"), line + "\n").unwrap();
    let there = format!("cat '{}/line'; exec sleep 600", folder.path().display());
    script(
        &folder.path().join("ssh"),
        &format!("case \"$*\" in *' -t '*) ;; *) {there} ;; esac; echo password:; sleep 600"),
    );
    let command = support::command(&["watch", "--host", "a", "--interval", "1h"]);
    let command = with_ssh(command, folder.path());
    let mut terminal = Terminal::start(Terminal::SHELL, &command, 30, 120);
    terminal.wait_for("the process", |text| text.contains(&holder.pid().to_string()));
    terminal.press("jx");
    let typed = |text: &str| text.contains("ssh -t a 'gpumem kill");
    terminal.wait_for("the command", typed);
    terminal.wait_for("ssh", |text| text.contains("password:"));
    let ssh = terminal.pid().as_raw_nonzero().get().cast_unsigned();
    terminal.press("\x1a");
    wait_until("ssh is stopped", || state(ssh) == Some('T'));
    terminal.press("\r");
    terminal.wait_for("the shell's word of what goes on", |text| {
        typed(text) && text.lines().any(|line| line.trim() == "\"$@\"")
    });
    // Until then the terminal is the shell's, whom Ctrl-C would end.
    wait_until("ssh goes on", || state(ssh) != Some('T'));
    assert_eq!(terminal.end_by_interrupt().code(), Some(130));
    terminal.assert_restored();
}
