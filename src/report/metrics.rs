//! Formats a sample and its findings as the page that Prometheus scrapes.
//!
//! This module performs no I/O. A metric whose value is unknown has no series. Labels contain the
//! name of a process's program but never its arguments, which can contain secrets.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::model::finding::{Finding, FindingGpu, Undecided};
use crate::model::program::file_name;
use crate::model::row::{ProcessRow, places};
use crate::model::snapshot::Kubernetes;
use crate::model::waste::{Reclaimed, Waste};
use crate::model::{Gpu, GpuProcess, Identity, Process, Reclaimable, Snapshot, Time};

/// Maximum number of processes with their own series. Processes with the most memory take precedence. A process on two
/// GPUs counts twice. Also the maximum number of series that sum the memory of the remaining processes by user and job.
pub const PROCESSES_MAX: usize = 512;
/// Maximum number of findings with series. Severe findings take precedence, then findings about more memory.
const FINDINGS_MAX: usize = 512;
/// Maximum length in bytes of a program's name in a label.
const NAME_BYTES_MAX: usize = 64;
/// Value of the `user` label in the series that sum the processes beyond both limits, by GPU.
const OTHERS: &str = "(others)";

/// Definition of a metric, for the page and the manual.
#[derive(Debug)]
pub struct Metric {
    /// Metric name, without the `_total` suffix of counters.
    pub name: &'static str,
    pub is_counter: bool,
    pub help: &'static str,
    pub labels: &'static [&'static str],
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, is_counter: false, help, labels }
}

const GPU: &[&str] = &["gpu", "uuid"];
const LEAK: &[&str] = &["gpu", "uuid", "mig", "pid", "user", "command"];
const PROCESS: &[&str] =
    &["gpu", "uuid", "mig", "pid", "user", "command", "slurm_job", "pod", "namespace", "container"];
const FINDING: &[&str] = &[
    "kind",
    "severity",
    "rule",
    "gpu",
    "uuid",
    "mig",
    "pid",
    "user",
    "command",
    "pod",
    "namespace",
    "container",
];

const BUILD: Metric =
    gauge("gpumem_build_info", &["version", "driver"], "Versions of gpumem and of the driver");
const SAMPLED: Metric = gauge(
    "gpumem_last_sample_timestamp_seconds",
    &[],
    "When the sample was taken; absent for a recording",
);
const ERRORS: Metric =
    gauge("gpumem_sample_errors", &["call"], "Read errors in this sample, by call");
const INFO: Metric = gauge("gpumem_gpu_info", &["gpu", "uuid", "model"], "A GPU and its model");
const UP: Metric = gauge(
    "gpumem_gpu_up",
    GPU,
    "1 if a GPU's memory and processes could be read, else 0, and the GPU has no other series",
);
const MEMORY: Metric = gauge(
    "gpumem_gpu_memory_bytes",
    &["gpu", "uuid", "part"],
    "Memory of a GPU by part: free, reserved, processes, unattributed (in use by no listed process)",
);
const TOTAL: Metric = gauge("gpumem_gpu_memory_total_bytes", GPU, "Total memory of a GPU");
const UTILIZATION: Metric =
    gauge("gpumem_gpu_utilization_ratio", GPU, "Share of time in which a kernel ran on a GPU");
const POWER: Metric = gauge("gpumem_gpu_power_watts", GPU, "Power draw of a GPU");
const TEMPERATURE: Metric = gauge("gpumem_gpu_temperature_celsius", GPU, "Temperature of a GPU");
const CLOCK: Metric =
    gauge("gpumem_gpu_clock_hertz", &["gpu", "uuid", "clock"], "Clock of a GPU: sm, memory");
const THROTTLED: Metric = gauge(
    "gpumem_gpu_throttled",
    &["gpu", "uuid", "reason"],
    "1 for each reason why the driver limits a GPU's clocks, by its NVML name, including gpu idle",
);
const ECC: Metric = Metric {
    is_counter: true,
    ..gauge(
        "gpumem_gpu_ecc_uncorrected_errors",
        GPU,
        "Uncorrected memory errors (ECC) of a GPU since its driver was loaded",
    )
};
const PCIE: Metric = gauge(
    "gpumem_gpu_pcie_bytes_per_second",
    &["gpu", "uuid", "direction"],
    "PCIe throughput of a GPU by direction, received or sent, measured over about 20 ms",
);
const MIG_INFO: Metric = gauge(
    "gpumem_mig_info",
    &["gpu", "uuid", "mig", "mig_uuid", "profile"],
    "A MIG device, its UUID and profile",
);
const MIG_MEMORY: Metric = gauge(
    "gpumem_mig_memory_bytes",
    &["gpu", "uuid", "mig", "part"],
    "Memory of a MIG device by part: free, reserved, used; devices of one GPU instance share it",
);
const MIG_TOTAL: Metric =
    gauge("gpumem_mig_memory_total_bytes", &["gpu", "uuid", "mig"], "Total memory of a MIG device");
const HELD: Metric =
    gauge("gpumem_process_memory_bytes", PROCESS, "Memory that a process holds on a GPU");
const SM: Metric =
    gauge("gpumem_process_utilization_ratio", PROCESS, "Share of a GPU's SMs that a process uses");
const IDLE: Metric = gauge(
    "gpumem_process_idle_seconds",
    PROCESS,
    "How long a process has not used its GPU; 0 while it does, absent if unknown",
);
const DROPPED: Metric = gauge(
    "gpumem_process_series_dropped",
    &[],
    "Processes without their own series, whose memory is summed by user and Slurm job, without pid",
);
const ACTIVE: Metric = gauge("gpumem_finding_active", FINDING, "1 while a finding is active");
const FOUND: Metric =
    gauge("gpumem_finding_memory_bytes", FINDING, "Memory on a GPU that a finding is about");
const AGE: Metric =
    gauge("gpumem_finding_age_seconds", FINDING, "How long a finding has been active");
const UNLISTED: Metric = gauge(
    "gpumem_finding_series_dropped",
    &[],
    "Findings without series, if more than 512 are active: the least severe and smallest ones",
);
const GROWTH: Metric = gauge(
    "gpumem_leak_bytes_per_second",
    LEAK,
    "Growth rate of the memory that a process leaks; absent if it leaks on several GPUs",
);
const FULL: Metric = gauge(
    "gpumem_oom_eta_seconds",
    LEAK,
    "Time until a leak fills its GPU; absent if it leaks on several GPUs",
);
const UNDECIDED: Metric = gauge(
    "gpumem_undecided",
    &["rule"],
    "Cases that a rule could not decide, because history or data is missing",
);
const RECLAIMABLE: Metric = gauge(
    "gpumem_reclaimable_memory_bytes",
    &[],
    "Memory that gpumem reap --all-users targets by default; absent while the rules for it are \
    undecided",
);
const SUSPECTED: Metric = gauge(
    "gpumem_suspected_memory_bytes",
    &[],
    "Memory that looks unused, but is not proved to be",
);
const WASTE: Metric = Metric {
    is_counter: true,
    ..gauge(
        "gpumem_waste_byte_seconds",
        &["kind", "user", "uuid"],
        "Memory of findings multiplied by the time they were active",
    )
};
const RECLAIMED: Metric = Metric {
    is_counter: true,
    ..gauge(
        "gpumem_reclaimed_bytes",
        &["how", "user"],
        "Reclaimed memory, from the audit log: release (by a process), unload (of a server's \
        models), end (of a process)",
    )
};
const RECLAIMS: Metric = Metric {
    is_counter: true,
    ..gauge(
        "gpumem_reclaims",
        &["how", "outcome"],
        "Acts that sent a signal or request, from the audit log, by outcome",
    )
};

pub const METRICS: [&Metric; 33] = [
    &BUILD,
    &SAMPLED,
    &ERRORS,
    &INFO,
    &UP,
    &MEMORY,
    &TOTAL,
    &UTILIZATION,
    &POWER,
    &TEMPERATURE,
    &CLOCK,
    &THROTTLED,
    &ECC,
    &PCIE,
    &MIG_INFO,
    &MIG_MEMORY,
    &MIG_TOTAL,
    &HELD,
    &SM,
    &IDLE,
    &DROPPED,
    &ACTIVE,
    &FOUND,
    &AGE,
    &UNLISTED,
    &GROWTH,
    &FULL,
    &UNDECIDED,
    &RECLAIMABLE,
    &SUSPECTED,
    &WASTE,
    &RECLAIMED,
    &RECLAIMS,
];

pub struct MetricsInput<'a> {
    pub snapshot: &'a Snapshot,
    pub findings: &'a [Finding],
    pub undecided: &'a [Undecided],
    pub reclaimable: Reclaimable,
    pub waste: &'a Waste,
    pub reclaimed: &'a Reclaimed,
    /// Returns when the process last used the GPU with this index.
    pub idle_since: &'a dyn Fn(Identity, u32) -> Option<Time>,
    /// False for a recording.
    pub is_live: bool,
}

/// Series: metric name, label values and value.
#[derive(Debug, Default)]
struct Page {
    series: Vec<(&'static str, Vec<String>, f64)>,
}

pub fn openmetrics(input: &MetricsInput<'_>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page::from_input(input)));
    let mut page = String::new();
    text::encode(&mut page, &registry)?;
    Ok(page)
}

/// Converts a page to the older Prometheus text format, which node_exporter's textfile collector requires.
pub fn classic(openmetrics: &str) -> String {
    let mut page = String::new();
    for line in openmetrics.lines().filter(|line| *line != "# EOF") {
        // OpenMetrics declares a counter without `_total`, the older format with it.
        let comment = line.strip_prefix("# ").and_then(|rest| {
            let (keyword, rest) = rest.split_once(' ')?;
            let (name, rest) = rest.split_once(' ')?;
            let is_counter = METRICS.iter().any(|metric| metric.is_counter && metric.name == name);
            is_counter.then(|| format!("# {keyword} {name}_total {rest}"))
        });
        page.push_str(comment.as_deref().unwrap_or(line));
        page.push('\n');
    }
    page
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for metric in METRICS {
            // node_exporter rejects files with duplicate series, so keep only the first.
            let mut labelled = HashSet::new();
            let series = self.series.iter().filter(|(name, ..)| *name == metric.name);
            let mut series = series.filter(|(_, labels, _)| labelled.insert(labels)).peekable();
            if series.peek().is_none() {
                continue;
            }
            let kind = if metric.is_counter { MetricType::Counter } else { MetricType::Gauge };
            let mut family = encoder.encode_descriptor(metric.name, metric.help, None, kind)?;
            for (_, values, value) in series {
                let labels = metric.labels.iter().copied().zip(values.iter().map(String::as_str));
                let labels: Vec<(&str, &str)> = labels.collect();
                let mut one = family.encode_family(&labels)?;
                match metric.is_counter {
                    true => one.encode_counter::<NoLabelSet, _, f64>(value, None)?,
                    false => one.encode_gauge(value)?,
                }
            }
        }
        Ok(())
    }
}

impl Page {
    fn from_input(input: &MetricsInput<'_>) -> Self {
        let mut page = Self::default();
        let snapshot = input.snapshot;
        let driver = text_of(snapshot.driver.version.as_ref());
        page.put(&BUILD, [env!("CARGO_PKG_VERSION").to_owned(), driver], 1.0);
        if input.is_live {
            page.put(&SAMPLED, [], snapshot.time.unix_milliseconds() as f64 / 1000.0);
        }
        page.put_errors(snapshot);
        for gpu in &snapshot.gpus {
            page.put_gpu(snapshot, gpu);
        }
        page.put_processes(input);
        page.put_findings(input);
        let mut rules: Vec<&str> =
            input.undecided.iter().map(|undecided| &*undecided.rule).collect();
        rules.sort_unstable();
        for rules in rules.chunk_by(|a, b| a == b) {
            page.put(&UNDECIDED, [rules[0].to_owned()], rules.len() as f64);
        }
        let reclaimable = input.reclaimable;
        if reclaimable.is_known() || reclaimable.bytes > 0 {
            page.put(&RECLAIMABLE, [], reclaimable.bytes as f64);
        }
        page.put(&SUSPECTED, [], reclaimable.suspected_bytes as f64);
        for (key, sum) in input.waste.sums() {
            let labels = [
                key.kind.name().to_owned(),
                text_of(key.user.as_ref()),
                text_of(key.uuid.as_ref()),
            ];
            page.put(&WASTE, labels, sum);
        }
        for ((how, user), &bytes) in &input.reclaimed.bytes {
            page.put(&RECLAIMED, [(*how).to_owned(), user.to_string()], bytes as f64);
        }
        for ((how, outcome), &acts) in &input.reclaimed.acts {
            page.put(&RECLAIMS, [(*how).to_owned(), outcome.to_string()], acts as f64);
        }
        page
    }

    fn put<const N: usize>(&mut self, metric: &Metric, labels: [String; N], value: f64) {
        debug_assert_eq!(metric.labels.len(), N, "{}", metric.name);
        self.series.push((metric.name, labels.into(), value));
    }

    fn put_known<const N: usize>(
        &mut self,
        metric: &Metric,
        labels: &[String; N],
        value: Option<f64>,
    ) {
        if let Some(value) = value {
            self.put(metric, labels.clone(), value);
        }
    }

    fn put_errors(&mut self, snapshot: &Snapshot) {
        let mut calls: Vec<&str> = snapshot.errors.iter().map(|error| &*error.call).collect();
        calls.sort_unstable();
        for calls in calls.chunk_by(|a, b| a == b) {
            self.put(&ERRORS, [calls[0].to_owned()], calls.len() as f64);
        }
    }

    fn put_gpu(&mut self, snapshot: &Snapshot, gpu: &Gpu) {
        let labels = [gpu.index.to_string(), text_of(gpu.uuid.as_ref())];
        let [index, uuid] = labels.clone();
        self.put(&INFO, [index, uuid, text_of(gpu.name.as_ref())], 1.0);
        let has_memory = gpu.memory.is_some() || gpu.memory_unavailable.is_some();
        let has_list = gpu.processes.is_some() || gpu.process_memory_unavailable.is_some();
        let is_up = has_memory && has_list && gpu.stale_seconds.is_none();
        self.put(&UP, labels.clone(), f64::from(u8::from(is_up)));
        if !is_up {
            return;
        }
        if let Some(balance) = snapshot.balance(gpu) {
            self.put(&TOTAL, labels.clone(), balance.total_bytes as f64);
            for (part, bytes) in [
                ("free", Some(balance.free_bytes)),
                ("reserved", balance.reserved_bytes),
                ("processes", balance.process_bytes),
                ("unattributed", balance.unattributed.ok()),
            ] {
                let [index, uuid] = labels.clone();
                let labels = [index, uuid, part.to_owned()];
                self.put_known(&MEMORY, &labels, bytes.map(|bytes| bytes as f64));
            }
        }
        self.put_known(
            &UTILIZATION,
            &labels,
            gpu.gpu_percent.map(|percent| f64::from(percent) / 100.0),
        );
        self.put_known(&POWER, &labels, gpu.power_watts);
        self.put_known(&TEMPERATURE, &labels, gpu.temperature_celsius.map(f64::from));
        self.put_known(&ECC, &labels, gpu.ecc_uncorrected_errors.map(|count| count as f64));
        let [index, uuid] = labels;
        let part = |name: &str| [index.clone(), uuid.clone(), name.to_owned()];
        for (clock, megahertz) in [("sm", gpu.sm_clock_mhz), ("memory", gpu.memory_clock_mhz)] {
            self.put_known(&CLOCK, &part(clock), megahertz.map(|clock| f64::from(clock) * 1e6));
        }
        for reason in gpu.throttle_reasons.iter().flat_map(|reasons| reasons.iter()) {
            self.put(&THROTTLED, part(reason), 1.0);
        }
        for (direction, rate) in [
            ("received", gpu.pcie_received_bytes_per_second),
            ("sent", gpu.pcie_sent_bytes_per_second),
        ] {
            self.put_known(&PCIE, &part(direction), rate.map(|rate| rate as f64));
        }
        for device in &gpu.mig_devices {
            let labels = part(&device.name_on(gpu.index));
            let [index, uuid, mig] = labels.clone();
            let (mig_uuid, profile) = (device.uuid.as_ref(), device.profile.as_ref());
            self.put(&MIG_INFO, [index, uuid, mig, text_of(mig_uuid), text_of(profile)], 1.0);
            let memory = device.memory.as_ref();
            let total = memory.map(|memory| memory.total_bytes as f64);
            self.put_known(&MIG_TOTAL, &labels, total);
            for (part, bytes) in [
                ("free", memory.map(|memory| memory.free_bytes)),
                ("reserved", memory.and_then(|memory| memory.reserved_bytes)),
                ("used", memory.map(|memory| memory.used_bytes)),
            ] {
                let [index, uuid, mig] = labels.clone();
                let labels = [index, uuid, mig, part.to_owned()];
                self.put_known(&MIG_MEMORY, &labels, bytes.map(|bytes| bytes as f64));
            }
        }
    }

    fn put_processes(&mut self, input: &MetricsInput<'_>) {
        let snapshot = input.snapshot;
        let row = |place| ProcessRow::new(snapshot, input.findings, place).idle(input.idle_since);
        let rows = places(snapshot, input.findings).into_iter().map(row);
        let is_current =
            |row: &ProcessRow<'_>| row.gpu.is_some_and(|gpu| gpu.stale_seconds.is_none());
        let mut rows: Vec<ProcessRow<'_>> =
            rows.filter(|row| row.entry.is_some() && is_current(row)).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.used_bytes()));
        let others = rows.split_off(rows.len().min(PROCESSES_MAX));
        for row in &rows {
            let Some(labels) = process_labels(row) else {
                continue;
            };
            self.put_known(&HELD, &labels, row.used_bytes().map(|bytes| bytes as f64));
            let sm = row.entry.and_then(|entry| entry.sm_percent);
            self.put_known(&SM, &labels, sm.map(|percent| f64::from(percent) / 100.0));
            self.put_known(&IDLE, &labels, row.idle_seconds);
        }
        self.put(&DROPPED, [], others.len() as f64);
        let none = String::new;
        let mut sums: BTreeMap<[String; 5], u64> = BTreeMap::new();
        for row in &others {
            let (Some(labels), Some(bytes)) = (process_labels(row), row.used_bytes()) else {
                continue;
            };
            let [gpu, uuid, mig, _, user, _, job, ..] = labels;
            let mut key = [gpu, uuid, mig, user, job];
            if sums.len() >= PROCESSES_MAX && !sums.contains_key(&key) {
                let [gpu, uuid, ..] = key;
                key = [gpu, uuid, none(), OTHERS.to_owned(), none()];
            }
            let sum = sums.entry(key).or_default();
            *sum = sum.saturating_add(bytes);
        }
        for ([gpu, uuid, mig, user, job], bytes) in sums {
            let labels = [gpu, uuid, mig, none(), user, none(), job, none(), none(), none()];
            self.put(&HELD, labels, bytes as f64);
        }
    }

    fn put_findings(&mut self, input: &MetricsInput<'_>) {
        let active = input.findings.iter().filter(|finding| finding.resolved_at.is_none());
        let mut active: Vec<&Finding> = active.collect();
        active.sort_by_key(|finding| std::cmp::Reverse((finding.severity, finding.memory_bytes)));
        for finding in active.iter().take(FINDINGS_MAX) {
            self.put_finding(input.snapshot, finding);
        }
        self.put(&UNLISTED, [], active.len().saturating_sub(FINDINGS_MAX) as f64);
    }

    fn put_finding(&mut self, snapshot: &Snapshot, finding: &Finding) {
        let process = finding.process.as_ref();
        let observed = process.and_then(|process| {
            let observed = snapshot.process(process.pid);
            observed.filter(|observed| observed.identity() == process.identity)
        });
        let process_labels = |gpu: &FindingGpu| {
            [
                gpu.index.to_string(),
                text_of(gpu.uuid.as_ref()),
                process.map(|process| mig_devices(snapshot, gpu, process.pid)).unwrap_or_default(),
                process.map(|process| process.pid.to_string()).unwrap_or_default(),
                user_label(process.and_then(|process| process.user.as_ref()), observed),
                observed.map(program).unwrap_or_default(),
            ]
        };
        let growth = || serde_json::to_value(&finding.evidence).ok()?["bytes_per_second"].as_f64();
        for finding_gpu in &finding.gpus {
            let [gpu, uuid, mig, pid, user, command] = process_labels(finding_gpu);
            let [pod, namespace, container] = pod_labels(observed);
            let labels = [
                finding.kind.name().to_owned(),
                finding.severity.to_string(),
                finding.rule.to_string(),
                gpu,
                uuid,
                mig,
                pid,
                user,
                command,
                pod,
                namespace,
                container,
            ];
            self.put(&ACTIVE, labels.clone(), 1.0);
            let bytes =
                if process.is_some() { finding_gpu.used_bytes } else { finding.memory_bytes };
            self.put_known(&FOUND, &labels, bytes.map(|bytes| bytes as f64));
            self.put(&AGE, labels, finding.duration_seconds);
        }
        // If a finding is about several GPUs, its evidence does not identify the GPU that the forecast is about.
        if let [only] = &finding.gpus[..] {
            let forecast = finding.evidence.forecast();
            self.put_known(&FULL, &process_labels(only), forecast.map(|forecast| forecast.seconds));
            self.put_known(&GROWTH, &process_labels(only), growth());
        }
    }
}

fn text_of(text: Option<&Arc<str>>) -> String {
    text.map(ToString::to_string).unwrap_or_default()
}

/// Returns the user's name, or the user ID if the host does not know the user (common in containers).
fn user_label(name: Option<&Arc<str>>, process: Option<&Process>) -> String {
    let number = || Some(process?.uid?.to_string());
    name.map(ToString::to_string).or_else(number).unwrap_or_default()
}

fn pod_labels(process: Option<&Process>) -> [String; 3] {
    let pod = process.and_then(|process| process.kubernetes.as_deref());
    let text = |name: fn(&Kubernetes) -> &Option<Arc<str>>| {
        text_of(pod.and_then(|pod| name(pod).as_ref()))
    };
    [text(|pod| &pod.pod_name), text(|pod| &pod.namespace), text(|pod| &pod.container_name)]
}

/// Returns the values of the labels [`PROCESS`].
fn process_labels(row: &ProcessRow<'_>) -> Option<[String; PROCESS.len()]> {
    let gpu = row.gpu?;
    let process = row.process.ok();
    let job = process.and_then(|process| process.slurm.as_ref()?.job_id.clone());
    let [pod, namespace, container] = pod_labels(process);
    Some([
        gpu.index.to_string(),
        text_of(gpu.uuid.as_ref()),
        row.entry.and_then(|entry| mig_device(gpu, entry)).unwrap_or_default(),
        row.pid()?.to_string(),
        user_label(row.user(), process),
        process.map(program).unwrap_or_default(),
        text_of(job.as_ref()),
        pod,
        namespace,
        container,
    ])
}

fn mig_device(gpu: &Gpu, entry: &GpuProcess) -> Option<String> {
    Some(gpu.part_name(Some(entry.gpu_instance_id?), entry.compute_instance_id))
}

/// Returns the names of the MIG devices of a GPU that a process uses, separated by commas.
fn mig_devices(snapshot: &Snapshot, on: &FindingGpu, pid: u32) -> String {
    let gpus = snapshot.gpus.iter().filter(|gpu| gpu.index == on.index);
    let names = gpus.flat_map(|gpu| {
        let entries = gpu.processes.iter().flatten().filter(|entry| entry.pid == pid);
        entries.filter_map(|entry| mig_device(gpu, entry))
    });
    Vec::from_iter(BTreeSet::from_iter(names)).join(",")
}

/// Returns the truncated name of a process's executable, or its `comm` if the executable is unknown.
fn program(process: &Process) -> String {
    let executable = process.executable.as_deref().map(file_name);
    let name = executable.or(process.comm.as_deref()).unwrap_or_default();
    name.char_indices()
        .take_while(|(at, letter)| at + letter.len_utf8() <= NAME_BYTES_MAX)
        .map(|(_, letter)| letter)
        .collect()
}

#[cfg(test)]
mod tests;
