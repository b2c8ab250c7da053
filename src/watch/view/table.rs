//! The process table: a row per process and GPU, made of text only where it is visible.

use std::borrow::Cow;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::look::Look;
use super::pen::{Pen, clean, columns, head};
use super::{NOT_AVAILABLE, UNKNOWN};
use crate::model::snapshot::Process;
use crate::report::escape::command_line;
use crate::units::{Bytes, Span};
use crate::watch::app::App;
use crate::watch::column::Column;
use crate::watch::picture::{Picture, Sort, Subject, Widths, badge, notebook};

/// Columns of the command that stay beside the evidence of an unlisted process.
const COMMAND_BESIDE: u16 = 16;
/// The column before the first, for the mark of the selected row.
const GUTTER: u16 = 1;

/// Draws the heading and the visible rows.
pub fn draw(app: &App, look: Look, heading: Rect, area: Rect, buffer: &mut Buffer) {
    let Some(picture) = &app.picture else {
        Pen::new(buffer, area, 0)
            .skip(GUTTER)
            .text("waiting for the first sample", look.faint());
        return;
    };
    let columns = chosen(picture.widths, area.width);
    draw_heading(&columns, app.choice.sort, look, heading, buffer);
    if picture.rows.is_empty() {
        Pen::new(buffer, area, 0)
            .skip(GUTTER)
            .text(&nothing(picture), look.plain());
        return;
    }
    for line in 0..area.height {
        let at = app.offset + usize::from(line);
        let Some(subject) = app.subject_at(at) else {
            break;
        };
        draw_row(&columns, &subject, look, area, line, buffer);
        if app.selected() == Some(at) {
            let row = Rect::new(area.x, area.y + line, area.width, 1);
            buffer.set_style(row.intersection(buffer.area), look.selected());
            Pen::new(buffer, row, 0).text("▸", look.selected());
        }
    }
}

/// Why there is no row.
fn nothing(picture: &Picture) -> String {
    let unread: Vec<String> = picture
        .snapshot
        .gpus
        .iter()
        .filter(|gpu| gpu.processes.is_none())
        .map(|gpu| gpu.index.to_string())
        .collect();
    if unread.is_empty() {
        "no process holds GPU memory".to_owned()
    } else {
        format!(
            "the process list could not be read: GPU {}",
            unread.join(", ")
        )
    }
}

/// The columns that have room, left to right, with their widths.
fn chosen(widths: Widths, width: u16) -> Vec<(Column, u16)> {
    let command_min = (width / 4).clamp(8, 40);
    let mut room = width.saturating_sub(GUTTER);
    let mut kept = Vec::with_capacity(Column::ALL.len());
    for column in Column::BY_NEED {
        let wanted = match column {
            Column::Command => command_min,
            column => column_width(column, widths),
        };
        // A column without anything to say takes no room.
        if wanted == 0 {
            continue;
        }
        if wanted + 1 > room {
            break;
        }
        room -= wanted + 1;
        kept.push((column, wanted));
    }
    let mut columns: Vec<(Column, u16)> = Vec::with_capacity(kept.len());
    for column in Column::ALL {
        columns.extend(kept.iter().filter(|(kept, _)| *kept == column));
    }
    if let Some((Column::Command, width)) = columns.last_mut() {
        // No blank follows the last column.
        *width += room + 1;
    }
    columns
}

fn column_width(column: Column, widths: Widths) -> u16 {
    match column {
        Column::Gpu => widths.gpu,
        Column::Pid => widths.pid,
        Column::User => widths.user,
        Column::Framework => widths.framework,
        Column::Place => widths.place,
        Column::Finding => widths.finding,
        column => column.spec().width,
    }
}

fn draw_heading(
    columns: &[(Column, u16)],
    sort: Sort,
    look: Look,
    area: Rect,
    buffer: &mut Buffer,
) {
    let mut pen = Pen::new(buffer, area, 0);
    pen.skip(GUTTER);
    for &(column, width) in columns {
        let spec = column.spec();
        let mark = match (column == sort.column, sort.descending()) {
            (false, _) => "",
            (true, true) => "▼",
            (true, false) => "▲",
        };
        let style = if mark.is_empty() {
            look.heading()
        } else {
            look.heading().patch(look.strong())
        };
        let title = format!("{}{mark}", spec.title);
        if spec.right {
            pen.right(&title, width, style).skip(1);
        } else {
            pen.left(&title, width, style).skip(1);
        }
    }
}

fn draw_row(
    columns: &[(Column, u16)],
    subject: &Subject<'_>,
    look: Look,
    area: Rect,
    line: u16,
    buffer: &mut Buffer,
) {
    let mut pen = Pen::new(buffer, area, line);
    pen.skip(GUTTER);
    let tells_state = columns.iter().any(|(it, _)| *it == Column::State);
    for &(column, width) in columns {
        let (text, style) = match column {
            Column::Command if !tells_state => command_with_state(width, subject, look),
            column => cell(column, width, subject, look),
        };
        if column.spec().right {
            pen.right(&text, width, style).skip(1);
        } else {
            pen.left(&text, width, style).skip(1);
        }
    }
}

/// What a cell says, and how it looks.
fn cell<'a>(
    column: Column,
    width: u16,
    subject: &Subject<'a>,
    look: Look,
) -> (Cow<'a, str>, Style) {
    let row = subject.row;
    let entry = &row.entry;
    let process = subject.process.ok();
    let stale = subject.gpu.is_some_and(|gpu| gpu.stale_seconds.is_some());
    let never_told = subject
        .gpu
        .is_some_and(|gpu| gpu.process_memory_unavailable.is_some());
    let plain = |text: Option<String>| match text {
        Some(text) => (Cow::Owned(text), look.plain()),
        None => (Cow::Borrowed(UNKNOWN), look.faint()),
    };
    let span = |seconds: Option<f64>| seconds.map(|it| Span::from_seconds(it).to_string());
    match column {
        Column::Gpu => plain(subject.place_on_gpus()),
        Column::Pid => plain(Some(
            process.map_or_else(|| row.key.identity.pid.to_string(), Process::pid_text),
        )),
        Column::User => match process.and_then(|it| it.user.as_deref()) {
            Some(user) => (clean(user, width), look.plain()),
            None => plain(process.and_then(|it| it.uid).map(|uid| uid.to_string())),
        },
        Column::Memory if never_told && row.is_listed && entry.used_bytes.is_none() => {
            (Cow::Borrowed(NOT_AVAILABLE), look.faint())
        }
        Column::Memory => {
            // The last known value of a GPU that does not answer.
            let mark = if stale { "~" } else { "" };
            plain(
                entry
                    .used_bytes
                    .map(|bytes| format!("{mark}{}", Bytes(bytes))),
            )
        }
        Column::MemoryPercent => plain(subject.memory_percent().map(|it| format!("{it:.1}"))),
        Column::SmPercent => plain(entry.sm_percent.map(|it| it.to_string())),
        Column::CpuPercent => plain(process.and_then(|it| it.cpu_percent).map(|percent| {
            if percent < 1000.0 {
                format!("{percent:.1}")
            } else {
                format!("{percent:.0}")
            }
        })),
        Column::HostMemory => plain(
            process
                .and_then(|it| it.rss_bytes)
                .map(|bytes| Bytes(bytes).to_string()),
        ),
        Column::State => match process.and_then(|it| it.state) {
            Some(state) => state_word(state, look),
            None => plain(None),
        },
        Column::Idle => plain(span(row.idle_seconds)),
        Column::Runtime => plain(span(row.runtime_seconds)),
        Column::Framework => plain(
            process
                .and_then(Process::framework_text)
                .map(|text| clean(&text, width).into_owned()),
        ),
        Column::Place => plain(
            process
                .and_then(Process::place)
                .map(|text| clean(&text, width).into_owned()),
        ),
        Column::Finding => match subject.finding {
            Some(finding) => (Cow::Owned(badge(finding)), look.badge(finding.severity)),
            None => (Cow::Borrowed(""), look.plain()),
        },
        Column::Command => match subject.process {
            Ok(process) => {
                let text = format!("{}{}", role(subject, width), what(process, width));
                (Cow::Owned(text), look.plain())
            }
            Err(reason) => (
                Cow::Owned(format!("unresolved: {}", clean(reason, width))),
                look.caution(),
            ),
        },
    }
}

/// What a process is to the GPU where that is not what a row says by itself: unlisted, with the evidence
/// where it leaves room for the command, or a part of the Multi-Process Service.
fn role(subject: &Subject<'_>, width: u16) -> String {
    if let Some(holding) = subject.holding() {
        let evidence = format!("[{}] ", clean(&holding, width));
        return if columns(&evidence) + COMMAND_BESIDE <= width {
            evidence
        } else {
            "[unlisted] ".to_owned()
        };
    }
    let role = subject.mps_role();
    role.map_or_else(String::new, |role| format!("[{role}] "))
}

/// The command, behind the state of a process that has halted: where the column of states is folded
/// away, a zombie must not look alive.
fn command_with_state<'a>(width: u16, subject: &Subject<'a>, look: Look) -> (Cow<'a, str>, Style) {
    let (command, style) = cell(Column::Command, width, subject, look);
    let state = subject.process.ok().and_then(|process| process.state);
    match state.filter(|state| is_halted(*state)) {
        Some(state) => {
            let (word, style) = state_word(state, look);
            (Cow::Owned(format!("{word}: {command}")), style)
        }
        None => (command, style),
    }
}

/// Whether a process in this state stays so until somebody does something: stopped, traced, defunct.
/// Not `D`, which comes and goes with every read from a disk, and would flicker.
pub fn is_halted(state: char) -> bool {
    matches!(state, 'T' | 't' | 'Z' | 'X')
}

/// The kernel's letter as its own word for it.
pub fn state_word(state: char, look: Look) -> (Cow<'static, str>, Style) {
    let (word, style) = match state {
        'R' => ("run", look.plain()),
        'S' => ("sleep", look.faint()),
        'D' => ("disk", look.caution()),
        'T' => ("stop", look.caution()),
        't' => ("traced", look.caution()),
        'Z' => ("zombie", look.alarm()),
        'X' => ("dead", look.alarm()),
        'I' => ("kernel", look.faint()),
        other => {
            let text = clean(other.encode_utf8(&mut [0; 4]), 6).into_owned();
            return (Cow::Owned(text), look.plain());
        }
    };
    (Cow::Borrowed(word), style)
}

/// What a process is: its notebook, or else its command line; at most about `width` columns of it.
pub fn what(process: &Process, width: u16) -> String {
    if let Some(path) = notebook(process) {
        return clean(path, width).into_owned();
    }
    // One column more than there are, so that what is cut is seen to be cut.
    let enough = usize::from(width) + 1;
    let mut length = 0;
    let mut words: Vec<&str> = Vec::new();
    for argument in process.command.iter().flat_map(|it| it.iter()) {
        if length > enough {
            break;
        }
        let word = head(argument, enough + 1 - length);
        length += word.chars().count() + 1;
        words.push(word);
    }
    if words.is_empty() {
        // Kernel threads and zombies have a name only; brackets say so, as ps does.
        return process.comm.as_deref().map_or_else(
            || UNKNOWN.to_owned(),
            |comm| format!("[{}]", clean(comm, width)),
        );
    }
    command_line(&words)
}

/// The rows above and below the visible ones: `12 more`; nothing where all are visible.
pub fn beyond(app: &App, height: u16) -> String {
    let count = app.listing.lines.len();
    if count <= usize::from(height) {
        return String::new();
    }
    let last = (app.offset + usize::from(height)).min(count);
    format!("{}-{last} of {count}", app.offset + 1)
}

/// The column that the rows are sorted by, where it is folded away.
pub fn hidden_sort(app: &App, width: u16) -> Option<&'static str> {
    let widths = app.picture.as_ref()?.widths;
    let column = app.choice.sort.column;
    let shown = chosen(widths, width).iter().any(|(it, _)| *it == column);
    (!shown).then(|| column.spec().title)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_leave_in_order_of_need_and_never_overflow() {
        let widths = Widths {
            gpu: 4,
            pid: 7,
            user: 8,
            framework: 10,
            place: 12,
            finding: 8,
        };
        for width in 0..=220u16 {
            let columns = chosen(widths, width);
            let used: u16 = columns.iter().map(|(_, width)| width + 1).sum();
            assert!(used <= width.max(1) + 1, "{width}: {columns:?}");
            let count = columns.len();
            let mut kept = Column::BY_NEED[..count].to_vec();
            kept.retain(|it| !columns.iter().any(|(shown, _)| shown == it));
            assert_eq!(kept, [], "{width}");
        }
        assert_eq!(chosen(widths, 220).len(), Column::ALL.len());
    }

    #[test]
    fn a_command_line_is_bounded_before_it_is_escaped() {
        let process = Process {
            command: Some(vec!["\x1b".repeat(4 << 20).into(), "x".into()].into()),
            ..Process::default()
        };
        assert_eq!(what(&process, 10), "\\e".repeat(12));
        let zombie = Process {
            comm: Some("a)\n".into()),
            ..Process::default()
        };
        assert_eq!(what(&zombie, 10), "[a)\\n]");
    }

    #[test]
    fn only_the_halted_are_marked_so() {
        for (state, marked) in [
            ('R', false),
            ('S', false),
            ('I', false),
            ('D', false),
            ('T', true),
        ] {
            assert_eq!(is_halted(state), marked, "{state}");
        }
    }
}
