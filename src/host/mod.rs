//! What Linux knows of a process.
