//! Reads the kernel's files about GPUs: device files and their holders, the kernel module, MPS, PCI.

pub(super) mod claims;
pub(super) mod gpu_files;
pub(super) mod holders;
pub(super) mod kernel_module;
pub(super) mod mapped_devices;
pub(super) mod mps;
pub(super) mod pci;
