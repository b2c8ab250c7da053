//! A driver for tests: a shared library with NVML's C ABI that plays a scene file.
//!
//! The production code loads the library like the real driver. The crate contains the driver (cdylib) and the
//! interface for tests (rlib): the [`scene`], the [`Counts`] of calls, and the path of the [`library()`]. The crate
//! is never shipped.
//!
//! # Use
//!
//! `GPUMEM_MOCK_SCENE` contains the path of the scene file. The driver checks the file at most once per millisecond,
//! and reads the file again if it has changed. If reading fails, the previous scene remains. Replace the file
//! atomically with a rename, like [`Scene::write`](scene::Scene::write). `GPUMEM_MOCK_COUNTS` contains the path of a
//! file that counts calls; see [`counts`].
//!
//! ```
//! use mock_nvml::scene::{Fault, Gpu, Process, Scene};
//!
//! let scene = Scene::new()
//!     .gpu(
//!         Gpu::new("NVIDIA H200")
//!             .utilization([(0.0, 98.0), (60.0, 0.0)], 40)
//!             .unattributed(20 << 20)
//!             .process(Process::compute(4242, 20_u64 << 30).sm([(0.0, 95.0), (60.0, 0.0)])),
//!     )
//!     .gpu(Gpu::new("NVIDIA H200"))
//!     .fault(Fault::delay("*", 3000).on(1))
//!     .fault(Fault::error("nvmlDeviceGetMemoryInfo_v2", 15).on(0).after(10).times(2));
//!
//! let json = serde_json::to_vec(&scene)?;
//! assert_eq!(Scene::from_json(&json)?, scene);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Omitted keys have defaults. The same scene in JSON:
//!
//! ```
//! # let scene = br#"
//! {"gpus": [{"name": "NVIDIA H200",
//!            "utilization": {"gpu": [[0, 98], [60, 0]], "memory": 40},
//!            "memory": {"unattributed": 20971520},
//!            "processes": [{"pid": 4242, "type": "compute", "used_bytes": 21474836480,
//!                           "sm": [[0, 95], [60, 0]]}]},
//!           {"name": "NVIDIA H200", "fan": null}],
//!  "faults": [{"function": "*", "gpu": 1, "delay_ms": 3000},
//!             {"function": "nvmlDeviceGetMemoryInfo_v2", "gpu": 0, "error": 15,
//!              "after_calls": 10, "times": 2}]}
//! # "#;
//! # mock_nvml::scene::Scene::from_json(scene)?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # An older driver
//!
//! If a program calls a function in `driver.missing`, the driver returns `FUNCTION_NOT_FOUND`. A real old driver also
//! lacks the symbol. [`library_without`] copies the library without the symbols.
//!
//! # Modules
//!
//! `abi` is the table of symbols, and `driver` contains the steps that all calls share. `processes` and `utilization`
//! compute the process lists and the utilization samples.

mod abi;
mod answer;
pub mod counts;
mod driver;
mod library;
mod pci;
mod pointer;
mod processes;
pub mod scene;
mod utilization;
mod value;

pub use counts::Counts;
pub use library::{library, library_without};
