//! `gpumem doctor`: checks which features work on this machine, and suggests fixes.
//!
//! This module checks the machine, the configuration and the stored history. The submodules evaluate facts from `host`
//! and NVML: [`driver`], [`gpus`], [`processes`] and [`notebooks`]. `doctor` changes nothing and needs no privileges.
//! Every operation that can hang has a timeout.

mod driver;
mod gpus;
mod notebooks;
mod processes;

use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::args::{Doctor, Global};
use super::config::{self, now};
use super::exit::Exit;
use super::{nvml_options, print, store, style};
use crate::deadline::Task;
use crate::host::{self, Cgroups, Roots};
use crate::model::Time;
use crate::model::json::document;
use crate::model::snapshot::Host;
use crate::report::doctor::{CheckStatus, DoctorCheck, DoctorReport, SCHEMA, Topic};
use crate::source::nvml::{self, Nvml};
use crate::units::{Bytes, Span};

/// Timeout for reading the configuration, the store and the NVML library's path, which may be on a slow network file
/// system.
const FILES_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) fn run(args: &Doctor, global: &Global) -> anyhow::Result<Exit> {
    let options = nvml_options(global)?;
    let roots = Roots::default();
    let machine = host::read_host(&roots);
    let now = now();

    // Read files on other threads while the driver is being opened.
    let global_copy = global.clone();
    let configuration = Task::start("configuration", move || configuration(&global_copy));
    let (global_copy, host_copy) = (global.clone(), machine.clone());
    let history = Task::start("store", move || history(&global_copy, &host_copy, now));
    let servers = Task::start("notebooks", || notebooks::checks(&Roots::default()));
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
    let (rights, mounts) = (host::read_rights(&roots.proc), host::read_mounts(&roots.proc));
    checks.push(processes::pid_namespace(machine.pid_namespace));
    checks.push(processes::descriptors(rights));
    checks.push(processes::hidepid(mounts.and_then(|mounts| mounts.hidepid), rights));
    checks.push(processes::pidfd(host::try_pidfd(), machine.kernel.as_deref()));
    checks.extend(
        result_within(servers, notebooks::TIMEOUT)
            .unwrap_or_else(|| vec![too_long(Topic::NOTEBOOKS)]),
    );
    let is_initial = host::read_is_initial_cgroup_namespace(&roots.proc);
    checks.push(cgroups(mounts.map(|mounts| mounts.cgroups), is_initial));
    checks.push(clock(now, machine.boot_id.is_some()));
    checks.push(Topic::VERSION.ok(concat!("gpumem ", env!("CARGO_PKG_VERSION"))));
    for (task, topic) in [(configuration, Topic::CONFIGURATION), (history, Topic::STORE)] {
        checks.push(result_within(task, FILES_TIMEOUT).unwrap_or_else(|| too_long(topic)));
    }

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

fn result_within<T: Send + 'static>(task: io::Result<Task<T>>, time: Duration) -> Option<T> {
    task.ok()?.within(time).ok()
}

fn cgroups(mounted: Option<Cgroups>, is_initial_namespace: Option<bool>) -> DoctorCheck {
    let topic = Topic::CGROUPS;
    let version = match mounted {
        None => return topic.unknown("mounts cannot be read"),
        // /proc shows the cgroups of processes even if no hierarchy is mounted.
        Some(Cgroups::None) => "none mounted",
        Some(Cgroups::V1) => "version 1",
        Some(Cgroups::V2) => "version 2",
        Some(Cgroups::Hybrid) => "versions 1 and 2 (hybrid)",
    };
    match is_initial_namespace {
        Some(true) => topic.ok(version),
        Some(false) => {
            topic.limited(format!("{version}, in a cgroup namespace")).advise("cgroup-namespace")
        }
        None => topic.ok(format!("{version}; this kernel has no cgroup namespaces")),
    }
}

/// 2024-01-01, before gpumem existed. A clock that shows an earlier date was never set.
const FIRST_DAY: Time = Time::from_unix_milliseconds(1_704_067_200_000);

fn clock(now: Time, has_boot_id: bool) -> DoctorCheck {
    let (topic, time) = (Topic::CLOCK, now.local());
    if now < FIRST_DAY {
        topic.broken(format!("the clock is at {time}")).advise("clock-unset")
    } else if has_boot_id {
        let up = Span::from_seconds(now.seconds_since(host::read_boot_time()).max(0.0));
        topic.ok(format!("{time}, up {up}"))
    } else {
        topic.limited(format!("{time}; this boot has no id")).advise("no-boot-id")
    }
}

fn configuration(global: &Global) -> DoctorCheck {
    let topic = Topic::CONFIGURATION;
    let mut files = config::paths(global);
    files.retain(|path| path.exists());
    let config = match config::load_to_act(global) {
        Ok(config) => config,
        Err(error) => return topic.broken(error.to_string()).advise("bad-configuration"),
    };
    let names: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
    let from = if names.is_empty() { "no file, the defaults".to_owned() } else { names.join(", ") };
    let rules = config.rules.rules();
    let mut observation = format!("{from}; {} rules", rules.len());
    let disabled = rules.iter().filter(|rule| !rule.is_run()).count();
    if disabled > 0 {
        observation.push_str(&format!(", {disabled} of them disabled"));
    }
    let keeps = config.rules.keeps().len();
    if keeps > 0 {
        observation.push_str(&format!(", exemptions: {keeps}"));
    }
    topic.ok(observation)
}

fn history(global: &Global, host: &Host, now: Time) -> DoctorCheck {
    let topic = Topic::STORE;
    let survey = store::survey(global, host, now);
    let observation = match &survey.used {
        Some((folder, bytes, age)) => {
            let (name, size) = (folder.display(), Bytes(*bytes));
            let age = Span::from_seconds(age.max(0.0));
            format!("{name}, {size}, last snapshot {age} ago")
        }
        None => "none from this boot".to_owned(),
    };
    if survey.is_fresh {
        return topic.ok(format!("{observation}; a recorder is running"));
    }
    let mut check =
        topic.limited(format!("{observation}; no recorder is running")).advise("short-history");
    check.next.extend(survey.warnings);
    let why = match survey.to_write {
        Err(why) => why,
        Ok(folder) if !is_writable(&folder) => format!("{} cannot be written", folder.display()),
        Ok(_) => return check.advise("start-recorder"),
    };
    check.next(format!("{why}: gpumem record --store --store-dir DIR"))
}

/// Returns whether a directory is writable or could be created.
fn is_writable(folder: &Path) -> bool {
    let existing = folder.ancestors().find(|path| path.exists());
    existing.is_some_and(|path| {
        let access = Access::WRITE_OK | Access::EXEC_OK;
        path.is_dir() && accessat(CWD, path, access, AtFlags::EACCESS).is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_directory_is_writable_if_it_can_be_created() {
        let folder = tempfile::tempdir().unwrap();
        assert!(is_writable(&folder.path().join("a/b/c")));
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(!is_writable(&file.join("store")));
        assert!(!file.join("store").exists());
    }
}
