//! How something would be ended, and how far it is: a sheet over the panels, with the plan's lines, what it
//! comes to, what else can be asked for, and what the keys do.
//!
//! It takes the width that the lines need and no more than the screen has; the lines scroll, all else
//! stands.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::line_writer::Pen;
use crate::watch::layout::dialog::{Below, Tone, arrange};
use crate::watch::state::App;
use crate::watch::theme::Look;

/// Draws what is open.
pub fn draw(app: &App, look: Look, area: Rect, buffer: &mut Buffer) {
    let Some(dialog) = arrange(app, area) else {
        return;
    };
    let (content, places) = (&dialog.content, &dialog.places);
    for y in places.whole.top()..places.whole.bottom() {
        for x in places.whole.left()..places.whole.right() {
            if let Some(cell) = buffer.cell_mut((x, y)) {
                cell.reset();
            }
        }
    }
    buffer.set_style(places.whole, look.ground());
    rule(&content.title, look, places.title, buffer);
    let hidden = dialog.last_offset();
    let offset = content.offset.min(hidden);
    for (at, (line, tone)) in dialog.lines.iter().skip(offset).enumerate() {
        let Ok(at) = u16::try_from(at) else { break };
        if at >= places.body.height {
            break;
        }
        Pen::new(buffer, places.body, at).text(line, style(*tone, look));
    }
    for (at, line) in (0..).zip(&dialog.below) {
        let mut pen = Pen::new(buffer, places.below, at);
        match line {
            Below::Rule if hidden == 0 => {
                let room = pen.room();
                pen.fill("─", room, look.faint());
            }
            Below::Rule => {
                let text = match hidden - offset {
                    0 => "the end; k goes back".to_owned(),
                    1 => "1 more line; j goes on".to_owned(),
                    more => format!("{more} more lines; j goes on"),
                };
                pen.fill("─", 2, look.faint()).skip(1);
                pen.text(&text, look.caution()).skip(1);
                let room = pen.room();
                pen.fill("─", room, look.faint());
            }
            Below::Note(text, tone) => {
                pen.text(text, style(*tone, look));
            }
            Below::Choices(choices) => {
                for (key, word) in choices {
                    pen.text(key, look.key())
                        .skip(1)
                        .text(word, look.plain())
                        .skip(2);
                }
            }
            Below::Buttons => {
                for (text, is_focused) in &content.buttons {
                    // The brackets say it without a colour.
                    let (text, style) = match is_focused {
                        true => (format!("[{text}]"), look.selected()),
                        false => (format!(" {text} "), look.plain()),
                    };
                    pen.text(&text, style).skip(1);
                }
            }
        }
    }
}

fn rule(title: &str, look: Look, area: Rect, buffer: &mut Buffer) {
    let mut pen = Pen::new(buffer, area, 0);
    pen.fill("─", 2, look.faint())
        .skip(1)
        .text(title, look.heading().patch(look.strong()))
        .skip(1);
    let room = pen.room();
    pen.fill("─", room, look.faint());
}

fn style(tone: Tone, look: Look) -> Style {
    match tone {
        Tone::Plain => look.plain(),
        Tone::Strong => look.strong(),
        Tone::Faint => look.faint(),
        Tone::Alarm => look.alarm(),
        Tone::Selected => look.selected(),
    }
}

#[cfg(test)]
mod tests;
