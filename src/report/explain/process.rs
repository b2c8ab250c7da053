//! A process's page: what it is, whose, since when, how its memory moved, what holds it, what to do.

use super::chart::{self, ForecastLine, Size};
use super::page::PageText;
use super::parts::{ago, commands, steps, verdict};
use super::{ExplainReport, GpuHolder, MemoryCurve, OnGpu, ProcessPage};
use crate::model::evidence::Exhaustion;
use crate::model::snapshot::{Jupyter, LastKnown, Process};
use crate::report::escape::program;
use crate::report::wrap::fit;
use crate::units::{Bytes, Span, number_of};

/// A command line is not shown at more length than this many lines.
const COMMAND_LINES: usize = 3;
/// Two GPUs have charts of three lines, more of one.
const TALL_CHARTS: usize = 2;
const TALL: usize = 3;
/// More GPUs, and more relatives, than this are counted.
const MOST_LISTED: usize = 8;
/// A tree is not indented further than this many generations.
const MOST_DEPTH: usize = 8;
/// Less than this between the least and the most is standing still, as for the rule of leaks.
const STILL_BYTES: u64 = 16 << 20;

pub(super) fn write(sheet: &mut PageText, page: &ProcessPage, report: &ExplainReport) {
    let process = &page.process;
    if let Some(reason) = &process.unresolved {
        sheet.title(&format!("pid {}: not resolved", process.pid));
        sheet.entry("Why", reason);
        let caution = "NVML reports this pid, but gpumem cannot tell which process it belongs to; \
        do not kill the process that has it now";
        sheet.entry("", caution);
    } else if !process.identity().is_certain() {
        sheet.title(&format!("pid {}: no such process", process.pid));
        let gone = "NVML lists this pid, but it is not in /proc: the process has exited, or \
        belongs to another pid namespace";
        match process.ended() {
            Some(ended) => {
                sheet.entry("Why", "NVML still lists this pid, but its process has exited");
                was(sheet, ended);
            }
            None => sheet.entry("Why", gone),
        }
    } else {
        sheet.title(&format!("{} (pid {})", page.name, process.pid));
        what(sheet, page);
        owner_lines(sheet, process, report);
        since(sheet, page, report);
    }
    if report.time.is_some() {
        gpus(sheet, page, report);
    }
    verdict(sheet, &page.verdict, report, |_| true);
    held_by(sheet, page);
    steps(sheet, &page.steps, "What to do, gentlest first");
    commands(sheet, &page.verdict.findings, page.release.as_deref());
}

/// What a process was that has ended.
fn was(sheet: &mut PageText, ended: &LastKnown) {
    let Some(command) = program(ended.command.as_deref(), ended.comm.as_deref()) else {
        return;
    };
    let room = sheet.room() * COMMAND_LINES;
    sheet.entry("Was", &fit(&command, room));
    let user = ended.user.as_deref().map(|user| format!("of {user}"));
    let start = ended.start_time.map(|at| format!("started {}", at.local()));
    let facts: Vec<String> = user.into_iter().chain(start).collect();
    if !facts.is_empty() {
        sheet.entry("", &facts.join(", "));
    }
}

fn what(sheet: &mut PageText, page: &ProcessPage) {
    let process = &page.process;
    let title = page.framework_title.as_deref();
    let framework = title.or(process.framework.as_deref());
    if let Some(framework) = framework {
        let version = process.framework_version.as_deref();
        let version = version.map_or_else(String::new, |version| format!(" {version}"));
        sheet.entry("What", &format!("{framework}{version}"));
    }
    let executable = || process.executable.as_deref().map(str::to_owned);
    let command = program(process.command.as_deref(), process.comm.as_deref())
        .or_else(executable)
        .unwrap_or_else(|| "its command line is not known".to_owned());
    let label = if framework.is_some() { "" } else { "What" };
    let room = sheet.room() * COMMAND_LINES;
    sheet.entry(label, &fit(&command, room));
    let mut facts = Vec::new();
    facts.extend(match process.state {
        Some(_) if process.has_threads_left() => {
            Some("its main thread has exited, and others still run".to_owned())
        }
        letter => letter.map(state),
    });
    facts.extend(process.threads.map(|count| number_of(count, "thread")));
    facts.extend(process.rss_bytes.map(|bytes| format!("{} of host memory", Bytes(bytes))));
    facts.extend(process.terminal.as_ref().map(|name| format!("on {name}")));
    let inner = process.namespace_pid;
    facts.extend(inner.map(|pid| format!("pid {pid} in its own pid namespace")));
    if !facts.is_empty() {
        sheet.entry("", &facts.join(", "));
    }
}

fn owner_lines(sheet: &mut PageText, process: &Process, report: &ExplainReport) {
    let owner = match (&process.user, process.uid) {
        (Some(user), Some(uid)) => format!("{user} (uid {uid})"),
        (Some(user), None) => user.to_string(),
        (None, Some(uid)) => format!("uid {uid}"),
        (None, None) => "its owner is not known".to_owned(),
    };
    sheet.entry("Whose", &owner);
    if let Some(jupyter) = &process.jupyter {
        notebook(sheet, process, jupyter, report);
    }
    if let Some(container) = &process.container {
        let runtime = container.runtime.as_deref().unwrap_or("container");
        let id = container.id.as_deref().map(|id| fit(id, 13).into_owned());
        let words = match (container.name.as_deref(), id) {
            (Some(name), Some(id)) => format!("container {name} ({runtime} {id})"),
            (Some(name), None) => format!("container {name} ({runtime})"),
            (None, Some(id)) => format!("container {id} ({runtime})"),
            (None, None) => format!("a container ({runtime})"),
        };
        sheet.entry("", &words);
    }
    if let Some(pod) = &process.kubernetes {
        let name = pod.pod_name.as_deref().or(pod.pod_uid.as_deref());
        let mut words = format!("pod {}", name.unwrap_or("of an unknown name"));
        for (what, value) in [
            (", namespace ", &pod.namespace),
            (", container ", &pod.container_name),
            (", class ", &pod.qos),
        ] {
            words.extend(value.as_deref().map(|value| format!("{what}{value}")));
        }
        sheet.entry("", &words);
    }
    if let Some(slurm) = &process.slurm {
        let mut words = match slurm.id() {
            Some(job) => format!("Slurm job {job}"),
            None => "a Slurm job".to_owned(),
        };
        for (what, value) in [(", step ", &slurm.step_id), (", named ", &slurm.job_name)] {
            words.extend(value.as_deref().map(|value| format!("{what}{value}")));
        }
        if slurm.over == Some(true) {
            words.push_str(", which is over: no step of it is left on this machine");
        }
        sheet.entry("", &words);
    }
    if let Some(unit) = &process.systemd_unit {
        sheet.entry("", &format!("systemd unit {unit}"));
    }
}

fn notebook(sheet: &mut PageText, process: &Process, jupyter: &Jupyter, report: &ExplainReport) {
    if let Some(kernel) = process.kernel_forked_from() {
        sheet.entry("", &format!("a worker that kernel {kernel} has forked, of"));
    }
    let mut words = match &jupyter.notebook_path {
        Some(path) => format!("notebook {path}"),
        None => "a notebook's kernel; which notebook is not known".to_owned(),
    };
    if let Some(application) = &jupyter.application {
        words.push_str(&format!(" ({application})"));
    }
    sheet.entry("", &words);
    if let Some(id) = &jupyter.kernel_id {
        sheet.entry("", &format!("kernel {id}"));
    }
    let mut named = Vec::new();
    named.extend(jupyter.server_url.as_ref().map(|url| format!("server {url}")));
    named.extend(jupyter.server_pid.map(|pid| format!("pid {pid}")));
    named.extend(jupyter.server_root.as_ref().map(|root| format!("serves {root}")));
    let state = jupyter.execution_state.as_ref();
    named.extend(state.map(|state| format!("state {state}")));
    let last = process.last_activity();
    named.extend(last.map(|time| format!("last active {}", ago(time, report))));
    let connections = jupyter.connections;
    named.extend(connections.map(|count| number_of(count, "connection")));
    if !named.is_empty() {
        sheet.entry("", &named.join(", "));
    }
    if let Some(words) = jupyter.under_way() {
        sheet.entry("", &format!("{words}; its details may be known in a moment"));
    }
    if let Some(error) = &jupyter.server_error {
        sheet.entry("", &format!("its server reports nothing: {error}"));
    }
}

fn since(sheet: &mut PageText, page: &ProcessPage, report: &ExplainReport) {
    let started = match page.process.start_time {
        Some(time) => format!("started {}", ago(time, report)),
        None => "when it started is not known".to_owned(),
    };
    sheet.entry("Since", &started);
    if let Some(seen) = page.first_seen {
        let seen = if page.arrival_seen {
            format!("first seen on a GPU {}", ago(seen, report))
        } else {
            let span = Span::from_seconds(report.window_seconds);
            format!("on a GPU for {span} at least, as far as the history reaches")
        };
        sheet.entry("", &seen);
    }
}

fn gpus(sheet: &mut PageText, page: &ProcessPage, report: &ExplainReport) {
    let rows = if page.gpus.len() <= TALL_CHARTS { TALL } else { 1 };
    for on in page.gpus.iter().take(MOST_LISTED) {
        on_gpu(sheet, on, page, rows, report);
    }
    let more = page.gpus.len().saturating_sub(MOST_LISTED);
    if more > 0 {
        sheet.entry("", &format!("and {more} more GPUs (--json lists them)"));
    }
    if page.gpus.is_empty() {
        sheet.entry("GPU", "it holds none that NVML lists it on");
    }
    let total = page.process.cpu_seconds.map(Span::from_seconds);
    let cpu = match (page.cpu_percent_mean, total) {
        (Some(mean), Some(total)) => format!("{mean:.1}% of a core on average, {total} in all"),
        (Some(mean), None) => format!("{mean:.1}% of a core on average"),
        (None, Some(total)) => format!("{total} in all; the history is too short for its use"),
        (None, None) => return,
    };
    sheet.entry("CPU", &cpu);
}

fn on_gpu(
    sheet: &mut PageText,
    on: &OnGpu,
    page: &ProcessPage,
    rows: usize,
    report: &ExplainReport,
) {
    let label = match on.gpu_instance_id {
        Some(instance) => format!("GPU {}/{instance}", on.gpu),
        None => format!("GPU {}", on.gpu),
    };
    let mut facts = Vec::new();
    match (on.used_bytes, on.total_bytes) {
        (Some(used), Some(total)) if total > 0 => {
            let share = used as f64 / total as f64 * 100.0;
            facts.push(format!("{} of {} ({share:.0}%)", Bytes(used), Bytes(total)));
        }
        (Some(used), _) => facts.push(Bytes(used).to_string()),
        (None, _) if on.listed => {
            let why = on.used_unavailable.as_deref();
            let why = why.unwrap_or("the driver does not report its memory");
            facts.push(format!("memory n/a: {why}"));
        }
        (None, _) => facts.push(
            "it has the device file open, but NVML does not list it: its memory is not known"
                .to_owned(),
        ),
    }
    match (on.sm_percent, on.sm_percent_mean) {
        (Some(now), Some(mean)) => facts.push(format!("SM {now}% now, {mean:.0}% on average")),
        (None, Some(mean)) => facts.push(format!("SM {mean:.0}% on average")),
        (Some(now), None) => facts.push(format!("SM {now}% now")),
        (None, None) => {}
    }
    sheet.entry(&label, &facts.join(", "));
    if let (false, Some(bytes)) = (on.listed, on.unattributed_bytes) {
        let text = format!("{} there are in use by no process that NVML lists", Bytes(bytes));
        sheet.entry("", &text);
    }
    if let Some((percent, since)) = on.lifetime_percent.zip(on.lifetime_since) {
        let life = report.time.map(|now| now.seconds_since(since).max(0.0));
        let life =
            life.map_or_else(|| "life".to_owned(), |life| Span::from_seconds(life).to_string());
        let text = format!("SM busy {percent}% of its {life}, by the driver's accounting");
        sheet.entry("", &text);
    }
    if let Some(unused) = on.unused_since {
        sheet.entry("", &format!("not used since {}", ago(unused, report)));
    }
    let will = exhaustion(on, page);
    course(sheet, &on.course, will.and_then(|will| forecast(on, will)), rows);
    if let Some(text) = will.and_then(|will| full_when(will, report)) {
        sheet.entry("", &text);
    }
}

/// The evidence that it leaks there, where it can be told that it is there: with several GPUs the evidence
/// is of one of them, and a GPU's free memory says nothing of its parts.
fn exhaustion(on: &OnGpu, page: &ProcessPage) -> Option<Exhaustion> {
    if on.gpu_instance_id.is_some() || page.gpus.iter().filter(|it| it.gpu == on.gpu).count() > 1 {
        return None;
    }
    let mut lasting = page.verdict.findings.iter();
    lasting.find_map(|finding| match &finding.gpus[..] {
        [only] if finding.resolved_at.is_none() && only.index == on.gpu => {
            finding.evidence.forecast()
        }
        _ => None,
    })
}

fn forecast(on: &OnGpu, will: Exhaustion) -> Option<ForecastLine> {
    Some(ForecastLine {
        seconds: will.seconds,
        full_bytes: on.used_bytes?.saturating_add(will.free_bytes),
    })
}

/// When the GPU will be full: `full at about …, in 25m (24m to 26m), if it goes on`.
fn full_when(will: Exhaustion, report: &ExplainReport) -> Option<String> {
    let (seconds, now) = (will.seconds, report.time?);
    let span = Span::from_seconds;
    let between = match will.between {
        Some((low, high)) => format!(" ({} to {})", span(low), span(high)),
        None => String::new(),
    };
    Some(format!(
        "full at about {}, in {}{between}, if this continues: {} are free",
        now.plus_seconds(seconds).local(),
        span(seconds),
        Bytes(will.free_bytes)
    ))
}

/// How memory moved: a chart where it did, with what is to come where that is told; a line where it did
/// not.
pub(super) fn course(
    sheet: &mut PageText,
    course: &MemoryCurve,
    forecast: Option<ForecastLine>,
    rows: usize,
) {
    let points = &course.points;
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return;
    };
    let low = points.iter().map(|point| point.low_bytes).min();
    let high = points.iter().map(|point| point.high_bytes).max();
    let (low, high) = (low.unwrap_or(0), high.unwrap_or(0));
    let span = Span::from_seconds(last.until.seconds_since(first.since));
    let samples = number_of(course.samples, "sample");
    if course.samples < 2 {
        return;
    }
    if high - low < STILL_BYTES {
        sheet.entry("", &format!("the same for {span} ({samples})"));
        return;
    }
    const SCALE: usize = 11;
    let size =
        Size { columns: sheet.room().saturating_sub(SCALE).min(60), rows, ascii: sheet.look.ascii };
    if let Some(chart) = chart::draw(course, forecast, size) {
        let edge = if sheet.look.ascii { '|' } else { '▕' };
        let last_line = chart.lines.len() - 1;
        for (at, line) in chart.lines.iter().enumerate() {
            let scale = match at {
                0 => Bytes(chart.top_bytes).to_string(),
                at if at == last_line => Bytes(chart.bottom_bytes).to_string(),
                _ => String::new(),
            };
            let line = sheet.look.style.chart(line);
            sheet.beside("", &format!("{scale:>9} {edge}{line}"));
        }
    }
    let moved = if last.last_bytes >= first.low_bytes {
        format!("{} more", Bytes(last.last_bytes - first.low_bytes))
    } else {
        format!("{} less", Bytes(first.low_bytes - last.last_bytes))
    };
    let text = format!(
        "{} at least, {} at most, now {}: {moved} than {span} ago ({samples})",
        Bytes(low),
        Bytes(high),
        Bytes(last.last_bytes)
    );
    sheet.entry("", &text);
}

fn held_by(sheet: &mut PageText, page: &ProcessPage) {
    let (process, kin) = (&page.process, &page.kin);
    let files = process.gpu_files.as_deref();
    let is_certain = process.identity().is_certain();
    if !is_certain && kin.members.is_empty() {
        return;
    }
    sheet.section("What holds it");
    match files {
        _ if !is_certain => {}
        Some([]) => sheet.item("- ", "it has no GPU device file open"),
        Some(files) => {
            let names: Vec<&str> = files.iter().map(|file| &**file).collect();
            sheet.item("- ", &format!("it has open: {}", names.join(" ")));
        }
        None => sheet.item(
            "- ",
            "the GPU device files that it has open are not known: reading them takes root on the host",
        ),
    }
    let launcher = kin.launcher.as_ref().or(process.parent.as_ref());
    if let Some(parent) = launcher {
        let command = program(parent.command.as_deref(), parent.comm.as_deref());
        let command = command.as_deref().unwrap_or("an unknown command");
        let command = fit(command, sheet.room());
        sheet.item("- ", &format!("started by pid {}: {command}", parent.pid));
    } else if process.parent_is_reaper == Some(true) {
        // A service's parent and a container's first process did start it, and adopt others' too.
        let ppid = process.ppid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
        let text = if process.group_leader_alive == Some(false) {
            format!("its job's leader is gone, and its parent{ppid} is one that adopts orphans")
        } else {
            format!(
                "its parent{ppid} is one that adopts orphans; whether it started it is not known"
            )
        };
        sheet.item("- ", &text);
    }
    if !kin.members.is_empty() {
        let ties = match kin.ties.is_empty() {
            true => String::new(),
            false => format!(" ({})", kin.ties.join(", ")),
        };
        sheet.item("- ", &format!("belongs together with{ties}:"));
        let mut left_out = 0;
        for (at, member) in kin.members.iter().enumerate() {
            let is_own = member.holder.pid == process.pid;
            if at >= MOST_LISTED && !is_own {
                left_out += 1;
                continue;
            }
            let mark = format!("    {}", "  ".repeat(member.depth.min(MOST_DEPTH)));
            let own = if is_own { " (this one)" } else { "" };
            sheet.item(&mark, &format!("{}{own}", relative(&member.holder)));
        }
        if left_out > 0 {
            sheet.item("    ", &format!("and {left_out} more (--json lists them)"));
        }
    }
}

/// `4242 python train.py, ann, 20.0 GiB`.
fn relative(holder: &GpuHolder) -> String {
    let mut words = format!("{} {}", holder.pid, holder.name);
    words.extend(holder.user.as_ref().map(|user| format!(", {user}")));
    match holder.used_bytes {
        Some(bytes) => words.push_str(&format!(", {}", Bytes(bytes))),
        None if holder.listed => words.push_str(", what it holds is not known"),
        None => words.push_str(", not listed by NVML"),
    }
    words
}

/// The state's letter in words.
fn state(letter: char) -> String {
    match letter {
        'R' => "running".to_owned(),
        'S' => "sleeping".to_owned(),
        'D' => "in uninterruptible sleep".to_owned(),
        'T' => "stopped by a signal".to_owned(),
        't' => "stopped by a debugger".to_owned(),
        'Z' => "zombie: exited, not yet reaped by its parent".to_owned(),
        'X' => "dead".to_owned(),
        'I' => "idle in the kernel".to_owned(),
        other => format!("in state {other}"),
    }
}
