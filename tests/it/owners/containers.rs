//! Containers of runc by itself and of podman, of a tree with one program in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::{command, pid_in, root, seen};
use crate::machine::Running;
use crate::procs::lives;
use crate::support::{self, wait_until};

/// What runs in a container: the first process of a pid namespace takes no signal that it has no ear for.
const PROGRAM: &str = "trap 'exit 0' TERM; sleep 600 & wait";

/// A tree of files that a container can be started in.
pub(crate) fn tree(folder: &Path) -> Option<PathBuf> {
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

/// Held by each test that uses podman, for its storage is one.
static PODMAN: Mutex<()> = Mutex::new(());

pub(crate) fn lock_podman() -> MutexGuard<'static, ()> {
    PODMAN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn sh(line: &str) -> std::process::Output {
    Command::new("sh").args(["-c", line]).output().unwrap()
}

/// A line that is typed when this is dropped.
pub(crate) struct AtEnd(pub String);

impl Drop for AtEnd {
    fn drop(&mut self) {
        sh(&self.0);
    }
}

#[test]
fn a_container_of_runc_is_stopped_by_its_id() {
    or_skip!(root());
    let runc = or_skip!(support::find("runc", "runc"));
    let folder = tempfile::tempdir().unwrap();
    let root = or_skip!(tree(folder.path()));
    let made = Command::new(&runc).arg("spec").current_dir(folder.path()).status();
    assert!(made.unwrap().success());
    let config = folder.path().join("config.json");
    let mut spec: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    spec["process"]["terminal"] = json!(false);
    spec["process"]["args"] = json!(["sh", "-c", PROGRAM]);
    spec["root"]["path"] = json!(root);
    // A machine with cgroups of the older kind has no namespace of them for others.
    let namespaces = spec["linux"]["namespaces"].as_array_mut().unwrap();
    namespaces.retain(|it| !matches!(it["type"].as_str(), Some("cgroup" | "network")));
    fs::write(&config, spec.to_string()).unwrap();
    let mut containers = Vec::new();
    for which in ["a", "b"] {
        let id = format!("gpumem-runc-{}-{which}", std::process::id());
        let pid_file = folder.path().join(which);
        let line = format!(
            "cd {} && runc run -d --pid-file {} {id} </dev/null >log 2>&1 && echo >>{}",
            folder.path().display(),
            pid_file.display(),
            pid_file.display()
        );
        let log = || fs::read_to_string(folder.path().join("log"));
        assert!(sh(&line).status.success(), "{:?}", log());
        let end = AtEnd(format!("runc delete -f {id}"));
        containers.push((id, pid_in(&pid_file), end));
    }
    let (id, pid, _) = &containers[0];
    let (process, step) = seen(*pid);
    assert_eq!(process["namespace_pid"], 1, "{process}");
    assert_eq!(process["container"], json!({"runtime": "runc", "id": id}));
    assert_eq!(command(&step), format!("runc kill {id} TERM"));
    assert!(sh(command(&step)).status.success());
    wait_until("the container has ended", || !lives(*pid));
    assert!(lives(containers[1].1), "the other one was not meant");
}

#[test]
fn a_container_of_containerd_is_stopped_in_its_namespace() {
    or_skip!(root());
    let (Some(daemon), Some(_)) =
        (support::find("containerd", "containerd"), support::find("ctr", "containerd"))
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let root = or_skip!(tree(folder.path()));
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let config = format!(
        "version = 2\nroot = {:?}\nstate = {:?}\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
         [grpc]\naddress = {:?}\n",
        at("root-folder"),
        at("state"),
        at("socket")
    );
    fs::write(at("config.toml"), config).unwrap();
    let daemon = Running::start(Command::new(daemon).args(["-c", &at("config.toml")]));
    let typed = |line: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", line]).env("CONTAINERD_ADDRESS", at("socket"));
        command.output().unwrap()
    };
    wait_until("containerd answers", || typed("ctr version").status.success());
    // The same id in two namespaces; what an interrupted run has left keeps another.
    let id = format!("job-{}", std::process::id());
    let mut pids = Vec::new();
    for space in ["lab", "other"] {
        let line = format!(
            "ctr -n {space} run -d --rootfs {} {id} /bin/busybox sh -c \"{}\"",
            root.display(),
            PROGRAM.replace("sleep", "/bin/sleep")
        );
        let started = typed(&line);
        assert!(started.status.success(), "{started:?}");
        let listed = typed(&format!("ctr -n {space} tasks ls")).stdout;
        let listed = String::from_utf8(listed).unwrap();
        let row = listed.lines().find(|row| row.starts_with(&id)).unwrap();
        let pid: u32 = row.split_whitespace().nth(1).unwrap().parse().unwrap();
        pids.push(pid);
    }
    let (process, step) = seen(pids[0]);
    assert_eq!(
        process["container"],
        json!({"runtime": "containerd", "namespace": "lab", "id": id})
    );
    assert_eq!(command(&step), format!("ctr -n lab tasks kill {id}"));
    assert!(typed(command(&step)).status.success());
    wait_until("the container has ended", || !lives(pids[0]));
    assert!(lives(pids[1]), "the other one was not meant");
    typed(&format!(
        "ctr -n other tasks kill -s SIGKILL {id}; ctr -n other tasks rm {id}; ctr -n lab tasks rm {id}"
    ));
    drop(daemon);
}

#[test]
fn a_container_of_podman_is_stopped_by_its_name() {
    or_skip!(root());
    or_skip!(support::find("podman", "podman"));
    let _podman = lock_podman();
    let folder = tempfile::tempdir().unwrap();
    let root = or_skip!(tree(folder.path()));
    let mut containers = Vec::new();
    for which in ["a", "b"] {
        let name = format!("gpumem-podman-{}-{which}", std::process::id());
        // In a machine without systemd; limits above those of its own are refused in some sandboxes.
        let line = format!(
            "podman --cgroup-manager cgroupfs --runtime runc run -d --rm --name {name} --network none \
             --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 --rootfs {} sh -c \"{PROGRAM}\"",
            root.display()
        );
        let started = sh(&line);
        if !started.status.success() {
            let why = String::from_utf8_lossy(&started.stderr).into_owned();
            support::skip("a container of podman", &why);
            return;
        }
        let end = AtEnd(format!("podman rm -f -t 0 {name}"));
        let pid = sh(&format!("podman inspect -f '{{{{.State.Pid}}}}' {name}")).stdout;
        let pid: u32 = String::from_utf8(pid).unwrap().trim().parse().unwrap();
        containers.push((name, pid, end));
    }
    let (name, pid, _) = &containers[0];
    let (process, step) = seen(*pid);
    assert_eq!(process["container"]["runtime"], "podman", "{process}");
    assert_eq!(process["container"]["name"], **name, "{process}");
    assert_eq!(process["container"]["user"], Value::Null, "it is root's");
    // Another program in it, which is ended alone.
    assert!(sh(&format!("podman exec -d {name} sleep 601")).status.success());
    let listed = sh(&format!("podman top {name} hpid args")).stdout;
    let listed = String::from_utf8(listed).unwrap();
    let line = listed.lines().find(|line| line.contains("sleep 601"));
    let beside: u32 = line.unwrap().split_whitespace().next().unwrap().parse().unwrap();
    let (_, alone) = seen(beside);
    assert!(command(&alone).starts_with(&format!("podman exec {name} kill ")), "{alone}");
    assert!(sh(command(&alone)).status.success());
    wait_until("the other program has ended", || !lives(beside));
    assert!(lives(*pid), "its neighbour was not meant");
    assert_eq!(command(&step), format!("podman stop {name}"));
    let stopped = sh(command(&step));
    assert!(stopped.status.success(), "{stopped:?}");
    wait_until("the container has ended", || !lives(*pid));
    assert!(lives(containers[1].1), "the other one was not meant");
}
