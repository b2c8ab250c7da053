//! The activity of a process at a point in time, without measurement noise.

use std::ops::Range;

use super::random::Random;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// The process has not started yet, or has exited.
    Gone,
    /// /proc contains the process, and NVML lists it on each of its GPUs.
    Listed,
    /// /proc contains the process with open device files, but NVML does not list it.
    Unlisted,
    /// NVML lists the process on each of its GPUs, but /proc does not contain it.
    Missing,
}

#[derive(Clone, Copy, Debug)]
pub struct Activity {
    pub presence: Presence,
    /// Nominal SM utilization in percent. An idle process has exactly 0.
    pub sm: f64,
    pub sm_noise: f64,
    /// Memory traffic in percent per percent of SM utilization.
    pub traffic: f64,
    /// Power per percent of SM utilization, relative to a typical training step.
    pub load: f64,
    pub cpu: f64,
    /// Memory on each GPU of the process, or `None` if unknown.
    pub bytes: Option<u64>,
    /// State in /proc. `None` selects a state that matches the CPU use.
    pub state: Option<char>,
    /// The pid of the process that adopted this process after the group leader's death: 1, or a subreaper's pid.
    pub adopter: Option<u32>,
    /// Set if the leader of the process group is a running script.
    pub has_a_script: bool,
    /// Execution state of a notebook, and the time of its last activity in seconds since the start of the recording.
    pub notebook: Option<(&'static str, f64)>,
}

/// Returns training with a utilization of about 85 %.
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

/// Returns the activity of a GPU kernel that never ends.
pub fn spinning(bytes: u64) -> Activity {
    Activity { sm: 100.0, sm_noise: 0.0, traffic: 0.0, load: 0.1, cpu: 99.0, ..working(bytes) }
}

pub fn gone() -> Activity {
    Activity { presence: Presence::Gone, ..resting(0) }
}

/// Returns a function that returns `before` until `time`, and `after` from then on.
pub fn until(
    time: f64,
    before: Activity,
    after: Activity,
) -> impl Fn(f64, &mut Random) -> Activity {
    move |t, _| if t < time { before } else { after }
}

/// Returns a function that returns `within` during `times`, and `outside` at other times.
pub fn during(
    times: Range<f64>,
    within: Activity,
    outside: Activity,
) -> impl Fn(f64, &mut Random) -> Activity {
    move |t, _| if times.contains(&t) { within } else { outside }
}

/// Returns a function that returns each activity until its end time, and then `last`.
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

    /// Sets the state in /proc. If the process is stopped, dead or in uninterruptible sleep, it uses no CPU.
    pub fn state(self, state: char) -> Self {
        let cpu = if matches!(state, 'T' | 't' | 'D' | 'Z') { 0.0 } else { self.cpu };
        Self { state: Some(state), cpu, ..self }
    }

    pub fn adopted_by(self, adopter: u32) -> Self {
        Self { adopter: Some(adopter), ..self }
    }

    /// If set, marks the process as a child of a running script, in the script's process group.
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
