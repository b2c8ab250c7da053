//! Classifies programs by their names: interpreters, monitors, displays, and programs that are never killed.
//!
//! Any user can give a program the name of a display. The name is therefore ignored if the program file is known to
//! belong to a user other than root, or if a library is preloaded, because users can write such libraries.
//!
//! Monitors, the driver's daemons and displays keep a GPU open without running a job. They are recognised by the name
//! of the program file, or by the name of the process if the program file is unknown. A wrong guess only protects a
//! process that could be ended. Whole names are compared, because the names of users' programs may contain a listed
//! name.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Process;
use super::names::{Hypervisor, NAMES, is_on};
use super::owners;
use super::process::Parent;

/// Maximum length of a comm, in bytes. The kernel truncates longer names.
pub const COMM_BYTES: usize = 15;

pub fn file_name(path: &str) -> &str {
    path.rsplit('/').find(|part| !part.is_empty()).unwrap_or(path)
}

/// Returns the name of a program file. The kernel appends a suffix to the path of a deleted or replaced file.
pub fn program_file(path: &str) -> &str {
    file_name(path.strip_suffix(" (deleted)").unwrap_or(path))
}

pub fn is_interpreter(program: &str) -> bool {
    let name = program.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    is_on(&NAMES.interpreters, name)
}

impl Process {
    pub fn is_monitor(&self) -> bool {
        is_one_of(self, &NAMES.monitors)
    }

    /// Returns whether the process draws a desktop. The program file must not be known to belong to a user other than
    /// root. The other names of the process are used only if the program file is unknown.
    pub fn is_display(&self) -> bool {
        self.is_roots_program(&NAMES.displays)
    }

    /// Returns the hypervisor if the process is a virtual machine, under the same conditions as
    /// [`is_display`](Self::is_display).
    pub fn hypervisor(&self) -> Option<&'static Hypervisor> {
        NAMES.hypervisors.iter().find(|hypervisor| self.is_roots_program(&hypervisor.programs))
    }

    fn is_roots_program(&self, names: &[String]) -> bool {
        match self.executable.as_deref() {
            Some(path) => {
                self.executable_is_roots != Some(false) && is_on(names, program_file(path))
            }
            None => is_one_of(self, names),
        }
    }

    /// Returns the name of the published program that the process runs only to keep other processes off a GPU.
    pub fn placeholder(&self) -> Option<&'static str> {
        let command = self.command.as_deref()?;
        placeholder(command).or_else(|| {
            let parent = self.parent.as_deref()?.command.as_deref()?;
            is_spawned(command).then(|| placeholder(parent)).flatten()
        })
    }

    /// Returns whether the environment names a Wayland display or an X11 display of this machine (`:0`). Returns true
    /// if the environment is unknown.
    pub fn may_have_display(&self) -> bool {
        self.environment.as_deref().is_none_or(|variables| {
            variables.contains_key("WAYLAND_DISPLAY")
                || variables.get("DISPLAY").is_some_and(|name| name.starts_with(':'))
        })
    }
}

fn placeholder(command: &[Arc<str>]) -> Option<&'static str> {
    let (name, _) = tool(command)?;
    let mut placeholders = NAMES.placeholders.iter();
    placeholders.find(|(_, programs)| is_on(programs, name)).map(|(called, _)| &**called)
}

/// Returns the program's name if the program is never killed. A name on the `configured` list always applies. A name on
/// the built-in list does not apply if the file is known to belong to a user other than root. Compares the whole name
/// of the program file or, if the file is unknown, the comm.
pub fn never_killed<'a>(
    executable: Option<&'a str>,
    is_roots: Option<bool>,
    comm: Option<&'a str>,
    configured: &[Arc<str>],
) -> Option<&'a str> {
    let machines = NAMES.hypervisors.iter().flat_map(|hypervisor| &hypervisor.programs);
    let known = NAMES.never_killed.iter().chain(&NAMES.displays).chain(machines);
    let known = known.map(String::as_str).chain(owners::daemons());
    let mut known = known.filter(|_| is_roots != Some(false));
    let mut is_listed = |fits: fn(&str, &str) -> bool, name: &str| {
        known.any(|listed| fits(listed, name)) || configured.iter().any(|listed| fits(listed, name))
    };
    match executable {
        Some(path) => {
            let name = program_file(path);
            is_listed(owners::is_named, name).then_some(name)
        }
        None => comm.filter(|comm| is_listed(owners::is_cut, comm)),
    }
}

/// Returns whether the environment preloads libraries (`LD_PRELOAD`, `LD_AUDIT`), which may change the behaviour of a
/// program.
pub fn is_preloaded(environment: &BTreeMap<Arc<str>, Arc<str>>) -> bool {
    let names = ["LD_PRELOAD", "LD_AUDIT"];
    names.iter().any(|name| environment.get(*name).is_some_and(|value| !value.is_empty()))
}

impl Parent {
    pub fn runs(&self, name: &str) -> bool {
        let command = self.command.as_deref().unwrap_or_default();
        let program = command.first().map(|program| file_name(program));
        let tool = tool(command).map(|(tool, _)| tool);
        [program, tool, self.comm.as_deref()].contains(&Some(name))
    }
}

/// Splits a command line into the tool and its arguments. The tool is the program or, for an interpreter, the script or
/// module that it runs.
pub fn tool<T: AsRef<str>>(command: &[T]) -> Option<(&str, &[T])> {
    let (program, mut rest) = command.split_first()?;
    let program = file_name(program.as_ref());
    if !is_interpreter(program) {
        return Some((program, rest));
    }
    while let Some((argument, after)) = rest.split_first() {
        match argument.as_ref() {
            "-m" => return after.split_first().map(|(module, after)| (module.as_ref(), after)),
            "-c" => return None,
            // The Python options `-W` and `-X` take the next argument as their value.
            "-W" | "-X" => rest = after.get(1..).unwrap_or_default(),
            option if option.starts_with('-') => rest = after,
            script => return Some((file_name(script), after)),
        }
    }
    None
}

pub fn is_spawned<T: AsRef<str>>(command: &[T]) -> bool {
    let mut arguments = command.iter().map(AsRef::as_ref);
    let is_python = arguments.next().is_some_and(|program| is_interpreter(file_name(program)));
    let mut after = arguments.skip_while(|argument| *argument != "-c").skip(1);
    let code = after.next().unwrap_or_default();
    is_python
        && (code.starts_with("from multiprocessing.spawn import")
            || code.starts_with("from multiprocessing.forkserver import"))
}

fn is_one_of(process: &Process, names: &[String]) -> bool {
    let command = process.command.as_deref().unwrap_or_default();
    let file = process.executable.as_deref().map(program_file);
    let own_name = command.first().map(|program| file_name(program));
    // A script's process is named after its interpreter, so use the name of the script as well.
    let script = own_name
        .filter(|program| is_interpreter(program))
        .and_then(|_| command.iter().skip(1).find(|argument| !argument.starts_with('-')))
        .map(|script| file_name(script));
    let is_named = |name: Option<&str>| name.is_some_and(|name| is_on(names, name));
    if is_named(file) || is_named(own_name) || is_named(script) {
        return true;
    }
    command.is_empty()
        && process.comm.as_deref().is_some_and(|comm| {
            names.iter().any(|name| name.get(..COMM_BYTES).unwrap_or(name) == comm)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(command: &[&str], executable: Option<&str>, comm: Option<&str>) -> Process {
        Process {
            command: Some(command.iter().map(|argument| Arc::from(*argument)).collect()),
            executable: executable.map(Arc::from),
            comm: comm.map(Arc::from),
            ..Process::default()
        }
    }

    #[test]
    fn monitors_are_recognised_by_file_script_or_short_name() {
        for process in [
            running(&["/usr/bin/nvidia-persistenced", "--user", "x"], None, None),
            running(&["gpu-feature-discovery"], None, None),
            running(&["gpu-kubelet-plugin", "-v=1"], Some("/usr/bin/gpu-kubelet-plugin"), None),
            running(&["watcher"], Some("/usr/bin/nvtop"), None),
            running(&["x"], Some("/usr/bin/nv-hostengine (deleted)"), None),
            running(&["python3", "-u", "/home/ann/.local/bin/nvitop"], None, None),
            running(&[], None, Some("nvidia-persiste")),
        ] {
            assert!(process.is_monitor() && !process.is_display(), "{process:?}");
        }
        let display = running(&["/usr/lib/xorg/Xorg", ":0"], None, None);
        assert!(display.is_display() && !display.is_monitor());
        for file in ["/usr/libexec/dcv/dcvagent", "/usr/NX/bin/nxnode.bin", "/usr/bin/sunshine"] {
            assert!(running(&[file], Some(file), None).is_display(), "{file}");
            assert_eq!(never_killed(Some(file), Some(true), None, &[]), Some(file_name(file)));
        }
        // Any user can start a program as `Xorg`.
        assert!(!running(&["Xorg", ":0"], Some("/usr/bin/python3"), None).is_display());
        let mut users_program = running(&["Xorg", ":0"], Some("/home/ann/Xorg"), None);
        assert!(users_program.is_display());
        users_program.executable_is_roots = Some(false);
        assert!(!users_program.is_display());
    }

    #[test]
    fn a_virtual_machine_is_recognised_by_roots_hypervisor() {
        for (command, file, by) in [
            ("vgpu", Some("/usr/bin/nvidia-vgpu-mgr"), Some("KVM")),
            ("/usr/lib64/xen/bin/vgpu --domain=7", Some("/usr/lib64/xen/bin/vgpu"), Some("Xen")),
            ("vgpu", None, Some("Xen")),
            ("vmware-vmx", Some("/usr/lib/vmware/bin/vmware-vmx (deleted)"), Some("VMware")),
            ("qemu", Some("/usr/bin/qemu-system-x86_64"), Some("KVM")),
            ("vgpu", Some("/usr/bin/python3"), None),
            ("python vgpu.py", Some("/usr/bin/python3"), None),
            ("vgpu_train", None, None),
        ] {
            let command: Vec<&str> = command.split(' ').collect();
            let mut process = running(&command, file, None);
            assert_eq!(process.hypervisor().map(|hypervisor| &*hypervisor.by), by, "{command:?}");
            let name = never_killed(file, None, command.first().copied(), &[]);
            assert_eq!(
                name.and_then(Hypervisor::of_program).map(|hypervisor| &*hypervisor.by),
                by,
                "{command:?}"
            );
            process.executable_is_roots = Some(false);
            assert_eq!(process.hypervisor().is_some(), file.is_none() && by.is_some());
        }
    }

    #[test]
    fn partial_names_and_arguments_match_no_program() {
        for process in [
            running(&["nvtop2"], None, None),
            running(&["python", "train.py", "nvtop"], None, None),
            running(&["python", "nvtop_like.py"], Some("/usr/bin/python3"), None),
            running(&["train"], None, Some("nvtop")),
            running(&[], None, None),
            Process::default(),
        ] {
            assert!(!process.is_monitor() && !process.is_display(), "{process:?}");
        }
    }
}
