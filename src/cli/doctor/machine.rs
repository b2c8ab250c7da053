//! The machine: cgroups, systemd, clocks.

use crate::host::Cgroups;
use crate::model::Time;
use crate::report::doctor::{CheckStatus, DoctorCheck, Topic};
use crate::units::Span;

/// 2024-01-01: before it there was no gpumem, so that a clock which says so was never set.
const FIRST_DAY: Time = Time::from_unix_milliseconds(1_704_067_200_000);

#[derive(Clone, Copy, Debug)]
pub(super) struct MachineFacts {
    pub(super) cgroups: Option<Cgroups>,
    pub(super) is_initial_cgroup_namespace: Option<bool>,
    pub(super) has_systemd: bool,
    pub(super) now: Time,
    pub(super) booted: Option<Time>,
    /// Seconds of the time since then in which it slept.
    pub(super) asleep_seconds: u64,
    pub(super) has_boot_id: bool,
}

pub(super) fn checks(facts: &MachineFacts) -> Vec<DoctorCheck> {
    vec![cgroups(facts), systemd(facts.has_systemd), clock(facts)]
}

fn cgroups(facts: &MachineFacts) -> DoctorCheck {
    let topic = Topic::Cgroups;
    let version = match facts.cgroups {
        None => return DoctorCheck::new(topic, CheckStatus::Unknown, "mounts cannot be read"),
        // What a process is in stands in its own folder, whether or not they are mounted.
        Some(Cgroups::None) => "none mounted",
        Some(Cgroups::V1) => "version 1",
        Some(Cgroups::V2) => "version 2",
        Some(Cgroups::Hybrid) => "versions 1 and 2 (hybrid)",
    };
    match facts.is_initial_cgroup_namespace {
        Some(true) => DoctorCheck::new(topic, CheckStatus::Ok, version),
        Some(false) => DoctorCheck::new(
            topic,
            CheckStatus::Limited,
            format!("{version}, in a cgroup namespace"),
        )
        .means(
            "paths begin at this container: the container, pod or job of a process may not \
            be known",
        )
        .next("run gpumem on the host, or with its cgroups: docker run --cgroupns=host ..."),
        None => DoctorCheck::new(
            topic,
            CheckStatus::Ok,
            format!("{version}; this kernel has no cgroup namespaces"),
        ),
    }
}

fn systemd(has_systemd: bool) -> DoctorCheck {
    if has_systemd {
        DoctorCheck::new(Topic::Systemd, CheckStatus::Ok, "runs this system")
    } else {
        DoctorCheck::new(Topic::Systemd, CheckStatus::NotApplicable, "does not run this system")
            .means("processes are in no units; the recorder is started by other means")
    }
}

fn clock(facts: &MachineFacts) -> DoctorCheck {
    let topic = Topic::Clock;
    let now = facts.now;
    if now < FIRST_DAY {
        let seen = format!("the clock is at {}", now.local());
        return DoctorCheck::new(topic, CheckStatus::Broken, seen)
            .means("recordings and exemptions with an expiry date use a wrong date")
            .next("timedatectl set-ntp true    (as root), or set the clock");
    }
    let Some(booted) = facts.booted else {
        return DoctorCheck::new(
            topic,
            CheckStatus::Unknown,
            format!("{}; the time of boot cannot be read", now.local()),
        )
        .means("when processes started is not known");
    };
    if !facts.has_boot_id {
        return DoctorCheck::new(
            topic,
            CheckStatus::Limited,
            format!("{}; this boot has no id", now.local()),
        )
        .means("a stored history cannot be matched to this boot, and is not used");
    }
    let mut seen =
        format!("{}, up {}", now.local(), Span::from_seconds(now.seconds_since(booted).max(0.0)));
    if facts.asleep_seconds > 0 {
        let asleep = Span::from_seconds(facts.asleep_seconds as f64);
        seen.push_str(&format!(", {asleep} of it asleep"));
    }
    DoctorCheck::new(topic, CheckStatus::Ok, seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: MachineFacts = MachineFacts {
        cgroups: Some(Cgroups::V2),
        is_initial_cgroup_namespace: Some(true),
        has_systemd: true,
        now: Time::from_unix_milliseconds(1_763_706_000_000),
        booted: Some(Time::from_unix_milliseconds(1_763_606_000_000)),
        asleep_seconds: 0,
        has_boot_id: true,
    };

    #[test]
    fn a_usual_machine_is_well() {
        let checks = checks(&FACTS);
        assert!(checks.iter().all(|it| it.verdict == CheckStatus::Ok), "{checks:?}");
        assert_eq!(checks[0].seen, "version 2");
        assert!(checks[2].seen.ends_with("up 1d 03h"), "{checks:?}");
    }

    #[test]
    fn a_clock_that_was_never_set_is_broken() {
        let with = |change: fn(&mut MachineFacts)| {
            let mut facts = FACTS;
            change(&mut facts);
            clock(&facts)
        };
        let unset = with(|it| it.now = Time::from_unix_milliseconds(86_400_000));
        assert_eq!(unset.verdict, CheckStatus::Broken);
        assert_eq!(with(|it| it.booted = None).verdict, CheckStatus::Unknown);
        assert_eq!(with(|it| it.has_boot_id = false).verdict, CheckStatus::Limited);
        // Set back since it was booted.
        let back = with(|it| it.booted = Some(it.now.plus_seconds(60.0)));
        assert!(back.seen.ends_with("up 0s"), "{back:?}");
        let slept = with(|it| it.asleep_seconds = 7200);
        assert!(slept.seen.ends_with(", 2h 00m of it asleep"), "{slept:?}");
    }

    #[test]
    fn a_cgroup_namespace_is_a_limit() {
        let inside = MachineFacts { is_initial_cgroup_namespace: Some(false), ..FACTS };
        assert_eq!(cgroups(&inside).verdict, CheckStatus::Limited);
        let unread = MachineFacts { cgroups: None, ..FACTS };
        assert_eq!(cgroups(&unread).verdict, CheckStatus::Unknown);
    }
}
