//! The machine: cgroups and clock.

use crate::host::Cgroups;
use crate::model::Time;
use crate::report::doctor::{DoctorCheck, Topic};
use crate::units::Span;

/// 2024-01-01, before gpumem existed: a clock that shows an earlier date was never set.
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
        Some(false) => {
            topic.limited(format!("{version}, in a cgroup namespace")).advise("cgroup-namespace")
        }
        None => topic.ok(format!("{version}; this kernel has no cgroup namespaces")),
    }
}

fn clock(facts: &MachineFacts) -> DoctorCheck {
    let topic = Topic::CLOCK;
    let now = facts.now;
    if now < FIRST_DAY {
        let seen = format!("the clock is at {}", now.local());
        return topic.broken(seen).advise("clock-unset");
    }
    let Some(booted) = facts.booted else {
        return topic
            .unknown(format!("{}; the time of boot cannot be read", now.local()))
            .advise("no-boot-time");
    };
    if !facts.has_boot_id {
        return topic.limited(format!("{}; this boot has no id", now.local())).advise("no-boot-id");
    }
    let up = Span::from_seconds(now.seconds_since(booted).max(0.0));
    topic.ok(format!("{}, up {up}", now.local()))
}
