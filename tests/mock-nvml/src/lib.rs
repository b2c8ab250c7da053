//! A driver for tests: a shared library with NVML's C ABI, driven by a scene file.
//!
//! It is opened by the same code that opens the real one, so that production has no mock branch.
//! What lives here is the driver (the cdylib) and what a test needs to direct it (the rlib): the
//! [`scene`], the [`Counts`] of calls, and where the [`library()`] is. It never is part of what is
//! shipped, and it never judges what a monitor does with its answers.
//!
//! # Use
//!
//! `GPUMEM_MOCK_SCENE` names the scene. It is looked at again at most every millisecond and read
//! again where it has changed; one that cannot be read leaves the one before. Replace it in one step,
//! by a rename, as [`Scene::write`](scene::Scene::write) does. `GPUMEM_MOCK_COUNTS` names a file in
//! which calls are counted; see [`counts`].
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
//! The same by hand; whatever is left out takes a default:
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
//! `driver.missing` names functions that the driver lacks; calling one answers
//! `FUNCTION_NOT_FOUND`. A real old driver lacks the symbol itself: [`library_without`] copies the
//! library without it.
//!
//! # Where to go next
//!
//! `abi` is the table of symbols; `driver` the way that every call takes; `processes` and
//! `utilization` the two answers that need more than a line.

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
