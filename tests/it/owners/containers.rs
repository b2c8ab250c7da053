//! Containers of runc, containerd and podman that contain only busybox.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::{advised_command, process_and_step, require_root, wait_for_pid};
use crate::machine::Running;
use crate::procs::lives;
use crate::support::{self, wait_until};

/// The program of the containers. It traps SIGTERM, because the init process of a pid namespace receives only signals
/// for which it has a handler.
const PROGRAM: &str = "trap 'exit 0' TERM; sleep 600 & wait";

/// Creates a root file system with busybox.
pub(crate) fn make_root(folder: &Path) -> Option<PathBuf> {
    let busybox = support::find("busybox", "busybox-static")?;
    let root = folder.join("root");
    for name in ["bin", "proc", "dev", "sys", "tmp", "etc", "run"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    support::copy_program(busybox, root.join("bin/busybox"));
    for name in ["kill", "sh", "sleep"] {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    Some(root)
}

/// Locked by tests that use podman, because they share podman's storage.
static PODMAN: Mutex<()> = Mutex::new(());

pub(crate) fn lock_podman() -> MutexGuard<'static, ()> {
    PODMAN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn sh(line: &str) -> std::process::Output {
    Command::new("sh").args(["-c", line]).output().unwrap()
}

/// A shell command that runs on drop.
pub(crate) struct AtEnd(pub String);

impl Drop for AtEnd {
    fn drop(&mut self) {
        sh(&self.0);
    }
}

#[test]
fn a_runc_container_is_stopped_by_its_id() {
    or_skip!(require_root());
    let runc = or_skip!(support::find("runc", "runc"));
    let folder = tempfile::tempdir().unwrap();
    let root = or_skip!(make_root(folder.path()));
    let status = Command::new(&runc).arg("spec").current_dir(folder.path()).status();
    assert!(status.unwrap().success());
    let config = folder.path().join("config.json");
    let mut spec: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    spec["process"]["terminal"] = json!(false);
    spec["process"]["args"] = json!(["sh", "-c", PROGRAM]);
    spec["root"]["path"] = json!(root);
    // Some machines with cgroup v1 do not support cgroup namespaces.
    let namespaces = spec["linux"]["namespaces"].as_array_mut().unwrap();
    namespaces
        .retain(|namespace| !matches!(namespace["type"].as_str(), Some("cgroup" | "network")));
    fs::write(&config, spec.to_string()).unwrap();
    let mut containers = Vec::new();
    for suffix in ["a", "b"] {
        let id = format!("gpumem-runc-{}-{suffix}", std::process::id());
        let pid_file = folder.path().join(suffix);
        let line = format!(
            "cd {} && runc run -d --pid-file {} {id} </dev/null >log 2>&1 && echo >>{}",
            folder.path().display(),
            pid_file.display(),
            pid_file.display()
        );
        let log = || fs::read_to_string(folder.path().join("log"));
        assert!(sh(&line).status.success(), "{:?}", log());
        let end = AtEnd(format!("runc delete -f {id}"));
        containers.push((id, wait_for_pid(&pid_file), end));
    }
    let (id, pid, _) = &containers[0];
    let (process, step) = process_and_step(*pid);
    assert_eq!(process["namespace_pid"], 1, "{process}");
    assert_eq!(process["container"], json!({"runtime": "runc", "id": id}));
    assert_eq!(advised_command(&step), format!("runc kill {id} TERM"));
    assert!(sh(advised_command(&step)).status.success());
    wait_until("the container has ended", || !lives(*pid));
    assert!(lives(containers[1].1), "the other container was stopped");
}

#[test]
fn a_containerd_container_is_stopped_in_its_namespace() {
    or_skip!(require_root());
    let (Some(daemon), Some(_)) =
        (support::find("containerd", "containerd"), support::find("ctr", "containerd"))
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let root = or_skip!(make_root(folder.path()));
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let config = format!(
        "version = 2\nroot = {:?}\nstate = {:?}\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
         [grpc]\naddress = {:?}\n",
        path("root-folder"),
        path("state"),
        path("socket")
    );
    fs::write(path("config.toml"), config).unwrap();
    let daemon = Running::start(Command::new(daemon).args(["-c", &path("config.toml")]));
    let run = |line: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", line]).env("CONTAINERD_ADDRESS", path("socket"));
        command.output().unwrap()
    };
    wait_until("containerd answers", || run("ctr version").status.success());
    // Use the same id in two namespaces of containerd. The test's pid distinguishes the containers from leftovers of
    // an interrupted run.
    let id = format!("job-{}", std::process::id());
    let mut pids = Vec::new();
    for space in ["lab", "other"] {
        let line = format!(
            "ctr -n {space} run -d --rootfs {} {id} /bin/busybox sh -c \"{}\"",
            root.display(),
            PROGRAM.replace("sleep", "/bin/sleep")
        );
        let started = run(&line);
        assert!(started.status.success(), "{started:?}");
        let listed = run(&format!("ctr -n {space} tasks ls")).stdout;
        let listed = String::from_utf8(listed).unwrap();
        let row = listed.lines().find(|row| row.starts_with(&id)).unwrap();
        let pid: u32 = row.split_whitespace().nth(1).unwrap().parse().unwrap();
        pids.push(pid);
    }
    let (process, step) = process_and_step(pids[0]);
    assert_eq!(
        process["container"],
        json!({"runtime": "containerd", "namespace": "lab", "id": id})
    );
    assert_eq!(advised_command(&step), format!("ctr -n lab tasks kill {id}"));
    assert!(run(advised_command(&step)).status.success());
    wait_until("the container has ended", || !lives(pids[0]));
    assert!(lives(pids[1]), "the other container was stopped");
    run(&format!(
        "ctr -n other tasks kill -s SIGKILL {id}; ctr -n other tasks rm {id}; ctr -n lab tasks rm {id}"
    ));
    drop(daemon);
}

#[test]
fn a_podman_container_is_stopped_by_its_name() {
    or_skip!(require_root());
    or_skip!(support::find("podman", "podman"));
    let _podman = lock_podman();
    let folder = tempfile::tempdir().unwrap();
    let root = or_skip!(make_root(folder.path()));
    let mut containers = Vec::new();
    for suffix in ["a", "b"] {
        let name = format!("gpumem-podman-{}-{suffix}", std::process::id());
        // These options work without systemd. Some sandboxes refuse resource limits above their own.
        let line = format!(
            "podman --cgroup-manager cgroupfs --runtime runc run -d --rm --name {name} --network none \
             --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 --rootfs {} sh -c \"{PROGRAM}\"",
            root.display()
        );
        let started = sh(&line);
        if !started.status.success() {
            support::skip("a container of podman", &String::from_utf8_lossy(&started.stderr));
            return;
        }
        let end = AtEnd(format!("podman rm -f -t 0 {name}"));
        let pid = sh(&format!("podman inspect -f '{{{{.State.Pid}}}}' {name}")).stdout;
        let pid: u32 = String::from_utf8(pid).unwrap().trim().parse().unwrap();
        containers.push((name, pid, end));
    }
    let (name, pid, _) = &containers[0];
    let (process, step) = process_and_step(*pid);
    assert_eq!(process["container"]["runtime"], "podman", "{process}");
    assert_eq!(process["container"]["name"], **name, "{process}");
    assert_eq!(process["container"]["user"], Value::Null, "root's container");
    // A second program in the container is killed without the rest of the container.
    assert!(sh(&format!("podman exec -d {name} sleep 601")).status.success());
    let listed = sh(&format!("podman top {name} hpid args")).stdout;
    let listed = String::from_utf8(listed).unwrap();
    let line = listed.lines().find(|line| line.contains("sleep 601"));
    let second: u32 = line.unwrap().split_whitespace().next().unwrap().parse().unwrap();
    let (_, second_step) = process_and_step(second);
    let kill = advised_command(&second_step);
    assert!(kill.starts_with(&format!("podman exec {name} kill ")), "{kill}");
    assert!(sh(kill).status.success());
    wait_until("the second program has ended", || !lives(second));
    assert!(lives(*pid), "the container was stopped");
    assert_eq!(advised_command(&step), format!("podman stop {name}"));
    let stopped = sh(advised_command(&step));
    assert!(stopped.status.success(), "{stopped:?}");
    wait_until("the container has ended", || !lives(*pid));
    assert!(lives(containers[1].1), "the other container was stopped");
}
