//! A process named supervisord runs as root, and its child holds a GPU.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use super::{advised_command, process_and_step, require_root, wait_for_pid};
use crate::machine::Running;
use crate::owners::containers::AtEnd;

#[test]
fn a_child_of_supervisord_is_stopped_through_it() {
    or_skip!(require_root());
    let folder = tempfile::tempdir().unwrap();
    let (script, file) = (folder.path().join("supervisord"), folder.path().join("pid"));
    let text = "#!/bin/bash\nexport SUPERVISOR_PROCESS_NAME=ui SUPERVISOR_GROUP_NAME=comfy\n\
                sleep 600 &\necho $! > \"$1\"\nwait\n";
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let _supervisor = Running(Command::new(&script).arg(&file).spawn().unwrap());
    let pid = wait_for_pid(&file);
    let _end = AtEnd(format!("kill {pid}"));
    let (process, step) = process_and_step(pid);
    assert_eq!(process["supervisor"]["comm"], "supervisord", "{process}");
    assert_eq!(process["supervisor_is_roots"], true, "{process}");
    assert_eq!(advised_command(&step), "supervisorctl stop comfy:ui");
}
