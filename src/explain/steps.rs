//! Ways to free memory, gentlest first: ways that keep the process running, then ways to end it
//! through its owner, then signals. Advice for the next start follows.

use super::page::Section;
use super::process::OnGpu;
use crate::advice::{self, AdviceText, Framework};
use crate::model::finding::Finding;
use crate::model::{Kind, Process, Snapshot};
use crate::reclaim::park::check::is_suggested;
use crate::units::Bytes;

/// Maximum number of lines of a framework's advice. A command on the page shows the rest.
const INSIDE_MAX: usize = 4;
const AT_END_MAX: usize = 2;
const AT_START_MAX: usize = 2;
/// State in which a process handles no signal, not even SIGKILL.
const UNINTERRUPTIBLE: char = 'D';
/// State in which a process handles signals other than SIGKILL only after SIGCONT.
const STOPPED: char = 'T';
/// States of zombies and dead processes.
const ENDED: [char; 3] = ['Z', 'X', 'x'];

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum WhenPossible {
    /// Possible now. The process keeps running.
    Now,
    /// Possible now, but ends the process.
    End,
    NextStart,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ExplainStep {
    pub(super) when: WhenPossible,
    pub(super) text: String,
}

pub(super) fn sections(steps: &[ExplainStep], findings: &[Finding]) -> [Section; 2] {
    let is_found = findings.iter().any(|finding| finding.resolved_at.is_none());
    let mut now = Section::new(match is_found {
        true => "What to do, gentlest first",
        false => "To free its memory, gentlest first",
    });
    let mut next = Section::new("At its next start");
    for step in steps {
        match step.when {
            WhenPossible::NextStart => next.item("- ", at_start(&step.text)),
            WhenPossible::Now | WhenPossible::End => {
                now.item(&format!("{}. ", now.rows.len() + 1), &*step.text);
            }
        }
    }
    [now, next]
}

/// Removes a prefix that repeats the heading.
pub(super) fn at_start(text: &str) -> &str {
    const PREFIXES: [&str; 2] = ["at its next start: ", "at its next start, "];
    let rest = PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix));
    rest.unwrap_or(text)
}

pub(super) fn of_process(
    process: &Process,
    gpus: &[OnGpu<'_>],
    findings: &[Finding],
    snapshot: &Snapshot,
) -> Vec<ExplainStep> {
    let active = || findings.iter().filter(|finding| finding.resolved_at.is_none());
    let general = if process.identity().is_certain() {
        general(process, gpus, active().any(|finding| is_unresponsive(finding.kind)))
    } else {
        Vec::new()
    };
    // A rule's advice is specific to the finding, so it precedes general advice.
    let brief = advice::steps(process);
    let lines = advice::lines(process).into_iter();
    let general_lines: Vec<&str> = lines
        .chain(advice::at_start(process))
        .map(|line| &*line.text)
        .chain(brief.iter().map(String::as_str))
        .collect();
    let special = active().flat_map(|finding| &finding.advice);
    let special = special.filter(|text| !general_lines.contains(&text.as_str()));
    let special = special.map(|text| {
        let when = match signals(text, process.pid) {
            true => WhenPossible::End,
            false => WhenPossible::Now,
        };
        plain(when, text.clone())
    });
    let (mut all, last): (Vec<ExplainStep>, Vec<ExplainStep>) =
        special.partition(|step| step.when == WhenPossible::Now);
    all.extend(general);
    if active().any(|finding| finding.kind == Kind::Idle) && is_suggested(process, snapshot) {
        let pid = process.pid;
        let text = format!(
            "`gpumem park {pid}` keeps it running and moves its memory to the host, until `gpumem unpark {pid}` \
            restores it (experimental)"
        );
        all.push(plain(WhenPossible::Now, text));
    }
    all.extend(last);
    let mut steps: Vec<ExplainStep> = Vec::with_capacity(all.len());
    for step in all {
        let is_listed = |existing: &ExplainStep| {
            existing.text == step.text
                || (continues_it(existing) && continues_it(&step))
                || (signals(&existing.text, process.pid) && signals(&step.text, process.pid))
        };
        if !steps.iter().any(is_listed) {
            steps.push(step);
        }
    }
    // The sort is stable, so signals stay after the ways to end the process through its owner.
    steps.sort_by_key(|step| step.when);
    steps
}

/// Returns advice that does not depend on a finding. A process that cannot run gets no advice about its code.
fn general(process: &Process, gpus: &[OnGpu<'_>], is_unresponsive: bool) -> Vec<ExplainStep> {
    let row = advice::framework_of(process);
    let lines = |lines_of: fn(&Framework) -> &[AdviceText], when, max| {
        let lines = |row| lines_of(row).iter().filter(|line| line.applies(process));
        // Add one line of advice about each additional library.
        let beside = advice::beside(process);
        let beside = beside.into_iter().filter_map(|row| lines(row).next());
        let framework = row.into_iter().flat_map(lines).take(max);
        framework
            .chain(beside)
            .map(|line| plain(when, line.text_for(process)))
            .collect::<Vec<ExplainStep>>()
    };
    let mut steps = Vec::new();
    if !is_unresponsive {
        match advice::server_line(process) {
            Some(text) => steps.push(plain(WhenPossible::Now, text)),
            None => steps.extend(lines(|row| &row.inside, WhenPossible::Now, INSIDE_MAX)),
        }
        let stays = advice::stays_beside(process);
        steps.extend(stays.map(|text| plain(WhenPossible::Now, text)));
        steps.extend(row.map(more));
    }
    // Do not suggest killing a display server, because that ends the user's session.
    if process.is_display() {
        let text =
            "it draws the desktop: do not kill it; its memory is freed when the user logs out";
        return vec![plain(WhenPossible::Now, text.to_owned())];
    }
    if let Some(hypervisor) = process.hypervisor() {
        return vec![plain(WhenPossible::Now, hypervisor.advice())];
    }
    let places = advice::place_lines(process).into_iter();
    let places = places.map(|text| plain(WhenPossible::End, text));
    let (awake, mut ends): (Vec<ExplainStep>, Vec<ExplainStep>) = places.partition(continues_it);
    let awake = awake.into_iter().map(|step| ExplainStep { when: WhenPossible::Now, ..step });
    steps.extend(awake);
    if process.jupyter.is_none() {
        steps.extend(lines(|row| &row.at_end, WhenPossible::End, AT_END_MAX));
    }
    let state = process.live_state();
    if process.has_threads_left() && state != Some(UNINTERRUPTIBLE) {
        let text = format!(
            "only its main thread has exited; to end its other threads: `kill -KILL {}`",
            process.pid
        );
        ends.push(plain(WhenPossible::End, text));
    } else if state.is_some_and(|state| ENDED.contains(&state)) {
        let parent = process.parent_words();
        let text = format!("it has exited; its entry is removed when {parent} reaps it or exits");
        ends = vec![plain(WhenPossible::End, text)];
    } else if state == Some(UNINTERRUPTIBLE) {
        let text = "no signal reaches it while it is in uninterruptible sleep: it is waiting for the driver \
                    or a disk";
        ends.push(plain(WhenPossible::End, text.to_owned()));
    } else {
        if ends.is_empty() {
            // The owner ends a job, a container or a kernel, so suggest a signal only for a process without an owner.
            let mut end = advice::lines(process)
                .last()
                .map(|line| plain(WhenPossible::End, line.text.to_string()));
            if let Some(end) = &mut end {
                let pid = process.pid;
                if state == Some(STOPPED) && process.frozen != Some(true) {
                    end.text.push_str(&format!(
                        " (`kill -TERM {pid}; kill -CONT {pid}`: it handles the first signal once it \
                        continues)"
                    ));
                } else if process.namespace_pid == Some(1) {
                    // pid_namespaces(7): PID 1 can ignore any signal from inside its namespace, but
                    // not SIGKILL from outside.
                    end.text.push_str(&format!(
                        " (`kill {pid}`; as pid 1 of its pid namespace, it can ignore that signal: `kill \
                        -KILL {pid}` kills everything in the namespace)"
                    ));
                }
            }
            ends.extend(end);
        }
        if let (Some(end), Some(frees)) = (ends.last_mut(), frees(gpus)) {
            end.text.push_str(&format!("; frees {frees}"));
        }
    }
    steps.extend(ends);
    steps.extend(lines(|row| &row.at_start, WhenPossible::NextStart, AT_START_MAX));
    steps
}

fn more(row: &Framework) -> ExplainStep {
    let (name, title) = (&row.name, &row.title);
    let what = match row.inside.is_empty() {
        true => format!("{title} frees no memory while the process runs; "),
        false => String::new(),
    };
    let command = format!("`gpumem explain --framework {name}`");
    let text = format!("{what}{command} shows what frees memory, and what does not");
    plain(WhenPossible::Now, text)
}

fn continues_it(step: &ExplainStep) -> bool {
    step.text.contains("`kill -CONT") || step.text.starts_with("thaw it")
}

fn signals(text: &str, pid: u32) -> bool {
    text.contains(&format!("`kill -TERM {pid}; kill -CONT {pid}`"))
}

pub(super) fn of_gpu(findings: &[Finding]) -> Vec<ExplainStep> {
    let about_gpu = findings
        .iter()
        .filter(|finding| finding.process.is_none() && finding.resolved_at.is_none());
    let mut steps: Vec<ExplainStep> = Vec::new();
    for text in about_gpu.flat_map(|finding| &finding.advice) {
        if !steps.iter().any(|step| step.text == *text) {
            steps.push(plain(WhenPossible::Now, text.clone()));
        }
    }
    let active = findings.iter().filter(|finding| finding.resolved_at.is_none());
    let mut pids: Vec<u32> =
        active.filter_map(|finding| finding.process.as_ref()).map(|process| process.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    let first = pids.iter().take(3).map(u32::to_string);
    let commands: Vec<String> = first.map(|pid| format!("`gpumem explain {pid}`")).collect();
    if !commands.is_empty() {
        let text =
            format!("to see what to do about a process on this GPU: {}", commands.join(", "));
        steps.push(plain(WhenPossible::Now, text));
    }
    steps
}

/// Returns whether advice about the program's own code is useless for this kind of finding, because the process does not
/// respond, or because it is no longer under anyone's control.
fn is_unresponsive(kind: Kind) -> bool {
    matches!(kind, Kind::Dead | Kind::Stuck | Kind::Orphan | Kind::Stopped | Kind::Hung)
}

fn plain(when: WhenPossible, text: String) -> ExplainStep {
    ExplainStep { when, text }
}

/// Describes the memory to be freed, such as `20.0 GiB on GPU 0, 2.0 GiB on GPU 1`.
fn frees(gpus: &[OnGpu<'_>]) -> Option<String> {
    let mut held: Vec<(u32, Option<u64>)> = Vec::new();
    for (gpu, row) in gpus.iter().filter_map(|on| Some((on.gpu.index, on.row?))) {
        match held.iter_mut().find(|(index, _)| *index == gpu) {
            Some((_, bytes)) => {
                let both = bytes.zip(row.used_bytes);
                *bytes = both.map(|(sum, more)| sum.saturating_add(more));
            }
            None => held.push((gpu, row.used_bytes)),
        }
    }
    let frees: Vec<String> = held
        .iter()
        .filter_map(|(gpu, bytes)| Some(format!("{} on GPU {gpu}", Bytes((*bytes)?))))
        .collect();
    (!frees.is_empty()).then(|| frees.join(", "))
}
