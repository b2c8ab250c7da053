//! Programs that occupy a GPU without useful work, and a useful program that resembles them.

use super::*;

pub const FAMILIES: &[Family] = &[
    family("placeholder_keep_gpu", "keep-gpu holds a GPU and keeps it warm once a minute.", |s| {
        s.minutes(65.0, 90.0);
        let process = s.user_process("python /opt/conda/bin/keep-gpu --interval 60");
        let (bytes, period) = (s.gib(2.0, 30.0), s.random.range(30.0, 120.0));
        let pid = s.add(process, move |t, _| {
            // Fake work: the GPU is busy for two seconds of each period, with very low power.
            if t % period < 2.0 {
                working(bytes).sm(40.0).load(0.3).cpu(5.0)
            } else {
                resting(bytes)
            }
        });
        s.expect_finding("placeholder", pid, &["idle"]);
    }),
    family("placeholder_gpu_burn", "gpu_burn runs on a GPU for days.", |s| {
        s.minutes(65.0, 90.0);
        let mut process = s.user_process("./gpu_burn -m 90% 604800");
        process.framework = None;
        process.executable = Some("/home/lab/gpu-burn/gpu_burn".into());
        let bytes = s.share(0.85, 0.9);
        let pid = s.add(process, move |_, _| working(bytes).sm(100.0));
        s.expect_finding("placeholder", pid, &[]);
    }),
    family("placeholder_only_by_its_arguments", "nVertake runs a real training.", |s| {
        let words = "python /opt/conda/bin/nvertake --filled 0.9 run train.py --model keep-gpu";
        let (process, bytes) = (s.user_process(words), s.share(0.85, 0.9));
        s.add(process, move |_, _| working(bytes).sm(70.0));
    }),
];
