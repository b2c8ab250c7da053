//! Families of scenarios, grouped by the kind of finding.

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

use std::f64::consts::TAU;
use std::sync::Arc;

use gpumem::api::model::{
    Container, Descendants, Gpu, GpuProcess, MigDevice, Parent, PidNamespace, Process, ProcessType,
    Relation, Relative, Reservation, Slurm, Snapshot,
};

use super::doing::{Activity, during, gone, phases, resting, spinning, until, working};
use super::people::argv;
use super::random::Random;
use super::scenario::{Scenario, Subject};
use super::stage::{GIB, MIB, Stage};

/// Scenarios that differ only in their random numbers.
#[derive(Clone, Copy)]
pub struct Family {
    pub name: &'static str,
    pub story: &'static str,
    set: fn(&mut Stage),
}

impl Family {
    pub fn play(&self, seed: u64) -> Scenario {
        let mut stage = Stage::new(self.name, seed);
        (self.set)(&mut stage);
        stage.play(self.name, self.story, seed)
    }
}

const fn family(name: &'static str, story: &'static str, set: fn(&mut Stage)) -> Family {
    Family { name, story, set }
}

/// Adds a trainer whose memory follows a curve, rounded to the driver's allocation size.
fn add_varying(s: &mut Stage, mut curve: impl FnMut(f64, &mut Random) -> f64 + 'static) -> u32 {
    let process = s.trainer();
    let level = s.random.range(65.0, 93.0);
    s.add(process, move |t, random| {
        working(curve(t, random).max(0.0) as u64 / (2 * MIB) * (2 * MIB)).sm(level)
    })
}

/// Returns a process that `nohup` kept after its shell was closed: its group's leader and its terminal are gone.
fn without_shell(s: &mut Stage, process: Process) -> Process {
    let group = Some(s.random.whole(3_000, 400_000) as u32);
    Process { process_group: group, session: group, terminal: None, ..process }
}

/// Picks a number of bytes between two shares of the GPU's memory.
fn random_part(s: &mut Stage, low: f64, high: f64) -> f64 {
    s.machine.model.total_bytes as f64 * s.random.range(low, high)
}

/// Tolerates a leak finding until ten minutes after `until`.
fn tolerate(s: &mut Stage, pid: u32, until: f64) {
    let verdict = ("leak", Subject::Process(pid));
    s.labels.tolerated.push((verdict, 0.0, until + 600.0));
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
