//! Formats a sample and its findings as the page that Prometheus scrapes.
//!
//! This module performs no I/O. A metric whose value is unknown has no series. Labels contain the name of a process's
//! program but never its arguments, which may contain secrets.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;

use crate::model::finding::{Finding, FindingGpu, Undecided};
use crate::model::program::file_name;
use crate::model::row::{ProcessRow, places};
use crate::model::waste::{Reclaimed, Waste};
use crate::model::{Gpu, GpuProcess, Identity, Process, Reclaimable, Snapshot, Time};

/// Maximum number of processes with their own series. Processes with the most memory take precedence. A process on two
/// GPUs counts twice. The same limit applies to the series that sum the other processes by user and job.
pub const PROCESSES_MAX: usize = 512;
/// Maximum number of findings with series. Severe findings take precedence, then findings about more memory.
const FINDINGS_MAX: usize = 512;
/// Maximum length in bytes of a program's name in a label.
const NAME_BYTES_MAX: usize = 64;
/// Value of the `user` label in the series that sum, for each GPU, the processes beyond both limits.
const OTHERS: &str = "(others)";

/// Definition of a metric, for the page and the manual.
#[derive(Debug)]
pub struct Metric {
    pub name: &'static str,
    kind: &'static str,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: "gauge", labels, help }
}

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, kind: "counter", labels, help }
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

pub const METRICS: [Metric; 33] = [
    gauge("gpumem_build_info", &["version", "driver"], "Versions of gpumem and of the driver"),
    gauge(
        "gpumem_last_sample_timestamp_seconds",
        &[],
        "When the sample was taken; absent for a recording",
    ),
    gauge("gpumem_sample_errors", &["call"], "Read errors in this sample, by call"),
    gauge("gpumem_gpu_info", &["gpu", "uuid", "model"], "A GPU and its model"),
    gauge(
        "gpumem_gpu_up",
        GPU,
        "1 if the memory and processes of a GPU could be read; if 0, the GPU has no other series",
    ),
    gauge(
        "gpumem_gpu_memory_bytes",
        &["gpu", "uuid", "part"],
        "Memory of a GPU by part: free, reserved, processes, unattributed (in use by no listed process)",
    ),
    gauge("gpumem_gpu_memory_total_bytes", GPU, "Total memory of a GPU"),
    gauge("gpumem_gpu_utilization_ratio", GPU, "Share of time in which a kernel ran on a GPU"),
    gauge("gpumem_gpu_power_watts", GPU, "Power draw of a GPU"),
    gauge("gpumem_gpu_temperature_celsius", GPU, "Temperature of a GPU"),
    gauge("gpumem_gpu_clock_hertz", &["gpu", "uuid", "clock"], "Clock of a GPU: sm, memory"),
    gauge(
        "gpumem_gpu_throttled",
        &["gpu", "uuid", "reason"],
        "1 for each reason why the driver limits a GPU's clocks, by its NVML name, including gpu idle",
    ),
    counter(
        "gpumem_gpu_ecc_uncorrected_errors_total",
        GPU,
        "Uncorrected memory errors (ECC) of a GPU since its driver was loaded",
    ),
    gauge(
        "gpumem_gpu_pcie_bytes_per_second",
        &["gpu", "uuid", "direction"],
        "PCIe throughput of a GPU by direction, received or sent, measured over about 20 ms",
    ),
    gauge(
        "gpumem_mig_info",
        &["gpu", "uuid", "mig", "mig_uuid", "profile"],
        "A MIG device, its UUID and profile",
    ),
    gauge(
        "gpumem_mig_memory_bytes",
        &["gpu", "uuid", "mig", "part"],
        "Memory of a MIG device by part: free, reserved, used; devices of one GPU instance share it",
    ),
    gauge("gpumem_mig_memory_total_bytes", &["gpu", "uuid", "mig"], "Total memory of a MIG device"),
    gauge("gpumem_process_memory_bytes", PROCESS, "Memory that a process holds on a GPU"),
    gauge("gpumem_process_utilization_ratio", PROCESS, "Share of a GPU's SMs that a process uses"),
    gauge(
        "gpumem_process_idle_seconds",
        PROCESS,
        "Time since a process last used its GPU; 0 while it is using the GPU, absent if unknown",
    ),
    gauge(
        "gpumem_process_series_dropped",
        &[],
        "Processes without their own series, whose memory is summed by user and Slurm job, without pid",
    ),
    gauge("gpumem_finding_active", FINDING, "1 while a finding is active"),
    gauge("gpumem_finding_memory_bytes", FINDING, "Memory on a GPU that a finding concerns"),
    gauge("gpumem_finding_age_seconds", FINDING, "How long a finding has been active"),
    gauge(
        "gpumem_finding_series_dropped",
        &[],
        "Findings without series, if more than 512 are active: the least severe and smallest ones",
    ),
    gauge(
        "gpumem_leak_bytes_per_second",
        LEAK,
        "Growth rate of the memory that a process leaks; absent if it leaks on several GPUs",
    ),
    gauge(
        "gpumem_oom_eta_seconds",
        LEAK,
        "Time until a leak fills its GPU; absent if it leaks on several GPUs",
    ),
    gauge(
        "gpumem_undecided",
        &["rule"],
        "Cases that a rule could not decide, because history or data is missing",
    ),
    gauge(
        "gpumem_reclaimable_memory_bytes",
        &[],
        "Memory that gpumem reap --all-users targets by default; absent while the rules for it are \
    undecided",
    ),
    gauge(
        "gpumem_suspected_memory_bytes",
        &[],
        "Memory of suspected processes, which might be in use",
    ),
    counter(
        "gpumem_waste_byte_seconds_total",
        &["kind", "user", "uuid"],
        "Memory of findings multiplied by the time they were active",
    ),
    counter(
        "gpumem_reclaimed_bytes_total",
        &["how", "user"],
        "Reclaimed memory, from the audit log: release (by a process), unload (of a server's \
        models), end (of a process)",
    ),
    counter(
        "gpumem_reclaims_total",
        &["how", "outcome"],
        "Actions that sent a signal or a request, from the audit log, by outcome",
    ),
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
    pub is_live: bool,
}

/// Each series consists of a metric name, label values and a value.
#[derive(Debug, Default)]
struct Page {
    series: Vec<(&'static str, Vec<String>, f64)>,
}

/// Formats the metrics in Prometheus' text format.
pub fn page(input: &MetricsInput<'_>) -> String {
    let page = Page::from_input(input);
    let mut out = String::new();
    for Metric { name, kind, labels, help } in METRICS {
        // node_exporter rejects files with duplicate series, so keep only the first.
        let mut unique = HashSet::new();
        let series = page.series.iter().filter(|(metric, ..)| *metric == name);
        let mut series = series.filter(|(_, values, _)| unique.insert(values)).peekable();
        if series.peek().is_some() {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        }
        for (_, values, value) in series {
            let labels = labels.iter().zip(values).map(|(label, value)| {
                let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', "\\n");
                format!("{label}=\"{value}\"")
            });
            let labels = Vec::from_iter(labels).join(",");
            let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
            let _ = writeln!(out, "{name}{labels} {value:?}");
        }
    }
    out
}

impl Page {
    fn from_input(input: &MetricsInput<'_>) -> Self {
        let mut page = Self::default();
        let snapshot = input.snapshot;
        let driver = snapshot.driver.version.as_deref().unwrap_or_default();
        page.put("gpumem_build_info", &[env!("CARGO_PKG_VERSION"), driver], 1.0);
        let sampled = snapshot.time.unix_milliseconds() as f64 / 1000.0;
        page.put("gpumem_last_sample_timestamp_seconds", &[], input.is_live.then_some(sampled));
        page.put_counts("gpumem_sample_errors", snapshot.errors.iter().map(|error| &*error.call));
        for gpu in &snapshot.gpus {
            page.put_gpu(snapshot, gpu);
        }
        page.put_processes(input);
        page.put_findings(input);
        page.put_counts("gpumem_undecided", input.undecided.iter().map(|case| &*case.rule));
        let reclaimable = input.reclaimable;
        let is_known = reclaimable.is_known() || reclaimable.bytes > 0;
        let bytes = is_known.then_some(reclaimable.bytes as f64);
        page.put("gpumem_reclaimable_memory_bytes", &[], bytes);
        page.put("gpumem_suspected_memory_bytes", &[], reclaimable.suspected_bytes as f64);
        for (key, sum) in input.waste.sums() {
            let [user, uuid] =
                [&key.user, &key.uuid].map(|text| text.as_deref().unwrap_or_default());
            page.put("gpumem_waste_byte_seconds_total", &[key.kind.name(), user, uuid], sum);
        }
        for ((how, user), &bytes) in &input.reclaimed.bytes {
            page.put("gpumem_reclaimed_bytes_total", &[how, user], bytes as f64);
        }
        for ((how, outcome), &acts) in &input.reclaimed.acts {
            page.put("gpumem_reclaims_total", &[how, outcome], acts as f64);
        }
        page
    }

    fn put(&mut self, metric: &'static str, labels: &[&str], value: impl Into<Option<f64>>) {
        let is_defined =
            |known: &Metric| known.name == metric && known.labels.len() == labels.len();
        debug_assert!(METRICS.iter().any(is_defined), "{metric}");
        if let Some(value) = value.into() {
            let labels = labels.iter().map(|&label| label.to_owned()).collect();
            self.series.push((metric, labels, value));
        }
    }

    /// Adds a series for each distinct label, with its number of occurrences.
    fn put_counts<'l>(&mut self, metric: &'static str, labels: impl Iterator<Item = &'l str>) {
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        labels.for_each(|label| *counts.entry(label).or_default() += 1);
        for (label, count) in counts {
            self.put(metric, &[label], f64::from(count));
        }
    }

    fn put_gpu(&mut self, snapshot: &Snapshot, gpu: &Gpu) {
        let (index, uuid) = (&*gpu.index.to_string(), gpu.uuid.as_deref().unwrap_or_default());
        let name = gpu.name.as_deref().unwrap_or_default();
        self.put("gpumem_gpu_info", &[index, uuid, name], 1.0);
        let has_memory = gpu.memory.is_some() || gpu.memory_unavailable.is_some();
        let has_list = gpu.processes.is_some() || gpu.process_memory_unavailable.is_some();
        let is_up = has_memory && has_list && gpu.stale_seconds.is_none();
        self.put("gpumem_gpu_up", &[index, uuid], f64::from(u8::from(is_up)));
        if !is_up {
            return;
        }
        if let Some(balance) = snapshot.balance(gpu) {
            let total = balance.total_bytes as f64;
            self.put("gpumem_gpu_memory_total_bytes", &[index, uuid], total);
            for (part, bytes) in [
                ("free", Some(balance.free_bytes)),
                ("reserved", balance.reserved_bytes),
                ("processes", balance.process_bytes),
                ("unattributed", balance.unattributed.ok()),
            ] {
                self.put("gpumem_gpu_memory_bytes", &[index, uuid, part], bytes.map(number));
            }
        }
        let utilization = gpu.gpu_percent.map(|percent| f64::from(percent) / 100.0);
        for (metric, value) in [
            ("gpumem_gpu_utilization_ratio", utilization),
            ("gpumem_gpu_power_watts", gpu.power_watts),
            ("gpumem_gpu_temperature_celsius", gpu.temperature_celsius.map(f64::from)),
            ("gpumem_gpu_ecc_uncorrected_errors_total", gpu.ecc_uncorrected_errors.map(number)),
        ] {
            self.put(metric, &[index, uuid], value);
        }
        for (clock, megahertz) in [("sm", gpu.sm_clock_mhz), ("memory", gpu.memory_clock_mhz)] {
            let hertz = megahertz.map(|megahertz| f64::from(megahertz) * 1e6);
            self.put("gpumem_gpu_clock_hertz", &[index, uuid, clock], hertz);
        }
        for reason in gpu.throttle_reasons.iter().flat_map(|reasons| reasons.iter()) {
            self.put("gpumem_gpu_throttled", &[index, uuid, reason], 1.0);
        }
        for (direction, rate) in [
            ("received", gpu.pcie_received_bytes_per_second),
            ("sent", gpu.pcie_sent_bytes_per_second),
        ] {
            let labels = [index, uuid, direction];
            self.put("gpumem_gpu_pcie_bytes_per_second", &labels, rate.map(number));
        }
        for device in &gpu.mig_devices {
            let mig = &*device.name_on(gpu.index);
            let [mig_uuid, profile] =
                [&device.uuid, &device.profile].map(|text| text.as_deref().unwrap_or_default());
            self.put("gpumem_mig_info", &[index, uuid, mig, mig_uuid, profile], 1.0);
            let memory = device.memory.as_ref();
            let total = memory.map(|memory| memory.total_bytes as f64);
            self.put("gpumem_mig_memory_total_bytes", &[index, uuid, mig], total);
            for (part, bytes) in [
                ("free", memory.map(|memory| memory.free_bytes)),
                ("reserved", memory.and_then(|memory| memory.reserved_bytes)),
                ("used", memory.map(|memory| memory.used_bytes)),
            ] {
                self.put("gpumem_mig_memory_bytes", &[index, uuid, mig, part], bytes.map(number));
            }
        }
    }

    fn put_processes(&mut self, input: &MetricsInput<'_>) {
        let snapshot = input.snapshot;
        let row = |place| ProcessRow::new(snapshot, input.findings, place).idle(input.idle_since);
        let mut rows: Vec<ProcessRow<'_>> =
            places(snapshot, input.findings).into_iter().map(row).collect();
        let is_current = |gpu: &Gpu| gpu.stale_seconds.is_none();
        rows.retain(|row| row.entry.is_some() && row.gpu.is_some_and(is_current));
        rows.sort_by_key(|row| std::cmp::Reverse(row.used_bytes()));
        let mut sums: BTreeMap<[String; PROCESS.len()], f64> = BTreeMap::new();
        for (place, row) in rows.iter().enumerate() {
            let (Some(gpu), Some(pid)) = (row.gpu, row.pid()) else { continue };
            let process = row.process.ok();
            let job = process.and_then(|process| process.slurm.as_ref()?.job_id.as_deref());
            let [pod, namespace, container] = pod_labels(process);
            let labels = [
                &*gpu.index.to_string(),
                gpu.uuid.as_deref().unwrap_or_default(),
                &row.entry.and_then(|entry| mig_device(gpu, entry)).unwrap_or_default(),
                &pid.to_string(),
                &user_label(row.user(), process),
                process.map(program).unwrap_or_default(),
                job.unwrap_or_default(),
                pod,
                namespace,
                container,
            ];
            if place >= PROCESSES_MAX {
                let Some(bytes) = row.used_bytes() else { continue };
                let [gpu, uuid, mig, _, user, _, job, ..] = labels;
                let key = |mig: &str, user: &str, job: &str| {
                    [gpu, uuid, mig, "", user, "", job, "", "", ""].map(str::to_owned)
                };
                let mut sum = key(mig, user, job);
                if sums.len() >= PROCESSES_MAX && !sums.contains_key(&sum) {
                    sum = key("", OTHERS, "");
                }
                *sums.entry(sum).or_default() += number(bytes);
                continue;
            }
            let sm = row.entry.and_then(|entry| entry.sm_percent);
            let sm = sm.map(|percent| f64::from(percent) / 100.0);
            self.put("gpumem_process_memory_bytes", &labels, row.used_bytes().map(number));
            self.put("gpumem_process_utilization_ratio", &labels, sm);
            self.put("gpumem_process_idle_seconds", &labels, row.idle_seconds);
        }
        for (labels, bytes) in &sums {
            let labels = labels.each_ref().map(String::as_str);
            self.put("gpumem_process_memory_bytes", &labels, *bytes);
        }
        let dropped = rows.len().saturating_sub(PROCESSES_MAX);
        self.put("gpumem_process_series_dropped", &[], dropped as f64);
    }

    fn put_findings(&mut self, input: &MetricsInput<'_>) {
        let active = input.findings.iter().filter(|finding| finding.resolved_at.is_none());
        let mut active: Vec<&Finding> = active.collect();
        active.sort_by_key(|finding| std::cmp::Reverse((finding.severity, finding.memory_bytes)));
        for finding in active.iter().take(FINDINGS_MAX) {
            self.put_finding(input.snapshot, finding);
        }
        let dropped = active.len().saturating_sub(FINDINGS_MAX);
        self.put("gpumem_finding_series_dropped", &[], dropped as f64);
    }

    fn put_finding(&mut self, snapshot: &Snapshot, finding: &Finding) {
        let process = finding.process.as_ref();
        let observed = process.and_then(|process| {
            let observed = snapshot.process(process.pid);
            observed.filter(|observed| observed.identity() == process.identity)
        });
        let pid = process.map(|process| process.pid.to_string()).unwrap_or_default();
        let user = user_label(process.and_then(|process| process.user.as_ref()), observed);
        let command = observed.map(program).unwrap_or_default();
        let [pod, namespace, container] = pod_labels(observed);
        let (kind, severity) = (finding.kind.name(), &*finding.severity.to_string());
        for on in &finding.gpus {
            let (gpu, uuid) = (&*on.index.to_string(), on.uuid.as_deref().unwrap_or_default());
            let mig = process.map(|process| mig_devices(snapshot, on, process.pid));
            let mig = mig.unwrap_or_default();
            let place = [gpu, uuid, &mig, &pid, &user, command];
            let labels =
                [&[kind, severity, &finding.rule] as &[&str], &place, &[pod, namespace, container]]
                    .concat();
            self.put("gpumem_finding_active", &labels, 1.0);
            let bytes = if process.is_some() { on.used_bytes } else { finding.memory_bytes };
            self.put("gpumem_finding_memory_bytes", &labels, bytes.map(number));
            self.put("gpumem_finding_age_seconds", &labels, finding.duration_seconds);
            // If a finding is about several GPUs, its evidence does not identify the GPU that the forecast is about.
            if finding.gpus.len() == 1 {
                let forecast = finding.evidence.forecast();
                let growth =
                    || serde_json::to_value(&finding.evidence).ok()?["bytes_per_second"].as_f64();
                self.put(
                    "gpumem_oom_eta_seconds",
                    &place,
                    forecast.map(|forecast| forecast.seconds),
                );
                self.put("gpumem_leak_bytes_per_second", &place, growth());
            }
        }
    }
}

fn number(bytes: u64) -> f64 {
    bytes as f64
}

/// Returns the user's name, or the user ID if the host does not know the user (common in containers).
fn user_label(name: Option<&Arc<str>>, process: Option<&Process>) -> String {
    let number = || Some(process?.uid?.to_string());
    name.map(ToString::to_string).or_else(number).unwrap_or_default()
}

fn pod_labels(process: Option<&Process>) -> [&str; 3] {
    let Some(pod) = process.and_then(|process| process.kubernetes.as_deref()) else {
        return [""; 3];
    };
    [&pod.pod_name, &pod.namespace, &pod.container_name]
        .map(|name| name.as_deref().unwrap_or_default())
}

fn mig_device(gpu: &Gpu, entry: &GpuProcess) -> Option<String> {
    Some(gpu.part_name(Some(entry.gpu_instance_id?), entry.compute_instance_id))
}

fn mig_devices(snapshot: &Snapshot, on: &FindingGpu, pid: u32) -> String {
    let gpus = snapshot.gpus.iter().filter(|gpu| gpu.index == on.index);
    let names = gpus.flat_map(|gpu| {
        let entries = gpu.processes.iter().flatten().filter(|entry| entry.pid == pid);
        entries.filter_map(|entry| mig_device(gpu, entry))
    });
    Vec::from_iter(BTreeSet::from_iter(names)).join(",")
}

/// Returns the truncated name of a process's executable, or its `comm` if the executable is unknown.
fn program(process: &Process) -> &str {
    let executable = process.executable.as_deref().map(file_name);
    let name = executable.or(process.comm.as_deref()).unwrap_or_default();
    let ends = name.char_indices().map(|(at, letter)| at + letter.len_utf8());
    &name[..ends.take_while(|&end| end <= NAME_BYTES_MAX).last().unwrap_or(0)]
}

#[cfg(test)]
mod tests;
