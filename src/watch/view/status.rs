//! Below the table: what is known of the selected process and of its finding, or the findings as a
//! list; and the line of keys.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::header::date_and_time;
use super::look::Look;
use super::pen::{Pen, clean, columns, wrap};
use super::table;
use crate::model::finding::Finding;
use crate::model::snapshot::{Process, Snapshot};
use crate::report::escape::escape;
use crate::watch::app::{App, End, Mode};
use crate::watch::column::Column;
use crate::watch::keys;
use crate::watch::layout::Gpus;
use crate::watch::picture::{Picture, Subject, badge};
use crate::watch::reaping;

/// The text of one finding is cut here, whatever a rule or a recording put into it.
const MESSAGE_CHARS: u16 = 1000;

/// Draws the panel.
pub fn draw(app: &App, look: Look, area: Rect, buffer: &mut Buffer) {
    let mut lines = Lines {
        look,
        area,
        buffer,
        used: 0,
        is_blank: true,
    };
    if area.height >= 4 {
        lines.rule(&title(app));
    }
    if let Some(End::Failed(error)) = &app.end {
        let text = format!("no more samples: {}", clean(error, MESSAGE_CHARS));
        lines.write(&text, 2, look.alarm());
    }
    let Some(picture) = &app.picture else {
        return;
    };
    let overdue = app.is_overdue();
    if overdue {
        let (_, time) = date_and_time(picture.snapshot.time);
        let text = format!("the driver does not answer; all of this is from {time} UTC");
        lines.write(&text, 1, look.alarm());
    }
    match app.subject() {
        Some(subject) => selected(&subject, &mut lines),
        None => {
            let form = app.layout().map(|layout| layout.gpu_form);
            overview(picture, form, &mut lines);
        }
    }
    // Silence is no good news where nothing is heard.
    if lines.is_blank && !overdue {
        lines.write("nothing to report", 1, look.faint());
    }
}

fn title(app: &App) -> String {
    match (app.subject(), &app.picture) {
        (Some(subject), _) => {
            let pid = subject.row.key.identity.pid;
            match subject.place_on_gpus() {
                Some(gpus) if subject.row.is_listed => {
                    format!("process {pid} on GPU {gpus}{}", profile(&subject))
                }
                Some(gpus) => format!("process {pid}, unlisted, has GPU {gpus} open"),
                None => format!("process {pid}"),
            }
        }
        (None, Some(picture)) => match picture.findings.len() {
            0 => "findings".to_owned(),
            count => format!("findings: {count}"),
        },
        (None, None) => String::new(),
    }
}

/// The profile of the MIG device that a process is on: ` (1g.10gb)`.
fn profile(subject: &Subject<'_>) -> String {
    let (gpu_instance, compute_instance) = subject.row.key.instance;
    let device = subject
        .gpu
        .and_then(|gpu| gpu.mig_device(gpu_instance, compute_instance));
    let profile = device.and_then(|device| device.profile.as_deref());
    profile.map_or_else(String::new, |profile| format!(" ({})", clean(profile, 40)))
}

/// The panel's lines, from the top.
struct Lines<'a> {
    look: Look,
    area: Rect,
    buffer: &'a mut Buffer,
    used: u16,
    /// Whether nothing stands there yet but the rule.
    is_blank: bool,
}

impl Lines<'_> {
    fn left(&self) -> u16 {
        self.area.height.saturating_sub(self.used)
    }

    fn pen(&mut self) -> Pen<'_> {
        let line = self.used;
        self.used += 1;
        self.is_blank = false;
        Pen::new(self.buffer, self.area, line)
    }

    fn rule(&mut self, title: &str) {
        let look = self.look;
        let mut pen = self.pen();
        pen.fill("─", 2, look.faint());
        if !title.is_empty() {
            pen.skip(1).text(title, look.heading()).skip(1);
        }
        let rest = pen.room();
        pen.fill("─", rest, look.faint());
        self.is_blank = true;
    }

    /// Writes `text` on at most `limit` lines.
    fn write(&mut self, text: &str, limit: u16, style: Style) {
        let limit = limit.min(self.left());
        for line in wrap(text, self.area.width, usize::from(limit)) {
            self.pen().text(&line, style);
        }
    }

    /// Writes a finding's badge and message on at most `limit` lines.
    fn finding(&mut self, finding: &Finding, limit: u16) {
        let look = self.look;
        let limit = limit.min(self.left());
        let badge = badge(finding);
        let indent = columns(&badge) + 1;
        let message = clean(&finding.message, MESSAGE_CHARS);
        let width = self.area.width.saturating_sub(indent);
        for (at, line) in wrap(&message, width, usize::from(limit)).iter().enumerate() {
            let mut pen = self.pen();
            if at == 0 {
                pen.left(&badge, indent, look.badge(finding.severity));
            } else {
                pen.skip(indent);
            }
            pen.text(line, look.plain());
        }
    }
}

/// All findings, as many as have room; then what could not be decided or read.
fn overview(picture: &Picture, form: Option<Gpus>, lines: &mut Lines<'_>) {
    let look = lines.look;
    let mut notes: Vec<String> = Vec::new();
    if let Some(error) = picture.snapshot.errors.first() {
        let place = error
            .gpu
            .map_or_else(String::new, |index| format!("GPU {index} "));
        let more = match picture.snapshot.errors.len() {
            1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        notes.push(format!(
            "could not read {place}{}: {}{more}",
            clean(&error.call, 200),
            clean(&error.error, 400)
        ));
    }
    notes.extend(unavailable(&picture.snapshot, form));
    for undecided in &picture.undecided {
        notes.push(format!(
            "not decided yet: {}: {}",
            clean(&undecided.rule, 100),
            clean(&undecided.reason, 400)
        ));
    }

    let room = usize::from(lines.left());
    let count = picture.findings.len();
    // A line is kept for the notes where there is more than one, and one for what does not fit.
    let kept = usize::from(!notes.is_empty() && room > 1);
    let shown = if count + kept <= room {
        count
    } else {
        room.saturating_sub(kept + usize::from(room > 2))
    };
    for finding in &picture.findings[..shown.min(count)] {
        lines.finding(finding, 1);
    }
    if shown < count && lines.left() > kept as u16 {
        let text = format!("and {} more findings", count - shown);
        lines.write(&text, 1, look.faint());
    }
    for note in &notes {
        lines.write(note, 1, look.caution());
    }
}

/// Why figures are not to be had, each reason once; and that a hidden holder may not have been seen,
/// where there is memory that nobody holds.
fn unavailable(snapshot: &Snapshot, form: Option<Gpus>) -> Vec<String> {
    let told = form.is_some_and(Gpus::has_words);
    let mut notes: Vec<String> = Vec::new();
    for gpu in &snapshot.gpus {
        for (what, reason) in [
            ("memory", &gpu.memory_unavailable),
            ("memory of processes", &gpu.process_memory_unavailable),
        ] {
            // A GPU's own line tells it already.
            let Some(reason) = reason.as_ref().filter(|_| !told || what != "memory") else {
                continue;
            };
            let text = format!("{what} n/a: {}", clean(reason, 400));
            if !notes.iter().any(|note| note.ends_with(&text)) {
                notes.push(format!("GPU {}: {text}", gpu.index));
            }
        }
    }
    let gpus = snapshot.gpus.iter();
    let mut balances = gpus.filter_map(|gpu| snapshot.balance(gpu));
    if balances.any(|balance| balance.notable_bytes().is_some()) {
        notes.extend(snapshot.host.unread_text());
    }
    notes
}

/// The finding about a process with what returns the memory, and what else is known of it.
fn selected(subject: &Subject<'_>, lines: &mut Lines<'_>) {
    let look = lines.look;
    if let Some(finding) = subject.finding {
        lines.finding(finding, 2);
        for advice in &finding.advice {
            let advice = format!("> {}", clean(advice, MESSAGE_CHARS));
            lines.write(&advice, 2, look.strong());
        }
        for also in &finding.also {
            let text = format!(
                "also {}: {}",
                also.kind,
                clean(&also.message, MESSAGE_CHARS)
            );
            lines.write(&text, 1, look.plain());
        }
    }
    match subject.process {
        Ok(process) => {
            if let Some(holding) = subject.holding() {
                let text = clean(&holding, MESSAGE_CHARS).into_owned();
                lines.write(&text, 2, look.caution());
            }
            let room = lines.left().min(3);
            let text = table::what(process, lines.area.width.saturating_mul(room.max(1)));
            lines.write(&text, 3, look.plain());
            lines.write(&whereabouts(subject, process, look), 2, look.faint());
        }
        Err(reason) => {
            let text = format!(
                "the process behind this pid is not known: {}; nothing is shown of a local process of the same number",
                clean(reason, MESSAGE_CHARS)
            );
            lines.write(&text, 3, look.caution());
        }
    }
}

/// Whether a process has halted, and where it belongs: executable, job, container, terminal.
fn whereabouts(subject: &Subject<'_>, process: &Process, look: Look) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut part = |label: &str, value: Option<&str>| {
        if let Some(value) = value {
            parts.push(format!("{label} {}", clean(value, 200)));
        }
    };
    let short = |id: &str| id.chars().take(12).collect::<String>();
    if let Some(state) = process.state.filter(|state| table::is_halted(*state)) {
        part("state", Some(&table::state_word(state, look).0));
    }
    part("role", subject.mps_role());
    part("terminal", process.terminal.as_deref());
    part("unit", process.systemd_unit.as_deref());
    if let Some(slurm) = &process.slurm {
        part("Slurm job", slurm.job_id.as_deref());
    }
    if let Some(container) = &process.container {
        let runtime = container.runtime.as_deref().unwrap_or("container");
        let id = container.id.as_deref().map(short);
        part(
            &escape(runtime),
            container.name.as_deref().or(id.as_deref()),
        );
    }
    if let Some(kubernetes) = &process.kubernetes {
        let name = kubernetes.pod_name.as_deref();
        part("pod", name.or(kubernetes.pod_uid.as_deref()));
        part("namespace", kubernetes.namespace.as_deref());
    }
    if let Some(own) = process.namespace_pid {
        part("pid in its namespace", Some(&own.to_string()));
    }
    if let Some(ppid) = process.ppid {
        part("parent", Some(&ppid.to_string()));
    }
    if let Some(threads) = process.threads {
        part("threads", Some(&threads.to_string()));
    }
    part("executable", process.executable.as_deref());
    parts.join(", ")
}

/// Draws the line of keys; while a column is being chosen, the letters.
pub fn hints(app: &App, look: Look, table_height: u16, area: Rect, buffer: &mut Buffer) {
    let mut pen = Pen::new(buffer, area, 0);
    if app.mode == Mode::ChooseSort {
        pen.text("sort by", look.strong()).skip(1);
        for column in Column::ALL {
            let spec = column.spec();
            let word = spec.title.to_lowercase();
            if columns(&word) + 2 > pen.room() {
                break;
            }
            pen.text(spec.letter.encode_utf8(&mut [0; 4]), look.strong())
                .skip(1)
                .text(&word, look.plain())
                .skip(2);
        }
        return;
    }
    let mut right = table::beyond(app, table_height);
    if let Some(title) = table::hidden_sort(app, area.width) {
        right = format!("sorted by {title}  {right}");
    }
    let right = right.trim_end();
    // Where marks are set, that is worth more than the keys.
    let kept = match app.tagged.is_empty() {
        true => 0,
        false => columns(right) + 1,
    };
    if let Some(hint) = reaping::hint(app) {
        pen.text(&hint, look.caution()).skip(2);
    }
    for (key, word) in keys::table().filter_map(|binding| binding.hint) {
        if columns(key) + 1 + columns(word) + kept > pen.room() {
            break;
        }
        pen.text(key, look.strong())
            .skip(1)
            .text(word, look.faint())
            .skip(2);
    }
    pen.at_end(right, look.faint());
}
