//! A process in a snapshot: facts from Linux, where it runs, and its notebook.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use super::process_name::name_of_parent;
use super::program::is_spawned;
use super::server_name::is_worker_command;
use super::time::Time;
use crate::units::Bytes;

/// A process as reported by Linux. Its identity is (boot_id, pid, start_ticks), never the pid alone. start_ticks and
/// start_time are absent if /proc does not list the process, or if its entry might belong to another process.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Process {
    /// Process ID.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: Option<u64>,
    /// Start time on the wall clock; changes when the clock is set.
    pub start_time: Option<Time>,
    /// Why the process with this PID could not be identified; absent if identified.
    pub unresolved: Option<Arc<str>>,
    /// Details of the process that last had this PID, if NVML has listed the PID ever since and no process has the
    /// PID now. For display only; not an identity.
    pub last_known: Option<Arc<LastKnown>>,
    /// PID of the parent.
    pub ppid: Option<u32>,
    /// Process group ID.
    pub process_group: Option<u32>,
    /// Session ID.
    pub session: Option<u32>,
    /// Whether the parent is PID 1 of the namespace or a child subreaper.
    pub parent_is_reaper: Option<bool>,
    /// Whether the process group leader, whose PID is the group ID, still exists.
    pub group_leader_alive: Option<bool>,
    /// Whether the session leader, whose PID is the session ID, still exists.
    pub session_leader_alive: Option<bool>,
    /// State letter in /proc: R, S, D, T, t, Z, X or I; absent if /proc does not list the PID.
    pub state: Option<char>,
    /// State of a remaining thread, if the first thread has exited; `D` only if all remaining threads are in `D`.
    pub left_thread_state: Option<char>,
    /// Kernel function in which the process sleeps uninterruptibly (`/proc/PID/wchan`); absent if not readable.
    pub wchan: Option<Arc<str>>,
    /// PID in the process's own PID namespace, if that namespace is not the snapshot's.
    pub namespace_pid: Option<u32>,
    /// The process that started this process: the parent, unless the parent only adopted the process.
    pub parent: Option<Arc<Parent>>,
    /// The nearest ancestor that manages programs: a supervisor, which restarts them, or a scheduler's daemon. An
    /// ancestor that verifiably runs as root takes precedence over nearer ancestors. The search stops at logins,
    /// terminals and notebook servers.
    pub supervisor: Option<Arc<Parent>>,
    /// Whether the supervisor verifiably runs as root on this machine, outside containers.
    pub supervisor_is_roots: Option<bool>,
    /// Real user ID. For a process in a user namespace that an ordinary user created (a rootless container), the ID
    /// of that user.
    pub uid: Option<u32>,
    /// User name.
    pub user: Option<Arc<str>>,
    /// Process name in the kernel (`comm`, field 2 of `/proc/PID/stat`); the only name of a process without argv.
    pub comm: Option<Arc<str>>,
    /// argv, limited in length; the last argument ends with `…` if it was cut. Secrets are masked (`***`).
    pub command: Option<Arc<[Arc<str>]>>,
    /// Environment variables from a fixed list without secrets. They show which job or container the process belongs
    /// to and how it allocates memory. Absent if the environment is not readable or was overwritten.
    pub environment: Option<Arc<BTreeMap<Arc<str>, Arc<str>>>>,
    /// Path of the executable (`/proc/PID/exe`).
    pub executable: Option<Arc<str>>,
    /// Whether root owns the executable, no other user can write to it, and the environment preloads no library.
    /// Checked only for executables with the name of a program that gpumem never kills.
    pub executable_is_roots: Option<bool>,
    /// Name of the working directory (`/proc/PID/cwd`) without its path, with secrets masked as in argv. Absent if
    /// not readable.
    pub working_directory: Option<Arc<str>>,
    /// CPU use since the last snapshot, in percent; one core is 100.
    #[schemars(range(min = 0))]
    pub cpu_percent: Option<f64>,
    /// Total CPU time, in seconds.
    #[schemars(range(min = 0))]
    pub cpu_seconds: Option<f64>,
    /// Total time that the first thread was runnable but waited for a CPU, in seconds (`/proc/PID/schedstat`).
    #[schemars(range(min = 0))]
    pub cpu_wait_seconds: Option<f64>,
    /// Resident host memory, in bytes.
    pub rss_bytes: Option<u64>,
    /// Number of threads.
    pub threads: Option<u32>,
    /// Controlling terminal: `"pts/3"`.
    pub terminal: Option<Arc<str>>,
    /// Whether the process has a listening TCP or Unix stream socket.
    pub listening: Option<bool>,
    /// Total bytes read and written by read(2), write(2) and similar calls, plus bytes transferred over
    /// TCP connections. Read every 30 seconds; absent if not readable.
    pub io_bytes: Option<u64>,
    /// Addresses that the process listens on: `tcp:127.0.0.1:8000`, `tcp:[::]:8000`, `unix:/run/x.sock`,
    /// `unix:@abstract`. TCP addresses come first, sorted by port. The number of addresses is limited. Absent if
    /// there are none, or if unknown.
    pub listening_on: Option<Arc<[Arc<str>]>>,
    /// Addresses in `listening_on` to which gpumem has observed connections from processes outside the job. Empty if
    /// there were none; absent if unknown, as for Unix sockets.
    pub client_addresses: Option<Arc<[Arc<str>]>>,
    /// Listening addresses of processes on this machine to which the process is connected. They are written as in the
    /// `listening_on` of those processes. Absent if unknown.
    pub connected_to: Option<Arc<[Arc<str>]>>,
    /// Related processes that listen for connections; empty if there are none, absent if not checked.
    pub listening_relatives: Option<Arc<[Relative]>>,
    /// Activity of the process's descendants and of its process group; absent if not checked.
    pub descendants: Option<Arc<Descendants>>,
    /// GPU device files that the process has open; absent if its file descriptors are not readable.
    pub gpu_files: Option<Arc<[Arc<str>]>>,
    /// Framework that allocates the process's GPU memory (`pytorch`, `tensorflow`, `jax` …), according to the mapped
    /// libraries.
    pub framework: Option<Arc<str>>,
    /// Version of the framework, if the name of a mapped library contains it: `"2"`.
    pub framework_version: Option<Arc<str>>,
    /// Other loaded libraries: other frameworks, `deepspeed`, `nccl`, `ray`. Absent if none is known.
    pub libraries: Option<Arc<[Arc<str>]>>,
    /// cgroup path in the unified hierarchy, or else in the hierarchy of the memory controller.
    pub cgroup: Option<Arc<str>>,
    /// Whether the process's cgroup is frozen, for example by `docker pause` or `systemctl freeze`.
    /// Read every 30 seconds; absent if unknown, as with cgroup v1.
    pub frozen: Option<bool>,
    /// The container that the process runs in.
    pub container: Option<Arc<Container>>,
    /// The Kubernetes pod that the process runs in.
    pub kubernetes: Option<Arc<Kubernetes>>,
    /// The Slurm job that the process belongs to.
    pub slurm: Option<Arc<Slurm>>,
    /// The systemd unit that the process belongs to.
    pub systemd_unit: Option<Arc<str>>,
    /// Details of the Jupyter kernel, if the process is a kernel.
    pub jupyter: Option<Arc<Jupyter>>,
    /// The last request of gpumem to release memory; absent if the audit log of the user who took the snapshot
    /// contains none.
    pub asked: Option<Arc<AskedRelease>>,
    /// State of the GPU memory if gpumem has moved it; absent if no journal that the user who took the snapshot can
    /// read mentions the process.
    pub park: Option<Arc<ParkMark>>,
}

/// State of a process whose GPU memory gpumem has moved to host memory, according to gpumem's journal.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct ParkMark {
    /// Where the GPU memory is.
    pub state: ParkState,
    /// Time of the last step.
    pub since: Time,
    /// Memory that was moved, in bytes.
    pub bytes: u64,
    /// Whether gpumem has ever begun to move the memory back. Killing such a process can hang the machine.
    pub was_restored: bool,
}

/// Where the GPU memory of a process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParkState {
    /// On the GPU. The process runs as if it had never been parked.
    Running,
    /// In host memory.
    Parked,
    /// On the GPU, but CUDA calls block.
    Locked,
    /// The driver lost the CUDA state. Only ending the process helps.
    Lost,
    /// A helper is moving the memory.
    InProgress,
    /// The helper died or did not learn the state, so the driver must be asked.
    Unknown,
}

impl ParkMark {
    /// Describes the state, for example `parked 38.0 GiB (host memory)`.
    pub fn describe(&self) -> String {
        match self.state {
            ParkState::Running => "restored".to_owned(),
            ParkState::Parked => format!("parked {} (host memory)", Bytes(self.bytes)),
            ParkState::Locked => "locked by an interrupted park".to_owned(),
            ParkState::Lost => "CUDA state lost by a park".to_owned(),
            ParkState::InProgress => "being parked or restored".to_owned(),
            ParkState::Unknown => "park interrupted".to_owned(),
        }
    }
}

/// Period of a request to release memory. Activity in this period is not counted as the process's own work.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct AskedRelease {
    /// Start of the request.
    pub since: Time,
    /// End of the request; the snapshot's time while the request is in progress.
    pub until: Time,
    /// Last activity before the request, as reported by the notebook server; absent if there is no
    /// server, or if unknown.
    pub last_activity: Option<Time>,
}

/// Maximum difference, in seconds, between the clock of a notebook server and the clock of the audit log.
const ASKED_SLACK_SECONDS: f64 = 2.0;

impl AskedRelease {
    pub fn explains(&self, time: Time) -> bool {
        self.overlaps(time, time, 0.0)
    }

    /// Returns whether the period from `since` to `until` overlaps the request or its effects, which can appear up to
    /// `later_seconds` after the request.
    pub fn overlaps(&self, since: Time, until: Time, later_seconds: f64) -> bool {
        let begin = self.since.plus_seconds(-ASKED_SLACK_SECONDS);
        let end = self.until.plus_seconds(ASKED_SLACK_SECONDS + later_seconds);
        begin <= until && since <= end
    }
}

impl Process {
    /// Returns the last activity of a notebook kernel, according to its server. Ignores activity that gpumem's own
    /// release request caused.
    pub fn last_activity(&self) -> Option<Time> {
        let last = self.jupyter.as_deref()?.last_activity?;
        match self.asked.as_deref().filter(|asked| asked.explains(last)) {
            Some(asked) => asked.last_activity,
            None => Some(last),
        }
    }

    pub fn identity(&self) -> Identity {
        let start = match (self.start_ticks, self.start_time) {
            (Some(ticks), _) => Start::Ticks(ticks),
            (None, Some(time)) => Start::Time(time),
            (None, None) => Start::Unknown,
        };
        Identity { pid: self.pid, start }
    }

    /// Returns the process as it was before it exited, if it has exited but NVML still lists it. Otherwise, returns the
    /// process unchanged.
    pub fn while_alive(&self) -> Cow<'_, Self> {
        self.ended().map_or(Cow::Borrowed(self), |ended| {
            let (start_ticks, start_time) = (ended.start_ticks, ended.start_time);
            Cow::Owned(Self { pid: self.pid, start_ticks, start_time, ..ended.as_named() })
        })
    }

    /// Returns the last known facts about a process that has exited but is still listed by NVML. Returns `None` if
    /// there are none, if /proc lists the pid, or if the pid may belong to another process.
    pub fn ended(&self) -> Option<&LastKnown> {
        let is_ended = self.unresolved.is_none() && !self.identity().is_certain();
        self.last_known.as_deref().filter(|_| is_ended)
    }

    /// Returns whether only the first thread has exited: the state is zombie, but other threads are still running
    /// (after `pthread_exit` in `main`, or because they wait for a driver).
    pub fn has_threads_left(&self) -> bool {
        self.state == Some('Z') && self.threads.is_some_and(|threads| threads > 1)
    }

    /// Returns whether all threads have exited, but the parent has not reaped the process. Such a process does not
    /// react to signals.
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, Some('Z' | 'X' | 'x')) && !self.has_threads_left()
    }

    /// Describes the parent that must reap the zombie, such as `its parent python train.py (4100)`.
    pub fn parent_words(&self) -> String {
        let Some(ppid) = self.ppid else {
            return "its parent".to_owned();
        };
        let parent = self.parent.as_deref().filter(|parent| parent.pid == ppid);
        match parent.and_then(name_of_parent) {
            Some(name) => format!("its parent {name} ({ppid})"),
            None => format!("its parent ({ppid})"),
        }
    }

    /// Returns the state of the process or, if its first thread has exited, of its other threads. If the state of these
    /// threads is unknown, assumes uninterruptible sleep, because they would otherwise have exited as well. A process
    /// in a frozen cgroup is reported as stopped, although its state in /proc is sleeping.
    pub fn live_state(&self) -> Option<char> {
        match self.has_threads_left() {
            true => self.left_thread_state.or(Some('D')),
            false if self.frozen == Some(true) => Some('T'),
            false => self.state,
        }
    }

    /// Returns the mark of a process that gpumem has begun to park and not fully restored. The memory of such a process
    /// may not be on the GPU.
    pub fn parked(&self) -> Option<&ParkMark> {
        self.park.as_deref().filter(|mark| mark.state != ParkState::Running)
    }

    pub fn is_stopped(&self) -> bool {
        self.live_state() == Some('T')
    }

    /// Returns whether the parent of the process and the leader of its process group are both gone. Returns false for
    /// a group leader, or if a fact is unknown.
    pub fn is_left_behind(&self) -> bool {
        self.parent_is_reaper == Some(true)
            && self.group_leader_alive == Some(false)
            && self.process_group != Some(self.pid)
    }

    /// Returns the pid of the notebook kernel that forked this process, if any. A forked process has the same command
    /// line as the kernel, including the connection file, which is different for each kernel.
    pub fn kernel_forked_from(&self) -> Option<u32> {
        let parent = self.parent.as_deref()?;
        let is_same = parent.command.is_some() && parent.command == self.command;
        (is_same && self.jupyter.as_deref()?.connection_file.is_some()).then_some(parent.pid)
    }

    /// Returns whether the server or editor of a notebook kernel is proven to be gone. VS Code is the parent of its
    /// kernels, so an adopted kernel has lost VS Code.
    pub fn has_lost_server(&self) -> bool {
        let is_adopted = self.parent_is_reaper == Some(true);
        self.jupyter.as_ref().is_some_and(|jupyter| {
            jupyter.server_alive == Some(false)
                || (is_adopted && jupyter.application.as_deref() == Some("vscode"))
        })
    }

    /// Returns whether the program that started the process is proven to be gone, even if the group leader is alive.
    ///
    /// The starter of a notebook kernel is its server, and the starter of a worker of an inference server is the front
    /// end. Processes that Python's `multiprocessing` spawned also have a starter. A starter that is the first process
    /// of its container looks like a reaper, but it leads the process group of its workers or is recorded as their
    /// parent.
    pub fn has_lost_starter(&self) -> bool {
        let group = self.process_group;
        let is_adopted = |ppid: Option<u32>, by_reaper: Option<bool>| {
            by_reaper == Some(true) && group.is_some() && ppid.is_some() && ppid != group
        };
        let parent = self.parent.as_deref();
        // When the front end exits, both the engine and its workers have lost their starter.
        let with_parent = || {
            parent.is_some_and(|parent| {
                is_adopted(parent.ppid, parent.parent_is_reaper)
                    && is_worker_command(parent.command.as_deref().unwrap_or_default())
            })
        };
        let is_adopted = is_adopted(self.ppid, self.parent_is_reaper);
        let leads_its_group = group == Some(self.pid);
        let may_be_below_its_starter = parent.is_some_and(|parent| Some(parent.pid) == self.ppid);
        self.has_lost_server()
            || (is_adopted && !may_be_below_its_starter || with_parent())
                && self.is_worker_of_a_server()
            || is_adopted
                && !leads_its_group
                && is_spawned(self.command.as_deref().unwrap_or_default())
    }
}

/// Last known details of a process that has exited but is still listed by NVML.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct LastKnown {
    /// Start time in clock ticks since boot.
    pub start_ticks: Option<u64>,
    /// Start time as wall-clock time.
    pub start_time: Option<Time>,
    /// User name of the owner.
    pub user: Option<Arc<str>>,
    /// Process name (`comm`).
    pub comm: Option<Arc<str>>,
    /// argv, limited in length; ends with `…` if it was cut.
    pub command: Option<Arc<[Arc<str>]>>,
}

impl LastKnown {
    pub fn as_named(&self) -> Process {
        Process {
            user: self.user.clone(),
            comm: self.comm.clone(),
            command: self.command.clone(),
            ..Process::default()
        }
    }
}

/// The process that started another process: the parent, unless the parent only adopted the process. For a worker of
/// an inference server, also a parent that is the first process of a container, which either started or adopted the
/// worker.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Parent {
    /// Process ID.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: Option<u64>,
    /// Process name (`comm`).
    pub comm: Option<Arc<str>>,
    /// argv, limited in length; ends with `…` if it was cut.
    pub command: Option<Arc<[Arc<str>]>>,
    /// PID of the parent of this process, if this process is also a worker of an inference server.
    pub ppid: Option<u32>,
    /// Whether the process with the PID `ppid` is an init program that adopts orphans.
    pub parent_is_reaper: Option<bool>,
}

/// A related process that listens for connections.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct Relative {
    /// Process ID.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: Option<u64>,
    /// Relation to the process: `ancestor` in the same session, `descendant`, or `cgroup` for another process of the
    /// same service or container; `other` stands for a relation from a later version.
    #[schemars(with = "String")]
    pub relation: Relation,
    /// argv, limited in length, with secrets masked; absent if there is none.
    pub command: Option<Arc<[Arc<str>]>>,
    /// Name of the working directory, as in [`Process::working_directory`].
    pub working_directory: Option<Arc<str>>,
    /// Addresses that the process listens on, as in [`Process::listening_on`].
    pub listening_on: Arc<[Arc<str>]>,
    /// Addresses with clients, as in [`Process::client_addresses`].
    pub client_addresses: Option<Arc<[Arc<str>]>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// The parent, or a more distant ancestor in the same session.
    Ancestor,
    Descendant,
    /// Another process of the same service or container.
    Cgroup,
    #[serde(other)]
    Other,
}

/// Combined activity of a process's descendants, found through parent links, and of the other processes in its process
/// group. Membership is read every five seconds, and usage in each sample.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Descendants {
    /// Number of descendants; absent if unknown.
    pub count: Option<u32>,
    /// CPU use of all these processes since the last snapshot, including children that have exited since,
    /// in percent; one core is 100.
    #[schemars(range(min = 0))]
    pub cpu_percent: Option<f64>,
    /// Total CPU time of all these processes, in seconds; never decreases. Absent if unknown.
    #[schemars(range(min = 0))]
    pub cpu_seconds: Option<f64>,
    /// Total bytes read and written by running processes with read(2), write(2) and similar calls. Read every 30
    /// seconds; absent if not read.
    pub io_bytes: Option<u64>,
    /// PIDs of the descendants that are in this snapshot, in ascending order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listed: Vec<u32>,
}

/// The container of a process, according to the process's cgroup or the container's monitor program. If only a
/// separate PID namespace is known, all fields are absent.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Container {
    /// Container runtime: `docker`, `containerd`, `cri-o`, `podman`, `nerdctl`, `runc`, `crun`, `lxc`, `nspawn` …
    pub runtime: Option<Arc<str>>,
    /// containerd namespace: `k8s.io`, `moby`, `default`. Absent if unknown.
    pub namespace: Option<Arc<str>>,
    /// Name, or else ID, of the user who created a rootless container; absent if root created the container. The
    /// `name` of a rootless container is omitted, because the user can choose it.
    pub user: Option<Arc<str>>,
    /// Container ID, 64 hexadecimal digits; for LXC, systemd-nspawn and standalone runc, the container's name.
    pub id: Option<Arc<str>>,
    /// Container name; absent if the runtime's files are not readable.
    pub name: Option<Arc<str>>,
}

/// A Kubernetes pod. Its UID and QoS class come from the cgroup, and its names from files of the kubelet and the
/// runtime, never from the process's environment.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Kubernetes {
    /// UID of the pod.
    pub pod_uid: Option<Arc<str>>,
    /// Name of the pod.
    pub pod_name: Option<Arc<str>>,
    /// Namespace of the pod.
    pub namespace: Option<Arc<str>>,
    /// Name of the container within the pod.
    pub container_name: Option<Arc<str>>,
    /// Quality-of-service class: `guaranteed`, `burstable`, `besteffort`.
    pub qos: Option<Arc<str>>,
}

/// A Slurm job and step. The IDs are text, because newer Slurm versions use IDs that are not numbers.
///
/// The IDs come from the kernel: from the cgroup, or from a step daemon (`slurmstepd`) among the ancestors. The
/// environment is not sufficient, because processes outside the job can inherit or copy it.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Slurm {
    /// Job ID, as text; for an array task, the task's own job ID.
    pub job_id: Option<Arc<str>>,
    /// Step ID, as text.
    pub step_id: Option<Arc<str>>,
    /// Name of the job.
    pub job_name: Option<Arc<str>>,
    /// Job ID of the array to which the job belongs. The last task that starts has the same job ID, but Slurm
    /// commands apply the ID to the whole array.
    pub array_job_id: Option<Arc<str>>,
    /// Index of the task in its array, as text.
    pub array_task_id: Option<Arc<str>>,
    /// Whether the job has no steps left on this machine: none of its step daemons is running. Absent if unknown.
    pub over: Option<bool>,
}

impl Slurm {
    /// Returns the job id as Slurm's commands print it: `812`, or `3_4` for a task of a job array.
    pub fn id(&self) -> Option<String> {
        match (&self.array_job_id, &self.array_task_id) {
            (Some(array), Some(task)) => Some(format!("{array}_{task}")),
            _ => self.job_id.as_deref().map(str::to_owned),
        }
    }
}

/// A Jupyter kernel, with the information from its server.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Jupyter {
    /// Program that runs the kernel: `jupyter`, `jupyterhub`, `voila`, `kernelgateway`, `vscode`, `papermill`,
    /// `nbconvert`, `marimo`, `colab`, `databricks`, `jupyter-console`, `jupyter-qtconsole`, `positron`, `spyder`; `ipykernel` if
    /// a person started the kernel by hand; `batch` if a program without a server runs the kernel.
    pub application: Option<Arc<str>>,
    /// ID of the kernel.
    pub kernel_id: Option<Arc<str>>,
    /// Path of the kernel's connection file.
    pub connection_file: Option<Arc<str>>,
    /// URL of the kernel's server.
    pub server_url: Option<Arc<str>>,
    /// PID of the server.
    pub server_pid: Option<u32>,
    /// Whether the process that started the kernel, usually its server, still exists; `false` only if the process is
    /// known to have exited.
    pub server_alive: Option<bool>,
    /// Directory that the server serves.
    pub server_root: Option<Arc<str>>,
    /// Why the server could not be queried, and what to do about it.
    pub server_error: Option<Arc<str>>,
    /// `true` while gpumem is still reading the kernel's files or querying its server, so that the next snapshot can
    /// contain more fields. Absent afterwards.
    pub asking: Option<bool>,
    /// Path of the notebook, relative to the server's root if there is a server; otherwise as much of the path as is
    /// known.
    pub notebook_path: Option<Arc<str>>,
    /// Execution state: `idle`, `busy` …
    pub execution_state: Option<Arc<str>>,
    /// Time of the last activity, as reported by the server.
    pub last_activity: Option<Time>,
    /// Number of open connections.
    pub connections: Option<u32>,
}

impl Jupyter {
    pub fn under_way(&self) -> Option<&'static str> {
        // The server's URL is in the kernel's files. If the URL is known, the files have been read.
        (self.asking == Some(true)).then_some(match self.server_url {
            Some(_) => "asking its server",
            None => "reading its files",
        })
    }

    /// Returns whether a program runs the whole notebook like a script.
    pub fn is_batch(&self) -> bool {
        let application = self.application.as_deref();
        matches!(application, Some("papermill" | "nbconvert" | "nbclient" | "batch"))
    }

    /// Returns whether a server may know the kernel's activity and may restart the kernel when it exits. Returns false
    /// for kernels of editors, consoles and batch programs, and for `python -m ipykernel`.
    pub fn is_served(&self) -> bool {
        let application = self.application.as_deref();
        let is_by_itself = matches!(
            application,
            Some(
                "vscode"
                    | "marimo"
                    | "ipykernel"
                    | "jupyter-console"
                    | "jupyter-qtconsole"
                    | "positron"
                    | "spyder"
            )
        );
        // The process that started the kernel is alive and is not a server.
        let is_programs = self.server_alive == Some(true)
            && self.server_pid.is_none()
            && self.server_error.is_none()
            && self.execution_state.is_none()
            && matches!(application, None | Some("jupyter"));
        !is_by_itself && !is_programs && !self.is_batch()
    }

    /// Returns whether the kernel has a server that may restart it, unless the server is known to have exited.
    pub fn may_be_restarted(&self) -> bool {
        self.is_served() && self.server_alive != Some(false)
    }
}

/// Start of a process. The kernel reuses pids, so a process is identified by its boot, its pid, and its start in
/// clock ticks since boot (`/proc/PID/stat`, field 22). If a recording does not contain ticks, the start time is used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Start {
    /// Clock ticks since boot, which do not change when the clock is set.
    Ticks(u64),
    Time(Time),
    /// The start is unknown: /proc does not list the pid, or the process in /proc may be a different one.
    Unknown,
}

/// Identifies a process within one boot of a host.
///
/// The boot is not part of the key, because each history restarts when the boot or the host changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Identity {
    /// Pid in the pid namespace of gpumem.
    pub pid: u32,
    pub start: Start,
}

impl Identity {
    /// Returns whether the start is known, so that the identity refers to exactly one process. gpumem only acts on
    /// processes with a certain identity.
    pub fn is_certain(&self) -> bool {
        !matches!(self.start, Start::Unknown)
    }

    /// Returns `PID@TICKS@BOOT_ID`, which never names a different process. Returns `None` if the start ticks are
    /// unknown, or the boot id contains unusual characters.
    pub fn exact_name(&self, boot_id: &str) -> Option<String> {
        let is_word = boot_id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        match self.start {
            Start::Ticks(ticks) if is_word => Some(format!("{}@{ticks}@{boot_id}", self.pid)),
            Start::Ticks(_) | Start::Time(_) | Start::Unknown => None,
        }
    }
}

/// Compares shared values without reading their contents if both are in the same allocation. Consecutive samples
/// share facts about processes, and the standard library compares addresses first only for sized types.
pub fn equal<T: ?Sized + Eq>(one: &Option<Arc<T>>, other: &Option<Arc<T>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one == other,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    }
}
