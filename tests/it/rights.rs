//! As root, gpumem rejects files that other users can change. With file capabilities or the setuid bit, gpumem does
//! not trust the caller. These tests need root to change owners, and run gpumem as another user.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::machine::{Machine, Running, one_gpu};
use crate::support::{self, Output, clean_environment, finish, skip};

const NOBODY: u32 = 65534;

/// Creates a directory that belongs to root and that every user can enter.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    set_mode(folder.path(), 0o755);
    folder
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn write(path: &Path, text: &str, bits: u32) -> PathBuf {
    fs::write(path, text).unwrap();
    set_mode(path, bits);
    path.to_owned()
}

fn assert_refused(output: &Output, words: &[&str]) {
    assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{output:?}");
    for word in words {
        assert!(output.stderr.contains(word), "{word}: {output:?}");
    }
}

#[test]
fn root_rejects_a_configuration_that_others_may_write() {
    or_skip!(support::root("root"));
    let folder = folder();
    let good = write(&folder.path().join("a.toml"), "[sample]\ninterval = \"1s\"\n", 0o644);
    let check = |file: &Path| {
        let file = file.to_str().unwrap();
        // `config check` accepts the file as an argument and as `--config`.
        let named = support::run(&["config", "check", file]);
        let given = support::run(&["config", "check", "--config", file]);
        assert_eq!((named.code, &named.stderr), (given.code, &given.stderr));
        named
    };
    assert_eq!(check(&good).code, 0);
    let name = good.to_str().unwrap();
    for (bits, text) in [(0o664, "mode 0664"), (0o646, "mode 0646")] {
        set_mode(&good, bits);
        let next = format!("chmod go-w {name}");
        assert_refused(&check(&good), &["is refused", name, text, &next]);
    }
    set_mode(&good, 0o644);
    chown(&good, Some(NOBODY), None).unwrap();
    assert_refused(&check(&good), &["belongs to", "uid 65534", "not to root", "chown"]);
    // Other commands also reject the file.
    assert_refused(&support::run(&["rules", "--config", name]), &["is refused"]);
    chown(&good, Some(0), None).unwrap();
    // Test a directory of another user, and a link to a good file in a bad directory.
    chown(folder.path(), Some(NOBODY), None).unwrap();
    let folder_name = folder.path().to_str().unwrap();
    assert_refused(&check(&good), &[folder_name, "only root"]);
    chown(folder.path(), Some(0), None).unwrap();
    let open = folder.path().join("open");
    fs::create_dir(&open).unwrap();
    set_mode(&open, 0o777);
    std::os::unix::fs::symlink(&good, open.join("link.toml")).unwrap();
    assert_refused(&check(&open.join("link.toml")), &[open.to_str().unwrap(), "mode 0777"]);
    set_mode(&open, 0o1777);
    assert_eq!(check(&open.join("link.toml")).code, 0, "root's own link");
    let loose = write(&open.join("loose.toml"), "", 0o644);
    assert_refused(&check(&loose), &["a shared directory"]);
}

#[test]
fn root_does_not_trust_a_home_kept_by_sudo() {
    or_skip!(support::root("root"));
    let home = folder();
    let config = home.path().join(".config/gpumem");
    fs::create_dir_all(&config).unwrap();
    write(&config.join("config.toml"), "[rules.idle]\nenabled = false\n", 0o644);
    chown(home.path(), Some(NOBODY), None).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = support::command(arguments);
        command.env("HOME", home.path()).env_remove("XDG_CONFIG_HOME");
        finish(&mut command)
    };
    assert_refused(&run(&["rules"]), &["is refused", "uid 65534", "sudo -H"]);
    assert_refused(&run(&["config", "check"]), &["is refused"]);
}

#[test]
fn root_rejects_hooks_and_state_that_others_may_change() {
    or_skip!(support::root("root"));
    let folder = folder();
    let hook = write(&folder.path().join("tell"), "#!/bin/sh\n", 0o755);
    let config = folder.path().join("a.toml");
    let toml = |words: &str| format!("[reap]\nnotify = [{words}]\n");
    let hook = hook.to_str().unwrap();
    for words in [format!("\"{hook}\""), format!("\"/bin/sh\", \"{hook}\"")] {
        write(&config, &toml(&words), 0o644);
        let check = || support::run(&["config", "check", config.to_str().unwrap()]);
        set_mode(Path::new(hook), 0o755);
        assert_eq!(check().code, 0, "{words}");
        set_mode(Path::new(hook), 0o775);
        let location = format!("{}:2: reap.notify: {hook} is refused", config.display());
        assert_refused(&check(), &[&location, "mode 0775", "chmod go-w"]);
        let machine = Machine::new(&one_gpu(&[]));
        let mut command = support::command(&["reap", "--watch", "--no-store", "--config"]);
        command.arg(&config).arg("--nvml-library").arg(machine.library());
        assert_refused(&finish(&mut command), &["is refused"]);
    }
    let state = folder.path().join("state");
    fs::create_dir(&state).unwrap();
    for (bits, uid) in [(0o777, 0), (0o755, NOBODY)] {
        set_mode(&state, bits);
        chown(&state, Some(uid), None).unwrap();
        let mut command = support::command(&["reap", "--history"]);
        let output = finish(command.env("STATE_DIRECTORY", &state));
        assert_refused(&output, &["the state directory", state.to_str().unwrap()]);
    }
    chown(&state, Some(0), None).unwrap();
    write(&state.join("reap.jsonl"), "", 0o666);
    let mut command = support::command(&["reap", "--history"]);
    let output = finish(command.env("STATE_DIRECTORY", &state));
    assert_refused(&output, &["reap.jsonl", "mode 0666"]);
}

#[test]
fn a_privileged_program_loads_no_library_for_its_caller() {
    or_skip!(support::root("root"));
    let setcap = or_skip!(support::find("setcap", "libcap2-bin"));
    let folder = folder();
    let machine = Machine::new(&one_gpu(&[]));
    set_mode(&machine.path(""), 0o755);
    // The loader finds this library only through LD_LIBRARY_PATH.
    let drivers = folder.path().join("lib");
    fs::create_dir(&drivers).unwrap();
    fs::copy(machine.library(), drivers.join("libnvidia-ml.so.1")).unwrap();
    let program = folder.path().join("gpumem");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        clean_environment(&mut command);
        machine.environment(&mut command);
        command.args(arguments).env("LD_LIBRARY_PATH", &drivers);
        finish(command.uid(NOBODY).gid(NOBODY))
    };
    let library = drivers.join("libnvidia-ml.so.1");
    let library = library.to_str().unwrap();
    let secret = write(&folder.path().join("secret.jsonl"), "root's alone\n", 0o600);
    let secret = secret.to_str().unwrap();

    // Without capabilities, gpumem trusts the caller.
    support::copy_program(support::gpumem(), &program);
    let lists_gpus =
        |output: &Output| output.json()["gpus"].as_array().is_some_and(|gpus| !gpus.is_empty());
    assert!(lists_gpus(&run(&["ps", "--json"])));
    assert!(lists_gpus(&run(&["ps", "--json", "--nvml-library", library])));

    let capabilities = "cap_sys_ptrace,cap_kill,cap_dac_read_search+ep";
    let set = Command::new(setcap).arg(capabilities).arg(&program).status();
    if !set.unwrap().success() {
        skip("capabilities of files", "a file system that holds them");
        return;
    }
    let output = run(&["ps", "--nvml-library", library]);
    assert_refused(&output, &["--nvml-library", "is refused", "capabilities"]);
    let output = run(&["ps", "--json"]);
    let obeyed = serde_json::from_str::<serde_json::Value>(&output.stdout)
        .is_ok_and(|json| json["gpus"].as_array().is_some_and(|gpus| gpus.len() == 1));
    assert!(!obeyed, "LD_LIBRARY_PATH was obeyed: {output:?}");
    let output = run(&["check", "--replay", secret]);
    assert_eq!(output.code, 2, "the file was read for the caller: {output:?}");
    assert_eq!(run(&["rules"]).code, 0, "other commands work");

    // With the setuid bit, gpumem refuses every command.
    support::copy_program(support::gpumem(), &program);
    set_mode(&program, 0o4755);
    for arguments in [&["rules"][..], &["ps", "--nvml-library", library]] {
        assert_refused(&run(arguments), &["setuid", "chmod ug-s"]);
    }
}

/// Runs a program with a different loader cache. The loader ignores LD_LIBRARY_PATH for a privileged program, so only
/// the cache can make it load the mock driver.
const WITH_CACHE: &str = "mount --bind \"$1\" /etc/ld.so.cache; shift; exec \"$@\"";

#[test]
fn a_privileged_program_shows_no_other_users_environment() {
    or_skip!(support::root("root"));
    let programs = [
        ("setcap", "libcap2-bin"),
        ("ldconfig", "libc-bin"),
        ("unshare", "util-linux"),
        ("setpriv", "util-linux"),
    ];
    if programs.iter().any(|(program, package)| support::find(program, package).is_none()) {
        return;
    }
    let machine = Machine::new(&one_gpu(&[]));
    set_mode(&machine.path(""), 0o755);
    let folder = folder();
    let drivers = folder.path().join("lib");
    fs::create_dir(&drivers).unwrap();
    fs::copy(machine.library(), drivers.join("libnvidia-ml.so.1")).unwrap();
    let (cache, list) = (folder.path().join("cache"), folder.path().join("list"));
    write(&list, &format!("{}\n", drivers.display()), 0o644);
    let mut make = Command::new("ldconfig");
    make.arg("-C").arg(&cache).arg("-f").arg(&list);
    assert_eq!(finish(&mut make).code, 0);
    set_mode(&cache, 0o644);
    let program = folder.path().join("gpumem");
    support::copy_program(support::gpumem(), &program);
    let mut set = Command::new("setcap");
    set.arg("cap_sys_ptrace+ep").arg(&program);
    if !set.status().unwrap().success() {
        return skip("capabilities of files", "a file system that holds them");
    }

    let sleep = |variable: &str, uid: u32| {
        let mut command = Command::new("sleep");
        let command = command.arg("600").env_clear().env("LC_MARK", variable);
        Running::start(command.uid(uid).gid(uid))
    };
    let (roots, callers) = (sleep("of-root", 0), sleep("of-the-caller", NOBODY));
    let page = |process: &Running, uid: u32| {
        machine.play(&one_gpu(&[process.pid()]));
        let mut command = Command::new("unshare");
        clean_environment(&mut command);
        machine.environment(&mut command);
        command.args(["-m", "sh", "-c", WITH_CACHE, "sh"]).arg(&cache);
        let id = uid.to_string();
        command.args(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"]);
        command.arg(&program).args(["watch", "--once=text", "--no-store"]);
        command.args(["--size", "200x50", "--keys", "je"]);
        let output = finish(&mut command).exits(0);
        let title = format!("environment of {}", process.pid());
        assert!(output.stdout.contains(&title), "{output:?}");
        output.stdout
    };
    // gpumem can read every environment, but shows callers only the environments of their own processes. Root sees
    // all environments.
    assert!(page(&callers, NOBODY).contains("of-the-caller"));
    assert!(page(&roots, 0).contains("of-root"));
    let shown = page(&roots, NOBODY);
    assert!(!shown.contains("of-root"), "{shown}");
    let reason = "it is another user's, and gpumem has capabilities that you lack";
    assert!(shown.contains(reason), "{shown}");
}

/// Switches to another user in a user namespace that belongs to user 1000, as in rootless podman.
const CONTAINED: &str = "import ctypes, os, sys
to_child, to_parent = os.pipe(), os.pipe()
pid = os.fork()
if pid == 0:
    os.setresuid(1000, 1000, 1000)
    assert ctypes.CDLL(None).unshare(0x10000000) == 0
    os.write(to_parent[1], b'x')
    os.read(to_child[0], 1)
    os.setuid(5)
    os.write(to_parent[1], b'x')
    os.execvp('sleep', ['sleep', '600'])
os.read(to_parent[0], 1)
open(f'/proc/{pid}/uid_map', 'w').write('0 1000 1\\n1 100000 10\\n')
os.write(to_child[1], b'x')
os.read(to_parent[0], 1)
print(pid, flush=True)
os.waitpid(pid, 0)";

#[test]
fn a_process_in_a_rootless_container_belongs_to_its_user() {
    or_skip!(support::root("root"));
    let python = or_skip!(support::find("python3", "python3"));
    let (parent, pid) = support::start_and_read_line(Command::new(python).args(["-c", CONTAINED]));
    let (mut parent, pid) = (Running(parent), pid.parse().unwrap());
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.contains("Uid:\t100004"), "{status}");
    let snapshot = Machine::new(&one_gpu(&[pid])).snapshot(0);
    assert_eq!(snapshot.process(pid)["uid"], 1000);
    // The kernel allows user 1000 to kill the process, so gpumem must not refuse.
    let mut kill = Command::new("setpriv");
    kill.args(["--reuid=1000", "--clear-groups", "kill", "-KILL", &pid.to_string()]);
    assert!(kill.status().unwrap().success());
    parent.0.wait().unwrap();
}

/// Replaces files in /proc with FIFOs that have no writer. Reading them blocks, like reading the files of a process
/// that never releases its memory lock.
#[test]
fn unreadable_proc_files_affect_only_their_process() {
    or_skip!(support::root("the right to mount"));
    let processes: Vec<Running> = (0..4).map(|_| Running::sleep()).collect();
    let pids: Vec<u32> = processes.iter().map(Running::pid).collect();
    let machine = Machine::new(&one_gpu(&pids));
    let pipe = machine.path("pipe");
    let script = "mkfifo $0 && for name in cmdline environ maps; do \
                  mount --bind $0 /proc/$1/$name; done && shift && exec timeout -s KILL 60 \"$@\"";
    let mut command = Command::new("unshare");
    clean_environment(&mut command);
    machine.environment(&mut command);
    command.args(["-m", "sh", "-c", script]).arg(pipe).arg(pids[0].to_string());
    command.arg(support::gpumem()).arg("--nvml-library").arg(machine.library());
    let output = finish(command.args(["ps", "--json"])).exits(0);
    let snapshot = output.json();
    let process = |pid: u32| {
        let all = snapshot["processes"].as_array().unwrap();
        all.iter().find(|process| process["pid"] == pid).unwrap().clone()
    };
    let hostile = process(pids[0]);
    assert_eq!(
        (&hostile["command"], &hostile["comm"]),
        (&serde_json::Value::Null, &"sleep".into())
    );
    for &pid in &pids[1..] {
        assert_eq!(process(pid)["command"], serde_json::json!(["sleep", "600"]));
        assert!(process(pid)["environment"].is_object());
    }
}

#[test]
fn a_process_hidden_by_hidepid_is_not_reported_dead() {
    or_skip!(support::root("the right to mount"));
    let (others, nobodys) = (Running::sleep(), {
        let mut command = Command::new("sleep");
        Running::start(command.arg("600").uid(NOBODY).gid(NOBODY))
    });
    let gone = {
        let child = Running::sleep();
        child.pid()
    };
    let machine = Machine::new(&one_gpu(&[others.pid(), nobodys.pid(), gone]));
    set_mode(&machine.path(""), 0o755);
    let folder = folder();
    let library = folder.path().join("libnvidia-ml.so.1");
    fs::copy(machine.library(), &library).unwrap();
    let program = folder.path().join("gpumem");
    fs::copy(support::gpumem(), &program).unwrap();
    for (option, is_hidden) in [("hidepid=2", true), ("hidepid=4", true), ("hidepid=0", false)] {
        let script = format!("mount -t proc -o {option} proc /proc && exec \"$@\"");
        let mut command = Command::new("unshare");
        clean_environment(&mut command);
        machine.environment(&mut command);
        command.args(["-m", "sh", "-c", &script, "sh"]);
        let id = NOBODY.to_string();
        command.args(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"]);
        command.arg(&program).args(["ps", "--json", "--nvml-library"]).arg(&library);
        let snapshot = finish(&mut command).exits(0).json();
        let processes = snapshot["processes"].as_array().unwrap();
        let facts = |pid: u32| {
            let process = processes.iter().find(|process| process["pid"] == pid).unwrap();
            (process["unresolved"].as_str().map(str::to_owned), process["comm"].is_string())
        };
        let (reason, is_named) = facts(others.pid());
        assert_eq!((reason.is_some(), is_named), (is_hidden, !is_hidden), "{option}: {reason:?}");
        assert_eq!(facts(nobodys.pid()), (None, true), "{option}");
        // With hidepid, gpumem cannot distinguish an exited process from a hidden process.
        assert_eq!(facts(gone).0.is_some(), is_hidden, "{option}");
    }
}
