//! Tests of driver problems and of the advice in each environment.

use super::*;

fn file(name: &str) -> DeviceFile {
    DeviceFile { name: name.to_owned(), mode: 0o666, gid: 0, usable: true }
}

fn files() -> Vec<DeviceFile> {
    ["nvidia0", "nvidia1", "nvidia-uvm", "nvidiactl"].map(file).to_vec()
}

fn loaded(version: &str) -> KernelModule {
    KernelModule::Loaded { version: Some(version.into()) }
}

fn on_bus(driver: Option<&str>) -> Option<Vec<PciGpu>> {
    Some(vec![PciGpu {
        address: "0000:17:00.0".to_owned(),
        driver: driver.map(str::to_owned),
        is_suspended: false,
    }])
}

/// Returns the facts about a machine on which all files exist and the driver fails with `error`.
fn broken(error: &NvmlFailure) -> DriverFacts<'_> {
    DriverFacts {
        named: None,
        opened: Err(error),
        mapped: None,
        module: loaded("580.159.03"),
        bus: on_bus(Some("nvidia")),
        devices: Some(files()),
        gpus: Vec::new(),
        environment: RuntimeEnvironment::Machine,
    }
}

fn well(driver: &Driver) -> DriverFacts<'_> {
    DriverFacts { opened: Ok(driver), ..broken(&NvmlFailure::DriverNotLoaded) }
}

fn driver() -> Driver {
    Driver { version: Some("580.159.03".into()), ..Driver::default() }
}

fn missing() -> NvmlFailure {
    NvmlFailure::LibraryNotFound { library: "libnvidia-ml.so.1".to_owned() }
}

fn text(check: &DoctorCheck) -> String {
    let means = check.means.clone().unwrap_or_default();
    format!("{}\n{means}\n{}", check.seen, check.next.join("\n"))
}

#[track_caller]
fn assert_check(check: &DoctorCheck, verdict: CheckStatus, words: &[&str]) {
    let text = text(check);
    assert_eq!(check.verdict, verdict, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
}

#[test]
fn the_advice_on_a_missing_library_fits_the_environment() {
    use KernelModule::{Absent, Loaded};
    use RuntimeEnvironment::{Container, Wsl};
    let error = missing();
    type Change = fn(&mut DriverFacts<'_>);
    let rows: [(Change, &[&str]); 10] = [
        (|_| {}, &["libnvidia-compute-580", "580.159.03"]),
        (|facts| facts.module = Loaded { version: None }, &["exactly the driver's version"]),
        (|facts| facts.named = Some(Path::new("/x")), &["--nvml-library"]),
        (|facts| facts.module = Absent, &["ubuntu-drivers install"]),
        (
            |facts| (facts.module, facts.bus) = (Absent, Some(Vec::new())),
            &["no NVIDIA GPU on the PCI bus", "--demo"],
        ),
        (|facts| (facts.module, facts.bus) = (Absent, on_bus(Some("vfio-pci"))), &["in the guest"]),
        (|facts| (facts.module, facts.bus) = (Absent, None), &["lspci"]),
        (|facts| facts.environment = Wsl, &["Windows", "wsl --update"]),
        (
            |facts| facts.environment = Container(None),
            &["NVIDIA_DRIVER_CAPABILITIES=compute,utility"],
        ),
        (
            |facts| {
                (facts.environment, facts.devices) = (Container(Some("docker")), Some(Vec::new()));
            },
            &["--gpus all"],
        ),
    ];
    for (change, words) in rows {
        let mut facts = broken(&error);
        change(&mut facts);
        let check = facts.library();
        assert_check(&check, CheckStatus::Broken, words);
        assert!(!words.contains(&"--gpus all") || !text(&check).contains("podman"));
    }
    // The driver was not called, so its state is unknown.
    assert_eq!(broken(&error).driver().verdict, CheckStatus::Unknown);
}

#[test]
fn the_advice_on_an_unloaded_driver_fits_the_environment() {
    use KernelModule::Absent;
    use RuntimeEnvironment::{Container, Machine, Wsl};
    let nouveau = on_bus(Some("nouveau"));
    let containers = &["--gpus all", "--device nvidia.com/gpu=all", "Kubernetes"];
    let loading = &["DRIVER_NOT_LOADED", "modprobe nvidia", "dkms status"];
    for (module, bus, environment, words, of_module) in [
        (Absent, on_bus(None), Machine, &loading[..], CheckStatus::Broken),
        (Absent, nouveau, Machine, &["nouveau"], CheckStatus::Broken),
        (loaded("1.2"), None, Machine, &["nvidia-modprobe"], CheckStatus::Ok),
        (loaded("1.2"), None, Container(None), containers, CheckStatus::Ok),
        (Absent, None, Container(None), &["on the host"], CheckStatus::Broken),
        (Absent, None, Wsl, &["Windows"], CheckStatus::NotApplicable),
    ] {
        let facts =
            DriverFacts { module, bus, environment, ..broken(&NvmlFailure::DriverNotLoaded) };
        assert_check(&facts.driver(), CheckStatus::Broken, words);
        assert_eq!(facts.kernel_module().verdict, of_module, "{words:?}");
    }
}

#[test]
fn a_version_mismatch_needs_a_reboot_or_a_restart_of_the_container() {
    let error = NvmlFailure::VersionMismatch;
    let facts = broken(&error);
    let words =
        ["LIB_RM_VERSION_MISMATCH", "reboot", "rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia"];
    assert_check(&facts.driver(), CheckStatus::Broken, &words);
    let in_container =
        DriverFacts { environment: RuntimeEnvironment::Container(None), ..broken(&error) };
    assert_check(&in_container.driver(), CheckStatus::Broken, &["restart the container"]);
    // NVML can work although the versions differ.
    let driver = driver();
    let answers = DriverFacts { module: loaded("570.1"), ..well(&driver) };
    assert_check(
        &answers.kernel_module(),
        CheckStatus::Limited,
        &["570.1", "580.159.03", "reboot"],
    );
}

#[test]
fn device_files_must_exist_and_be_accessible() {
    let (driver, error) = (driver(), NvmlFailure::NoPermission);
    let gpu = |index, minor| Gpu { index, minor_number: Some(minor), ..Gpu::default() };
    let (zero, third) = (gpu(0, 0), gpu(1, 3));
    let with = |files: Vec<DeviceFile>| DriverFacts {
        devices: Some(files),
        gpus: vec![&zero],
        ..well(&driver)
    };
    let closed = |gid, mode| {
        let mut files = files();
        (files[0].usable, files[0].gid, files[0].mode) = (false, gid, mode);
        files
    };
    let (one, crossed) = (gpu(0, 3), gpu(3, 0));
    let all = ["nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm"].map(file).to_vec();
    let differing = DriverFacts { gpus: vec![&one, &crossed], ..with(all) };
    let two = DriverFacts { gpus: vec![&zero, &third], ..with(files()) };
    let refused = |files| DriverFacts { devices: files, ..broken(&error) };
    let environment = RuntimeEnvironment::Container(None);
    let in_container = DriverFacts { environment, ..refused(Some(Vec::new())) };
    let no_uvm = with(["nvidia0", "nvidiactl"].map(file).to_vec());
    use CheckStatus::{Broken, Limited, Ok, Unknown};
    for (facts, verdict, words) in [
        (with(files()), Ok, &[][..]),
        (differing, Ok, &["GPU 0 is /dev/nvidia3; GPU 3 is /dev/nvidia0", "AutoDetect=nvml"]),
        // On WSL, `dxg` is the only device file.
        (with(vec![file("dxg")]), Ok, &[]),
        (no_uvm, Limited, &["no nvidia-uvm", "nvidia-modprobe -u"]),
        (two, Limited, &["no device file for GPU 1"]),
        (with(Vec::new()), Limited, &["none, though NVML answers"]),
        (with(closed(44, 0o660)), Limited, &["nvidia0", "the group 44"]),
        (refused(Some(closed(0, 0o600))), Broken, &["NVreg_DeviceFileMode"]),
        (refused(Some(Vec::new())), Broken, &["nvidia-modprobe"]),
        (in_container, Broken, &["not given a GPU"]),
        (refused(None), Unknown, &[]),
    ] {
        assert_check(&facts.device_files(), verdict, words);
    }
}
