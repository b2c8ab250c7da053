//! What another account can make long, or can pretend to be: it is bounded, and proves nothing.

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

/// Runs it as another account if this one is root.
fn by_another(command: &mut Command) -> Running {
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    Running::start(command)
}

#[test]
fn an_argv_of_any_length_takes_four_kibibytes() {
    let long = vec!["x".repeat(10_000); 20];
    let process = by_another(Command::new("sh").args(["-c", "sleep 600; :"]).args(long));
    let machine = Machine::new(&one_gpu(&[process.pid()]));
    let snapshot = machine.snapshot(0);
    let command: Vec<&str> = snapshot.process(process.pid())["command"]
        .as_array()
        .unwrap()
        .iter()
        .map(|argument| argument.as_str().unwrap())
        .collect();
    assert_eq!(command[..3], ["sh", "-c", "sleep 600; :"]);
    assert!(command.last().unwrap().ends_with("x…"), "{command:?}");
    let bytes: usize = command.iter().map(|argument| argument.len()).sum();
    assert!((4000..=4100).contains(&bytes), "{bytes}");
}

/// A user's file that is mapped like a library: on a file system that hangs, whoever opened it would hang, too.
#[test]
fn no_file_is_opened_that_a_process_has_mapped() {
    let machine = Machine::new(&one_gpu(&[]));
    let names = ["libcuda.so.1", "libtorch_cuda.so", "libcudart.so.12", "libpython3.14.so.1.0"];
    for name in names {
        fs::write(machine.path(name), [0; 4096]).unwrap();
    }
    let paths = names.map(|name| machine.path(name).to_str().unwrap().to_owned());
    let script = "import mmap, sys, time\n\
        files = [open(it, 'rb') for it in sys.argv[2:]]\n\
        maps = [mmap.mmap(it.fileno(), 0, prot=mmap.PROT_READ) for it in files]\n\
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
    assert_eq!(snapshot.process(process.pid())["framework"], "pytorch", "its maps were read");
    let pid = process.pid().to_string();
    for arguments in [&["explain", &*pid][..], &["release", &pid], &["kill", &pid], &["doctor"]] {
        machine.act(arguments);
    }
    let mut buffer = [MaybeUninit::uninit(); 512];
    let opened = inotify::Reader::new(&events, &mut buffer).next().map(|it| it.wd());
    assert_eq!(opened, Err(rustix::io::Errno::AGAIN));
    fs::File::open(&paths[0]).unwrap();
    assert!(inotify::Reader::new(&events, &mut buffer).next().is_ok(), "an open is seen");
}

#[test]
fn a_program_with_a_protected_name_is_roots_only_without_preloaded_libraries() {
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
        by_another(command.arg("600").env_clear().envs(variables.iter().copied()))
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
