//! Determines what a process belongs to (cgroup, container, pod, job, unit, user), and which GPUs are reserved for
//! jobs and containers.

pub(super) mod above;
pub(super) mod cgroup;
pub(super) mod names;
pub(super) mod place;
pub(super) mod reservations;
pub(super) mod users;
