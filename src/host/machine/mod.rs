//! The machine: clocks, rights, mounts, memory, and who owns a path.

pub(super) mod available_memory;
pub(super) mod clocks;
pub(super) mod mounts;
pub(super) mod output_file;
pub(super) mod ownership;
pub(super) mod rights;
