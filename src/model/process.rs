//! One process of a snapshot: what Linux knows of it, where it runs, and which notebook it is.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use serde_with_macros::skip_serializing_none;

use super::identity::{Identity, Start};
use super::server_name::is_worker_command;
use super::time::Time;

/// A process, as Linux knows it; identified by (boot_id, pid, start_ticks), never by pid alone. Without
/// start_ticks and start_time /proc does not know it, or what it knows was not believed.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Process {
    /// The process id.
    pub pid: u32,
    /// Clock ticks from boot to its start.
    pub start_ticks: Option<u64>,
    /// The same for people; moves when the clock is set.
    pub start_time: Option<Time>,
    /// Why the process behind this pid could not be told, in words; absent where it could.
    pub unresolved: Option<Arc<str>>,
    /// Who had this pid when it was last seen, where NVML has listed it ever since and no process has it
    /// now. It is a name for what is still listed, and no identity.
    pub last_known: Option<Arc<LastKnown>>,
    /// Parent.
    pub ppid: Option<u32>,
    /// Process group.
    pub process_group: Option<u32>,
    /// Session.
    pub session: Option<u32>,
    /// The parent is pid 1 of the namespace or a child subreaper.
    pub parent_is_reaper: Option<bool>,
    /// A process with the process group's number exists.
    pub group_leader_alive: Option<bool>,
    /// A process with the session's number exists.
    pub session_leader_alive: Option<bool>,
    /// R S D T t Z X I, as in /proc; absent when the pid is not in /proc.
    pub state: Option<char>,
    /// The state of a thread that goes on where the first one has ended: `D` only where all of them are so.
    pub left_thread_state: Option<char>,
    /// The kernel function in which it is in uninterruptible sleep, where that may be known
    /// (`/proc/PID/wchan`).
    pub wchan: Option<Arc<str>>,
    /// Its pid in its own pid namespace, where that is another one than this snapshot's.
    pub namespace_pid: Option<u32>,
    /// Who started it: its parent, unless that only adopted it.
    pub parent: Option<Arc<Parent>>,
    /// Real user id; of a process in a user namespace that a user made, as in a container without root, that user's.
    pub uid: Option<u32>,
    /// Its name.
    pub user: Option<Arc<str>>,
    /// The kernel's short name (`/proc/PID/stat`, field 2); all there is for a process without argv.
    pub comm: Option<Arc<str>>,
    /// argv; bounded in length, the last one ends with `…` where it was cut; secrets are masked (`***`).
    pub command: Option<Arc<[Arc<str>]>>,
    /// Those of its environment variables that show what it belongs to or how it takes memory; only
    /// names of a fixed list, which has no secret on it. Absent where it may not be read, or was written over.
    pub environment: Option<Arc<BTreeMap<Arc<str>, Arc<str>>>>,
    /// `/proc/PID/exe`.
    pub executable: Option<Arc<str>>,
    /// Whether that file is root's, and no one else may write to it. Read only where it has the name of a program
    /// that is never killed.
    pub executable_is_roots: Option<bool>,
    /// CPU use since the last snapshot. Percent; one core is 100.
    #[schemars(range(min = 0))]
    pub cpu_percent: Option<f64>,
    /// CPU time in total, in seconds.
    #[schemars(range(min = 0))]
    pub cpu_seconds: Option<f64>,
    /// How long its first thread could have run and waited for a processor, in total, in seconds
    /// (`/proc/PID/schedstat`).
    #[schemars(range(min = 0))]
    pub cpu_wait_seconds: Option<f64>,
    /// Resident host memory, in bytes.
    pub rss_bytes: Option<u64>,
    /// Number of threads.
    pub threads: Option<u32>,
    /// Controlling terminal, `"pts/3"`.
    pub terminal: Option<Arc<str>>,
    /// Has a listening socket: of TCP, or a stream socket of Unix.
    pub listening: Option<bool>,
    /// Its open sockets, without the one that CUDA's library opens in every process that has a context.
    pub sockets: Option<u32>,
    /// Read and written in all, by read(2), write(2) and their like, and what its TCP connections have carried.
    /// Looked at every half minute. Absent where it may not be read.
    pub io_bytes: Option<u64>,
    /// Where it listens: `tcp:127.0.0.1:8000`, `tcp:[::]:8000`, `unix:/run/x.sock`, `unix:@abstract`. TCP
    /// before Unix, by port; bounded in number. Absent where it listens nowhere, or that is not known.
    pub listening_on: Option<Arc<[Arc<str>]>>,
    /// The processes that work with it and listen; empty if none does, absent if that was not checked.
    pub listening_relatives: Option<Arc<[Relative]>>,
    /// What those do who work with it; absent where that was not looked at.
    pub descendants: Option<Arc<Descendants>>,
    /// GPU device files held open; absent where its descriptors may not be read.
    pub gpu_files: Option<Arc<[Arc<str>]>>,
    /// `pytorch`, `tensorflow`, `jax` …, from the libraries mapped: the one that holds its memory.
    pub framework: Option<Arc<str>>,
    /// Its version, where a path or its package's metadata tells it: `"2.9.1"`, or as much of it as is told, `"2"`.
    pub framework_version: Option<Arc<str>>,
    /// What it has loaded beside its framework: other frameworks, `deepspeed`, `nccl`, `ray`. Absent where
    /// none of them is known to be.
    pub libraries: Option<Arc<[Arc<str>]>>,
    /// Its cgroup: the path in the unified hierarchy, or in that of memory.
    pub cgroup: Option<Arc<str>>,
    /// Its cgroup is frozen, as by `docker pause` or `systemctl freeze`. Looked at every half minute; absent where
    /// that is not known, as in a hierarchy of the first version.
    pub frozen: Option<bool>,
    /// The container it runs in.
    pub container: Option<Arc<Container>>,
    /// The Kubernetes pod it runs in.
    pub kubernetes: Option<Arc<Kubernetes>>,
    /// The Slurm job it belongs to.
    pub slurm: Option<Arc<Slurm>>,
    /// The systemd unit it belongs to.
    pub systemd_unit: Option<Arc<str>>,
    /// The Jupyter kernel it is.
    pub jupyter: Option<Arc<Jupyter>>,
    /// When gpumem last asked it to release memory; absent where it has not, by the audit log of the user
    /// who took the snapshot.
    pub asked: Option<Arc<AskedRelease>>,
}

/// When gpumem asked a process to release memory: what it does then is none of its own work.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct AskedRelease {
    /// From then
    pub since: Time,
    /// until then; the time of the snapshot while it is under way.
    pub until: Time,
    /// When its notebook's server had last seen it active before; absent where it has no server, or that was not
    /// known.
    pub last_activity: Option<Time>,
}

/// The clocks of a notebook's server and of the audit log agree by as much, in seconds.
const ASKED_SLACK_SECONDS: f64 = 2.0;

impl AskedRelease {
    /// Whether what happened then was gpumem's request.
    pub fn explains(&self, time: Time) -> bool {
        self.overlaps(time, time, 0.0)
    }

    /// Whether some of the request lies in this time, or its effects, which may be seen so many seconds later.
    pub fn overlaps(&self, since: Time, until: Time, later_seconds: f64) -> bool {
        let begin = self.since.plus_seconds(-ASKED_SLACK_SECONDS);
        let end = self.until.plus_seconds(ASKED_SLACK_SECONDS + later_seconds);
        begin <= until && since <= end
    }
}

impl Process {
    /// When a kernel was last active by its server, without what gpumem itself asked of it.
    pub fn last_activity(&self) -> Option<Time> {
        let last = self.jupyter.as_deref()?.last_activity?;
        match self.asked.as_deref().filter(|it| it.explains(last)) {
            Some(asked) => asked.last_activity,
            None => Some(last),
        }
    }

    /// Who this is, within its boot.
    pub fn identity(&self) -> Identity {
        let start = match (self.start_ticks, self.start_time) {
            (Some(ticks), _) => Start::Ticks(ticks),
            (None, Some(time)) => Start::Time(time),
            (None, None) => Start::Unknown,
        };
        Identity { pid: self.pid, start }
    }

    /// What it was while it lived, where it has ended and NVML still lists it: of one that /proc knows, or of
    /// which it is not known whose number it is, nothing.
    pub fn ended(&self) -> Option<&LastKnown> {
        let is_ended = self.unresolved.is_none() && !self.identity().is_certain();
        self.last_known.as_deref().filter(|_| is_ended)
    }

    /// Whether only its first thread has ended: the process has the state of a zombie, and others of
    /// its threads go on (`pthread_exit` in `main`, or an exit that waits for a driver).
    pub fn has_threads_left(&self) -> bool {
        self.state == Some('Z') && self.threads.is_some_and(|threads| threads > 1)
    }

    /// The state by which it can go on: of what is left where its first thread has ended. Where that is not known, an
    /// end which the others do not follow is one that they cannot. Who is frozen with its cgroup sleeps, as the kernel has
    /// it; it is stopped.
    pub fn live_state(&self) -> Option<char> {
        match self.has_threads_left() {
            true => self.left_thread_state.or(Some('D')),
            false if self.frozen == Some(true) => Some('T'),
            false => self.state,
        }
    }

    /// Whether it was stopped, by a signal or with its cgroup.
    pub fn is_stopped(&self) -> bool {
        self.live_state() == Some('T')
    }

    /// Whether who started it is gone, and with it the leader of its process group: nothing is left of
    /// the job that it was a part of. Never one that leads its own group. Unknown is no.
    pub fn is_left_behind(&self) -> bool {
        self.parent_is_reaper == Some(true)
            && self.group_leader_alive == Some(false)
            && self.process_group != Some(self.pid)
    }

    /// The kernel that a kernel's worker was forked from, by its pid: no two kernels have the same argv, which
    /// names a connection file, and what one forks keeps it. `None` where it is the kernel itself, or is none.
    pub fn kernel_forked_from(&self) -> Option<u32> {
        let parent = self.parent.as_deref()?;
        let is_same = parent.command.is_some() && parent.command == self.command;
        (is_same && self.jupyter.as_deref()?.connection_file.is_some()).then_some(parent.pid)
    }

    /// Whether it is a notebook kernel whose server is proved to be gone.
    pub fn has_lost_server(&self) -> bool {
        let jupyter = self.jupyter.as_ref();
        jupyter.is_some_and(|jupyter| jupyter.server_alive == Some(false))
    }

    /// Whether who started it is proved to be gone though no leader has to be: a notebook kernel's server, or the
    /// front of an inference server's worker, which nobody else starts. A front that is its container's first
    /// process adopts, too, but leads the group of its workers.
    pub fn has_lost_front(&self) -> bool {
        let group = self.process_group.filter(|group| *group != self.pid);
        let is_adopted = |ppid: Option<u32>, by_reaper: Option<bool>| {
            by_reaper == Some(true) && group.is_some() && ppid.is_some() && ppid != group
        };
        let parent = self.parent.as_deref();
        // An engine's own workers are left with it.
        let with_parent = || {
            parent.is_some_and(|it| {
                is_adopted(it.ppid, it.parent_is_reaper)
                    && is_worker_command(it.command.as_deref().unwrap_or_default())
            })
        };
        self.has_lost_server()
            || (is_adopted(self.ppid, self.parent_is_reaper) || with_parent())
                && self.is_worker_of_a_server()
    }
}

/// What a process was that has ended while NVML still lists it.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct LastKnown {
    /// Clock ticks from boot to its start.
    pub start_ticks: Option<u64>,
    /// The same for people.
    pub start_time: Option<Time>,
    /// Its owner's name.
    pub user: Option<Arc<str>>,
    /// The kernel's short name of it.
    pub comm: Option<Arc<str>>,
    /// argv; bounded in length, cut with `…`.
    pub command: Option<Arc<[Arc<str>]>>,
}

impl LastKnown {
    /// A process of these names and nothing else, for what names a process.
    pub fn as_named(&self) -> Process {
        Process {
            user: self.user.clone(),
            comm: self.comm.clone(),
            command: self.command.clone(),
            ..Process::default()
        }
    }
}

/// Who started a process: its parent, unless that only adopted it.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Parent {
    /// The process id.
    pub pid: u32,
    /// Clock ticks from boot to its start.
    pub start_ticks: Option<u64>,
    /// The kernel's short name of it.
    pub comm: Option<Arc<str>>,
    /// argv; bounded in length, cut with `…`.
    pub command: Option<Arc<[Arc<str>]>>,
    /// Its own parent, where it is a worker of an inference server.
    pub ppid: Option<u32>,
    /// Whether that is pid 1 of the namespace or a child subreaper.
    pub parent_is_reaper: Option<bool>,
}

/// One who works with a process and listens.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct Relative {
    /// The process id.
    pub pid: u32,
    /// Clock ticks from boot to its start.
    pub start_ticks: Option<u64>,
    /// What it is to the process: `ancestor` of the same session, `descendant`, or `cgroup`, another
    /// one of its service or container; `other` is one that gpumem did not know.
    #[schemars(with = "String")]
    pub relation: Relation,
    /// argv; bounded in length, secrets are masked. Absent where it has none.
    pub command: Option<Arc<[Arc<str>]>>,
    /// Where it listens, as [`Process::listening_on`].
    pub listening_on: Arc<[Arc<str>]>,
}

/// What one process is to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// Its parent, or a parent's parent of the same session.
    Ancestor,
    /// A child, or a child's child.
    Descendant,
    /// Another one of its service or container.
    Cgroup,
    /// One that this version does not know.
    #[serde(other)]
    Other,
}

/// What those do who work with a process: its descendants, by parent links, and the others of its process group. Who
/// they are is looked at every five seconds, what they use in each sample.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Descendants {
    /// How many descendants there are; absent where that is not known.
    pub count: Option<u32>,
    /// What they and the others used of the CPU since the last snapshot, with what children used that have ended
    /// meanwhile; one core is 100. Percent.
    #[schemars(range(min = 0))]
    pub cpu_percent: Option<f64>,
    /// The same in total, in seconds: it only goes up. Absent where it is not known.
    #[schemars(range(min = 0))]
    pub cpu_seconds: Option<f64>,
    /// What those that live have read and written in all, by read(2), write(2) and their like. Looked at every
    /// half minute. Absent where it was not looked at.
    pub io_bytes: Option<u64>,
    /// Those descendants that are processes of this snapshot, in ascending order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listed: Vec<u32>,
}

/// The container that a process runs in, as its cgroup names it, or the program that watches over it.
/// One of which nothing is known is there too: a pid namespace of its own.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Container {
    /// `docker`, `containerd`, `cri-o`, `podman`, `nerdctl`, `runc`, `crun`, `lxc`, `nspawn` …
    pub runtime: Option<Arc<str>>,
    /// containerd's namespace: `k8s.io`, `moby`, `default`. Absent where it is not known.
    pub namespace: Option<Arc<str>>,
    /// Who made it, where that is not root (rootless): the user's name, or the number of one without a name.
    /// What such a container is called is that user's word, and not here.
    pub user: Option<Arc<str>>,
    /// 64 hexadecimal digits; the name of one of LXC, of systemd-nspawn or of runc by itself.
    pub id: Option<Arc<str>>,
    /// What people call it, where the runtime's files may be read.
    pub name: Option<Arc<str>>,
}

/// A Kubernetes pod, as its cgroup names it.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Kubernetes {
    /// The pod's uid.
    pub pod_uid: Option<Arc<str>>,
    /// Its name.
    pub pod_name: Option<Arc<str>>,
    /// Its namespace.
    pub namespace: Option<Arc<str>>,
    /// The container's name within the pod.
    pub container_name: Option<Arc<str>>,
    /// Quality-of-service class: `guaranteed`, `burstable`, `besteffort`.
    pub qos: Option<Arc<str>>,
}

/// A Slurm job and step; text, because newer Slurm's ids are not numbers.
///
/// It is the kernel's word: by the cgroup, or by the step daemon (`slurmstepd`) among the ancestors. What
/// only the environment says is not known, for that is inherited and copied.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Slurm {
    /// The job; of an array, the task's own number; gpumem writes text.
    #[serde(default, deserialize_with = "text_or_number")]
    #[schemars(with = "Option<TextOrNumber>")]
    pub job_id: Option<Arc<str>>,
    /// The step; gpumem writes text.
    #[serde(default, deserialize_with = "text_or_number")]
    #[schemars(with = "Option<TextOrNumber>")]
    pub step_id: Option<Arc<str>>,
    /// The job's name.
    pub job_name: Option<Arc<str>>,
    /// The number of the array that the job is a task of. The last of its tasks to start has the same
    /// number for its own, and whoever types that means them all.
    #[serde(default, deserialize_with = "text_or_number")]
    #[schemars(with = "Option<TextOrNumber>")]
    pub array_job_id: Option<Arc<str>>,
    /// Which task of the array; gpumem writes text.
    #[serde(default, deserialize_with = "text_or_number")]
    #[schemars(with = "Option<TextOrNumber>")]
    pub array_task_id: Option<Arc<str>>,
    /// No step of the job is left on this machine: none of its step daemons lives. Absent where that
    /// cannot be told.
    pub over: Option<bool>,
}

impl Slurm {
    /// What Slurm's programs call the job: `812`, or `3_4` for a task of an array.
    pub fn id(&self) -> Option<String> {
        match (&self.array_job_id, &self.array_task_id) {
            (Some(array), Some(task)) => Some(format!("{array}_{task}")),
            _ => self.job_id.as_deref().map(str::to_owned),
        }
    }
}

/// A Jupyter kernel and what its server reports of it.
#[skip_serializing_none]
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct Jupyter {
    /// What runs it: `jupyter`, `jupyterhub`, `voila`, `kernelgateway`, `vscode`, `papermill`, `nbconvert`,
    /// `marimo`, `colab`, `databricks`, `jupyter-console`, `jupyter-qtconsole`, `spyder`; `ipykernel` where a
    /// person has typed that; `batch` where a program without a server does.
    pub application: Option<Arc<str>>,
    /// The kernel's id.
    pub kernel_id: Option<Arc<str>>,
    /// Its connection file.
    pub connection_file: Option<Arc<str>>,
    /// Its server.
    pub server_url: Option<Arc<str>>,
    /// The server's process.
    pub server_pid: Option<u32>,
    /// Whether the process that started it, nearly always its server, is still there; `false` only where it is
    /// proved to be gone.
    pub server_alive: Option<bool>,
    /// The folder that the server serves.
    pub server_root: Option<Arc<str>>,
    /// Why the server could not be asked, and what to do.
    pub server_error: Option<Arc<str>>,
    /// `true` while the kernel's files or its server are still being asked: what is unknown of it here may be
    /// known in the next snapshot. Absent once there is nothing more to come.
    pub asking: Option<bool>,
    /// The notebook: relative to the server's root where there is one, else as it is known.
    pub notebook_path: Option<Arc<str>>,
    /// `idle`, `busy` …
    pub execution_state: Option<Arc<str>>,
    /// When it was last active, as the server reports.
    pub last_activity: Option<Time>,
    /// Number of open connections.
    pub connections: Option<u32>,
}

impl Jupyter {
    /// What is under way of it, in words; `None` where nothing more is to come.
    pub fn under_way(&self) -> Option<&'static str> {
        // Its files tell the server.
        (self.asking == Some(true)).then_some(match self.server_url {
            Some(_) => "asking its server",
            None => "reading its files",
        })
    }

    /// Whether a program runs the notebook from its first cell to its last, as any script.
    pub fn is_batch(&self) -> bool {
        let application = self.application.as_deref();
        matches!(application, Some("papermill" | "nbconvert" | "nbclient" | "batch"))
    }

    /// Whether a server stands behind the kernel, or may, that knows what it does and starts it again where
    /// it ends by itself. An editor, a console, a person who types `python -m ipykernel` and a program that
    /// serves no clients do not know it.
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
                    | "spyder"
            )
        );
        // Who started it is there, and was seen to be no server.
        let is_programs = self.server_alive == Some(true)
            && self.server_pid.is_none()
            && self.server_error.is_none()
            && self.execution_state.is_none()
            && matches!(application, None | Some("jupyter"));
        !is_by_itself && !is_programs && !self.is_batch()
    }

    /// Whether a server may start the kernel again: there is one, or may be, and it is not proved to be gone.
    pub fn may_be_restarted(&self) -> bool {
        self.is_served() && self.server_alive != Some(false)
    }
}

/// An identifier: text; older writers gave numbers.
#[derive(Deserialize)]
#[serde(untagged)]
enum TextOrNumber {
    Text(Arc<str>),
    Number(u64),
}

impl JsonSchema for TextOrNumber {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "TextOrNumber".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "integer"] })
    }
}

fn text_or_number<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Arc<str>>, D::Error> {
    let either = Option::<TextOrNumber>::deserialize(deserializer)?;
    Ok(either.map(|either| match either {
        TextOrNumber::Text(text) => text,
        TextOrNumber::Number(number) => number.to_string().into(),
    }))
}
