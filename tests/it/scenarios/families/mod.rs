//! The families of stories, by the kind that they are about.

mod faults;
mod harsher;
mod hung;
mod idle;
mod leak;
mod orphan;
mod over_time;
mod placeholder;
mod quiet_broken;
mod quiet_leak;
mod quiet_life;
mod quiet_work;
mod reserved;
mod unattributed;

use super::scenario::Scenario;
use super::stage::Stage;

/// A family of like stories with other numbers.
#[derive(Clone, Copy)]
pub struct Family {
    pub name: &'static str,
    pub story: &'static str,
    set: fn(&mut Stage),
}

impl Family {
    /// The story with the numbers of a seed.
    pub fn play(&self, seed: u64) -> Scenario {
        let mut stage = Stage::new(self.name, seed);
        (self.set)(&mut stage);
        stage.play(self.name, self.story, seed)
    }
}

const fn family(name: &'static str, story: &'static str, set: fn(&mut Stage)) -> Family {
    Family { name, story, set }
}

pub fn all() -> Vec<Family> {
    [
        idle::FAMILIES,
        leak::FAMILIES,
        orphan::FAMILIES,
        over_time::FAMILIES,
        faults::FAMILIES,
        harsher::FAMILIES,
        hung::FAMILIES,
        placeholder::FAMILIES,
        reserved::FAMILIES,
        unattributed::FAMILIES,
        quiet_work::FAMILIES,
        quiet_life::FAMILIES,
        quiet_leak::FAMILIES,
        quiet_broken::FAMILIES,
    ]
    .concat()
}
