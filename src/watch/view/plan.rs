//! How something would be ended, and how far it is: a dialog over the panels, with the plan's lines, what it
//! comes to, what else can be asked for, and what the keys do.
//!
//! It takes the width that the lines need and no more than the screen has; the lines scroll, all else
//! is.

use ratatui::layout::Rect;
use ratatui::style::Style;

use ratatui::buffer::Buffer;

use super::line_writer::{LineWriter, clear};
use crate::watch::layout::dialog::{Below, LineTone, lay_out};
use crate::watch::state::App;
use crate::watch::theme::Styles;

/// Draws what is open.
pub fn draw(app: &App, styles: Styles, area: Rect, canvas: &mut Buffer) {
    let Some(dialog) = lay_out(app, area) else {
        return;
    };
    let (content, places) = (&dialog.content, &dialog.areas);
    clear(canvas, places.whole);
    if places.is_framed {
        frame(places.whole, styles, canvas);
    }
    rule(&content.title, styles, places.title, canvas);
    let hidden = dialog.last_offset();
    let offset = content.offset.min(hidden);
    for (at, (line, tone)) in dialog.lines.iter().skip(offset).enumerate() {
        let Ok(at) = u16::try_from(at) else { break };
        if at >= places.body.height {
            break;
        }
        LineWriter::new(canvas, places.body, at).text(line, style(*tone, styles));
    }
    for (at, line) in (0..).zip(&dialog.below) {
        let mut writer = LineWriter::new(canvas, places.below, at);
        match line {
            Below::Rule if hidden == 0 => {
                let room = writer.room();
                writer.fill("─", room, styles.faint());
            }
            Below::Rule => {
                let text = match hidden - offset {
                    0 => "the end; k scrolls back".to_owned(),
                    1 => "1 more line; j scrolls".to_owned(),
                    more => format!("{more} more lines; j scrolls"),
                };
                writer.fill("─", 2, styles.faint()).skip(1);
                writer.text(&text, styles.caution()).skip(1);
                let room = writer.room();
                writer.fill("─", room, styles.faint());
            }
            Below::Note(text, tone) => {
                writer.text(text, style(*tone, styles));
            }
            Below::Choices(choices) => {
                for (key, word) in choices {
                    writer.text(key, styles.key()).skip(1).text(word, styles.plain()).skip(2);
                }
            }
            Below::Buttons => {
                for (text, is_focused) in &content.buttons {
                    // The brackets say it without a colour.
                    let (text, style) = match is_focused {
                        true => (format!("[{text}]"), styles.selected()),
                        false => (format!(" {text} "), styles.plain()),
                    };
                    writer.text(&text, style).skip(1);
                }
            }
        }
    }
}

/// Draws the edges, so that what is beside the dialog is not read as a part of it.
fn frame(area: Rect, styles: Styles, canvas: &mut Buffer) {
    let bottom = area.bottom().saturating_sub(1);
    for y in area.top()..area.bottom() {
        let (left, end) = match y {
            _ if y == area.top() => ("┌", "┐"),
            _ if y == bottom => ("└", "┘"),
            _ => ("│", "│"),
        };
        let mut writer = LineWriter::new(canvas, area, y - area.top());
        writer.text(left, styles.faint());
        if y == area.top() || y == bottom {
            writer.fill("─", area.width.saturating_sub(2), styles.faint());
        } else {
            writer.skip(area.width.saturating_sub(2));
        }
        writer.text(end, styles.faint());
    }
}

fn rule(title: &str, styles: Styles, area: Rect, canvas: &mut Buffer) {
    let mut writer = LineWriter::new(canvas, area, 0);
    writer
        .fill("─", 2, styles.faint())
        .skip(1)
        .text(title, styles.heading().patch(styles.strong()))
        .skip(1);
    let room = writer.room();
    writer.fill("─", room, styles.faint());
}

fn style(tone: LineTone, styles: Styles) -> Style {
    match tone {
        LineTone::Plain => styles.plain(),
        LineTone::Strong => styles.strong(),
        LineTone::Faint => styles.faint(),
        LineTone::Alarm => styles.alarm(),
        LineTone::Selected => styles.selected(),
    }
}

#[cfg(test)]
mod tests;
