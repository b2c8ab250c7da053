//! Checks whether the NVML library, driver, kernel module and device files exist and match each other.
//!
//! The advice depends on the [`RuntimeEnvironment`]. Users should install nothing in a container, and on WSL the driver
//! belongs to Windows.

use std::path::{Path, PathBuf};

use crate::host::{DeviceFile, KernelModule, PciGpu, Platform};
use crate::model::Gpu;
use crate::model::device_file::minor_number;
use crate::model::label::ranges;
use crate::model::snapshot::{Driver, PidNamespace};
use crate::report::doctor::{CheckStatus, DoctorCheck, Topic};
use crate::source::nvml::NvmlFailure;
use crate::units::Span;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RuntimeEnvironment {
    Machine,
    /// A container, with the name of the container runtime if known.
    Container(Option<&'static str>),
    Wsl,
}

impl RuntimeEnvironment {
    pub(super) fn of(platform: Platform, namespace: Option<PidNamespace>) -> Self {
        if platform.container.is_some() || namespace == Some(PidNamespace::Container) {
            Self::Container(platform.container)
        } else if platform.is_wsl {
            Self::Wsl
        } else {
            Self::Machine
        }
    }
}

#[derive(Debug)]
pub(super) struct DriverFacts<'a> {
    /// The argument of `--nvml-library`, if it is given.
    pub(super) named: Option<&'a Path>,
    pub(super) opened: Result<&'a Driver, &'a NvmlFailure>,
    /// The path of the loaded NVML library.
    pub(super) mapped: Option<PathBuf>,
    pub(super) module: KernelModule,
    /// The GPUs on the PCI bus, or `None` if the bus cannot be read.
    pub(super) bus: Option<Vec<PciGpu>>,
    /// NVIDIA's files in `/dev`, or `None` if the directory cannot be listed.
    pub(super) devices: Option<Vec<DeviceFile>>,
    pub(super) gpus: Vec<&'a Gpu>,
    pub(super) environment: RuntimeEnvironment,
}

impl DriverFacts<'_> {
    pub(super) fn checks(&self) -> Vec<DoctorCheck> {
        vec![self.library(), self.driver(), self.kernel_module(), self.device_files()]
    }

    fn library(&self) -> DoctorCheck {
        let topic = Topic::LIBRARY;
        match self.opened {
            Err(NvmlFailure::LibraryNotFound { library }) => {
                let observation = format!("{library} is not found");
                self.advise_on_missing_library(topic.broken(observation))
            }
            Err(NvmlFailure::LibraryUnusable { library, reason }) => {
                let check = topic.broken(format!("{library}: {reason}"));
                match self.environment {
                    // An image that was committed from a container with GPUs contains empty files in place of the
                    // libraries (NVIDIA/libnvidia-container#140).
                    RuntimeEnvironment::Container(_) => {
                        self.pass_gpus_in(check.advise("foreign-library"))
                    }
                    _ => check.advise("unusable-library"),
                }
            }
            Err(NvmlFailure::Thread(_)) => topic.unknown("not checked"),
            Ok(_) | Err(_) => {
                let path = self.mapped.as_deref().or(self.named);
                let observation = path
                    .map_or_else(|| "found".to_owned(), |path| path.to_string_lossy().into_owned());
                topic.ok(observation)
            }
        }
    }

    fn advise_on_missing_library(&self, check: DoctorCheck) -> DoctorCheck {
        if self.named.is_some() {
            return check.advise("wrong-library-path");
        }
        match self.environment {
            RuntimeEnvironment::Wsl => check.advise("library-wsl"),
            RuntimeEnvironment::Container(_) if self.has_control_file() => {
                check.advise("library-container")
            }
            RuntimeEnvironment::Container(_) => self.pass_gpus_in(check),
            RuntimeEnvironment::Machine => match (&self.module, self.bus.as_deref()) {
                (KernelModule::Loaded { version }, _) => {
                    let version = version.as_deref().unwrap_or("of the kernel module");
                    let major = version.split('.').next().unwrap_or_default();
                    let check = check.advise("libraries-missing");
                    let check = if major.bytes().all(|byte| byte.is_ascii_digit()) {
                        check.next(format!(
                            "install the libraries of driver {version}: libnvidia-compute-{major} on Ubuntu, libnvidia-ml1 on Debian"
                        ))
                    } else {
                        check.advise("libraries-of-version")
                    };
                    check.advise("or-name-library")
                }
                (_, Some([])) => check.advise("no-gpu-on-bus"),
                (_, Some(gpus)) => install(check, gpus),
                (_, None) => check.advise("no-bus"),
            },
        }
    }

    fn driver(&self) -> DoctorCheck {
        let topic = Topic::DRIVER;
        let error = match self.opened {
            Ok(driver) => {
                let part = |name: &str, version: &Option<std::sync::Arc<str>>| {
                    let version = version.as_deref().unwrap_or("unknown");
                    format!("{name}{version}")
                };
                let observation = [
                    part("", &driver.version),
                    part("NVML ", &driver.nvml_version),
                    part("CUDA ", &driver.cuda_version),
                ];
                return topic.ok(observation.join(", "));
            }
            Err(error) => error,
        };
        match error {
            NvmlFailure::LibraryNotFound { .. } | NvmlFailure::LibraryUnusable { .. } => {
                topic.unknown("not queried: there is no library")
            }
            NvmlFailure::DriverNotLoaded => {
                let check = topic.broken("not loaded (NVML_ERROR_DRIVER_NOT_LOADED)");
                self.advise_on_absent_driver(check)
            }
            NvmlFailure::VersionMismatch => {
                let check = topic.broken(
                    "library and kernel module have different versions \
                     (NVML_ERROR_LIB_RM_VERSION_MISMATCH)",
                );
                mismatch(check.advise("upgraded"), self.environment)
            }
            NvmlFailure::NoPermission => {
                let check = topic.broken("no permission (NVML_ERROR_NO_PERMISSION)");
                let check = check.advise("list-device-files");
                match self.environment {
                    RuntimeEnvironment::Container(_) => self.pass_gpus_in(check),
                    _ => check.advise("slurm-gpu"),
                }
            }
            NvmlFailure::NoAnswer { call, waited } => {
                let observation = format!("no answer to {call} for {}", Span(*waited));
                topic.broken(observation).advise("hung-driver")
            }
            NvmlFailure::Call { call, code } => {
                let check = topic.broken(format!("{call}: {code}"));
                let check = match self.environment {
                    // When systemd on the host reloads its units, containers lose access to their GPU devices (NVIDIA
                    // container toolkit, "Troubleshooting").
                    RuntimeEnvironment::Container(_) => check.advise("container-devices-lost"),
                    _ => check,
                };
                check.advise("driver-error")
            }
            NvmlFailure::Thread(error) => topic.unknown(error.to_string()).advise("thread-limit"),
        }
    }

    /// Adds advice on a driver that is not loaded or whose device files cannot be opened.
    fn advise_on_absent_driver(&self, check: DoctorCheck) -> DoctorCheck {
        let is_loaded = matches!(self.module, KernelModule::Loaded { .. });
        match self.environment {
            RuntimeEnvironment::Wsl => check.advise("driver-wsl"),
            RuntimeEnvironment::Container(_) if is_loaded => self.pass_gpus_in(check),
            RuntimeEnvironment::Container(_) => check.advise("load-module-on-host"),
            RuntimeEnvironment::Machine if is_loaded => check.advise("module-without-files"),
            RuntimeEnvironment::Machine => load_module(check, self.bus.as_deref()),
        }
    }

    fn kernel_module(&self) -> DoctorCheck {
        let topic = Topic::KERNEL_MODULE;
        match (&self.module, self.opened) {
            (KernelModule::Loaded { version }, Ok(driver)) => match (version, &driver.version) {
                (Some(module), Some(library)) if module == library => {
                    topic.ok(format!("{module}, like the library"))
                }
                (Some(module), Some(library)) => mismatch(
                    topic.limited(format!("{module} is loaded, NVML reports {library}")),
                    self.environment,
                ),
                _ => topic.unknown("loaded, version unknown"),
            },
            (KernelModule::Loaded { version }, Err(_)) => {
                let version = version.as_deref().unwrap_or("version unknown");
                topic.ok(format!("loaded, {version}"))
            }
            (KernelModule::Absent, _) if self.environment == RuntimeEnvironment::Wsl => {
                topic.not_applicable("the driver runs in Windows")
            }
            (KernelModule::Absent, Ok(_)) => topic
                .unknown("no version file, though NVML answers")
                .advise("versions-not-compared"),
            (KernelModule::Absent, Err(error)) => {
                let check = topic.broken("nvidia is not loaded");
                match (error, self.environment) {
                    // The driver check already reports that the module is missing.
                    (NvmlFailure::DriverNotLoaded, _) => check,
                    // Loading the module does not help until the driver is installed or the container has GPUs.
                    (NvmlFailure::LibraryNotFound { .. }, _) => check,
                    (_, RuntimeEnvironment::Machine) => load_module(check, self.bus.as_deref()),
                    _ => check,
                }
            }
            (KernelModule::Unreadable, _) => {
                topic.unknown("the version of the module cannot be read")
            }
        }
    }

    fn device_files(&self) -> DoctorCheck {
        let topic = Topic::DEVICE_FILES;
        let Some(files) = self.devices.as_deref() else {
            return topic.unknown("/dev cannot be listed");
        };
        if files.is_empty() {
            return self.no_device_files();
        }
        let closed: Vec<&DeviceFile> = files.iter().filter(|file| !file.usable).collect();
        if let Some(file) = closed.first() {
            let names: Vec<&str> = closed.iter().map(|file| file.name.as_str()).collect();
            let observation = format!("you cannot open {}", in_short(&names));
            let verdict =
                if self.opened.is_ok() { CheckStatus::Limited } else { CheckStatus::Broken };
            let check = topic.check(verdict, observation).advise("list-device-files");
            // If members of the file's group can open the file, joining the group is enough.
            return if file.gid != 0 && file.mode & 0o060 == 0o060 {
                check.next(format!(
                    "ask root to add you to the group {}, then log in again: usermod -aG GROUP USER",
                    file.gid
                ))
            } else {
                check.advise("open-device-files")
            };
        }
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        let differs = |gpu: &&&Gpu| gpu.minor_number.is_some_and(|minor| minor != gpu.index);
        let differing = self.gpus.iter().filter(differs);
        let differing: String =
            differing.map(|gpu| format!("; GPU {} is {}", gpu.index, gpu.device_file())).collect();
        let observation = in_short(&names) + &differing;
        let has = |name: &str| names.contains(&name);
        let missing: Vec<u32> = self
            .gpus
            .iter()
            .filter(|gpu| gpu.minor_number.is_some_and(|minor| !has(&format!("nvidia{minor}"))))
            .map(|gpu| gpu.index)
            .collect();
        if has("nvidiactl") && !missing.is_empty() {
            return topic
                .limited(format!(
                    "{observation}; no device file for GPU {}",
                    ranges(missing.iter().copied())
                ))
                .advise("gpu-without-file");
        }
        if has("nvidiactl") && !has("nvidia-uvm") {
            let check = topic.limited(format!("{observation}; no nvidia-uvm")).advise("no-uvm");
            return match self.environment {
                RuntimeEnvironment::Container(_) => self.pass_gpus_in(check),
                _ => check.advise("make-device-files"),
            };
        }
        let check = topic.ok(observation);
        match differing.is_empty() {
            true => check,
            false => check.advise("device-numbers-differ"),
        }
    }

    fn no_device_files(&self) -> DoctorCheck {
        let topic = Topic::DEVICE_FILES;
        if self.opened.is_ok() {
            return topic.limited("none, though NVML answers").advise("no-device-files");
        }
        let check = topic.broken("none");
        match (self.environment, &self.module) {
            (RuntimeEnvironment::Container(_), KernelModule::Loaded { .. }) => {
                check.advise("no-gpu-given")
            }
            (RuntimeEnvironment::Machine, KernelModule::Loaded { .. }) => {
                check.advise("make-device-files")
            }
            _ => check,
        }
    }

    fn has_control_file(&self) -> bool {
        let files = self.devices.iter().flatten();
        files.into_iter().any(|file| file.name == "nvidiactl")
    }

    fn pass_gpus_in(&self, check: DoctorCheck) -> DoctorCheck {
        match self.environment {
            RuntimeEnvironment::Container(Some("docker")) => check.advise("pass-gpus-docker"),
            RuntimeEnvironment::Container(Some("podman")) => check.advise("pass-gpus-podman"),
            _ => check.advise("pass-gpus"),
        }
    }
}

fn mismatch(check: DoctorCheck, environment: RuntimeEnvironment) -> DoctorCheck {
    match environment {
        RuntimeEnvironment::Container(_) => check.advise("mismatch-container"),
        _ => check.advise("mismatch"),
    }
}

fn install(check: DoctorCheck, gpus: &[PciGpu]) -> DoctorCheck {
    if gpus.iter().all(|gpu| gpu.driver.as_deref() == Some("vfio-pci")) {
        return check.advise("gpus-of-guests");
    }
    check.advise("install-driver")
}

fn load_module(check: DoctorCheck, bus: Option<&[PciGpu]>) -> DoctorCheck {
    let holds = |name: &str| {
        let gpus = bus.unwrap_or_default();
        gpus.iter().any(|gpu| gpu.driver.as_deref() == Some(name))
    };
    if holds("nouveau") {
        return check.advise("nouveau");
    }
    check.advise("load-module")
}

/// Lists device files. Combines the files of GPUs, as in `nvidia0-7, nvidiactl, nvidia-uvm`.
fn in_short(names: &[&str]) -> String {
    let numbers: Vec<u32> = names.iter().filter_map(|name| minor_number(name)).collect();
    let gpus = (!numbers.is_empty()).then(|| format!("nvidia{}", ranges(numbers.iter().copied())));
    let others = names.iter().filter(|name| minor_number(name).is_none());
    let others = others.map(|&name| name.to_owned());
    gpus.into_iter().chain(others).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
