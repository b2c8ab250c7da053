//! Reads data about the machine: clocks, rights, mounts, memory, and who can change files.

pub(super) mod available_memory;
pub(super) mod clocks;
pub(super) mod mounts;
pub(super) mod output_file;
pub(super) mod ownership;
pub(super) mod rights;
