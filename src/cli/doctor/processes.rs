//! Checks which processes gpumem can see, and whether NVML's pids are valid in gpumem's pid namespace.

use rustix::io::Errno;

use crate::host::{Hidepid, Rights, Visibility};
use crate::model::snapshot::PidNamespace;
use crate::report::doctor::{DoctorCheck, Topic};

pub(super) fn pid_namespace(namespace: Option<PidNamespace>) -> DoctorCheck {
    let topic = Topic::PID_NAMESPACE;
    match namespace {
        Some(PidNamespace::Host) => topic.ok("the host's: pids from NVML are valid here"),
        // In containers, NVML reported pids of the host until driver 535.104. Later drivers translate most pids.
        Some(PidNamespace::Container) => topic.limited("a container's").advise("pid-namespace"),
        None => topic.unknown("/proc/self/ns/pid cannot be read").advise("pid-namespace-unknown"),
    }
}

pub(super) fn descriptors(rights: Rights) -> DoctorCheck {
    let topic = Topic::DESCRIPTORS;
    let who = if rights.is_root { "root" } else { "not root" };
    let capability = match rights.can_trace {
        Some(true) => ", with CAP_SYS_PTRACE",
        Some(false) => ", without CAP_SYS_PTRACE",
        None => "",
    };
    let tried = match (rights.other_user, rights.first) {
        (Visibility::Seen, Visibility::Refused) => {
            "another user's process could be read, but pid 1 could not"
        }
        (Visibility::Seen, _) => "another user's process could be read",
        (Visibility::Refused, _) => "another user's process could not be read",
        (Visibility::NoProcess, Visibility::Seen) => {
            "there is no other user's process; pid 1 could be read"
        }
        (Visibility::NoProcess, Visibility::Refused) => "pid 1 could not be read",
        (Visibility::NoProcess, Visibility::NoProcess) => "there was no process to test with",
    };
    let observation = format!("{who}{capability}: {tried}");
    match (rights.other_user, rights.first) {
        (Visibility::Seen, Visibility::Seen | Visibility::NoProcess)
        | (Visibility::NoProcess, Visibility::Seen) => topic.ok(observation),
        (Visibility::Refused, _) | (_, Visibility::Refused) => {
            let check = topic.limited(observation).means(if rights.other_user == Visibility::Seen {
                "the open files of some processes could not be read; these processes may be hidden holders"
            } else {
                "the open files of other users' processes could not be read, so hidden holders are not found"
            });
            match (rights.is_root, rights.can_trace) {
                (false, _) => check.advise("not-root"),
                (true, Some(true)) => check.advise("forbidden"),
                (true, _) => check.advise("no-ptrace"),
            }
        }
        (Visibility::NoProcess, Visibility::NoProcess) => topic.unknown(observation),
    }
}

pub(super) fn hidepid(hidepid: Option<Hidepid>, rights: Rights) -> DoctorCheck {
    let topic = Topic::HIDEPID;
    let hides = match hidepid {
        None => {
            return topic.unknown("no proc file system is mounted");
        }
        Some(Hidepid::Off) => {
            return topic.ok("off: all processes are visible");
        }
        Some(Hidepid::NoAccess) => "noaccess: the contents of other users' directories are hidden",
        Some(Hidepid::Invisible) => "invisible: other users' processes are hidden",
        Some(Hidepid::Ptraceable) => "ptraceable: processes that may not be traced are hidden",
    };
    // CAP_SYS_PTRACE overrides hidepid (proc(5)).
    if rights.can_trace == Some(true) {
        return topic.ok(format!("{hides}, but not from you"));
    }
    topic.limited(hides).advise("hidepid")
}

pub(super) fn pidfd(answer: Result<(), Errno>, kernel: Option<&str>) -> DoctorCheck {
    let topic = Topic::PIDFD;
    let kernel = kernel.unwrap_or("of unknown version");
    match answer {
        Ok(()) => topic.ok(format!("pidfd_open works, Linux {kernel}")),
        Err(errno) => {
            let check =
                topic.limited(format!("pidfd_open: {errno}, Linux {kernel}")).advise("no-pidfd");
            if errno == Errno::NOSYS {
                check.advise("old-kernel")
            } else {
                check.advise("seccomp-pidfd")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::doctor::CheckStatus;

    const USER: Rights = Rights {
        is_root: false,
        can_trace: Some(false),
        first: Visibility::Refused,
        other_user: Visibility::Refused,
    };

    #[test]
    fn descriptors_are_ok_only_if_a_foreign_process_was_read() {
        let verdict_of =
            |first, other_user| descriptors(Rights { first, other_user, ..USER }).verdict;
        use Visibility::{NoProcess, Refused, Seen};
        for (first, other, verdict) in [
            (Seen, Seen, CheckStatus::Ok),
            (NoProcess, Seen, CheckStatus::Ok),
            (Seen, NoProcess, CheckStatus::Ok),
            (Seen, Refused, CheckStatus::Limited),
            (Refused, Seen, CheckStatus::Limited),
            (Refused, NoProcess, CheckStatus::Limited),
            (NoProcess, Refused, CheckStatus::Limited),
            (NoProcess, NoProcess, CheckStatus::Unknown),
        ] {
            assert_eq!(verdict_of(first, other), verdict, "{first:?} {other:?}");
        }
        assert!(descriptors(USER).next[0].contains("sudo"));
        let confined = Rights { is_root: true, ..USER };
        assert!(descriptors(confined).next[0].contains("SYS_PTRACE"));
        let forbidden = Rights { can_trace: Some(true), ..confined };
        assert!(descriptors(forbidden).next[0].contains("security module"));
    }
}
