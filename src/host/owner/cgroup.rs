//! Parses the container, pod, Slurm job or systemd unit of a process from `/proc/PID/cgroup`.
//!
//! The components of a path are parsed one after the other. The creator of a cgroup chooses the cgroup's name. Users
//! create the cgroups below `user@UID.service`, and a container's root user creates those inside the container. Their
//! names therefore do not prove a container, pod or job. If containers are nested, only the outermost is reported,
//! because it contains the others. Values that are missing from the path are `None`. In a cgroup namespace
//! (cgroup_namespaces(7)), all values can be `None` although the process runs in a container. `names` looks up the
//! names that belong to these ids.

use std::sync::Arc;

use crate::model::owners;
use crate::model::snapshot::{Container, Kubernetes, Slurm};

/// Maximum number of bytes read from `/proc/PID/cgroup`. The lines of more than a dozen hierarchies usually fit.
pub(in crate::host) const CGROUP_BYTES: usize = 32 << 10;

const PATH_BYTES: usize = 4096;

const NAME_BYTES: usize = 255;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CgroupPlace {
    /// Path in the hierarchy that names the container, pod or job. If none does, the path in the v2 hierarchy or,
    /// without v2, in the memory hierarchy. It is `None` if the path names no cgroup.
    pub cgroup: Option<Arc<str>>,
    pub container: Option<Arc<Container>>,
    pub kubernetes: Option<Arc<Kubernetes>>,
    pub slurm: Option<Arc<Slurm>>,
    /// systemd unit of the process: a service, or a scope for logins, terminal tabs and tmux panes. `None` for most
    /// processes in a container or Slurm job, whose unit belongs to the runtime or to systemd inside the container.
    pub systemd_unit: Option<Arc<str>>,
}

/// Parses `/proc/PID/cgroup`, which contains a line `number:controllers:path` for each hierarchy and may be truncated.
///
/// Uses the first hierarchy that names a container, pod or job, in the order v2, memory, pids, systemd's own, others.
/// On machines with v1 hierarchies, Slurm and Docker use only those.
pub fn parse_cgroup(bytes: &[u8]) -> CgroupPlace {
    let mut lines: Vec<(u8, &[u8])> = bytes
        .split_inclusive(|&byte| byte == b'\n')
        // A line without a newline may be truncated.
        .filter_map(|line| parse_line(line.strip_suffix(b"\n")?))
        .collect();
    lines.sort_by_key(|&(rank, _)| rank);

    let mut first = CgroupPlace::default();
    for (rank, path) in lines {
        let place = parse_path(path);
        if place.container.is_some() || place.kubernetes.is_some() || place.slurm.is_some() {
            return place;
        }
        if rank <= MEMORY && first.cgroup.is_none() {
            first.cgroup = place.cgroup;
        }
        if first.systemd_unit.is_none() {
            first.systemd_unit = place.systemd_unit;
        }
    }
    first
}

const MEMORY: u8 = 1;

fn parse_line(line: &[u8]) -> Option<(u8, &[u8])> {
    let mut fields = line.splitn(3, |&byte| byte == b':');
    let number = fields.next()?;
    let controllers = fields.next()?;
    let path = fields.next()?;
    let has = |name: &[u8]| controllers.split(|&byte| byte == b',').any(|c| c == name);
    let rank = match number {
        b"0" if controllers.is_empty() => 0,
        _ if has(b"memory") => MEMORY,
        _ if has(b"pids") => 2,
        _ if has(b"name=systemd") => 3,
        _ => 4,
    };
    Some((rank, path.strip_suffix(b" (deleted)").unwrap_or(path)))
}

fn parse_path(path: &[u8]) -> CgroupPlace {
    let mut found = FoundOwner::default();
    let mut before: &[u8] = b"";
    let mut has_name = false;
    for component in path.split(|&byte| byte == b'/') {
        if component.is_empty() {
            continue;
        }
        // `..` refers to a cgroup outside this cgroup namespace.
        has_name |= component != b"..";
        found.read_component(component, before);
        before = component;
    }
    let is_placed = found.container.is_some() || found.pod.is_some() || found.job.is_some();
    let unit = found.unit.filter(|_| !is_placed || found.unit_is_its_own);
    let name = |bytes| Some(text(bytes, NAME_BYTES));
    let container = found.container.map(|(runtime, id)| Container {
        runtime: runtime.map(Arc::from),
        id: name(id).map(|id| match runtime {
            // systemd escapes `-`.
            Some("nspawn") => id.replace("\\x2d", "-").into(),
            _ => id,
        }),
        ..Container::default()
    });
    let kubernetes = found.pod.map(|(uid, qos)| Kubernetes {
        pod_uid: name(uid).map(|uid| uid.replace('_', "-").into()),
        qos: qos.map(Arc::from),
        ..Kubernetes::default()
    });
    let slurm = found.job.map(|job| Slurm {
        job_id: name(job),
        step_id: found.step.and_then(name),
        ..Slurm::default()
    });
    CgroupPlace {
        cgroup: has_name.then(|| text(path, PATH_BYTES)),
        container: container.map(Arc::new),
        kubernetes: kubernetes.map(Arc::new),
        slurm: slurm.map(Arc::new),
        systemd_unit: unit.and_then(name),
    }
}

#[derive(Default)]
struct FoundOwner<'a> {
    container: Option<(Option<&'static str>, &'a [u8])>,
    pod: Option<(&'a [u8], Option<&'static str>)>,
    qos: Option<&'static str>,
    is_slurm: bool,
    job: Option<&'a [u8]>,
    step: Option<&'a [u8]>,
    unit: Option<&'a [u8]>,
    /// Whether the unit was created for the container, so that stopping the unit stops the container.
    unit_is_its_own: bool,
    is_users: bool,
    /// Whether a component was parsed that is neither a slice nor a user's systemd. The components after it do not
    /// belong to systemd's tree.
    has_left_systemd: bool,
}

impl<'a> FoundOwner<'a> {
    fn read_component(&mut self, component: &'a [u8], before: &'a [u8]) {
        self.take_unit(component);
        if self.is_users || self.container.is_some() {
            return;
        }
        self.take_pod(component, before);
        self.take_slurm(component, before);
        if let Some((runtime, id)) = container(component) {
            // The preceding component may name the runtime, but not for a pod, whose cgroup can belong to any runtime.
            let of_folder = || owners::runtime_of_folder(str::from_utf8(before).ok()?);
            let runtime = runtime.or_else(of_folder);
            self.container = Some((runtime, id));
            // Podman was configured to create this cgroup inside the service that started Podman.
            self.unit_is_its_own = component.starts_with(b"libpod-payload-");
        } else if let Some(name) = lxc(component, before) {
            self.container = Some((Some("lxc"), name));
        } else if let Some(name) = nspawn(component) {
            self.container = Some((Some("nspawn"), name));
        }
    }

    /// Parses a component of systemd's tree, which consists of slices that contain units. Names below a unit do not
    /// belong to the tree, except below `user@UID.service`, which contains the tree of the user's systemd.
    fn take_unit(&mut self, component: &'a [u8]) {
        if self.has_left_systemd || component.ends_with(b".slice") {
            return;
        }
        let is_unit = component.ends_with(b".service") || component.ends_with(b".scope");
        let is_manager = component.starts_with(b"user@") && component.ends_with(b".service");
        // A user's systemd itself runs in a scope with this name.
        if is_unit && !(self.unit.is_some() && component == b"init.scope") {
            self.unit = Some(component);
        }
        self.has_left_systemd = !is_manager;
        self.is_users |= is_manager;
    }

    /// Parses a component of the kubelet's tree: `kubepods`, the QoS class unless it is guaranteed, and the pod.
    /// Inside the cgroup namespace of a pod, paths are relative to gpumem's cgroup, such as `/../../podUID/ID` and
    /// `/../../../burstable/podUID/ID`.
    fn take_pod(&mut self, component: &'a [u8], before: &[u8]) {
        let is_beside_own = before == b"..";
        let name = component.split(|&byte| byte == b':').next();
        let name = name.unwrap_or_default();
        let name = name.strip_suffix(b".slice").unwrap_or(name);
        if name == b"kubepods" || name.ends_with(b"-kubepods") {
            self.qos = Some("guaranteed");
        }
        if self.qos.is_none() && contains(name, b"kubepods-pod") {
            self.qos = Some("guaranteed");
        }
        for (class, in_name) in
            [("besteffort", &b"kubepods-besteffort"[..]), ("burstable", b"kubepods-burstable")]
        {
            let is_below = name == class.as_bytes() && (before == b"kubepods" || is_beside_own);
            if is_below || contains(name, in_name) {
                self.qos = Some(class);
            }
        }
        if (self.qos.is_some() || is_beside_own)
            && let Some(uid) = pod_uid(name)
        {
            self.pod = Some((uid, self.qos));
        }
    }

    /// Parses a component of Slurm's tree: `slurmstepd.scope` or `slurm/uid_N`, the name of the node if several Slurm
    /// nodes share a machine, the job, and the step.
    fn take_slurm(&mut self, component: &'a [u8], before: &[u8]) {
        let is_own = |name: &[u8]| name == b"slurm" || name.starts_with(b"slurm_");
        if component == b"slurmstepd.scope"
            || component.ends_with(b"_slurmstepd.scope")
            || (is_own(before) && component.strip_prefix(b"uid_").is_some_and(is_number))
        {
            self.is_slurm = true;
        } else if self.is_slurm && self.job.is_none() {
            let number = component.strip_prefix(b"job_").filter(|id| is_number(id));
            self.job = number.or(Some(component).filter(|id| is_sluid(id)));
            self.is_slurm = self.job.is_some();
        } else if self.is_slurm && self.step.is_none() {
            self.step = component.strip_prefix(b"step_").filter(|id| is_step(id));
        }
    }
}

/// Parses the id and, if known, the runtime of a container from a component such as `ID`, `docker-ID.scope` or
/// `….slice:cri-containerd:ID`. Returns `None` for the cgroup of a monitor (`crio-conmon-ID`).
fn container(component: &[u8]) -> Option<(Option<&'static str>, &[u8])> {
    let component = component.strip_suffix(b".scope").unwrap_or(component);
    let (before, id) = component.split_at_checked(component.len().checked_sub(64)?)?;
    if !id.iter().all(|&byte| is_lower_hex(byte)) {
        return None;
    }
    let Some(before) = before.strip_suffix(b"-").or_else(|| before.strip_suffix(b":")) else {
        return before.is_empty().then_some((None, id));
    };
    let prefix = before.rsplit(|&byte| byte == b':').next()?;
    let runtime = owners::runtime_of_cgroup(str::from_utf8(prefix).ok()?)?;
    Some((Some(runtime), id))
}

/// Parses the name of an LXC container from `lxc/NAME`, `lxc.payload/NAME` or `lxc.payload.NAME`.
fn lxc<'a>(component: &'a [u8], before: &[u8]) -> Option<&'a [u8]> {
    match before {
        b"lxc" | b"lxc.payload" => Some(component),
        _ => component.strip_prefix(b"lxc.payload.").filter(|name| !name.is_empty()),
    }
}

/// Parses the name of a systemd-nspawn machine from `machine-NAME.scope` or `systemd-nspawn@NAME.service`. Returns
/// `None` for the scopes of libvirt's virtual machines, which have similar names.
fn nspawn(component: &[u8]) -> Option<&[u8]> {
    let of_scope = || component.strip_prefix(b"machine-")?.strip_suffix(b".scope");
    let of_unit = || {
        let name = component.strip_prefix(b"systemd-nspawn@")?;
        name.strip_suffix(b".service")
    };
    let name = of_scope().or_else(of_unit)?;
    let is_virtual = [&b"qemu"[..], b"lxc\\x2d"].iter().any(|kind| name.starts_with(kind));
    (!name.is_empty() && !is_virtual).then_some(name)
}

/// Parses the uid at the end of a pod's cgroup name, such as `pod…` or `kubepods-burstable-pod…`. The uid has 32
/// hexadecimal digits. Unless the pod is static, the digits are in groups separated by `-`, or by `_` in systemd's
/// tree.
fn pod_uid(name: &[u8]) -> Option<&[u8]> {
    let uid_of = |length: usize| {
        let (before, uid) = name.split_at_checked(name.len().checked_sub(length)?)?;
        let before = before.strip_suffix(b"pod")?;
        (before.is_empty() || before.ends_with(b"-")).then_some(uid)
    };
    let is_grouped = |uid: &&[u8]| {
        uid.iter().enumerate().all(|(at, &byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-' || byte == b'_',
            _ => is_lower_hex(byte),
        })
    };
    let is_plain = |uid: &&[u8]| uid.iter().all(|&byte| is_lower_hex(byte));
    uid_of(36).filter(is_grouped).or_else(|| uid_of(32).filter(is_plain))
}

/// Returns whether `id` is a job id as used by Slurm 26.05 and later: `s` and 13 digits of Crockford's base 32.
fn is_sluid(id: &[u8]) -> bool {
    let is_digit = |byte: &u8| {
        byte.is_ascii_digit()
            || (byte.is_ascii_uppercase() && !matches!(byte, b'I' | b'L' | b'O' | b'U'))
    };
    id.len() == 14 && id.starts_with(b"s") && id[1..].iter().all(is_digit)
}

/// Returns whether `id` is a Slurm step: a number, two numbers for a component of a heterogeneous job, or a special
/// name.
fn is_step(id: &[u8]) -> bool {
    matches!(id, b"batch" | b"extern" | b"interactive")
        || id.splitn(2, |&byte| byte == b'+').all(is_number)
}

fn is_number(text: &[u8]) -> bool {
    (1..=20).contains(&text.len()) && text.iter().all(u8::is_ascii_digit)
}

fn is_lower_hex(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'a'..=b'f')
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn text(bytes: &[u8], limit: usize) -> Arc<str> {
    if bytes.len() <= limit {
        return String::from_utf8_lossy(bytes).into();
    }
    format!("{}…", String::from_utf8_lossy(&bytes[..limit])).into()
}

#[cfg(test)]
mod tests;
