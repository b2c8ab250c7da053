//! GPUs as the kernel shows them: device files and who holds them, the kernel module, MPS, PCI.

pub(super) mod claims;
pub(super) mod gpu_files;
pub(super) mod holders;
pub(super) mod kernel_module;
pub(super) mod mapped_devices;
pub(super) mod mps;
pub(super) mod pci;
