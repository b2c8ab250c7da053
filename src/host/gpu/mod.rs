//! Reads the data about GPUs that the kernel provides: device files, mapped device files, the kernel module, MPS
//! daemons and PCI devices.

pub(super) mod claim_queue;
pub(super) mod claims;
pub(super) mod gpu_files;
pub(super) mod holders;
pub(super) mod kernel_module;
pub(super) mod mapped_devices;
pub(super) mod mps;
pub(super) mod pci;
