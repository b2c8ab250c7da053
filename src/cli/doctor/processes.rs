//! What may be seen of processes, and whether they can be named for good.

use rustix::io::Errno;

use crate::host::{Hidepid, Rights, Sight};
use crate::model::snapshot::PidNamespace;
use crate::report::doctor::{Check, Topic, Verdict};

/// What was found.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    pub(super) namespace: Option<PidNamespace>,
    pub(super) rights: Rights,
    pub(super) hidepid: Option<Hidepid>,
    pub(super) ptrace_scope: Option<u8>,
    pub(super) pidfd: Result<(), Errno>,
    pub(super) kernel: Option<&'a str>,
}

pub(super) fn checks(facts: &Facts<'_>) -> Vec<Check> {
    vec![
        pid_namespace(facts.namespace),
        descriptors(facts.rights),
        hidepid(facts.hidepid, facts.rights),
        ptrace_scope(facts.ptrace_scope),
        pidfd(facts.pidfd, facts.kernel),
    ]
}

fn pid_namespace(namespace: Option<PidNamespace>) -> Check {
    let topic = Topic::PidNamespace;
    match namespace {
        Some(PidNamespace::Host) => {
            Check::new(topic, Verdict::Ok, "the host's: NVML's pids are those seen here")
        }
        // RM gave the host's pids everywhere until 535.104; later ones translate, not all of them.
        Some(PidNamespace::Container) => Check::new(topic, Verdict::Limited, "a container's")
            .means(
                "NVML's pids may be the host's: only one whose process holds a GPU's file open is believed, \
                 the others are unresolved, and the rules dead and unattributed are undecided",
            )
            .next("run gpumem on the host, or in a container with its pids: docker run --pid=host ..."),
        None => Check::new(topic, Verdict::Unknown, "the link self/ns/pid of proc cannot be read")
            .means("pids are treated as a container's: nobody is accused by number alone")
            .next("mount -t proc proc /proc    (as root)"),
    }
}

fn descriptors(rights: Rights) -> Check {
    let topic = Topic::Descriptors;
    let who = if rights.is_root { "root" } else { "not root" };
    let capability = match rights.can_trace {
        Some(true) => ", with CAP_SYS_PTRACE",
        Some(false) => ", without CAP_SYS_PTRACE",
        None => "",
    };
    let tried = match (rights.other_user, rights.first) {
        (Sight::Seen, Sight::Refused) => {
            "another user's process was looked into, and pid 1 refused"
        }
        (Sight::Seen, _) => "another user's process was looked into",
        (Sight::Refused, _) => "another user's process refused",
        (Sight::Nobody, Sight::Seen) => "no other user's process is there; pid 1 was looked into",
        (Sight::Nobody, Sight::Refused) => "pid 1 refused",
        (Sight::Nobody, Sight::Nobody) => "no process was there to try it on",
    };
    let seen = format!("{who}{capability}: {tried}");
    match (rights.other_user, rights.first) {
        (Sight::Seen, Sight::Seen | Sight::Nobody) | (Sight::Nobody, Sight::Seen) => {
            Check::new(topic, Verdict::Ok, seen)
        }
        (Sight::Refused, _) | (_, Sight::Refused) => {
            let check = Check::new(topic, Verdict::Limited, seen).means(if rights.other_user == Sight::Seen {
                "whether some processes hold a GPU's file open is unknown: those may be hidden holders"
            } else {
                "whether another's process holds a GPU's file open is unknown: hidden holders are not found"
            });
            match (rights.is_root, rights.can_trace) {
                (false, _) => check
                    .next("sudo gpumem doctor    (and run check and watch so, to see everybody)"),
                (true, Some(true)) => check.next(
                    "a security module or a user namespace forbids it: dmesg | grep -i denied    (as the host's root)",
                ),
                (true, _) => check
                    .next("give the container the capability: docker run --cap-add SYS_PTRACE ..."),
            }
        }
        (Sight::Nobody, Sight::Nobody) => Check::new(topic, Verdict::Unknown, seen),
    }
}

fn hidepid(hidepid: Option<Hidepid>, rights: Rights) -> Check {
    let topic = Topic::Hidepid;
    let hides = match hidepid {
        None => return Check::new(topic, Verdict::Unknown, "no proc file system is mounted"),
        Some(Hidepid::Off) => {
            return Check::new(topic, Verdict::Ok, "off: all processes are seen");
        }
        Some(Hidepid::NoAccess) => "noaccess: what is in others' folders is hidden",
        Some(Hidepid::Invisible) => "invisible: others' processes are hidden",
        Some(Hidepid::Ptraceable) => "ptraceable: processes that may not be traced are hidden",
    };
    // proc(5): root, who may trace all, sees all; so does the group of the option gid.
    if rights.can_trace == Some(true) {
        return Check::new(topic, Verdict::Ok, format!("{hides}, not from you"));
    }
    Check::new(topic, Verdict::Limited, hides)
        .means("owner, command and state of others' processes on a GPU are not known")
        .next("run gpumem as root, or as root: mount -o remount,hidepid=0 /proc")
}

/// Yama forbids to attach, and gpumem only reads (`Documentation/admin-guide/LSM/Yama.rst`).
fn ptrace_scope(scope: Option<u8>) -> Check {
    let topic = Topic::PtraceScope;
    let Some(scope) = scope else {
        return Check::new(topic, Verdict::NotApplicable, "this kernel has no Yama");
    };
    let name = match scope {
        0 => "classic",
        1 => "restricted",
        2 => "administrators only",
        3 => "nobody",
        _ => "of a later kernel",
    };
    Check::new(
        topic,
        Verdict::Ok,
        format!("{scope}, {name}; does not hinder gpumem"),
    )
    .means("it is about debuggers, which attach; gpumem only reads")
}

fn pidfd(answer: Result<(), Errno>, kernel: Option<&str>) -> Check {
    let topic = Topic::Pidfd;
    let kernel = kernel.unwrap_or("of unknown version");
    match answer {
        Ok(()) => Check::new(
            topic,
            Verdict::Ok,
            format!("pidfd_open works, Linux {kernel}"),
        ),
        Err(errno) => {
            let check = Check::new(
                topic,
                Verdict::Limited,
                format!("pidfd_open: {errno}, Linux {kernel}"),
            )
            .means("a process cannot be held by its identity, so that none can be ended safely");
            if errno == Errno::NOSYS {
                check.next("Linux 5.3 or later; in a container, a seccomp profile that knows the call (update its runtime)")
            } else {
                check.next("in a container, a seccomp profile that allows pidfd_open")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Rights = Rights {
        is_root: true,
        can_trace: Some(true),
        first: Sight::Seen,
        other_user: Sight::Seen,
    };
    const USER: Rights = Rights {
        is_root: false,
        can_trace: Some(false),
        first: Sight::Refused,
        other_user: Sight::Refused,
    };

    #[test]
    fn only_what_was_really_seen_is_well() {
        let with = |first, other_user| {
            descriptors(Rights {
                first,
                other_user,
                ..USER
            })
            .verdict
        };
        use Sight::{Nobody, Refused, Seen};
        for (first, other, verdict) in [
            (Seen, Seen, Verdict::Ok),
            (Nobody, Seen, Verdict::Ok),
            (Seen, Nobody, Verdict::Ok),
            (Seen, Refused, Verdict::Limited),
            (Refused, Seen, Verdict::Limited),
            (Refused, Nobody, Verdict::Limited),
            (Nobody, Refused, Verdict::Limited),
            (Nobody, Nobody, Verdict::Unknown),
        ] {
            assert_eq!(with(first, other), verdict, "{first:?} {other:?}");
        }
        assert!(descriptors(USER).next[0].contains("sudo"));
        let confined = Rights {
            is_root: true,
            ..USER
        };
        assert!(descriptors(confined).next[0].contains("SYS_PTRACE"));
        let forbidden = Rights {
            can_trace: Some(true),
            ..confined
        };
        assert!(descriptors(forbidden).next[0].contains("security module"));
    }

    #[test]
    fn hidepid_hides_nothing_from_root() {
        assert_eq!(hidepid(Some(Hidepid::Off), USER).verdict, Verdict::Ok);
        for option in [Hidepid::NoAccess, Hidepid::Invisible, Hidepid::Ptraceable] {
            assert_eq!(hidepid(Some(option), USER).verdict, Verdict::Limited);
            assert_eq!(hidepid(Some(option), ROOT).verdict, Verdict::Ok);
        }
        assert_eq!(hidepid(None, ROOT).verdict, Verdict::Unknown);
    }

    #[test]
    fn another_namespace_and_a_missing_call_are_limits() {
        assert_eq!(pid_namespace(Some(PidNamespace::Host)).verdict, Verdict::Ok);
        let container = pid_namespace(Some(PidNamespace::Container));
        assert_eq!(container.verdict, Verdict::Limited);
        assert!(container.next[0].contains("--pid=host"));
        assert_eq!(pid_namespace(None).verdict, Verdict::Unknown);

        assert_eq!(pidfd(Ok(()), None).verdict, Verdict::Ok);
        let old = pidfd(Err(Errno::NOSYS), Some("4.18"));
        assert!(old.verdict == Verdict::Limited && old.next[0].contains("5.3"));
        assert!(pidfd(Err(Errno::PERM), None).next[0].contains("seccomp"));
    }

    #[test]
    fn no_scope_of_yama_hinders() {
        for scope in [0, 1, 2, 3, 9] {
            assert_eq!(ptrace_scope(Some(scope)).verdict, Verdict::Ok);
        }
        assert_eq!(ptrace_scope(None).verdict, Verdict::NotApplicable);
    }
}
