//! Library, driver, kernel module, device files: whether they are there, fit together, and answer.
//!
//! The cures differ by where gpumem runs ([`RuntimeEnvironment`]): in a container nothing is installed, on WSL the
//! driver is Windows'.

use std::path::{Path, PathBuf};

use crate::host::{DeviceFile, KernelModule, PciGpu, Platform};
use crate::model::Gpu;
use crate::model::device_file::minor_number;
use crate::model::snapshot::{Driver, PidNamespace};
use crate::report::doctor::{CheckStatus, DoctorCheck, Topic, ranges};
use crate::source::nvml::NvmlFailure;
use crate::units::Span;

/// Where gpumem runs, as far as remedies depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RuntimeEnvironment {
    /// On the machine itself.
    Machine,
    /// In a container, of a runtime that may be known.
    Container(Option<&'static str>),
    /// In the Windows Subsystem for Linux.
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
    /// The library that was asked for with `--nvml-library`.
    pub(super) named: Option<&'a Path>,
    /// Result of initializing NVML.
    pub(super) opened: Result<&'a Driver, &'a NvmlFailure>,
    /// Path of the library, while it is loaded.
    pub(super) mapped: Option<PathBuf>,
    pub(super) module: KernelModule,
    /// GPUs on the PCI bus; `None` if it cannot be read.
    pub(super) bus: Option<Vec<PciGpu>>,
    /// Device files; `None` if `/dev` cannot be listed.
    pub(super) devices: Option<Vec<DeviceFile>>,
    /// The GPUs that NVML lists.
    pub(super) gpus: Vec<&'a Gpu>,
    pub(super) place: RuntimeEnvironment,
}

impl DriverFacts<'_> {
    pub(super) fn checks(&self) -> Vec<DoctorCheck> {
        vec![self.library(), self.driver(), self.kernel_module(), self.device_files()]
    }

    fn library(&self) -> DoctorCheck {
        let topic = Topic::LIBRARY;
        match self.opened {
            Err(NvmlFailure::LibraryNotFound { library }) => {
                let seen = format!("{library} is not found");
                self.advise_on_missing_library(topic.broken(seen))
            }
            Err(NvmlFailure::LibraryUnusable { library, reason }) => {
                let check = topic.broken(format!("{library}: {reason}"));
                match self.place {
                    // Images that were built or committed while GPUs were passed in keep empty files
                    // in place of the libraries (NVIDIA/libnvidia-container#140).
                    RuntimeEnvironment::Container(_) => self.pass_gpus_in(check.means(
                        "an image often has an empty or foreign file in place of the host's library",
                    )),
                    _ => check
                        .next("ldconfig -p | grep libnvidia-ml")
                        .next("reinstall the driver, or name its library with --nvml-library PATH"),
                }
            }
            Err(NvmlFailure::Thread(_)) => topic.unknown("not looked for"),
            Ok(_) | Err(_) => {
                let path = self.mapped.as_deref().or(self.named);
                let seen = path
                    .map_or_else(|| "found".to_owned(), |path| path.to_string_lossy().into_owned());
                topic.ok(seen)
            }
        }
    }

    fn advise_on_missing_library(&self, check: DoctorCheck) -> DoctorCheck {
        if self.named.is_some() {
            return check.next(
                "correct the path given with --nvml-library, or leave it out to use the driver's \
                library",
            );
        }
        match self.place {
            RuntimeEnvironment::Wsl => check
                .means("under WSL the library comes with NVIDIA's driver for Windows")
                .next("install or update the driver in Windows, none in Linux; then `wsl --update` there")
                .next("ls -l /usr/lib/wsl/lib/libnvidia-ml.so.1"),
            RuntimeEnvironment::Container(_) if self.has_control_file() => check
                .means("the container has the GPUs but not the library: the capability `utility` \
                is missing")
                .next("docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...")
                .next("if the file exists but is not found: run `ldconfig` as root"),
            RuntimeEnvironment::Container(_) => self.pass_gpus_in(check),
            RuntimeEnvironment::Machine => match (&self.module, self.bus.as_deref()) {
                (KernelModule::Loaded { version }, _) => {
                    let version = version.as_deref().unwrap_or("of the kernel module");
                    let major = version.split('.').next().unwrap_or_default();
                    let check = check.means("the driver is loaded, its libraries are not installed");
                    let check = if major.bytes().all(|byte| byte.is_ascii_digit()) {
                        check.next(format!(
                            "install the libraries of driver {version}: libnvidia-compute-{major} on Ubuntu, libnvidia-ml1 on Debian"
                        ))
                    } else {
                        check.next("install the libraries of exactly the driver's version")
                    };
                    check.next("or name the library with --nvml-library PATH")
                }
                (_, Some([])) => check
                    .means("there is no NVIDIA GPU on the PCI bus")
                    .next("gpumem watch --demo, or --replay FILE, needs none"),
                (_, Some(gpus)) => install(check, gpus),
                (_, None) => check
                    .next("if this machine has an NVIDIA GPU (`lspci -d 10de:`), install its driver")
                    .next("gpumem watch --demo, or --replay FILE, needs none"),
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
                let seen = [
                    part("", &driver.version),
                    part("NVML ", &driver.nvml_version),
                    part("CUDA ", &driver.cuda_version),
                ];
                return topic.ok(seen.join(", "));
            }
            Err(error) => error,
        };
        let broken = |seen: String| topic.broken(seen);
        match error {
            NvmlFailure::LibraryNotFound { .. } | NvmlFailure::LibraryUnusable { .. } => topic.unknown("not asked: there is no library to ask it with",
            ),
            NvmlFailure::DriverNotLoaded => {
                let check = broken("not loaded (NVML_ERROR_DRIVER_NOT_LOADED)".to_owned());
                self.advise_on_absent_driver(check)
            }
            NvmlFailure::VersionMismatch => mismatch(
                broken(
                    "library and kernel module are of different versions (NVML_ERROR_LIB_RM_VERSION_MISMATCH)"
                        .to_owned(),
                )
                .means("the driver was upgraded while its module stayed loaded"),
                self.place,
            ),
            NvmlFailure::NoPermission => {
                let check = broken("no permission (NVML_ERROR_NO_PERMISSION)".to_owned())
                    .next("ls -l /dev/nvidia*");
                match self.place {
                    RuntimeEnvironment::Container(_) => self.pass_gpus_in(check),
                    _ => check.next("in a Slurm job, ask for a GPU: --gres=gpu:1"),
                }
            }
            NvmlFailure::NoAnswer { call, waited } => {
                broken(format!("no answer to {call} for {}", Span(*waited)))
                    .means("it is hung, or still starting")
                    .next(KERNEL_LOG)
                    .next("gpumem doctor --nvml-timeout 30s")
                    .next("nvidia-smi -pm 1    (as root; keeps the driver loaded)")
            }
            NvmlFailure::Call { call, code } => {
                let check = broken(format!("{call}: {code}"));
                let check = match self.place {
                    // A reload of the host's systemd takes back device rules that a runtime has set
                    // (NVIDIA's container toolkit, troubleshooting).
                    RuntimeEnvironment::Container(_) => check.next(
                        "restart the container: a reload of the host's systemd may have taken its devices away",
                    ),
                    _ => check,
                };
                check.next("nvidia-smi").next(KERNEL_LOG)
            }
            NvmlFailure::Thread(error) => topic.unknown(error.to_string())
                .next("raise the limit on processes: ulimit -u"),
        }
    }

    /// Adds the reason why NVML reports no driver: the module is not loaded, or its files cannot be
    /// opened.
    fn advise_on_absent_driver(&self, check: DoctorCheck) -> DoctorCheck {
        let is_loaded = matches!(self.module, KernelModule::Loaded { .. });
        match self.place {
            RuntimeEnvironment::Wsl => check.next(
                "in Windows: `wsl --update`, then `wsl --shutdown`, and update NVIDIA's driver",
            ),
            RuntimeEnvironment::Container(_) if is_loaded => self.pass_gpus_in(check),
            RuntimeEnvironment::Container(_) => check.next("on the host, as root: modprobe nvidia"),
            RuntimeEnvironment::Machine if is_loaded => check
                .means("the module is loaded; its device files may be missing")
                .next(MAKE_DEVICE_FILES),
            RuntimeEnvironment::Machine => load_module(check, self.bus.as_deref()),
        }
    }

    fn kernel_module(&self) -> DoctorCheck {
        let topic = Topic::KERNEL_MODULE;
        match (&self.module, self.opened) {
            (KernelModule::Loaded { version }, Ok(driver)) => match (version, &driver.version) {
                (Some(module), Some(library)) if module == library => {
                    topic.ok(format!("{module}, as the library"))
                }
                (Some(module), Some(library)) => mismatch(
                    topic.limited(format!("{module} is loaded, NVML reports {library}")),
                    self.place,
                ),
                _ => topic.unknown("loaded, of unknown version"),
            },
            (KernelModule::Loaded { version }, Err(_)) => {
                let version = version.as_deref().unwrap_or("of unknown version");
                topic.ok(format!("loaded, {version}"))
            }
            (KernelModule::Absent, _) if self.place == RuntimeEnvironment::Wsl => {
                topic.not_applicable("the driver is Windows'")
            }
            (KernelModule::Absent, Ok(_)) => {
                topic.unknown("no version file, though NVML answers").means(
                    "library and module versions cannot be compared; NVML would report a mismatch",
                )
            }
            (KernelModule::Absent, Err(error)) => {
                let check = topic.broken("nvidia is not loaded");
                match (error, self.place) {
                    // Said with the driver.
                    (NvmlFailure::DriverNotLoaded, _) => check,
                    // First the driver has to be installed, or the GPUs passed in.
                    (NvmlFailure::LibraryNotFound { .. }, _) => check,
                    (_, RuntimeEnvironment::Machine) => load_module(check, self.bus.as_deref()),
                    _ => check,
                }
            }
            (KernelModule::Unreadable, _) => topic.unknown("its version may not be read"),
        }
    }

    fn device_files(&self) -> DoctorCheck {
        let topic = Topic::DEVICE_FILES;
        let Some(files) = self.devices.as_deref() else {
            return topic.unknown("the folder /dev cannot be listed");
        };
        if files.is_empty() {
            return self.no_device_files();
        }
        let closed: Vec<&DeviceFile> = files.iter().filter(|file| !file.usable).collect();
        if let Some(file) = closed.first() {
            let names: Vec<&str> = closed.iter().map(|file| file.name.as_str()).collect();
            let seen = format!("you may not open {}", in_short(&names));
            let verdict =
                if self.opened.is_ok() { CheckStatus::Limited } else { CheckStatus::Broken };
            let check = topic.check(verdict, seen).next("ls -l /dev/nvidia*");
            // Readable and writable by a group that is not root's.
            return if file.gid != 0 && file.mode & 0o060 == 0o060 {
                check.next(format!(
                    "ask root to put you into the group {}, then log in again: usermod -aG GROUP USER",
                    file.gid
                ))
            } else {
                check.next("root may open them to all: the nvidia module's option NVreg_DeviceFileMode=0666")
            };
        }
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        let seen = in_short(&names);
        let has = |name: &str| names.contains(&name);
        let missing: Vec<u32> = self
            .gpus
            .iter()
            .filter(|gpu| gpu.minor_number.is_some_and(|minor| !has(&format!("nvidia{minor}"))))
            .map(|gpu| gpu.index)
            .collect();
        if has("nvidiactl") && !missing.is_empty() {
            return topic
                .limited(format!("{seen}; none of GPU {}", ranges(&missing)))
                .means(
                    "programs cannot use that GPU, and gpumem cannot see which processes hold it",
                )
                .next(MAKE_DEVICE_FILES);
        }
        if has("nvidiactl") && !has("nvidia-uvm") {
            let check = topic
                .limited(format!("{seen}; no nvidia-uvm"))
                .means("gpumem works without it; CUDA programs do not start");
            return match self.place {
                RuntimeEnvironment::Container(_) => self.pass_gpus_in(check),
                _ => check.next(MAKE_DEVICE_FILES),
            };
        }
        topic.ok(seen)
    }

    fn no_device_files(&self) -> DoctorCheck {
        let topic = Topic::DEVICE_FILES;
        if self.opened.is_ok() {
            return topic.limited("none, though NVML answers").means(
                "pids cannot be confirmed by the GPU device files that processes have open",
            );
        }
        let check = topic.broken("none");
        match (self.place, &self.module) {
            (RuntimeEnvironment::Container(_), KernelModule::Loaded { .. }) => {
                check.means("the machine has a driver; this container was given no GPU")
            }
            (RuntimeEnvironment::Machine, KernelModule::Loaded { .. }) => {
                check.next(MAKE_DEVICE_FILES)
            }
            _ => check,
        }
    }

    fn has_control_file(&self) -> bool {
        let files = self.devices.iter().flatten();
        files.into_iter().any(|file| file.name == "nvidiactl")
    }

    fn pass_gpus_in(&self, check: DoctorCheck) -> DoctorCheck {
        const DOCKER: &str =
            "docker run --gpus all ...    (the host needs nvidia-container-toolkit)";
        const PODMAN: &str = "podman run --device nvidia.com/gpu=all ...";
        match self.place {
            RuntimeEnvironment::Container(Some("docker")) => check.next(DOCKER),
            RuntimeEnvironment::Container(Some("podman")) => check.next(PODMAN),
            _ => check
                .next(DOCKER)
                .next(PODMAN)
                .next("in Kubernetes: resources.limits nvidia.com/gpu: 1"),
        }
    }
}

/// Command that shows the driver's errors.
pub(super) const KERNEL_LOG: &str = "dmesg | grep -iE 'xid|nvrm'    (as root)";
const MAKE_DEVICE_FILES: &str = "nvidia-modprobe -u -c 0    (as root; 0 is the GPU's minor number)";

fn mismatch(check: DoctorCheck, place: RuntimeEnvironment) -> DoctorCheck {
    match place {
        RuntimeEnvironment::Container(_) => check
            .next("restart the container: it has the library of the driver that the host had before")
            .next("an image must not bring a libnvidia-ml.so.1 of its own"),
        _ => check.next("reboot").next(
            "or end all GPU programs and nvidia-persistenced, then as root: rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; modprobe nvidia",
        ),
    }
}

fn install(check: DoctorCheck, gpus: &[PciGpu]) -> DoctorCheck {
    if gpus.iter().all(|gpu| gpu.driver.as_deref() == Some("vfio-pci")) {
        return check
            .means("the GPUs of this machine are given to virtual machines (vfio-pci)")
            .next("run gpumem in the guest");
    }
    check
        .means("there is an NVIDIA GPU on the PCI bus, and no driver for it")
        .next("ubuntu-drivers install    (Ubuntu, as root); apt install nvidia-driver    (Debian); then reboot")
}

fn load_module(check: DoctorCheck, bus: Option<&[PciGpu]>) -> DoctorCheck {
    let holds = |name: &str| {
        let gpus = bus.unwrap_or_default();
        gpus.iter().any(|gpu| gpu.driver.as_deref() == Some(name))
    };
    if holds("nouveau") {
        return check
            .means("the driver nouveau uses the GPU, and NVIDIA's cannot at the same time")
            .next("blacklist nouveau, as the packages of NVIDIA's driver do, rebuild the initramfs (update-initramfs -u) and reboot");
    }
    check
        .next("modprobe nvidia    (as root)")
        .next("dkms status    (after an update of the kernel the module has to be built again)")
        .next(KERNEL_LOG)
}

/// Names of device files, those of GPUs as one: `nvidia0-7, nvidiactl, nvidia-uvm`.
fn in_short(names: &[&str]) -> String {
    let numbers: Vec<u32> = names.iter().filter_map(|name| minor_number(name)).collect();
    let gpus = (!numbers.is_empty()).then(|| format!("nvidia{}", ranges(&numbers)));
    let others = names.iter().filter(|name| minor_number(name).is_none());
    let others = others.map(|&name| name.to_owned());
    gpus.into_iter().chain(others).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
