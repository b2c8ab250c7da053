//! `gpumem doctor`: checks which features work on this machine, and suggests fixes.
//!
//! The submodules evaluate facts from `host` and NVML: [`driver`], [`gpus`], [`processes`], [`notebooks`] and
//! [`state`]. `doctor` changes nothing and needs no privileges. Every operation that can hang has a timeout.

mod driver;
mod gpus;
mod notebooks;
mod processes;
mod state;

use std::io;
use std::path::Path;
use std::time::Duration;

use super::args::{Doctor, Global};
use super::config::now;
use super::exit::Exit;
use super::{nvml_options, print, style};
use crate::deadline::Task;
use crate::host::{self, Cgroups, Roots};
use crate::model::Time;
use crate::model::json::document;
use crate::report::doctor::{CheckStatus, DoctorCheck, DoctorReport, SCHEMA, Topic};
use crate::source::nvml::{self, Nvml};
use crate::units::Span;

/// Timeout for reading the configuration, the store and the NVML library's path, which a network file system can delay.
const FILES_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) fn run(args: &Doctor, global: &Global) -> anyhow::Result<Exit> {
    let options = nvml_options(global)?;
    let roots = Roots::default();
    let machine = host::read_host(&roots);
    let now = now();

    // Read files on other threads while the driver is opened.
    let global_copy = global.clone();
    let configuration =
        Task::start("configuration", move || state::read_configuration(&global_copy));
    let (global_copy, host_copy) = (global.clone(), machine.clone());
    let history = Task::start("store", move || state::read_history(&global_copy, &host_copy, now));
    let roots_copy = roots.clone();
    let servers = Task::start("notebooks", move || notebooks::read(&roots_copy));
    let library = options.library.clone();
    let library_file = Task::start("library", move || library?.canonicalize().ok());

    let mut nvml = Nvml::open(options.clone());
    let sample = nvml.as_mut().ok().map(Nvml::sample);
    let gpus = sample.as_ref().map_or(&[][..], |sample| &sample.gpus);
    let platform = host::read_platform(Path::new("/"), machine.kernel.as_deref());
    let driver = driver::DriverFacts {
        named: options.library.as_deref(),
        opened: nvml.as_ref().map(Nvml::driver),
        mapped: mapped(&roots, result_within(library_file, FILES_TIMEOUT).flatten().as_deref()),
        module: host::read_kernel_module(&roots.proc),
        bus: host::read_pci_gpus(Path::new("/sys")),
        devices: host::read_device_files(&roots.dev).ok(),
        gpus: gpus.iter().map(|sampled| &sampled.gpu).collect(),
        environment: driver::RuntimeEnvironment::of(platform, machine.pid_namespace),
    };

    let mut checks = driver.checks();
    if let Some(sample) = &sample {
        checks.extend(gpus::checks(sample, driver.environment));
        checks.push(gpus::mps(host::read_mps_daemons(&roots.proc)));
    }
    let mounts = host::read_mounts(&roots.proc);
    checks.extend(processes::checks(&processes::ProcessFacts {
        namespace: machine.pid_namespace,
        rights: host::read_rights(&roots.proc),
        hidepid: mounts.and_then(|mounts| mounts.hidepid),
        pidfd: host::try_pidfd(),
        kernel: machine.kernel.as_deref(),
    }));
    checks.extend(notebooks::checks(result_within(servers, notebooks::TIMEOUT)));
    checks.extend(machine_checks(&MachineFacts {
        cgroups: mounts.map(|mounts| mounts.cgroups),
        is_initial_cgroup_namespace: host::read_is_initial_cgroup_namespace(&roots.proc),
        now,
        booted: Some(host::read_boot_time()),
        has_boot_id: machine.boot_id.is_some(),
    }));
    checks.push(Topic::VERSION.ok(concat!("gpumem ", env!("CARGO_PKG_VERSION"))));
    checks.push(state::configuration(result_within(configuration, FILES_TIMEOUT)));
    checks.push(state::history(result_within(history, FILES_TIMEOUT)));

    if rustix::process::geteuid().is_root() {
        let next_steps = checks.iter_mut().flat_map(|check| &mut check.next);
        next_steps
            .for_each(|next| *next = next.replace("    (as root)", "").replace("(as root; ", "("));
    }
    let report = conclude(checks, sample.as_ref());
    print(&if args.json { document(&report)? } else { report.to_text(style(global.color)) })?;
    Ok(if report.works { Exit::Clean } else { Exit::CannotMeasure })
}

fn too_long(topic: Topic) -> DoctorCheck {
    let observation = format!("no answer for {}", Span(FILES_TIMEOUT));
    topic.unknown(observation).advise("slow-files")
}

/// Returns the path of the loaded NVML library.
fn mapped(roots: &Roots, named: Option<&Path>) -> Option<std::path::PathBuf> {
    host::read_own_mapped_file(&roots.proc, |path| {
        let name = path.file_name().and_then(std::ffi::OsStr::to_str);
        match named {
            Some(named) => path == named,
            None => name.is_some_and(|name| name.starts_with("libnvidia-ml.so")),
        }
    })
}

fn conclude(checks: Vec<DoctorCheck>, sample: Option<&nvml::NvmlSample>) -> DoctorReport {
    let gpus = sample.map_or(&[][..], |sample| &sample.gpus);
    let readable = gpus.iter().filter(|sampled| gpus::is_readable(&sampled.gpu)).count();
    let works = readable > 0;
    let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
    let summary = if works {
        let trouble = match (count(CheckStatus::Broken), count(CheckStatus::Limited)) {
            (0, 0) => String::new(),
            (0, limited) => format!("; limited in {limited}, see above"),
            (broken, 0) => format!("; broken in {broken}, see above"),
            (broken, limited) => {
                format!("; broken in {broken} and limited in {limited}, see above")
            }
        };
        let total = gpus.len();
        format!("gpumem works here: NVML answers, {readable} of {total} GPUs can be read{trouble}")
    } else {
        let first = checks.iter().find(|check| check.verdict == CheckStatus::Broken);
        let why = first
            .map_or_else(String::new, |check| format!(": {}: {}", check.topic.title, check.seen));
        format!("gpumem does not work here{why}")
    };
    DoctorReport { schema: SCHEMA, version: env!("CARGO_PKG_VERSION"), works, summary, checks }
}

/// Returns the result of a task, or `None` if the task did not start or does not end within `time`.
fn result_within<T: Send + 'static>(task: io::Result<Task<T>>, time: Duration) -> Option<T> {
    task.ok()?.within(time).ok()
}

/// 2024-01-01, before gpumem existed. A clock that shows an earlier date was never set.
const FIRST_DAY: Time = Time::from_unix_milliseconds(1_704_067_200_000);

#[derive(Clone, Copy, Debug)]
struct MachineFacts {
    cgroups: Option<Cgroups>,
    is_initial_cgroup_namespace: Option<bool>,
    now: Time,
    booted: Option<Time>,
    has_boot_id: bool,
}

fn machine_checks(facts: &MachineFacts) -> Vec<DoctorCheck> {
    vec![cgroups(facts), clock(facts)]
}

fn cgroups(facts: &MachineFacts) -> DoctorCheck {
    let topic = Topic::CGROUPS;
    let version = match facts.cgroups {
        None => return topic.unknown("mounts cannot be read"),
        // /proc shows the cgroups of processes even if no hierarchy is mounted.
        Some(Cgroups::None) => "none mounted",
        Some(Cgroups::V1) => "version 1",
        Some(Cgroups::V2) => "version 2",
        Some(Cgroups::Hybrid) => "versions 1 and 2 (hybrid)",
    };
    match facts.is_initial_cgroup_namespace {
        Some(true) => topic.ok(version),
        Some(false) => {
            topic.limited(format!("{version}, in a cgroup namespace")).advise("cgroup-namespace")
        }
        None => topic.ok(format!("{version}; this kernel has no cgroup namespaces")),
    }
}

fn clock(facts: &MachineFacts) -> DoctorCheck {
    let topic = Topic::CLOCK;
    let now = facts.now;
    if now < FIRST_DAY {
        let observation = format!("the clock is at {}", now.local());
        return topic.broken(observation).advise("clock-unset");
    }
    let Some(booted) = facts.booted else {
        return topic
            .unknown(format!("{}; the time of boot cannot be read", now.local()))
            .advise("no-boot-time");
    };
    if !facts.has_boot_id {
        return topic.limited(format!("{}; this boot has no id", now.local())).advise("no-boot-id");
    }
    let up = Span::from_seconds(now.seconds_since(booted).max(0.0));
    topic.ok(format!("{}, up {up}", now.local()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Gpu;
    use crate::model::snapshot::Memory;

    fn sample(readable: &[bool]) -> nvml::NvmlSample {
        let gpu = |&readable: &bool| nvml::SampledGpu {
            gpu: Gpu {
                memory: readable.then(Memory::default),
                processes: readable.then(Vec::new),
                ..Gpu::default()
            },
            read_at: None,
            process_utilization: None,
        };
        nvml::NvmlSample { gpus: readable.iter().map(gpu).collect(), errors: Vec::new() }
    }

    #[test]
    fn one_readable_gpu_is_enough() {
        let well = conclude(Vec::new(), Some(&sample(&[true, false])));
        assert!(well.works && well.summary.ends_with("1 of 2 GPUs can be read"));
        let checks = vec![Topic::GPU.broken("gone"), Topic::STORE.broken("gone")];
        let report = conclude(checks.clone(), Some(&sample(&[true])));
        assert!(report.works && report.summary.ends_with("; broken in 2, see above"));
        for sample in [None, Some(&sample(&[])), Some(&sample(&[false]))] {
            let report = conclude(checks.clone(), sample);
            assert!(!report.works);
            assert_eq!(report.summary, "gpumem does not work here: answers: gone");
        }
    }
}
