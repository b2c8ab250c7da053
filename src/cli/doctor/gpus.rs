//! What each GPU tells, and what its settings keep from being told.

use super::driver::{KERNEL_LOG, RuntimeEnvironment};
use crate::host::MpsDaemons;
use crate::model::Gpu;
use crate::report::doctor::{CheckStatus, DoctorCheck, Topic, merge};
use crate::source::nvml::{NvmlSample, SampledGpu};
use crate::units::Bytes;

/// Whether who holds this GPU's memory can be told.
pub(super) fn is_readable(gpu: &Gpu) -> bool {
    gpu.processes.is_some() && gpu.stale_seconds.is_none()
}

pub(super) fn checks(sample: &NvmlSample, place: RuntimeEnvironment) -> Vec<DoctorCheck> {
    if sample.gpus.is_empty() {
        return vec![no_gpu(sample, place)];
    }
    merge(sample.gpus.iter().map(|sampled| {
        let gpu = &sampled.gpu;
        let mut checks = vec![answers(gpu, sample)];
        // Of a GPU that does not answer nothing else is known, and that is said.
        if is_readable(gpu) {
            checks.push(persistence(gpu));
            checks.push(process_utilization(sampled));
            checks.push(accounting(gpu));
            checks.push(process_memory(gpu));
            checks.push(mig(gpu));
        }
        (gpu.index, checks)
    }))
}

fn no_gpu(sample: &NvmlSample, place: RuntimeEnvironment) -> DoctorCheck {
    let error = sample.errors.first();
    let seen = error.map_or_else(
        || "NVML answers and lists no GPU".to_owned(),
        |error| format!("{}: {}", error.call, error.error),
    );
    let check = DoctorCheck::new(Topic::Gpu, CheckStatus::Broken, seen);
    match place {
        RuntimeEnvironment::Container(_) => {
            check.next("pass GPUs in: docker run --gpus all ..., or NVIDIA_VISIBLE_DEVICES=all")
        }
        _ => check.next("lspci -d 10de:").next(KERNEL_LOG),
    }
}

fn answers(gpu: &Gpu, sample: &NvmlSample) -> DoctorCheck {
    let name = gpu.name.as_deref().unwrap_or("a GPU without a name");
    let topic = Topic::Gpu;
    let errors: Vec<String> = sample
        .errors
        .iter()
        .filter(|error| error.gpu == Some(gpu.index))
        .map(|error| format!("{}: {}", error.call, error.error))
        .collect();
    let error_or = |otherwise: &str| match errors.as_slice() {
        [] => otherwise.to_owned(),
        errors => errors.join("; "),
    };
    if !is_readable(gpu) {
        return DoctorCheck::new(
            topic,
            CheckStatus::Broken,
            format!("{name}: {}", error_or("no answer")),
        )
        .means("what is on this GPU is not known, and check exits with 3")
        .next(KERNEL_LOG);
    }
    match (&gpu.memory, &gpu.memory_unavailable) {
        (Some(memory), _) => {
            let seen = format!("{name}, {}", Bytes(memory.total_bytes));
            let Some(limit) = gpu.memory_limit_bytes else {
                return DoctorCheck::new(topic, CheckStatus::Ok, seen);
            };
            let limit = Bytes(limit);
            DoctorCheck::new(
                topic,
                CheckStatus::Limited,
                format!(
                    "{seen}; the driver limits the cgroup that gpumem runs in to {limit} of it"
                ),
            )
            .means(
                "the GPU's own figures are read from the older call, which counts what the driver \
                 reserves as used",
            )
            .next("run gpumem outside of the limited cgroup, as a system service for one")
        }
        (None, why) => {
            let why = why.as_deref().map_or_else(|| error_or("not reported"), str::to_owned);
            DoctorCheck::new(topic, CheckStatus::Limited, format!("{name}; its memory: {why}"))
                .means("the memory of each process is known; free memory is not")
        }
    }
}

fn persistence(gpu: &Gpu) -> DoctorCheck {
    let topic = Topic::Persistence;
    match gpu.persistence_mode {
        Some(true) => DoctorCheck::new(topic, CheckStatus::Ok, "on"),
        // 1 to 3 s: NVIDIA's driver persistence documentation.
        Some(false) => DoctorCheck::new(topic, CheckStatus::Limited, "off")
            .means(
                "while no program uses the GPU, the driver releases it, and each sample takes \
            1 to 3 s",
            )
            .next("nvidia-smi -pm 1    (as root; on a laptop it keeps the GPU awake)"),
        None => DoctorCheck::new(topic, CheckStatus::NotApplicable, "not reported"),
    }
}

fn process_utilization(sampled: &SampledGpu) -> DoctorCheck {
    let topic = Topic::ProcessUtilization;
    match sampled.process_utilization {
        Some(true) => DoctorCheck::new(topic, CheckStatus::Ok, "reported"),
        Some(false) if sampled.gpu.gpu_percent.is_some() => DoctorCheck::new(
            topic,
            CheckStatus::Limited,
            "not reported by this driver for this GPU",
        )
        .means("a process counts as idle only while the whole GPU is unused"),
        Some(false) => {
            DoctorCheck::new(topic, CheckStatus::Limited, "not reported, nor the whole GPU's use")
                .means("rules that need use, such as idle, are undecided on this GPU")
        }
        None => DoctorCheck::new(topic, CheckStatus::Unknown, "the call failed")
            .means("until it answers, rules that need use are undecided"),
    }
}

/// It is no fault that it is off: that is the driver's default.
fn accounting(gpu: &Gpu) -> DoctorCheck {
    let topic = Topic::Accounting;
    match gpu.accounting_mode {
        Some(true) => DoctorCheck::new(topic, CheckStatus::Ok, "on"),
        Some(false) => DoctorCheck::new(topic, CheckStatus::Ok, "off")
            .means(
                "on, the driver keeps how busy each process was since it started, which is evidence at \
                 the first look",
            )
            .next("nvidia-smi -am 1    (as root; until the driver is unloaded)"),
        None => DoctorCheck::new(topic, CheckStatus::NotApplicable, "not reported"),
    }
}

fn process_memory(gpu: &Gpu) -> DoctorCheck {
    let topic = Topic::ProcessMemory;
    if let Some(why) = &gpu.process_memory_unavailable {
        return DoctorCheck::new(topic, CheckStatus::Limited, &**why)
            .means("memory by process is not known on this GPU");
    }
    let rows = gpu.processes.as_deref().unwrap_or_default();
    let reported = rows.iter().filter(|row| row.used_bytes.is_some()).count();
    match (rows.len(), reported) {
        (0, _) => DoctorCheck::new(topic, CheckStatus::Unknown, "no process is on it to test with")
            .means("run gpumem doctor again while one is"),
        (all, reported) if all == reported => DoctorCheck::new(topic, CheckStatus::Ok, "reported"),
        (_, 0) => DoctorCheck::new(topic, CheckStatus::Limited, "not reported for any process")
            .means("memory by process is not known on this GPU"),
        (all, reported) => DoctorCheck::new(
            topic,
            CheckStatus::Limited,
            format!("reported for {reported} of {all} processes"),
        )
        .means("the rest is shown as not known, never as 0"),
    }
}

fn mig(gpu: &Gpu) -> DoctorCheck {
    match gpu.mig_mode {
        // nvml.h: utilization is not supported while MIG is enabled.
        Some(true) => DoctorCheck::new(Topic::Mig, CheckStatus::Limited, "on")
            .means("under MIG the driver reports no use: rules that need it are undecided"),
        Some(false) => DoctorCheck::new(Topic::Mig, CheckStatus::Ok, "off"),
        None => DoctorCheck::new(Topic::Mig, CheckStatus::NotApplicable, "this GPU has none"),
    }
}

/// The Multi-Process Service, which is about all GPUs.
pub(super) fn mps(daemons: Option<MpsDaemons>) -> DoctorCheck {
    let topic = Topic::Mps;
    match daemons {
        None => DoctorCheck::new(topic, CheckStatus::Unknown, "processes cannot be listed"),
        Some(MpsDaemons { controls: 0, servers: 0 }) => {
            DoctorCheck::new(topic, CheckStatus::Ok, "no daemon is seen")
        }
        Some(daemons) => DoctorCheck::new(
            topic,
            CheckStatus::Limited,
            format!("control daemons: {}, servers: {}", daemons.controls, daemons.servers),
        )
        .means("the driver may attribute clients' use to their server"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::snapshot::{GpuProcess, Memory, ReadError};

    fn sampled(gpu: Gpu) -> SampledGpu {
        SampledGpu { gpu, read_at: None, process_utilization: Some(true) }
    }

    fn well() -> Gpu {
        Gpu {
            name: Some("H100".into()),
            memory: Some(Memory { total_bytes: 80 << 30, ..Memory::default() }),
            processes: Some(Vec::new()),
            gpu_percent: Some(0),
            ..Gpu::default()
        }
    }

    fn judged(topic: Topic, sample: &NvmlSample) -> Vec<DoctorCheck> {
        let checks = checks(sample, RuntimeEnvironment::Machine);
        checks.into_iter().filter(|it| it.id == topic).collect()
    }

    #[test]
    fn a_lost_gpu_is_broken_and_the_others_stay() {
        let lost = Gpu { index: 1, ..Gpu::default() };
        let sample = NvmlSample {
            gpus: vec![sampled(well()), sampled(lost)],
            errors: vec![ReadError {
                gpu: Some(1),
                call: "nvmlDeviceGetUUID".into(),
                error: "fallen off the bus".into(),
            }],
        };
        let answers = judged(Topic::Gpu, &sample);
        assert_eq!((answers[0].verdict, answers[0].gpus.as_slice()), (CheckStatus::Ok, &[0][..]));
        assert_eq!(answers[0].seen, "H100, 80.0 GiB");
        assert_eq!(answers[1].verdict, CheckStatus::Broken);
        assert!(answers[1].seen.contains("nvmlDeviceGetUUID: fallen off the bus"));
        assert_eq!(judged(Topic::Mig, &sample)[0].gpus, [0]);
    }

    #[test]
    fn stale_values_are_no_answer_and_memory_without_figures_is_a_limit() {
        let stale = Gpu { stale_seconds: Some(2.0), ..well() };
        assert!(!is_readable(&stale) && is_readable(&well()));
        let unified = Gpu {
            memory: None,
            memory_unavailable: Some("shares the machine's memory".into()),
            ..well()
        };
        let sample = NvmlSample { gpus: vec![sampled(unified)], errors: Vec::new() };
        let check = &judged(Topic::Gpu, &sample)[0];
        assert_eq!(check.verdict, CheckStatus::Limited);
        assert!(check.seen.contains("shares the machine's memory"));
    }

    #[test]
    fn memory_by_process_is_judged_by_those_that_are_there() {
        let row = |used_bytes| GpuProcess { used_bytes, ..GpuProcess::default() };
        for (rows, verdict) in [
            (vec![], CheckStatus::Unknown),
            (vec![row(Some(0))], CheckStatus::Ok),
            (vec![row(None)], CheckStatus::Limited),
            (vec![row(None), row(Some(1))], CheckStatus::Limited),
        ] {
            let gpu = Gpu { processes: Some(rows), ..well() };
            assert_eq!(process_memory(&gpu).verdict, verdict);
        }
        let wsl = Gpu { process_memory_unavailable: Some("WSL".into()), ..well() };
        assert_eq!(process_memory(&wsl).verdict, CheckStatus::Limited);
    }

    #[test]
    fn use_by_process_is_limited_where_it_is_not_supported_and_unknown_where_it_failed() {
        let with = |process_utilization, gpu_percent| {
            process_utilization_of(process_utilization, gpu_percent)
        };
        assert_eq!(with(Some(true), None).verdict, CheckStatus::Ok);
        assert_eq!(with(None, Some(0)).verdict, CheckStatus::Unknown);
        let (whole, none) = (with(Some(false), Some(0)), with(Some(false), None));
        assert_eq!((whole.verdict, none.verdict), (CheckStatus::Limited, CheckStatus::Limited));
        assert_ne!(whole.means, none.means);
    }

    fn process_utilization_of(reported: Option<bool>, gpu_percent: Option<u32>) -> DoctorCheck {
        let mut sampled = sampled(Gpu { gpu_percent, ..well() });
        sampled.process_utilization = reported;
        process_utilization(&sampled)
    }

    #[test]
    fn no_gpu_at_all_is_broken() {
        let sample = NvmlSample { gpus: Vec::new(), errors: Vec::new() };
        for place in [RuntimeEnvironment::Machine, RuntimeEnvironment::Container(None)] {
            let checks = checks(&sample, place);
            assert_eq!((checks.len(), checks[0].verdict), (1, CheckStatus::Broken));
        }
    }
}
