//! Unrelated processes on the machine: services that GPU hosts often run, and other users' jobs on other GPUs.
//! Findings about them are not allowed.

use gpumem::api::model::ProcessType;

use super::doing::{resting, working};
use super::people::argv;
use super::stage::{MIB, Stage};

pub fn add_bystanders(stage: &mut Stage) {
    if stage.random.chance(0.6) {
        let words = "/usr/bin/nvidia-persistenced --user nvidia-persistenced --verbose";
        add_service(stage, words, "nvidia-persistenced.service");
    }
    if stage.random.chance(0.25) {
        add_service(
            stage,
            "/usr/bin/nv-hostengine -n --service-account nvidia-dcgm",
            "nvidia-dcgm.service",
        );
    }
    for gpu in 0..stage.machine.uuids.len() {
        if gpu != stage.gpu && !stage.is_taken(gpu) && stage.random.chance(0.5) {
            add_colleague(stage, gpu);
        }
    }
    if stage.random.chance(0.15) {
        add_desktop(stage);
    }
}

/// Adds a service that has all device files open, but uses no GPU.
fn add_service(stage: &mut Stage, words: &str, unit: &str) {
    let mut process = stage.daemon(words, unit);
    let devices = (0..stage.machine.uuids.len()).map(|gpu| format!(" /dev/nvidia{gpu}"));
    process.gpu_files = argv(&format!("/dev/nvidiactl{}", devices.collect::<String>()));
    let gpu = stage.gpu;
    stage.add_on(process, &[gpu], |_, _| resting(0).cpu(0.0).unlisted());
}

/// Adds Xorg, which holds little memory and draws occasionally.
fn add_desktop(stage: &mut Stage) {
    let words = "/usr/lib/xorg/Xorg vt2 -displayfd 3 -auth /run/user/120/gdm/Xauthority";
    let process = stage.daemon(words, "gdm.service");
    let bytes = stage.random.whole(4, 300) * 2 * MIB;
    stage.add_of_kind(ProcessType::Graphics, process, &[0], move |_, _| resting(bytes).cpu(1.5));
}

/// Adds another user's training on another GPU.
fn add_colleague(stage: &mut Stage, gpu: usize) {
    let process = stage.trainer();
    let bytes = stage.share(0.1, 0.7);
    let level = stage.random.range(70.0, 93.0);
    stage.add_on(process, &[gpu], move |_, _| working(bytes).sm(level));
}
