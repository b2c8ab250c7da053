//! The owner of a process: cgroup, container, pod, job, unit and user, and the GPUs that these have reserved.

pub(super) mod above;
pub(super) mod cgroup;
pub(super) mod names;
pub(super) mod place;
pub(super) mod reservations;
pub(super) mod users;
