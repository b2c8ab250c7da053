//! The driver as its callers see it: through nvml-wrapper, and through the bare symbols where the
//! wrapper hides what they do.
//!
//! The scene's path comes from the environment and a loaded library has one state, so that each
//! test plays in a process of its own: `on_stage` runs the test again as a child.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each calls the driver with the types of NVML's header and pointers to locals"
)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "the helpers of tests are tests too")]

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, c_uint};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::ptr;
use std::time::{Duration, Instant, SystemTime};

use libloading::Library;
use mock_nvml::scene::{
    ComputeMode, Driver, Fault, Gpu, Growth, Memory, MigDevice, Process, ProcessKind,
    ProcessRecord, Sample, Scene, UtilizationClock, Value,
};
use mock_nvml::{Counts, library, library_without};
use nvml_wrapper::enum_wrappers::device::{Brand, Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings as sys;

const GIB: u64 = 1 << 30;

/// Where a test plays.
struct Stage {
    folder: PathBuf,
}

impl Stage {
    /// The driver, loaded; never unloaded, because threads may still hang in it.
    fn nvml(&self) -> &'static Nvml {
        let nvml = Nvml::builder().lib_path(library().as_os_str()).init();
        Box::leak(Box::new(nvml.expect("the scene lets the driver start")))
    }

    fn scene(&self) -> PathBuf {
        self.folder.join("scene.json")
    }

    fn counts(&self) -> BTreeMap<(String, Option<u32>), u64> {
        Counts::read(&self.folder.join("counts")).expect("a file of counts")
    }
}

/// Runs `play` in a child process whose driver plays `scene`; the child must be the named test.
fn on_stage(test: &str, scene: &Scene, play: impl FnOnce(&Stage)) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    if env::var_os("GPUMEM_MOCK_SCENE").is_some() {
        return play(&Stage { folder });
    }
    let output = act(test, scene, &folder);
    let talk = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{talk}{errors}");
    assert!(talk.contains("1 passed"), "no test is called {test}");
}

/// The child, until it ends.
fn act(test: &str, scene: &Scene, folder: &Path) -> Output {
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).unwrap();
    let stage = folder.join("scene.json");
    scene.write(&stage).unwrap();
    Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env("GPUMEM_MOCK_SCENE", stage)
        .env("GPUMEM_MOCK_COUNTS", folder.join("counts"))
        .output()
        .unwrap()
}

fn now_unix() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs_f64()
}

fn bytes_of(device: &Device<'_>) -> BTreeMap<u32, Option<u64>> {
    let processes = device.running_compute_processes().unwrap();
    let used = |used| match used {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    };
    processes.into_iter().map(|process| (process.pid, used(process.used_gpu_memory))).collect()
}

#[test]
fn a_gpu_is_as_the_scene_has_it() {
    let mut gpu = Gpu::new("NVIDIA Test 9000")
        .total(80 * GIB)
        .unattributed(GIB)
        .utilization(97, 41)
        .process(Process::compute(10, 20 * GIB))
        .process(Process::compute(11, 2 * GIB).kind(ProcessKind::Graphics));
    gpu.uuid = Some("GPU-abc".into());
    gpu.pci = Some("00000000:17:00.0".into());
    gpu.minor = Some(5);
    gpu.power = Some(123_456.into());
    gpu.temperature = Some(66.into());
    gpu.pstate = Some(2.into());
    gpu.clocks.sm = Some(1500.into());
    gpu.fan = Some(40.into());
    gpu.compute_mode = Some(ComputeMode::ExclusiveProcess);
    gpu.persistence = Some(false);
    let scene = Scene::new().gpu(Gpu::new("first")).gpu(gpu);
    on_stage("a_gpu_is_as_the_scene_has_it", &scene, |stage| {
        let nvml = stage.nvml();
        assert_eq!(nvml.sys_driver_version().unwrap(), "580.159.03");
        assert_eq!(nvml.sys_nvml_version().unwrap(), "13.580.159.03");
        assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13_000);
        assert_eq!(nvml.device_count().unwrap(), 2);
        let gpu = nvml.device_by_index(1).unwrap();
        assert_eq!(gpu.name().unwrap(), "NVIDIA Test 9000");
        assert_eq!(gpu.uuid().unwrap(), "GPU-abc");
        assert_eq!(gpu.index().unwrap(), 1);
        assert_eq!(gpu.minor_number().unwrap(), 5);
        let pci = gpu.pci_info().unwrap();
        assert_eq!((pci.bus, pci.bus_id.as_str()), (0x17, "00000000:17:00.0"));
        for same in [nvml.device_by_uuid("GPU-abc"), nvml.device_by_pci_bus_id("0000:17:00.0")] {
            assert_eq!(same.unwrap().index().unwrap(), 1);
        }
        let memory = gpu.memory_info().unwrap();
        let reserved = 614 << 20;
        assert_eq!(memory.total, 80 * GIB);
        assert_eq!(memory.reserved, reserved);
        assert_eq!(memory.used, 23 * GIB, "processes and unattributed");
        assert_eq!(memory.free, 57 * GIB - reserved);
        let rates = gpu.utilization_rates().unwrap();
        assert_eq!((rates.gpu, rates.memory), (97, 41));
        assert_eq!(gpu.power_usage().unwrap(), 123_456);
        assert_eq!(gpu.enforced_power_limit().unwrap(), 700_000);
        assert_eq!(gpu.temperature(TemperatureSensor::Gpu).unwrap(), 66);
        assert_eq!(gpu.performance_state().unwrap() as u32, 2);
        assert_eq!(gpu.clock_info(Clock::SM).unwrap(), 1500);
        assert_eq!(gpu.max_clock_info(Clock::SM).unwrap(), 1980);
        assert_eq!((gpu.fan_speed(0).unwrap(), gpu.num_fans().unwrap()), (40, 1));
        assert_eq!(gpu.compute_mode().unwrap() as u32, 3);
        assert!(!gpu.is_in_persistent_mode().unwrap());
        assert_eq!(gpu.brand().unwrap(), Brand::Nvidia);
        assert_eq!(gpu.encoder_utilization().unwrap().utilization, 0);
        assert!(gpu.is_ecc_enabled().unwrap().currently_enabled);
    });
}

#[test]
fn a_null_is_not_supported() {
    let json = br#"{"gpus": [{"memory": null, "utilization": null, "power": null, "fan": null,
        "power_limit": null, "temperature": null, "pstate": null, "compute_mode": null,
        "persistence": null, "mig": null, "clocks": {"sm": null}, "encoder": null,
        "process_utilization": false, "serial": null, "display": null, "ecc": null}]}"#;
    let scene = Scene::from_json(json).unwrap();
    on_stage("a_null_is_not_supported", &scene, |stage| {
        let nvml = stage.nvml();
        let gpu = nvml.device_by_index(0).unwrap();
        let answers = [
            gpu.memory_info().err(),
            gpu.utilization_rates().err(),
            gpu.power_usage().err(),
            gpu.enforced_power_limit().err(),
            gpu.temperature(TemperatureSensor::Gpu).err(),
            gpu.performance_state().err(),
            gpu.clock_info(Clock::SM).err(),
            gpu.fan_speed(0).err(),
            gpu.compute_mode().err(),
            gpu.is_in_persistent_mode().err(),
            gpu.mig_mode().err(),
            gpu.encoder_utilization().err(),
            gpu.process_utilization_stats(None).err(),
            gpu.serial().err(),
            gpu.is_display_active().err(),
            gpu.is_ecc_enabled().err(),
            gpu.accounting_pids().err(),
        ];
        for (index, answer) in answers.into_iter().enumerate() {
            let answer = answer.unwrap_or_else(|| panic!("{index} answered"));
            assert!(matches!(answer, NvmlError::NotSupported), "{index}: {answer}");
        }
    });
}

#[test]
fn memory_version_1_counts_what_is_reserved() {
    let gpu = Gpu::default().process(Process::compute(1, GIB));
    let scene = Scene::new().gpu(Gpu { memory_v2: false, ..gpu.clone() }).gpu(gpu);
    on_stage("memory_version_1_counts_what_is_reserved", &scene, |stage| {
        let nvml = stage.nvml();
        let old = nvml.device_by_index(0).unwrap();
        assert!(matches!(old.memory_info(), Err(NvmlError::NotSupported)));
        let memory_info = nvml.lib().nvmlDeviceGetMemoryInfo.as_ref().unwrap();
        let mut memory = sys::nvmlMemory_t { total: 0, free: 0, used: 0 };
        assert_eq!(unsafe { memory_info(old.handle(), &mut memory) }, 0);
        assert_eq!(memory.used, GIB + (614 << 20));
        assert_eq!(memory.total, memory.used + memory.free);

        let new = nvml.device_by_index(1).unwrap();
        let memory_info = nvml.lib().nvmlDeviceGetMemoryInfo_v2.as_ref().unwrap();
        let mut memory: sys::nvmlMemory_v2_t = unsafe { std::mem::zeroed() };
        let mut ask = |version| {
            memory.version = version;
            unsafe { memory_info(new.handle(), &mut memory) }
        };
        assert_eq!([ask(0), ask(0x0100_0028), ask(0x0200_0028)], [25, 25, 0]);
        assert_eq!(memory.used, GIB);
    });
}

#[test]
fn processes_are_on_their_lists() {
    let mut mig = Process::compute(5, GIB);
    (mig.gi, mig.ci) = (Some(1), Some(0));
    let unknown = Process { used_bytes: None, ..Process::compute(4, 0) };
    let gpu = Gpu::default()
        .process(Process::compute(1, GIB))
        .process(Process::compute(2, GIB).kind(ProcessKind::Graphics))
        .process(Process::compute(3, GIB).kind(ProcessKind::ComputeGraphics))
        .process(unknown)
        .process(mig)
        .process(Process::compute(6, GIB).kind(ProcessKind::Mps));
    on_stage("processes_are_on_their_lists", &Scene::new().gpu(gpu), |stage| {
        let gpu = stage.nvml().device_by_index(0).unwrap();
        let used = Some(GIB);
        let expected = BTreeMap::from([(1, used), (3, used), (4, None), (5, used)]);
        assert_eq!(bytes_of(&gpu), expected);
        let pids = |processes: Vec<nvml_wrapper::struct_wrappers::device::ProcessInfo>| {
            processes.iter().map(|process| process.pid).collect::<Vec<_>>()
        };
        assert_eq!(pids(gpu.running_graphics_processes().unwrap()), [2, 3]);
        assert_eq!(pids(gpu.mps_running_compute_processes().unwrap()), [6]);
        let compute = gpu.running_compute_processes_v2().unwrap();
        let instances =
            compute.iter().map(|process| (process.gpu_instance_id, process.compute_instance_id));
        let (none, some) = ((None, None), (Some(1), Some(0)));
        assert_eq!(instances.collect::<Vec<_>>(), [none, none, none, some]);
    });
}

/// Calls a process list with room for `room` records of `stride` bytes, filled beforehand with
/// 0xA5; gives the return code, the count and all that the buffer then holds.
fn list(library: &Library, symbol: &str, room: u32, stride: usize) -> (u32, u32, Vec<u8>) {
    type List = unsafe extern "C" fn(sys::nvmlDevice_t, *mut c_uint, *mut u8) -> c_uint;
    let call = unsafe { library.get::<List>(symbol.as_bytes()) }.unwrap();
    let mut buffer = vec![0xa5; (room as usize + 1) * stride];
    let mut count = room;
    let code = unsafe { call(first_gpu(library), &mut count, buffer.as_mut_ptr()) };
    (code, count, buffer)
}

/// Starts the driver in `library` and gives its first GPU.
fn first_gpu(library: &Library) -> sys::nvmlDevice_t {
    type Init = unsafe extern "C" fn() -> c_uint;
    type ByIndex = unsafe extern "C" fn(c_uint, *mut sys::nvmlDevice_t) -> c_uint;
    let mut device = ptr::null_mut();
    unsafe {
        assert_eq!(library.get::<Init>(b"nvmlInit_v2").unwrap()(), 0);
        let by_index = library.get::<ByIndex>(b"nvmlDeviceGetHandleByIndex_v2");
        assert_eq!(by_index.unwrap()(0, &mut device), 0);
    }
    device
}

fn load(path: impl AsRef<OsStr>) -> Library {
    unsafe { Library::new(path) }.unwrap()
}

#[test]
fn process_records_have_the_layout_of_their_driver() {
    let gpu = Gpu::default()
        .process(Process::compute(0x1111, 0x2222))
        .process(Process::compute(0x3333, 0x4444));
    let scene = Scene::new().gpu(gpu);
    on_stage("process_records_have_the_layout_of_their_driver", &scene, |stage| {
        let driver = load(library());
        let check = |symbol: &str, stride: usize| {
            let (code, count, buffer) = list(&driver, symbol, 2, stride);
            assert_eq!((code, count), (0, 2), "{symbol} {stride}");
            let number = |at: usize| u64::from_ne_bytes(buffer[at..at + 8].try_into().unwrap());
            for (record, (pid, used)) in
                [(0x1111, 0x2222), (0x3333, 0x4444)].into_iter().enumerate()
            {
                let at = record * stride;
                assert_eq!(buffer[at..at + 4], u32::to_ne_bytes(pid), "{symbol} {stride}");
                assert_eq!(number(at + 8), used);
                if stride >= 24 {
                    assert_eq!(number(at + 16), u64::MAX, "no instances");
                }
                if stride >= 32 {
                    assert_eq!(number(at + 24), 0, "nothing protected");
                }
            }
            assert!(buffer[2 * stride..].iter().all(|byte| *byte == 0xa5));
        };
        check("nvmlDeviceGetComputeRunningProcesses", 16);
        check("nvmlDeviceGetComputeRunningProcesses_v2", 24);
        check("nvmlDeviceGetComputeRunningProcesses_v3", 24);
        let mut scene = scene.clone();
        for (record, stride) in [(ProcessRecord::Bytes32, 32), (ProcessRecord::Bytes16, 16)] {
            scene.driver.process_record = record;
            scene.write(&stage.scene()).unwrap();
            check("nvmlDeviceGetComputeRunningProcesses_v3", stride);
            check("nvmlDeviceGetComputeRunningProcesses_v2", 24);
        }
    });
}

#[test]
fn a_buffer_too_small_gets_the_size_and_stays_as_it_is() {
    let gpu = Gpu::default().process(Process::compute(1, 0)).process(Process::compute(2, 0));
    let test = "a_buffer_too_small_gets_the_size_and_stays_as_it_is";
    on_stage(test, &Scene::new().gpu(gpu), |_| {
        let driver = load(library());
        for symbol in [
            "nvmlDeviceGetComputeRunningProcesses",
            "nvmlDeviceGetComputeRunningProcesses_v2",
            "nvmlDeviceGetComputeRunningProcesses_v3",
        ] {
            for room in [0, 1] {
                let (code, count, buffer) = list(&driver, symbol, room, 24);
                assert_eq!((code, count), (7, 2), "{symbol} with room for {room}");
                assert!(buffer.iter().all(|byte| *byte == 0xa5));
            }
        }
        let (code, count, _) = list(&driver, "nvmlDeviceGetGraphicsRunningProcesses_v3", 0, 24);
        assert_eq!((code, count), (0, 0), "an empty list fits anywhere");

        let call = unsafe {
            driver.get::<unsafe extern "C" fn(sys::nvmlDevice_t, *mut c_uint, *mut u8) -> c_uint>(
                b"nvmlDeviceGetComputeRunningProcesses_v3",
            )
        };
        let (call, gpu) = (call.unwrap(), first_gpu(&driver));
        let mut count = 0;
        unsafe {
            assert_eq!(call(gpu, &mut count, ptr::null_mut()), 7);
            assert_eq!(call(gpu, ptr::null_mut(), ptr::null_mut()), 2);
            assert_eq!((count, call(gpu, &mut count, ptr::null_mut())), (2, 2));
        }
    });
}

#[test]
fn a_list_may_grow_between_two_calls() {
    let gpu = Gpu {
        grow_list: Some(Growth { entries: 8, calls: 3 }),
        ..Gpu::default().process(Process::compute(1, 0))
    };
    on_stage("a_list_may_grow_between_two_calls", &Scene::new().gpu(gpu), |stage| {
        let gpu = stage.nvml().device_by_index(0).unwrap();
        let first = gpu.running_compute_processes();
        assert!(matches!(first, Err(NvmlError::InsufficientSize(_))), "{first:?}");
        assert_eq!(gpu.running_compute_processes().unwrap().len(), 1 + 3 * 8);
        assert_eq!(gpu.running_compute_processes().unwrap().len(), 1 + 3 * 8);
    });
}

#[test]
fn process_utilization_is_the_last_ten_seconds() {
    let garbage = Sample { pid: 777, sm: 4_000_000, ..Sample::default() };
    let busy = Gpu {
        utilization_samples: vec![garbage],
        ..Gpu::default().process(Process::compute(1, 0).sm(50)).process(Process::compute(2, 0))
    };
    let mig = Gpu { mig: Some(true), ..busy.clone() };
    let scene = Scene::new().gpu(busy).gpu(Gpu::default()).gpu(mig);
    on_stage("process_utilization_is_the_last_ten_seconds", &scene, |stage| {
        let nvml = stage.nvml();
        let [busy, idle, mig] = [0, 1, 2].map(|index| nvml.device_by_index(index).unwrap());
        let samples = busy.process_utilization_stats(None).unwrap();
        let mine: Vec<_> = samples.iter().filter(|sample| sample.pid == 1).collect();
        assert_eq!(mine.len(), 72);
        assert!(mine.iter().all(|sample| sample.sm_util == 50));
        assert!(!samples.iter().any(|sample| sample.pid == 2), "it is idle");
        let garbage = samples.iter().find(|sample| sample.pid == 777);
        assert_eq!(garbage.unwrap().sm_util, 4_000_000);
        let newest = samples.iter().map(|sample| sample.timestamp).max().unwrap();
        let age = now_unix() - newest as f64 / 1e6;
        assert!((-60.0..60.0).contains(&age), "{age} s old");
        let future = busy.process_utilization_stats(newest + 3_600_000_000);
        assert!(matches!(future, Err(NvmlError::NotFound)), "{future:?}");
        let none = idle.process_utilization_stats(None);
        assert!(matches!(none, Err(NvmlError::NotFound)), "{none:?}");
        let none = mig.process_utilization_stats(None);
        assert!(matches!(none, Err(NvmlError::NotSupported)), "{none:?}");
        assert!(matches!(mig.utilization_rates(), Err(NvmlError::NotSupported)));
        assert!(mig.mig_mode().is_ok());

        let call = nvml.lib().nvmlDeviceGetProcessUtilization.as_ref().unwrap();
        let mut count = 0;
        let code = unsafe { call(idle.handle(), ptr::null_mut(), &mut count, 0) };
        assert_eq!((code, count), (7, 100));
        let mut one: sys::nvmlProcessUtilizationSample_t = unsafe { std::mem::zeroed() };
        count = 1;
        let code = unsafe { call(busy.handle(), &mut one, &mut count, 0) };
        assert_eq!((code, count), (7, 73));
        assert_eq!(one.pid, 0, "nothing is written where not all of it fits");
    });
}

#[test]
fn utilization_may_be_stamped_in_time_since_boot() {
    let mut scene = Scene::new().gpu(Gpu::default().process(Process::compute(1, 0).sm(50)));
    scene.driver.utilization_clock = UtilizationClock::Boot;
    on_stage("utilization_may_be_stamped_in_time_since_boot", &scene, |stage| {
        let gpu = stage.nvml().device_by_index(0).unwrap();
        let newest = gpu.process_utilization_stats(None).unwrap();
        let newest = newest.iter().map(|sample| sample.timestamp).max().unwrap();
        let uptime = fs::read_to_string("/proc/uptime").unwrap();
        let uptime: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        let behind = uptime - newest as f64 / 1e6;
        assert!((-60.0..60.0).contains(&behind), "{behind} s behind");
    });
}

#[test]
fn values_and_processes_change_with_time() {
    let mut gpu = Gpu::default()
        .utilization([(0.0, 10.0), (500.0, 20.0), (1e9, 30.0)], 0)
        .process(Process::compute(1, Value::line([(0.0, 0.0), (2e9, 2e15)])))
        .process(Process::compute(2, 0).between(0.0, 900.0))
        .process(Process::compute(3, 0).between(900.0, 1e9))
        .process(Process::compute(4, 0).between(1e9, 2e9));
    gpu.memory = Some(Memory { total: (1_u64 << 52).into(), ..Memory::default() });
    let scene = Scene { t0: Some(now_unix() - 1000.0), ..Scene::new().gpu(gpu) };
    on_stage("values_and_processes_change_with_time", &scene, |stage| {
        let gpu = stage.nvml().device_by_index(0).unwrap();
        assert_eq!(gpu.utilization_rates().unwrap().gpu, 20);
        let processes = bytes_of(&gpu);
        assert_eq!(processes.keys().copied().collect::<Vec<_>>(), [1, 3]);
        let first = processes[&1].unwrap();
        assert!((1_000_000_000..2_000_000_000).contains(&first), "{first}");
        assert!(gpu.memory_info().unwrap().used >= first);
        assert!(bytes_of(&gpu)[&1].unwrap() > first, "it grows with the clock");
    });
}

#[test]
fn calls_before_init_and_wild_arguments_are_refused() {
    let test = "calls_before_init_and_wild_arguments_are_refused";
    on_stage(test, &Scene::new().gpu(Gpu::default()), |stage| {
        type Count = unsafe extern "C" fn(*mut c_uint) -> c_uint;
        type Plain = unsafe extern "C" fn() -> c_uint;
        type Power = unsafe extern "C" fn(usize, *mut c_uint) -> c_uint;
        let driver = load(library());
        let symbol = |name: &[u8]| unsafe { driver.get::<Count>(name) }.unwrap();
        let count = symbol(b"nvmlDeviceGetCount_v2");
        let power = unsafe { driver.get::<Power>(b"nvmlDeviceGetPowerUsage") }.unwrap();
        let shutdown = unsafe { driver.get::<Plain>(b"nvmlShutdown") }.unwrap();
        let mut number = 0;
        unsafe {
            assert_eq!(count(&mut number), 1);
            assert_eq!(power(0, &mut number), 1);
            assert_eq!(shutdown(), 1);
            let gpu = first_gpu(&driver) as usize;
            assert_eq!((count(&mut number), number), (0, 1));
            assert_eq!(count(ptr::null_mut()), 2);
            assert_eq!(power(gpu, ptr::null_mut()), 2);
            for wild in [0, 1, usize::MAX, gpu + 0x10000] {
                assert_eq!(power(wild, &mut number), 2, "{wild:#x}");
            }
            assert_eq!(shutdown(), 0);
            assert_eq!(count(&mut number), 1);
        }
        let nvml = stage.nvml();
        assert!(matches!(nvml.device_by_index(1), Err(NvmlError::InvalidArg)));
        assert!(matches!(nvml.device_by_uuid("GPU-none"), Err(NvmlError::NotFound)));
        let name = nvml.lib().nvmlDeviceGetName.as_ref().unwrap();
        let gpu = nvml.device_by_index(0).unwrap();
        let mut text = [b'?' as std::ffi::c_char; 4];
        assert_eq!(unsafe { name(gpu.handle(), text.as_mut_ptr(), 4) }, 7);
        assert_eq!(text, [b'?' as std::ffi::c_char; 4]);
    });
}

#[test]
fn init_fails_as_the_scene_has_it() {
    on_stage("init_fails_as_the_scene_has_it", &Scene::new().init_error(18), |stage| {
        let init = || Nvml::builder().lib_path(library().as_os_str()).init().err();
        assert!(matches!(init(), Some(NvmlError::LibRmVersionMismatch)));
        Scene::new().init_error(9).write(&stage.scene()).unwrap();
        assert!(matches!(init(), Some(NvmlError::DriverNotLoaded)));
        Scene::new().write(&stage.scene()).unwrap();
        assert_eq!(stage.nvml().device_count().unwrap(), 0);
    });
}

#[test]
fn faults_strike_where_and_as_often_as_set() {
    let scene = Scene::new()
        .gpu(Gpu::default())
        .gpu(Gpu::default())
        .fault(Fault::error("nvmlDeviceGetPowerUsage", 999).on(0).after(2).times(1))
        .fault(Fault::error("nvmlDeviceGetUtilizationRates", 4))
        .fault(Fault::delay("nvmlDeviceGetPerformanceState", 30).on(1));
    on_stage("faults_strike_where_and_as_often_as_set", &scene, |stage| {
        let nvml = stage.nvml();
        let [first, second] = [0, 1].map(|index| nvml.device_by_index(index).unwrap());
        let power = [0; 5].map(|_| first.power_usage().is_ok());
        assert_eq!(power, [true, true, false, true, true]);
        assert!([0; 5].iter().all(|_| second.power_usage().is_ok()));
        for gpu in [&first, &second] {
            assert!(matches!(gpu.utilization_rates(), Err(NvmlError::NoPermission)));
        }
        let before = Instant::now();
        second.performance_state().unwrap();
        assert!(before.elapsed() >= Duration::from_millis(30));

        let lost = scene.clone().fault(Fault::error("*", 15).on(1));
        lost.write(&stage.scene()).unwrap();
        assert!(matches!(second.memory_info(), Err(NvmlError::GpuLost)));
        assert!(first.memory_info().is_ok());
        assert_eq!(nvml.device_count().unwrap(), 2, "\"*\" is functions of a device");
        assert!(first.power_usage().is_ok(), "a fault that stays keeps its count");
    });
}

#[test]
fn a_gpu_that_hangs_holds_up_no_other() {
    let scene = Scene::new().gpu(Gpu::default()).gpu(Gpu::default()).fault(Fault::hang("*").on(0));
    on_stage("a_gpu_that_hangs_holds_up_no_other", &scene, |stage| {
        let nvml = stage.nvml();
        let hung = std::thread::spawn(|| nvml.device_by_index(0).unwrap().power_usage().is_ok());
        let power = ("nvmlDeviceGetPowerUsage".to_owned(), Some(0));
        while !stage.counts().contains_key(&power) {
            std::thread::yield_now();
        }
        let healthy = nvml.device_by_index(1).unwrap();
        assert!(healthy.power_usage().is_ok());
        // A scene that changes is read, while the call hangs on in the one before.
        scene.clone().gpu(Gpu::default()).write(&stage.scene()).unwrap();
        assert_eq!(nvml.device_count().unwrap(), 3);
        assert!(healthy.memory_info().is_ok());
        assert!(!hung.is_finished());
    });
}

#[test]
fn a_scene_that_changes_is_played_and_a_broken_one_is_not() {
    let scene = Scene::new().gpu(Gpu::new("before")).gpu(Gpu::default());
    let test = "a_scene_that_changes_is_played_and_a_broken_one_is_not";
    on_stage(test, &scene, |stage| {
        let nvml = stage.nvml();
        let [first, second] = [0, 1].map(|index| nvml.device_by_index(index).unwrap());
        assert_eq!(first.name().unwrap(), "before");
        for name in ["after!", "again!", "third!"] {
            Scene::new().gpu(Gpu::new(name)).write(&stage.scene()).unwrap();
            assert_eq!(first.name().unwrap(), name);
        }
        assert!(matches!(second.name(), Err(NvmlError::GpuLost)), "it is gone");
        for broken in ["", "{\"gpus\": [", "{\"gpus\": [], \"gpu\": 1}"] {
            fs::write(stage.scene(), broken).unwrap();
            std::thread::sleep(Duration::from_millis(3));
            assert_eq!(first.name().unwrap(), "third!", "{broken:?}");
        }
        fs::remove_file(stage.scene()).unwrap();
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!(first.name().unwrap(), "third!");
        scene.write(&stage.scene()).unwrap();
        assert_eq!(first.name().unwrap(), "before");
    });
}

#[test]
fn counts_outlive_a_process_that_is_killed() {
    let test = "counts_outlive_a_process_that_is_killed";
    let scene = Scene::new().gpu(Gpu::default()).gpu(Gpu::default());
    if env::var_os("GPUMEM_MOCK_SCENE").is_some() {
        let nvml = Nvml::builder().lib_path(library().as_os_str()).init().unwrap();
        for (index, calls) in [(0, 3), (1, 5)] {
            let gpu = nvml.device_by_index(index).unwrap();
            (0..calls).for_each(|_| drop(gpu.power_usage()));
        }
        std::process::abort();
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let output = act(test, &scene, &folder);
    assert!(!output.status.success(), "it was to be killed");
    let counts = Stage { folder }.counts();
    let of = |function: &str, gpu| counts.get(&(function.to_owned(), gpu)).copied();
    assert_eq!(of("nvmlInit_v2", None), Some(1));
    assert_eq!(of("nvmlDeviceGetPowerUsage", Some(0)), Some(3));
    assert_eq!(of("nvmlDeviceGetPowerUsage", Some(1)), Some(5));
    assert_eq!(of("nvmlDeviceGetHandleByIndex_v2", Some(1)), Some(1));
    assert_eq!(of("nvmlDeviceGetTemperature", Some(0)), None);
}

#[test]
fn what_an_old_driver_lacks_cannot_be_found() {
    let mut scene = Scene::new().gpu(Gpu::default().process(Process::compute(1, GIB)));
    scene.driver = Driver::r470();
    on_stage("what_an_old_driver_lacks_cannot_be_found", &scene, |stage| {
        let old = library_without(&scene.driver.missing, &stage.folder).unwrap();
        let (old_library, whole) = (load(&old), load(library()));
        let has = |library: &Library, symbol: &str| {
            let found = unsafe { library.get::<unsafe extern "C" fn()>(symbol.as_bytes()) };
            found.is_ok()
        };
        for symbol in &scene.driver.missing {
            assert!(has(&whole, symbol) && !has(&old_library, symbol), "{symbol}");
        }
        for symbol in [
            "nvmlInit_v2",
            "nvmlErrorString",
            "nvmlDeviceGetMemoryInfo",
            "nvmlDeviceGetComputeRunningProcesses",
            "nvmlDeviceGetComputeRunningProcesses_v2",
            "nvmlDeviceGetVirtualizationMode",
        ] {
            assert!(has(&old_library, symbol), "{symbol}");
        }
        let nvml = Nvml::builder().lib_path(old.as_os_str()).init().unwrap();
        let gpu = nvml.device_by_index(0).unwrap();
        let memory = gpu.memory_info();
        assert!(matches!(memory, Err(NvmlError::FailedToLoadSymbol(_))), "{memory:?}");
        assert_eq!(gpu.running_compute_processes_v2().unwrap().len(), 1);
        // In the whole library the function is there, and says that the driver has none.
        let gpu = stage.nvml().device_by_index(0).unwrap();
        assert!(matches!(gpu.memory_info(), Err(NvmlError::FunctionNotFound)));

        assert!(library_without(&["nvmlNoSuchThing"], &stage.folder).is_err());
    });
}

#[test]
fn the_detailed_list_is_there_where_the_driver_has_it() {
    let scene = Scene::new().gpu(Gpu::default().process(Process::compute(7, GIB)));
    let test = "the_detailed_list_is_there_where_the_driver_has_it";
    on_stage(test, &scene, |stage| {
        let nvml = stage.nvml();
        let gpu = nvml.device_by_index(0).unwrap();
        let call = nvml.lib().nvmlDeviceGetRunningProcessDetailList.as_ref();
        let call = call.unwrap();
        let mut records: [sys::nvmlProcessDetail_v1_t; 2] = unsafe { std::mem::zeroed() };
        let mut list = sys::nvmlProcessDetailList_t {
            version: 0x0100_0018,
            mode: 0,
            numProcArrayEntries: 0,
            procArray: records.as_mut_ptr(),
        };
        let mut ask = |version, mode, room| {
            (list.version, list.mode, list.numProcArrayEntries) = (version, mode, room);
            let code = unsafe { call(gpu.handle(), &mut list) };
            (code, list.numProcArrayEntries)
        };
        assert_eq!(ask(0x0100_0018, 0, 2).0, 13, "most drivers have it not");
        let mut modern = scene.clone();
        modern.driver.missing.clear();
        modern.write(&stage.scene()).unwrap();
        assert_eq!(ask(0x0200_0018, 0, 2).0, 25);
        assert_eq!(ask(0x0100_0018, 9, 2).0, 2);
        assert_eq!(ask(0x0100_0018, 0, 0), (7, 1));
        assert_eq!(ask(0x0100_0018, 1, 0), (0, 0));
        assert_eq!(ask(0x0100_0018, 0, 2), (0, 1));
        assert_eq!((records[0].pid, records[0].usedGpuMemory), (7, GIB));
        assert_eq!(records[1].pid, 0);
        let sizes = nvml.lib().nvmlDeviceGetConfComputeMemSizeInfo.as_ref();
        let mut memory: sys::nvmlConfComputeMemSizeInfo_t = unsafe { std::mem::zeroed() };
        assert_eq!(unsafe { sizes.unwrap()(gpu.handle(), &mut memory) }, 0);
        assert_eq!(memory.unprotectedMemSizeKib, 141 << 20);
    });
}

#[test]
fn several_processes_count_in_one_file() {
    let test = "several_processes_count_in_one_file";
    let scene = Scene::new().gpu(Gpu::default());
    on_stage(test, &scene, |stage| {
        let mine = stage.nvml().device_by_index(0).unwrap();
        mine.power_usage().unwrap();
        if env::var_os("GPUMEM_MOCK_SECOND").is_none() {
            let second = Command::new(env::current_exe().unwrap())
                .args(["--exact", test])
                .env("GPUMEM_MOCK_SECOND", "1")
                .status();
            assert!(second.unwrap().success());
            let power = ("nvmlDeviceGetPowerUsage".to_owned(), Some(0));
            assert_eq!(stage.counts()[&power], 2);
        }
    });
}

#[test]
fn a_scene_that_makes_no_sense_is_refused() {
    for json in [
        "7",
        r#"{"gpuz": []}"#,
        r#"{"gpus": [{"pci": "somewhere"}]}"#,
        r#"{"gpus": [{"power": [[5, 1], [2, 1]]}]}"#,
        r#"{"gpus": [{"power": []}]}"#,
        r#"{"gpus": [{"power": "much"}]}"#,
        r#"{"faults": [{"function": "nvmlDeviceGetPowerUsages", "error": 1}]}"#,
        r#"{"driver": {"missing": ["nvmlNothing"]}}"#,
        r#"{"driver": {"process_record": 20}}"#,
        r#"{"gpus": [{"mig_devices": [{"index": 32}]}]}"#,
    ] {
        assert!(Scene::from_json(json.as_bytes()).is_err(), "{json}");
    }
    assert_eq!(Scene::from_json(b"{}").unwrap(), Scene::new());
}

/// Two GPU instances; the second has two compute instances, at the indices 2 and 3.
fn divided() -> Gpu {
    let part = |index, compute_instance| {
        let part = MigDevice {
            gpu_instance_id: 5,
            compute_instance_id: compute_instance,
            ..MigDevice::new(index, "1c.2g.20gb", 20 * GIB)
        };
        part.process(Process::compute(20 + index, 2 * GIB))
    };
    let whole = MigDevice::new(0, "1g.10gb", 10 * GIB).process(Process::compute(10, GIB));
    Gpu::new("NVIDIA H100 80GB HBM3")
        .total(80 * GIB)
        .mig_device(whole)
        .mig_device(part(2, 0))
        .mig_device(part(3, 1))
}

#[test]
fn mig_devices_have_handles_of_their_own() {
    let scene = Scene::new().gpu(divided()).gpu(Gpu::default());
    on_stage("mig_devices_have_handles_of_their_own", &scene, |stage| {
        let nvml = stage.nvml();
        let gpu = nvml.device_by_index(0).unwrap();
        assert_eq!(gpu.mig_device_count().unwrap(), 7);
        assert!(!gpu.mig_is_mig_device_handle().unwrap());
        let gap = gpu.mig_device_by_index(1).err();
        assert!(matches!(gap, Some(NvmlError::NotFound)), "{gap:?}");

        let part = gpu.mig_device_by_index(3).unwrap();
        assert!(part.mig_is_mig_device_handle().unwrap());
        assert_eq!(part.name().unwrap(), "NVIDIA H100 80GB HBM3 MIG 1c.2g.20gb");
        assert!(part.uuid().unwrap().starts_with("MIG-"));
        assert_eq!(part.mig_parent_device().unwrap().index().unwrap(), 0);
        let memory = part.memory_info().unwrap();
        assert_eq!((memory.total, memory.used), (20 * GIB, 2 * GIB));
        let attributes = part.attributes().unwrap();
        let slices = (attributes.compute_instance_slice_count, attributes.gpu_instance_slice_count);
        assert_eq!((slices, attributes.memory_size_mb), ((1, 2), 20 << 10));
        let instance = |call: unsafe extern "C" fn(sys::nvmlDevice_t, *mut c_uint) -> c_uint| {
            let mut id = 99;
            assert_eq!(unsafe { call(part.handle(), &mut id) }, 0);
            id
        };
        let lib = nvml.lib();
        let ids = (
            instance(*lib.nvmlDeviceGetGpuInstanceId.as_ref().unwrap()),
            instance(*lib.nvmlDeviceGetComputeInstanceId.as_ref().unwrap()),
        );
        assert_eq!(ids, (5, 1));
        let own = part.running_compute_processes().unwrap();
        let own = own.first().map(|row| (row.pid, row.gpu_instance_id, row.compute_instance_id));
        assert_eq!(own, Some((23, Some(5), Some(1))));
        let power = part.power_usage().err();
        assert!(matches!(power, Some(NvmlError::NotSupported)), "{power:?}");

        let all: Vec<u32> = bytes_of(&gpu).into_keys().collect();
        assert_eq!(all, [10, 22, 23], "the GPU's own list is of all of them");
        assert_eq!(gpu.memory_info().unwrap().used, 5 * GIB);
        assert!(gpu.attributes().is_err());
        assert_eq!(nvml.device_by_index(1).unwrap().mig_device_count().unwrap(), 0);

        let mut off = scene.clone();
        off.gpus[0].mig = Some(false);
        off.write(&stage.scene()).unwrap();
        let gone = part.memory_info().err();
        assert!(matches!(gone, Some(NvmlError::InvalidArg)), "{gone:?}");
        assert_eq!(gpu.mig_device_count().unwrap(), 0);
    });
}

#[test]
fn who_is_not_privileged_sees_mig_devices_and_not_the_whole() {
    let driver = Driver { privileged: false, ..Driver::default() };
    let scene = Scene::new().gpu(divided()).gpu(Gpu::default()).driver(driver);
    let test = "who_is_not_privileged_sees_mig_devices_and_not_the_whole";
    on_stage(test, &scene, |stage| {
        let nvml = stage.nvml();
        let gpu = nvml.device_by_index(0).unwrap();
        for answer in [gpu.memory_info().err(), gpu.running_compute_processes().err()] {
            assert!(matches!(answer, Some(NvmlError::NoPermission)), "{answer:?}");
        }
        let part = gpu.mig_device_by_index(0).unwrap();
        assert_eq!(part.memory_info().unwrap().used, GIB);
        assert_eq!(bytes_of(&part), BTreeMap::from([(10, Some(GIB))]));
        assert!(nvml.device_by_index(1).unwrap().memory_info().is_ok());
    });
}
