//! Limits on files and processes that another user controls.

use std::fs;
use std::mem::MaybeUninit;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::fs::inotify;
use serde_json::Value;

use crate::machine::{Machine, Running, one_gpu};
use crate::support::{copy_program, wait_until};

const NOBODY: u32 = 65534;

/// Starts a command as nobody, or as the current user if the test does not run as root.
fn start_as_nobody(command: &mut Command) -> Running {
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    Running::start(command)
}

/// Opening a file on a hung file system would hang gpumem, and any process can map such a file.
#[test]
fn files_mapped_by_a_process_are_never_opened() {
    let machine = Machine::new(&one_gpu(&[]));
    let names = ["libcuda.so.1", "libtorch_cuda.so", "libcudart.so.12", "libpython3.14.so.1.0"];
    for name in names {
        fs::write(machine.path(name), [0; 4096]).unwrap();
    }
    let paths = names.map(|name| machine.path(name).to_str().unwrap().to_owned());
    let script = "import mmap, sys, time\n\
        files = [open(path, 'rb') for path in sys.argv[2:]]\n\
        maps = [mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) for file in files]\n\
        open(sys.argv[1], 'w').close(); time.sleep(600)";
    let ready = machine.path("ready");
    let mut command = Command::new("python3");
    let process = Running::start(command.args(["-c", script]).arg(&ready).args(&paths));
    wait_until("the files are mapped", || ready.exists());
    machine.play(&one_gpu(&[process.pid()]));
    let events = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    for path in &paths {
        inotify::add_watch(&events, path, inotify::WatchFlags::OPEN).unwrap();
    }
    let snapshot = machine.snapshot(0);
    assert_eq!(snapshot.process(process.pid())["framework"], "pytorch", "its maps are read");
    let pid = process.pid().to_string();
    for arguments in [&["explain", &*pid][..], &["release", &pid], &["kill", &pid], &["doctor"]] {
        machine.act(arguments);
    }
    let mut buffer = [MaybeUninit::uninit(); 512];
    let opened = inotify::Reader::new(&events, &mut buffer).next().map(|event| event.wd());
    assert_eq!(opened, Err(rustix::io::Errno::AGAIN));
    fs::File::open(&paths[0]).unwrap();
    assert!(inotify::Reader::new(&events, &mut buffer).next().is_ok(), "inotify reports an open");
}

#[test]
fn preloaded_libraries_void_the_protection_of_a_name() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let machine = Machine::new(&one_gpu(&[]));
    let folder = machine.path("programs");
    let tmux = folder.join("tmux");
    fs::create_dir(&folder).unwrap();
    copy_program("/bin/sleep", &tmux);
    for path in [folder.parent().unwrap(), &folder, &tmux] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let start = |variables: &[(&str, &str)]| {
        let mut command = Command::new(&tmux);
        start_as_nobody(command.arg("600").env_clear().envs(variables.iter().copied()))
    };
    let processes = [
        start(&[]),
        start(&[("LD_PRELOAD", "/home/ann/hog.so")]),
        start(&[("LD_AUDIT", "/home/ann/hog.so")]),
    ];
    let pids = processes.each_ref().map(Running::pid);
    machine.play(&one_gpu(&pids));
    let snapshot = machine.snapshot(0);
    let is_roots = pids.map(|pid| snapshot.process(pid)["executable_is_roots"].clone());
    assert_eq!(is_roots, [true, false, false].map(Value::from));
}
