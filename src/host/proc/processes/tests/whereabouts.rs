//! Tests, with a fake /proc, where a process runs, which process started it, and its environment.

use super::*;
use crate::model::process::Parent;

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

const SHELL: StatLine = StatLine { comm: "bash", start: 500, ..TRAIN };

/// Creates a process whose parent is a running shell.
fn with_parent() -> FakeProc {
    let fake = machine(false);
    fake.stat(70, &TRAIN);
    fake.stat(60, &SHELL);
    fake.put(60, "status", "Name:\tbash\nNSpid:\t60\n");
    fake.put(60, "cmdline", "bash\0-l\0");
    fake
}

fn bash() -> Parent {
    Parent {
        pid: 60,
        start_ticks: Some(500),
        comm: Some("bash".into()),
        command: Some([Arc::from("bash"), "-l".into()].into()),
        ..Parent::default()
    }
}

#[test]
fn a_container_is_named_from_its_runtimes_files() {
    let fake = machine(false);
    fake.stat(70, &TRAIN);
    fake.put(70, "cgroup", format!("0::/system.slice/docker-{ID}.scope\n"));
    fake.put(70, "status", "Name:\ttrain\nUid:\t0\t0\t0\t0\nNSpid:\t70\t1\n");
    fake.put(70, "environ", "RANK=0\0API_TOKEN=hidden\0");
    let folder = fake.root.join("var/lib/docker/containers").join(ID);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("config.v2.json"), r#"{"Name":"/trainer"}"#).unwrap();

    let mut processes = table(&fake);
    let process = sample_until(&mut processes, 70, |process| {
        let container = process.container.as_deref().unwrap();
        container.name.is_some()
    });
    let container = process.container.unwrap();
    assert_eq!(
        (container.runtime.as_deref(), container.id.as_deref(), container.name.as_deref()),
        (Some("docker"), Some(ID), Some("trainer"))
    );
    assert_eq!((process.namespace_pid, process.systemd_unit), (Some(1), None));
    let environment = process.environment.unwrap();
    assert_eq!(environment.len(), 1);
    assert_eq!(environment.get("RANK").map(AsRef::as_ref), Some("0"));
}

#[test]
fn the_owner_follows_the_cgroup_but_the_environment_is_kept() {
    let fake = with_parent();
    fake.put(70, "cgroup", "0::/system.slice/ssh.service\n");
    fake.put(70, "environ", "RANK=0\0");
    let mut processes = table(&fake);
    let process = only_process(processes.sample(&[70], SECOND));
    assert_eq!(process.systemd_unit.as_deref(), Some("ssh.service"));
    assert_eq!(process.cgroup.as_deref(), Some("/system.slice/ssh.service"));

    fake.put(70, "cgroup", "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n");
    fake.put(70, "environ", "title\0");
    let process = only_process(processes.sample(&[70], 40 * SECOND));
    assert_eq!(process.systemd_unit, None);
    assert_eq!(process.slurm.unwrap().job_id.as_deref(), Some("7"));
    assert_eq!(process.environment.unwrap().len(), 1, "as it was given");

    // The process executes a program with a different environment.
    fake.stat(70, &StatLine { stack: 0x7ffd, ..TRAIN });
    let process = only_process(processes.sample(&[70], 44 * SECOND));
    assert_eq!(process.environment.as_deref(), Some(&Default::default()));
}

#[test]
fn the_environment_of_a_stuck_process_is_not_read() {
    let fake = with_parent();
    fake.put(70, "environ", "RANK=0\0");
    fake.stat(70, &StatLine { state: 'D', ..TRAIN });
    let mut processes = table(&fake);
    assert_eq!(only_process(processes.sample(&[70], SECOND)).environment, None);
    fake.stat(70, &TRAIN);
    assert!(only_process(processes.sample(&[70], 2 * SECOND)).environment.is_some());

    // The command line of a stuck parent is not read either.
    fake.stat(60, &StatLine { state: 'D', ..SHELL });
    let parent = only_process(table(&fake).sample(&[70], SECOND)).parent.unwrap();
    assert_eq!((parent.comm.as_deref(), &parent.command), (Some("bash"), &None));
}

#[test]
fn the_first_parent_remains_the_starter() {
    let fake = with_parent();
    let mut processes = table(&fake);
    let process = only_process(processes.sample(&[70], SECOND));
    assert_eq!(process.parent.as_deref(), Some(&bash()));
    let before = process.parent.unwrap();
    let process = only_process(processes.sample(&[70], 40 * SECOND));
    assert!(Arc::ptr_eq(&before, process.parent.as_ref().unwrap()));

    // The shell exits, and another process adopts the child.
    fake.end(60);
    fake.stat(55, &StatLine { comm: "manager", ..SHELL });
    fake.put(55, "status", "Name:\tmanager\nNSpid:\t55\n");
    fake.stat(70, &StatLine { ppid: 55, ..TRAIN });
    let process = only_process(processes.sample(&[70], 44 * SECOND));
    assert_eq!(process.parent_is_reaper, Some(true));
    assert_eq!(process.parent.as_deref(), Some(&bash()));
}

#[test]
fn an_adopter_or_a_later_process_is_not_the_starter() {
    let fake = with_parent();
    // gpumem sees the child only after the shell has exited.
    fake.put(1, "status", "Name:\tsystemd\nNSpid:\t1\n");
    fake.stat(1, &StatLine { comm: "systemd", start: 1, ..SHELL });
    fake.stat(70, &StatLine { ppid: 1, ..TRAIN });
    assert_eq!(only_process(table(&fake).sample(&[70], SECOND)).parent, None);

    fake.stat(70, &TRAIN);
    let later = TRAIN.start + 1;
    fake.stat(60, &StatLine { start: later, ..SHELL });
    assert_eq!(only_process(table(&fake).sample(&[70], SECOND)).parent, None);
    fake.stat(60, &StatLine { start: TRAIN.start, ..SHELL });
    assert!(only_process(table(&fake).sample(&[70], SECOND)).parent.is_some());
}

#[test]
fn device_files_of_the_current_process_reveal_the_driver() {
    let fake = machine(false);
    fake.stat(70, &TRAIN);
    fake.link(70, "fd/0", "/dev/null");
    assert!(!table(&fake).has_gpu_device_files());
    // In a container without device files, gpumem has opened NVML nevertheless.
    symlink("90", fake.proc.join("self")).unwrap();
    fake.link(90, "fd/3", fake.dev.join("nvidiactl"));
    let mut processes = table(&fake);
    assert!(processes.has_gpu_device_files());
    let process = only_process(processes.sample(&[70], SECOND));
    assert_eq!(process.gpu_files.as_deref(), Some(&[][..]));
}
