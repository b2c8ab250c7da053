//! Each trouble of the driver, and whether its cure is the right one for the place.

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
    Some(vec![PciGpu { address: "0000:17:00.0".to_owned(), driver: driver.map(str::to_owned) }])
}

/// A machine whose driver does not start, with everything in place.
fn broken(error: &NvmlFailure) -> DriverFacts<'_> {
    DriverFacts {
        named: None,
        opened: Err(error),
        mapped: None,
        module: loaded("580.159.03"),
        bus: on_bus(Some("nvidia")),
        devices: Some(files()),
        gpus: Vec::new(),
        place: RuntimeEnvironment::Machine,
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

/// The verdict, and everything that is said.
fn judged(check: &DoctorCheck) -> (CheckStatus, String) {
    let means = check.means.clone().unwrap_or_default();
    (check.verdict, format!("{}\n{means}\n{}", check.seen, check.next.join("\n")))
}

#[track_caller]
fn assert_check(check: &DoctorCheck, verdict: CheckStatus, words: &[&str]) {
    let (is, text) = judged(check);
    assert_eq!(is, verdict, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
}

#[test]
fn a_healthy_machine_is_well() {
    let driver = driver();
    let facts =
        DriverFacts { mapped: Some("/usr/lib/libnvidia-ml.so.580.159.03".into()), ..well(&driver) };
    let checks = facts.checks();
    assert!(checks.iter().all(|it| it.verdict == CheckStatus::Ok), "{checks:?}");
    assert_eq!(checks[0].seen, "/usr/lib/libnvidia-ml.so.580.159.03");
    assert_eq!(checks[1].seen, "580.159.03, NVML unknown, CUDA unknown");
    assert_eq!(checks[3].seen, "nvidia0-1, nvidia-uvm, nvidiactl");
}

#[test]
fn a_missing_library_is_cured_where_it_is_missing() {
    let error = missing();
    let with = |change: fn(&mut DriverFacts<'_>)| {
        let mut facts = broken(&error);
        change(&mut facts);
        facts.library()
    };
    let is = CheckStatus::Broken;
    assert_check(&with(|_| {}), is, &["libnvidia-compute-580", "580.159.03"]);
    assert_check(
        &with(|it| it.module = KernelModule::Loaded { version: None }),
        is,
        &["very version"],
    );
    assert_check(&with(|it| it.named = Some(Path::new("/x"))), is, &["--nvml-library"]);
    let no_module = |it: &mut DriverFacts<'_>| it.module = KernelModule::Absent;
    assert_check(&with(no_module), is, &["ubuntu-drivers install"]);
    assert_check(
        &with(|it| (it.module, it.bus) = (KernelModule::Absent, Some(Vec::new()))),
        is,
        &["no NVIDIA GPU on the PCI bus", "--demo"],
    );
    assert_check(
        &with(|it| (it.module, it.bus) = (KernelModule::Absent, on_bus(Some("vfio-pci")))),
        is,
        &["in the guest"],
    );
    assert_check(&with(|it| (it.module, it.bus) = (KernelModule::Absent, None)), is, &["lspci"]);
    assert_check(&with(|it| it.place = RuntimeEnvironment::Wsl), is, &["Windows", "wsl --update"]);
    assert_check(
        &with(|it| it.place = RuntimeEnvironment::Container(None)),
        is,
        &["NVIDIA_DRIVER_CAPABILITIES=compute,utility"],
    );
    let without = |it: &mut DriverFacts<'_>| {
        (it.place, it.devices) = (RuntimeEnvironment::Container(Some("docker")), Some(Vec::new()));
    };
    let docker = with(without);
    assert_check(&docker, is, &["--gpus all"]);
    assert!(!judged(&docker).1.contains("podman"));
    // Nothing was there to ask, which is not the driver's fault.
    assert_eq!(broken(&error).driver().verdict, CheckStatus::Unknown);
}

#[test]
fn a_driver_that_is_not_loaded_is_loaded_or_given_its_files() {
    let error = NvmlFailure::DriverNotLoaded;
    let with = |module: KernelModule, bus, place| {
        let facts = DriverFacts { module, bus, place, ..broken(&error) };
        [facts.driver(), facts.kernel_module()]
    };
    let [driver, module] = with(KernelModule::Absent, on_bus(None), RuntimeEnvironment::Machine);
    assert_check(
        &driver,
        CheckStatus::Broken,
        &["DRIVER_NOT_LOADED", "modprobe nvidia", "dkms status"],
    );
    assert_check(&module, CheckStatus::Broken, &["not loaded"]);
    let [driver, _] =
        with(KernelModule::Absent, on_bus(Some("nouveau")), RuntimeEnvironment::Machine);
    assert_check(&driver, CheckStatus::Broken, &["nouveau"]);
    let [driver, module] = with(loaded("1.2"), None, RuntimeEnvironment::Machine);
    assert_check(&driver, CheckStatus::Broken, &["nvidia-modprobe"]);
    assert_eq!(module.verdict, CheckStatus::Ok);
    let [driver, _] = with(loaded("1.2"), None, RuntimeEnvironment::Container(None));
    assert_check(
        &driver,
        CheckStatus::Broken,
        &["--gpus all", "--device nvidia.com/gpu=all", "Kubernetes"],
    );
    let [driver, _] = with(KernelModule::Absent, None, RuntimeEnvironment::Container(None));
    assert_check(&driver, CheckStatus::Broken, &["on the host"]);
    let [driver, module] = with(KernelModule::Absent, None, RuntimeEnvironment::Wsl);
    assert_check(&driver, CheckStatus::Broken, &["Windows"]);
    assert_eq!(module.verdict, CheckStatus::NotApplicable);
}

#[test]
fn two_versions_need_a_reboot_and_a_container_a_restart() {
    let error = NvmlFailure::VersionMismatch;
    let facts = broken(&error);
    let words =
        ["LIB_RM_VERSION_MISMATCH", "reboot", "rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia"];
    assert_check(&facts.driver(), CheckStatus::Broken, &words);
    let inside = DriverFacts { place: RuntimeEnvironment::Container(None), ..broken(&error) };
    assert_check(&inside.driver(), CheckStatus::Broken, &["restart the container"]);
    // NVML may answer all the same.
    let driver = driver();
    let answers = DriverFacts { module: loaded("570.1"), ..well(&driver) };
    assert_check(
        &answers.kernel_module(),
        CheckStatus::Limited,
        &["570.1", "580.159.03", "reboot"],
    );
}

#[test]
fn other_answers_show_where_to_look() {
    let waited = std::time::Duration::from_secs(10);
    let call = "nvmlInit_v2";
    for (error, words) in [
        (NvmlFailure::NoPermission, &["NO_PERMISSION", "ls -l /dev/nvidia*"][..]),
        (NvmlFailure::NoAnswer { call, waited }, &["10s", "xid", "--nvml-timeout 30s"]),
        (
            NvmlFailure::Call { call, code: "NVML_ERROR_UNKNOWN".to_owned() },
            &["nvmlInit_v2: NVML_ERROR_UNKNOWN", "nvidia-smi", "dmesg"],
        ),
    ] {
        let facts = broken(&error);
        assert_check(&facts.driver(), CheckStatus::Broken, words);
        assert_eq!(facts.library().verdict, CheckStatus::Ok, "it was loaded");
    }
    let unusable = NvmlFailure::LibraryUnusable {
        library: "/l".to_owned(),
        reason: "file too short".to_owned(),
    };
    let inside = DriverFacts { place: RuntimeEnvironment::Container(None), ..broken(&unusable) };
    assert_check(&inside.library(), CheckStatus::Broken, &["/l: file too short", "--gpus all"]);
    assert_check(&broken(&unusable).library(), CheckStatus::Broken, &["ldconfig"]);
}

#[test]
fn device_files_have_to_be_there_and_open() {
    let (driver, error) = (driver(), NvmlFailure::NoPermission);
    let gpu = |index, minor| Gpu { index, minor_number: Some(minor), ..Gpu::default() };
    let (zero, third) = (gpu(0, 0), gpu(1, 3));
    let with = |files: Vec<DeviceFile>| DriverFacts {
        devices: Some(files),
        gpus: vec![&zero],
        ..well(&driver)
    };
    assert_eq!(with(files()).device_files().verdict, CheckStatus::Ok);
    let no_uvm = ["nvidia0", "nvidiactl"].map(file).to_vec();
    assert_check(
        &with(no_uvm).device_files(),
        CheckStatus::Limited,
        &["no nvidia-uvm", "nvidia-modprobe -u"],
    );
    let lacking = DriverFacts { gpus: vec![&zero, &third], ..with(files()) };
    assert_check(&lacking.device_files(), CheckStatus::Limited, &["none of GPU 1"]);
    assert_check(
        &with(Vec::new()).device_files(),
        CheckStatus::Limited,
        &["none, though NVML answers"],
    );

    let closed = |gid, mode| {
        let mut files = files();
        (files[0].usable, files[0].gid, files[0].mode) = (false, gid, mode);
        files
    };
    assert_check(
        &with(closed(44, 0o660)).device_files(),
        CheckStatus::Limited,
        &["nvidia0", "the group 44"],
    );
    let refused = |files| DriverFacts { devices: files, ..broken(&error) };
    assert_check(
        &refused(Some(closed(0, 0o600))).device_files(),
        CheckStatus::Broken,
        &["NVreg_DeviceFileMode"],
    );
    assert_check(
        &refused(Some(Vec::new())).device_files(),
        CheckStatus::Broken,
        &["nvidia-modprobe"],
    );
    let inside =
        DriverFacts { place: RuntimeEnvironment::Container(None), ..refused(Some(Vec::new())) };
    assert_check(&inside.device_files(), CheckStatus::Broken, &["given no GPU"]);
    assert_eq!(refused(None).device_files().verdict, CheckStatus::Unknown);
    // WSL's only file.
    assert_eq!(with(vec![file("dxg")]).device_files().verdict, CheckStatus::Ok);
}
