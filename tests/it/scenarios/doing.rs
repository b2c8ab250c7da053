//! A process's activity at one time, before measurement noise is added.

use std::ops::Range;

use super::random::Random;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// Not present: not started yet, or exited.
    Gone,
    /// In /proc, with a row on each of its GPUs.
    Listed,
    /// In /proc, with the device files open and without rows.
    Unlisted,
    /// A row on each of its GPUs, and no entry in /proc.
    Missing,
}

/// A process's activity at one time.
#[derive(Clone, Copy, Debug)]
pub struct Activity {
    pub presence: Presence,
    /// Nominal SM use in percent; exactly 0 if idle.
    pub sm: f64,
    pub sm_noise: f64,
    /// Percent of memory traffic per percent of SM use.
    pub traffic: f64,
    /// Relative power per percent of SM use; 1 is a typical training step.
    pub load: f64,
    pub cpu: f64,
    /// Memory on each of its GPUs; `None` if unknown.
    pub bytes: Option<u64>,
    /// The state in /proc; derived from the CPU use if `None`.
    pub state: Option<char>,
    /// The process that adopted it after its group leader died: 1, or a subreaper's pid.
    pub adopter: Option<u32>,
    /// Whether its group leader is a living script.
    pub has_a_script: bool,
    /// A notebook's execution state and last activity, in seconds since the start of the recording.
    pub notebook: Option<(&'static str, f64)>,
}

/// Trains, with about 85 % of the GPU.
pub fn working(bytes: u64) -> Activity {
    Activity {
        presence: Presence::Listed,
        sm: 85.0,
        sm_noise: 4.0,
        traffic: 0.56,
        load: 1.0,
        cpu: 140.0,
        bytes: Some(bytes),
        state: None,
        adopter: None,
        has_a_script: false,
        notebook: None,
    }
}

pub fn resting(bytes: u64) -> Activity {
    Activity { sm: 0.0, cpu: 0.8, ..working(bytes) }
}

/// Runs a GPU kernel that never ends.
pub fn spinning(bytes: u64) -> Activity {
    Activity { sm: 100.0, sm_noise: 0.0, traffic: 0.0, load: 0.1, cpu: 99.0, ..working(bytes) }
}

pub fn gone() -> Activity {
    Activity { presence: Presence::Gone, ..resting(0) }
}

/// `before` until a time, then `after`.
pub fn until(
    time: f64,
    before: Activity,
    after: Activity,
) -> impl Fn(f64, &mut Random) -> Activity {
    move |t, _| if t < time { before } else { after }
}

/// `within` between two times, otherwise `outside`.
pub fn during(
    times: Range<f64>,
    within: Activity,
    outside: Activity,
) -> impl Fn(f64, &mut Random) -> Activity {
    move |t, _| if times.contains(&t) { within } else { outside }
}

/// Each activity until its end, then `last`.
pub fn phases<const N: usize>(
    each: [(f64, Activity); N],
    last: Activity,
) -> impl Fn(f64, &mut Random) -> Activity {
    move |t, _| each.iter().find(|(end, _)| t < *end).map_or(last, |(_, doing)| *doing)
}

impl Activity {
    pub fn sm(self, sm: f64) -> Self {
        Self { sm, ..self }
    }

    pub fn cpu(self, cpu: f64) -> Self {
        Self { cpu, ..self }
    }

    pub fn load(self, load: f64) -> Self {
        Self { load, ..self }
    }

    pub fn traffic(self, traffic: f64) -> Self {
        Self { traffic, ..self }
    }

    /// Sets the state. A stopped, sleeping or dead process uses no CPU.
    pub fn state(self, state: char) -> Self {
        let cpu = if matches!(state, 'T' | 't' | 'D' | 'Z') { 0.0 } else { self.cpu };
        Self { state: Some(state), cpu, ..self }
    }

    pub fn adopted_by(self, adopter: u32) -> Self {
        Self { adopter: Some(adopter), ..self }
    }

    /// The process's parent was a background job of a script, in the script's group.
    pub fn of_a_script(self, has_a_script: bool) -> Self {
        Self { has_a_script, ..self }
    }

    pub fn unlisted(self) -> Self {
        Self { presence: Presence::Unlisted, ..self }
    }

    pub fn missing(self) -> Self {
        Self { presence: Presence::Missing, ..self }
    }

    pub fn unknown_bytes(self) -> Self {
        Self { bytes: None, ..self }
    }

    pub fn notebook(self, state: &'static str, last_activity: f64) -> Self {
        Self { notebook: Some((state, last_activity)), ..self }
    }
}
