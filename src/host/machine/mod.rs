//! Reads data about the machine: clocks, rights, mounts, memory, and the owners of paths.

pub(super) mod available_memory;
pub(super) mod clocks;
pub(super) mod mounts;
pub(super) mod output_file;
pub(super) mod ownership;
pub(super) mod rights;
