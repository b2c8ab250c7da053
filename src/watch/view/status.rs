//! The panel below the table, with the selected process or the list of [`findings`].

use crate::watch::text;
use ratatui::buffer::Buffer;

use super::lines::PanelWriter;
use super::table;
use crate::model::snapshot::{Jupyter, Process};
use crate::watch::findings::{self, are_shown};
use crate::watch::layout::Layout;
use crate::watch::state::findings::lines_wanted;
use crate::watch::state::{App, Focus};
use crate::watch::text::{MESSAGE_CHARS, clean};
use crate::watch::theme::Styles;
use crate::watch::view_model::Subject;

pub fn draw(app: &App, styles: Styles, layout: &Layout, canvas: &mut Buffer) {
    let area = layout.status;
    let mut lines = PanelWriter::new(styles, area, canvas);
    let are_findings = are_shown(app);
    let wanted =
        app.screenful.as_ref().map(|screenful| lines_wanted(screenful, app.alarms().len()));
    // A panel without content has only its title.
    let has_title = match wanted.filter(|_| are_findings) {
        Some((0, notes)) => notes == 0 || area.height > 1,
        _ => area.height >= 4,
    };
    if has_title {
        let style = match app.focus {
            Focus::Findings => styles.focused(),
            Focus::Table => styles.heading(),
        };
        lines.rule(&title(app, layout), style);
    }
    for (text, limit) in app.alarms() {
        lines.write(&text, limit, styles.alarm());
    }
    if app.screenful.is_none() {
        return;
    }
    match app.subject().filter(|_| !are_findings) {
        Some(subject) => selected(app, &subject, &mut lines),
        None => findings::draw(app, layout, &mut lines),
    }
    // While no sample arrives, "nothing to report" would be a guess.
    if lines.is_blank && !app.is_overdue() {
        lines.write("nothing to report", 1, styles.faint());
    }
}

fn title(app: &App, layout: &Layout) -> String {
    let Some(subject) = app.subject().filter(|_| !are_shown(app)) else {
        return findings::title(app, layout);
    };
    let pid = subject.row.key.identity.pid;
    match subject.place_on_gpus() {
        Some(gpus) if subject.row.is_listed => {
            format!("process {pid} on GPU {gpus}{}", profile(&subject))
        }
        Some(gpus) => format!("process {pid}, unlisted, has GPU {gpus} open"),
        None => format!("process {pid}"),
    }
}

/// Formats the profile of the process's MIG device, such as ` (1g.10gb)`.
fn profile(subject: &Subject<'_>) -> String {
    let (gpu_instance, compute_instance) = subject.row.key.instance;
    let device = subject.gpu.and_then(|gpu| gpu.mig_device(gpu_instance, compute_instance));
    let profile = device.and_then(|device| device.profile.as_deref());
    profile.map_or_else(String::new, |profile| format!(" ({})", clean(profile, 40)))
}

fn selected(app: &App, subject: &Subject<'_>, lines: &mut PanelWriter<'_>) {
    let styles = lines.styles;
    if let Some(suspect) = subject.suspect {
        let message = format!("{}; {}", suspect.message, suspect.missing);
        lines.write(&clean(&message, MESSAGE_CHARS), 2, styles.plain());
        let host = app.setup.host.as_ref();
        let command =
            host.map_or_else(|| suspect.command.to_string(), |host| host.typed(&suspect.command));
        let command = format!("> {}", clean(&command, MESSAGE_CHARS));
        lines.write(&command, 1, styles.strong());
    }
    if let Some(finding) = subject.finding {
        lines.finding(finding, 2);
        for advice in &finding.advice {
            let advice = format!("> {}", clean(advice, MESSAGE_CHARS));
            lines.write(&advice, 2, styles.strong());
        }
        for also in &finding.also {
            let text = format!("also {}: {}", also.kind, clean(&also.message, MESSAGE_CHARS));
            lines.write(&text, 1, styles.plain());
        }
    }
    match subject.process {
        Ok(process) => {
            if let Some(holding) = subject.holding() {
                let text = clean(&holding, MESSAGE_CHARS).into_owned();
                lines.write(&text, 2, styles.caution());
            }
            let room = lines.left().min(3);
            let text = text::whole_command(process, lines.area.width.saturating_mul(room.max(1)));
            lines.write(&text, 3, styles.plain());
            let facts = facts(subject, process, styles);
            lines.write(&facts.join(", "), 2, styles.faint());
        }
        Err(reason) => match subject.ended {
            Some(ended) => {
                let text = "the process has exited, but NVML still lists it; it was:";
                lines.write(text, 1, styles.caution());
                let room = lines.area.width.saturating_mul(lines.left().clamp(1, 3));
                lines.write(&text::whole_command(&ended.as_named(), room), 3, styles.plain());
            }
            None => {
                let text = format!(
                    "this PID could not be matched to a process ({}); the local process with the same PID may be unrelated and is not shown",
                    clean(reason, MESSAGE_CHARS)
                );
                lines.write(&text, 3, styles.caution());
            }
        },
    }
}

/// Lists facts such as a halted state, the notebook or the parent.
fn facts(subject: &Subject<'_>, process: &Process, styles: Styles) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut part = |label: &str, value: Option<&str>| {
        if let Some(value) = value {
            parts.push(format!("{label} {}", clean(value, 200)));
        }
    };
    if let Some(state) = process.state.filter(|state| table::is_halted(*state)) {
        part("state", Some(&table::state_word(state, styles).0));
    }
    let jupyter = process.jupyter.as_deref();
    part("notebook", jupyter.and_then(Jupyter::under_way));
    part("role", subject.mps_role());
    part("terminal", process.terminal.as_deref());
    part("in", process.place().as_deref());
    for (label, number) in [
        ("pid in its namespace", process.namespace_pid),
        ("parent", process.ppid),
        ("threads", process.threads),
    ] {
        part(label, number.map(|number| number.to_string()).as_deref());
    }
    part("executable", process.executable.as_deref());
    parts
}
