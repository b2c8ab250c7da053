//! Whose a process is: its cgroup, container, pod, job, unit and user, and what it has reserved.

pub(super) mod above;
pub(super) mod cgroup;
pub(super) mod names;
pub(super) mod place;
pub(super) mod reservations;
pub(super) mod users;
