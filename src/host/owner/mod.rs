//! Whom a process belongs to: cgroup, container, pod, job, unit and user, and which GPUs they have reserved.

pub(super) mod above;
pub(super) mod cgroup;
pub(super) mod names;
pub(super) mod place;
pub(super) mod reservations;
pub(super) mod users;
