//! What a process does at one moment, before any noise of measurement.

use std::ops::Range;

use super::random::Random;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// Nowhere: not yet born, or gone.
    Gone,
    /// In /proc, and a row on each of its GPUs.
    Listed,
    /// In /proc with the device files open, and no row.
    Unlisted,
    /// A row on each of its GPUs, and nothing in /proc.
    Missing,
}

/// What a process does at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Doing {
    pub presence: Presence,
    /// Nominal SM use in percent; 0 is exactly none.
    pub sm: f64,
    pub sm_noise: f64,
    /// Percent of memory traffic per percent of SM use.
    pub traffic: f64,
    /// Power drawn per percent of SM use; 1 is a common training step.
    pub load: f64,
    pub cpu: f64,
    /// Held on each of its GPUs; `None` where the driver does not tell.
    pub bytes: Option<u64>,
    /// As /proc would show it; `None` leaves it to the CPU use.
    pub state: Option<char>,
    /// Who adopted it after its group leader died: 1, or a subreaper's pid.
    pub adopter: Option<u32>,
    /// Its group's leader is a script that lives on.
    pub has_a_script: bool,
    /// A notebook's execution state and last activity, in seconds since the recording began.
    pub notebook: Option<(&'static str, f64)>,
}

/// Trains, at about 85 % of the GPU.
pub fn working(bytes: u64) -> Doing {
    Doing {
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

pub fn resting(bytes: u64) -> Doing {
    Doing { sm: 0.0, cpu: 0.8, ..working(bytes) }
}

/// Spins in a kernel that will never end.
pub fn spinning(bytes: u64) -> Doing {
    Doing { sm: 100.0, sm_noise: 0.0, traffic: 0.0, load: 0.1, cpu: 99.0, ..working(bytes) }
}

pub fn gone() -> Doing {
    Doing { presence: Presence::Gone, ..resting(0) }
}

/// Does this until a time, and that from then on.
pub fn until(time: f64, before: Doing, after: Doing) -> impl Fn(f64, &mut Random) -> Doing {
    move |t, _| if t < time { before } else { after }
}

/// Does this between two times, and that before and after.
pub fn during(
    times: Range<f64>,
    within: Doing,
    outside: Doing,
) -> impl Fn(f64, &mut Random) -> Doing {
    move |t, _| if times.contains(&t) { within } else { outside }
}

/// Does each until its time, and at last that.
pub fn phases<const N: usize>(
    each: [(f64, Doing); N],
    last: Doing,
) -> impl Fn(f64, &mut Random) -> Doing {
    move |t, _| each.iter().find(|(end, _)| t < *end).map_or(last, |(_, doing)| *doing)
}

impl Doing {
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

    /// In this state; stopped, asleep for good or dead, it uses no CPU.
    pub fn state(self, state: char) -> Self {
        let cpu = if matches!(state, 'T' | 't' | 'D' | 'Z') { 0.0 } else { self.cpu };
        Self { state: Some(state), cpu, ..self }
    }

    pub fn adopted_by(self, adopter: u32) -> Self {
        Self { adopter: Some(adopter), ..self }
    }

    /// Who started it was in the background of a script, in whose group both are.
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
