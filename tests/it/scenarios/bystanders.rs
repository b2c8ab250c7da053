//! Who else is on the machine: services that every GPU host has, and other people's jobs on other GPUs.
//!
//! All of them are innocent, whatever the story is.

use gpumem::api::model::ProcessType;

use super::doing::{resting, working};
use super::people::{argv, daemon, trainer};
use super::stage::{MIB, Stage};

pub fn enter(stage: &mut Stage) {
    if stage.random.chance(0.6) {
        let words = "/usr/bin/nvidia-persistenced --user nvidia-persistenced --verbose";
        hold(stage, words, "nvidia-persistenced.service");
    }
    if stage.random.chance(0.25) {
        hold(
            stage,
            "/usr/bin/nv-hostengine -n --service-account nvidia-dcgm",
            "nvidia-dcgm.service",
        );
    }
    for gpu in 0..stage.machine.uuids.len() {
        if gpu != stage.gpu && !stage.is_taken(gpu) && stage.random.chance(0.5) {
            colleague(stage, gpu);
        }
    }
    if stage.random.chance(0.15) {
        desktop(stage);
    }
}

/// A service that has every device file open, and no context on any.
fn hold(stage: &mut Stage, words: &str, unit: &str) {
    let mut process = daemon(&mut stage.random, words, unit);
    let devices = (0..stage.machine.uuids.len()).map(|gpu| format!(" /dev/nvidia{gpu}"));
    process.gpu_files = argv(&format!("/dev/nvidiactl{}", devices.collect::<String>()));
    let gpu = stage.gpu;
    stage.act_on(process, &[gpu], ProcessType::Compute, |_, _| resting(0).cpu(0.0).unlisted());
}

/// Xorg, which holds a little and draws now and then.
fn desktop(stage: &mut Stage) {
    let words = "/usr/lib/xorg/Xorg vt2 -displayfd 3 -auth /run/user/120/gdm/Xauthority";
    let process = daemon(&mut stage.random, words, "gdm.service");
    let bytes = stage.random.whole(4, 300) * 2 * MIB;
    stage.act_on(process, &[0], ProcessType::Graphics, move |_, _| resting(bytes).cpu(1.5));
}

/// Somebody who trains on another GPU, steadily.
fn colleague(stage: &mut Stage, gpu: usize) {
    let process = trainer(&mut stage.random);
    let bytes = stage.share(0.1, 0.7);
    let level = stage.random.range(70.0, 93.0);
    stage.act_on(process, &[gpu], ProcessType::Compute, move |_, _| working(bytes).sm(level));
}
