//! The machine: cgroups and clock.

use crate::host::Cgroups;
use crate::model::Time;
use crate::report::doctor::{DoctorCheck, Topic};
use crate::units::Span;

/// 2024-01-01: before it there was no gpumem, so that a clock which says so was never set.
const FIRST_DAY: Time = Time::from_unix_milliseconds(1_704_067_200_000);

#[derive(Clone, Copy, Debug)]
pub(super) struct MachineFacts {
    pub(super) cgroups: Option<Cgroups>,
    pub(super) is_initial_cgroup_namespace: Option<bool>,
    pub(super) now: Time,
    pub(super) booted: Option<Time>,
    pub(super) has_boot_id: bool,
}

pub(super) fn checks(facts: &MachineFacts) -> Vec<DoctorCheck> {
    vec![cgroups(facts), clock(facts)]
}

fn cgroups(facts: &MachineFacts) -> DoctorCheck {
    let topic = Topic::CGROUPS;
    let version = match facts.cgroups {
        None => return topic.unknown("mounts cannot be read"),
        // What a process is in stands in its own folder, whether or not they are mounted.
        Some(Cgroups::None) => "none mounted",
        Some(Cgroups::V1) => "version 1",
        Some(Cgroups::V2) => "version 2",
        Some(Cgroups::Hybrid) => "versions 1 and 2 (hybrid)",
    };
    match facts.is_initial_cgroup_namespace {
        Some(true) => topic.ok(version),
        Some(false) => topic
            .limited(format!("{version}, in a cgroup namespace"))
            .means(
                "paths begin at this container: the container, pod or job of a process may not \
            be known",
            )
            .next("run gpumem on the host, or with its cgroups: docker run --cgroupns=host ..."),
        None => topic.ok(format!("{version}; this kernel has no cgroup namespaces")),
    }
}

fn clock(facts: &MachineFacts) -> DoctorCheck {
    let topic = Topic::CLOCK;
    let now = facts.now;
    if now < FIRST_DAY {
        let seen = format!("the clock is at {}", now.local());
        return topic
            .broken(seen)
            .means("recordings and exemptions with an expiry date use a wrong date")
            .next("timedatectl set-ntp true    (as root), or set the clock");
    }
    let Some(booted) = facts.booted else {
        return topic
            .unknown(format!("{}; the time of boot cannot be read", now.local()))
            .means("when processes started is not known");
    };
    if !facts.has_boot_id {
        return topic
            .limited(format!("{}; this boot has no id", now.local()))
            .means("a stored history cannot be matched to this boot, and is not used");
    }
    let up = Span::from_seconds(now.seconds_since(booted).max(0.0));
    topic.ok(format!("{}, up {up}", now.local()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::doctor::CheckStatus;

    const FACTS: MachineFacts = MachineFacts {
        cgroups: Some(Cgroups::V2),
        is_initial_cgroup_namespace: Some(true),
        now: Time::from_unix_milliseconds(1_763_706_000_000),
        booted: Some(Time::from_unix_milliseconds(1_763_606_000_000)),
        has_boot_id: true,
    };

    #[test]
    fn a_usual_machine_is_well() {
        let checks = checks(&FACTS);
        assert!(checks.iter().all(|it| it.verdict == CheckStatus::Ok), "{checks:?}");
        assert_eq!(checks[0].seen, "version 2");
        assert!(checks[1].seen.ends_with("up 1d 03h"), "{checks:?}");
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
    }

    #[test]
    fn a_cgroup_namespace_is_a_limit() {
        let inside = MachineFacts { is_initial_cgroup_namespace: Some(false), ..FACTS };
        assert_eq!(cgroups(&inside).verdict, CheckStatus::Limited);
        let unread = MachineFacts { cgroups: None, ..FACTS };
        assert_eq!(cgroups(&unread).verdict, CheckStatus::Unknown);
    }
}
