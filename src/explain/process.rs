//! The page about a process: verdict, next steps, description, owner, start, memory over time and relatives.

use super::page::{ExplainPage, Section};
use super::verdict::{Verdict, commands};
use super::{ExplainInput, add_memory_chart, steps, utilization_text, who};
use crate::advice;
use crate::history::ProcessHistory;
use crate::history::memory_series::MemorySeries;
use crate::model::field::state_name;
use crate::model::finding::Finding;
use crate::model::snapshot::Jupyter;
use crate::model::{Gpu, GpuProcess, Process, Snapshot, family};
use crate::report::escape::{fit, program};
use crate::rules;
use crate::units::{Bytes, Span, number_of};

/// Maximum number of GPUs for charts of [`TALL`] lines. With more GPUs, charts have one line.
const TALL_CHARTS: usize = 2;
const TALL: usize = 3;
const LISTED_MAX: usize = 8;
const DEPTH_MAX: usize = 8;
const LAUNCHER_COLUMNS: usize = 100;

/// A process on a GPU or GPU instance. Without a row, the process only has the device file open.
pub(super) struct OnGpu<'k> {
    pub(super) gpu: &'k Gpu,
    pub(super) row: Option<&'k GpuProcess>,
}

struct Subject<'k> {
    input: ExplainInput<'k>,
    process: &'k Process,
    on: &'k [OnGpu<'k>],
}

/// Creates the page about the process with this PID. The finding `asked` comes first. If the process's identity is
/// uncertain, the page contains only the reason and the last known facts.
pub fn process(input: ExplainInput<'_>, pid: u32, asked: Option<&Finding>) -> ExplainPage {
    let last = input.last;
    let unknown = Process { pid, ..Process::default() };
    let found = last.process(pid).unwrap_or(&unknown);
    let identity = found.identity();
    let process = if identity.is_certain() {
        found.clone()
    } else {
        // In a recording, the other facts about this PID may be about another process.
        Process {
            unresolved: found.unresolved.clone(),
            last_known: found.last_known.clone(),
            ..unknown.clone()
        }
    };
    let on = on_gpus(last, &process);
    let gpus: Vec<u32> = on.iter().map(|on| on.gpu.index).collect();
    let hidden_on: Vec<u32> =
        on.iter().filter(|on| on.row.is_none()).map(|on| on.gpu.index).collect();
    let mut verdict = Verdict::of_process(input, identity, (&gpus, &hidden_on), asked);
    let process_commands = (input.commands)(&mut verdict.findings, Some(&process));
    let subject = Subject { input, process: &process, on: &on };
    let (title, mut facts) = subject.about();
    subject.gpus(&mut facts);
    let steps = steps::of_process(&process, &on, &verdict.findings, last);
    let mut page = input.page(title, |gpu| gpus.contains(&gpu));
    let is_silent = |gpu: &&Gpu| gpu.stale_seconds.is_some() && gpus.contains(&gpu.index);
    page.notes.extend(last.gpus.iter().filter(is_silent).map(|gpu| {
        let index = gpu.index;
        format!("GPU {index} does not answer: the memory shown for it is the driver's last value")
    }));
    page.sections = vec![verdict.section(input, |_| true)];
    page.sections.extend(steps::sections(&steps, &verdict.findings));
    page.sections.extend([
        commands(&verdict.findings, &process_commands),
        facts,
        subject.held_by(),
    ]);
    page.sections.retain(|section| !section.rows.is_empty());
    page.findings = verdict.findings;
    page.process = Some(process);
    page.own_commands = process_commands;
    page
}

fn on_gpus<'k>(last: &'k Snapshot, process: &Process) -> Vec<OnGpu<'k>> {
    let mut found = Vec::new();
    for gpu in &last.gpus {
        let before = found.len();
        let rows = gpu.processes.iter().flatten().filter(|row| row.pid == process.pid);
        found.extend(rows.map(|row| OnGpu { gpu, row: Some(row) }));
        if found.len() == before && gpu.is_open_in(process) == Some(true) {
            found.push(OnGpu { gpu, row: None });
        }
    }
    found
}

fn total(gpu: &Gpu, instance: Option<u32>) -> Option<u64> {
    let memory = match instance {
        None => gpu.memory,
        Some(id) => {
            let mut devices = gpu.mig_devices.iter();
            devices.find(|device| device.gpu_instance_id == Some(id))?.memory
        }
    };
    memory.map(|memory| memory.total_bytes)
}

impl Subject<'_> {
    fn about(&self) -> (String, Section) {
        let process = self.process;
        let mut facts = Section::new("Process");
        if let Some(reason) = &process.unresolved {
            facts.entry("Why", &**reason);
            facts.entry(
                "",
                "NVML reports this pid, but gpumem cannot tell which process it belongs to; do not \
                 kill the process that has this pid now",
            );
            return (format!("pid {}: not resolved", process.pid), facts);
        }
        if !process.identity().is_certain() {
            match process.ended() {
                Some(ended) => {
                    facts.entry("Why", "NVML still lists this pid, but its process has exited");
                    if let Some(command) = program(ended.command.as_deref(), ended.comm.as_deref())
                    {
                        facts.entry("Was", command);
                        let user = ended.user.as_deref().map(|user| format!("of {user}"));
                        let start = ended.start_time.map(|at| format!("started {}", at.local()));
                        facts.facts("", &Vec::from_iter(user.into_iter().chain(start)));
                    }
                }
                None => facts.entry(
                    "Why",
                    "NVML lists this pid, but it is not in /proc: the process has exited, or \
                     belongs to another pid namespace",
                ),
            }
            return (format!("pid {}: no such process", process.pid), facts);
        }
        self.add_description(&mut facts);
        self.owner(&mut facts);
        self.since(&mut facts);
        (format!("{} (pid {})", rules::name_of(process), process.pid), facts)
    }

    fn add_description(&self, facts: &mut Section) {
        let process = self.process;
        let title = advice::framework_of(process).map(|row| row.title.to_string());
        let framework = title.or_else(|| process.framework.as_deref().map(str::to_owned));
        let label = if framework.is_some() { "" } else { "What" };
        if let Some(framework) = framework {
            let version = process.framework_version.as_deref();
            let version = version.map_or_else(String::new, |version| format!(" {version}"));
            facts.entry("What", format!("{framework}{version}"));
        }
        let executable = || process.executable.as_deref().map(str::to_owned);
        let command = program(process.command.as_deref(), process.comm.as_deref())
            .or_else(executable)
            .unwrap_or_else(|| "unknown command line".to_owned());
        facts.entry(label, command);
        if let Some(hypervisor) = process.hypervisor() {
            facts.entry("", format!("a virtual machine of {}", hypervisor.by));
        }
        let mut more = Vec::new();
        more.extend(match process.state {
            Some(_) if process.has_threads_left() => Some(match process.live_state() {
                Some('D') => {
                    "its main thread has exited, and no signal reaches its other threads".to_owned()
                }
                _ => "its main thread has exited, but its other threads still run".to_owned(),
            }),
            Some(_) if process.frozen == Some(true) => Some("frozen with its cgroup".to_owned()),
            letter => letter.map(|letter| match state_name(letter) {
                Some(name) => name.to_owned(),
                None => format!("in state {letter}"),
            }),
        });
        more.extend(process.threads.map(|count| number_of(count, "thread")));
        more.extend(process.rss_bytes.map(|bytes| format!("{} of host memory", Bytes(bytes))));
        more.extend(process.terminal.as_ref().map(|name| format!("on {name}")));
        let inner = process.namespace_pid;
        more.extend(inner.map(|pid| format!("pid {pid} in its own pid namespace")));
        facts.facts("", &more);
    }

    fn owner(&self, facts: &mut Section) {
        let process = self.process;
        let owner = match (&process.user, process.uid) {
            (Some(user), Some(uid)) => format!("{user} (uid {uid})"),
            (Some(user), None) => user.to_string(),
            (None, Some(uid)) => format!("uid {uid}"),
            (None, None) => "unknown owner".to_owned(),
        };
        facts.entry("Owner", owner);
        if let Some(jupyter) = &process.jupyter {
            self.notebook(facts, jupyter);
        }
        if let Some(container) = &process.container {
            let runtime = container.runtime.as_deref().unwrap_or("container");
            let id = container.id.as_deref().map(|id| fit(id, 13));
            facts.entry(
                "",
                match (container.name.as_deref(), id) {
                    (Some(name), Some(id)) => format!("container {name} ({runtime} {id})"),
                    (Some(name), None) => format!("container {name} ({runtime})"),
                    (None, Some(id)) => format!("container {id} ({runtime})"),
                    (None, None) => match &container.user {
                        Some(user) => format!("a rootless container of {user}"),
                        None => format!("a container ({runtime})"),
                    },
                },
            );
        }
        let add_parts = |words: &mut String, parts: &[(&str, Option<&str>)]| {
            for (label, value) in parts {
                words.extend(value.map(|value| format!("{label}{value}")));
            }
        };
        if let Some(pod) = &process.kubernetes {
            let name = pod.pod_name.as_deref().or(pod.pod_uid.as_deref());
            let mut words = format!("pod {}", name.unwrap_or("of unknown name"));
            let parts = [
                (", namespace ", pod.namespace.as_deref()),
                (", container ", pod.container_name.as_deref()),
                (", class ", pod.qos.as_deref()),
            ];
            add_parts(&mut words, &parts);
            facts.entry("", words);
        }
        if let Some(slurm) = &process.slurm {
            let mut words = match slurm.id() {
                Some(job) => format!("Slurm job {job}"),
                None => "a Slurm job".to_owned(),
            };
            let parts =
                [(", step ", slurm.step_id.as_deref()), (", named ", slurm.job_name.as_deref())];
            add_parts(&mut words, &parts);
            if slurm.over == Some(true) {
                words.push_str(", which has ended: no step of the job is left on this machine");
            }
            facts.entry("", words);
        }
        if let Some(unit) = &process.systemd_unit {
            facts.entry("", format!("systemd unit {unit}"));
        }
    }

    fn notebook(&self, facts: &mut Section, jupyter: &Jupyter) {
        let process = self.process;
        if let Some(kernel) = process.kernel_forked_from() {
            facts.entry("", format!("a worker forked from kernel {kernel} of"));
        }
        let mut words = match &jupyter.notebook_path {
            Some(path) => format!("notebook {path}"),
            None => "a notebook's kernel; the notebook is unknown".to_owned(),
        };
        words.extend(jupyter.application.as_ref().map(|name| format!(" ({name})")));
        facts.entry("", words);
        if let Some(id) = &jupyter.kernel_id {
            facts.entry("", format!("kernel {id}"));
        }
        let mut named = Vec::new();
        named.extend(jupyter.server_url.as_ref().map(|url| format!("server {url}")));
        named.extend(jupyter.server_pid.map(|pid| format!("pid {pid}")));
        named.extend(jupyter.server_root.as_ref().map(|root| format!("serves {root}")));
        named.extend(jupyter.execution_state.as_ref().map(|state| format!("state {state}")));
        let last = process.last_activity();
        named.extend(last.map(|time| format!("last active {}", self.input.ago(time))));
        named.extend(jupyter.connections.map(|count| number_of(count, "connection")));
        facts.facts("", &named);
        if let Some(words) = jupyter.under_way() {
            facts.entry("", format!("{words}; details follow shortly"));
        }
        if let Some(error) = &jupyter.server_error {
            facts.entry("", format!("its server could not be queried: {error}"));
        }
    }

    fn since(&self, facts: &mut Section) {
        let started = match self.process.start_time {
            Some(time) => format!("started {}", self.input.ago(time)),
            None => "start time unknown".to_owned(),
        };
        facts.entry("Since", started);
        let history = self.input.engine.history();
        let past = history.process(self.process.identity());
        let Some(first) = past.map(ProcessHistory::first_seen) else {
            return;
        };
        // A process in the first sample may have been on the GPU before the history began.
        facts.entry(
            "",
            match Some(first) > history.first_time() {
                true => format!("first seen on a GPU {}", self.input.ago(first)),
                false => {
                    let span = Span::from_seconds(history.span_seconds());
                    format!("on a GPU for at least {span}")
                }
            },
        );
    }

    fn gpus(&self, facts: &mut Section) {
        let lines = if self.on.len() <= TALL_CHARTS { TALL } else { 1 };
        for on in self.on.iter().take(LISTED_MAX) {
            self.on_gpu(facts, on, lines);
        }
        let more = self.on.len().saturating_sub(LISTED_MAX);
        if more > 0 {
            facts.entry("", format!("and {more} more GPUs (`gpumem ps` lists them)"));
        }
        if self.on.is_empty() {
            facts.entry("GPU", "NVML does not list it on any GPU");
        }
        let history = self.input.engine.history();
        let past = history.process(self.process.identity());
        let mean = past.and_then(|past| past.cpu().mean(history.span_seconds()));
        let mean = mean.map(|mean| mean.percent).or(self.process.cpu_percent);
        let total = self.process.cpu_seconds.map(Span::from_seconds);
        let cpu = match (mean, total) {
            (Some(mean), Some(total)) => {
                format!("{mean:.1}% of a core on average, {total} in total")
            }
            (Some(mean), None) => format!("{mean:.1}% of a core on average"),
            (None, Some(total)) => {
                format!("{total} in total; the history is too short for an average")
            }
            (None, None) => return,
        };
        facts.entry("CPU", cpu);
    }

    fn on_gpu(&self, facts: &mut Section, on: &OnGpu<'_>, lines: usize) {
        let (input, gpu) = (self.input, on.gpu);
        let Some(row) = on.row else {
            facts.entry(
                &format!("GPU {}", gpu.index),
                "it has the device file open, but NVML does not list it: its memory is unknown",
            );
            let balance = input.last.balance(gpu);
            if let Some(bytes) = balance.and_then(|balance| balance.unattributed.ok()) {
                let bytes = Bytes(bytes);
                let text =
                    format!("{bytes} of this GPU is unattributed: no listed process holds it");
                facts.entry("", text);
            }
            return;
        };
        let label = match row.gpu_instance_id {
            Some(instance) => format!("GPU {}/{instance}", gpu.index),
            None => format!("GPU {}", gpu.index),
        };
        let identity = self.process.identity();
        let series = input.all_series.row(identity, gpu, row);
        let held = match (row.used_bytes, total(gpu, row.gpu_instance_id)) {
            (Some(used), Some(total)) if total > 0 => {
                let share = used as f64 / total as f64 * 100.0;
                format!("{} of {} ({share:.0}%)", Bytes(used), Bytes(total))
            }
            (Some(used), _) => Bytes(used).to_string(),
            (None, _) => {
                let reason = gpu.process_memory_unavailable.as_deref();
                format!("memory n/a: {}", reason.unwrap_or("the driver does not report its memory"))
            }
        };
        let sm = utilization_text(row.sm_percent, series.and_then(MemorySeries::percent_mean));
        let sm = sm.map(|words| format!("SM {words}"));
        facts.facts(&label, &Vec::from_iter([held].into_iter().chain(sm)));
        if let Some((percent, since)) = row.lifetime_of(self.process) {
            let life = Span::from_seconds(input.last.time.seconds_since(since).max(0.0));
            let text = format!("SM busy {percent}% of its {life} (driver accounting)");
            facts.entry("", text);
        }
        if let Some(unused) = input.engine.history().idle_since(identity, gpu.index) {
            facts.entry("", format!("not used since {}", input.ago(unused)));
        }
        add_memory_chart(facts, series, lines);
    }

    fn held_by(&self) -> Section {
        let (process, last) = (self.process, self.input.last);
        let families = family::families(last);
        let family = family::member(&families, process.pid);
        let members = family.map_or(0, |family| family.members.len());
        let is_certain = process.identity().is_certain();
        let mut section = Section::new("What holds its memory");
        if !is_certain && members < 2 {
            return section;
        }
        if let Some(mark) = process.parked() {
            let (words, pid) = (mark.describe(), process.pid);
            section.item("- ", format!("{words}; `gpumem unpark {pid}` restores it"));
        }
        match process.gpu_files.as_deref() {
            _ if !is_certain => {}
            Some([]) => section.item("- ", "it has no GPU device file open"),
            Some(files) => {
                let names: Vec<&str> = files.iter().map(|file| &**file).collect();
                section.item("- ", format!("it has these device files open: {}", names.join(" ")));
            }
            None => section.item(
                "- ",
                "its open GPU device files are unknown: they are not readable, or the machine has none",
            ),
        }
        let launcher = family.and_then(|family| family.launcher.as_ref());
        if let Some(parent) = launcher.or(process.parent.as_ref()) {
            let command = program(parent.command.as_deref(), parent.comm.as_deref());
            let command = command.as_deref().unwrap_or("an unknown command");
            let command = fit(command, LAUNCHER_COLUMNS);
            section.item("- ", format!("started by pid {}: {command}", parent.pid));
        } else if process.parent_is_reaper == Some(true) {
            // The reaper may have started the process itself, for example as a service.
            let ppid =
                process.ppid.map_or_else(|| "its parent".to_owned(), |pid| format!("pid {pid}"));
            section.item(
                "- ",
                match process.group_leader_alive {
                    Some(false) => format!("adopted by {ppid}; its job's leader has exited"),
                    _ => format!("started or adopted by {ppid}"),
                },
            );
        }
        if let Some(family) = family.filter(|_| members > 1) {
            self.tree(&mut section, family);
        }
        section
    }

    fn tree(&self, section: &mut Section, family: &family::Family) {
        let ties: Vec<&str> = family.ties.iter().map(|tie| tie.words()).collect();
        let ties = match ties.is_empty() {
            true => String::new(),
            false => format!(" ({})", ties.join(", ")),
        };
        section.item("- ", format!("related processes{ties}:"));
        let mut left_out = 0;
        for (at, member) in family.tree(self.input.last).iter().enumerate() {
            let is_this = member.pid == self.process.pid;
            if at >= LISTED_MAX && !is_this {
                left_out += 1;
                continue;
            }
            let mark = format!("    {}", "  ".repeat(member.depth.min(DEPTH_MAX)));
            let suffix = if is_this { " (this one)" } else { "" };
            section.item(&mark, format!("{}{suffix}", relative(self.input.last, member.pid)));
        }
        if left_out > 0 {
            section.item("    ", format!("and {left_out} more"));
        }
    }
}

/// Describes a process, such as `4242 python train.py, ann, 20.0 GiB`.
fn relative(last: &Snapshot, pid: u32) -> String {
    let (name, user) = who(last, pid);
    let rows = last.gpus.iter().flat_map(|gpu| gpu.processes.iter().flatten());
    let rows: Vec<&GpuProcess> = rows.filter(|row| row.pid == pid).collect();
    let sum = |sum: u64, row: &&GpuProcess| Some(sum.saturating_add(row.used_bytes?));
    let held = match rows.iter().try_fold(0, sum) {
        _ if rows.is_empty() => "not listed by NVML".to_owned(),
        Some(bytes) => Bytes(bytes).to_string(),
        None => "memory unknown".to_owned(),
    };
    let user = user.map_or_else(String::new, |user| format!(", {user}"));
    format!("{pid} {name}{user}, {held}")
}
