//! The lines of the lower panel, from its top down.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::line_writer::Pen;
use crate::model::finding::Finding;
use crate::watch::picture::badge;
use crate::watch::text::{MESSAGE_CHARS, clean, columns, wrap};
use crate::watch::theme::Look;

/// What is written from the top, as long as there is room.
pub struct Lines<'a> {
    /// The styles.
    pub look: Look,
    /// The panel.
    pub area: Rect,
    /// Whether nothing stands there yet but the rule.
    pub is_blank: bool,
    buffer: &'a mut Buffer,
    used: u16,
}

impl<'a> Lines<'a> {
    /// An empty panel.
    pub fn new(look: Look, area: Rect, buffer: &'a mut Buffer) -> Self {
        Self {
            look,
            area,
            is_blank: true,
            buffer,
            used: 0,
        }
    }

    /// Lines that have nothing on them yet.
    pub fn left(&self) -> u16 {
        self.area.height.saturating_sub(self.used)
    }

    /// Writes on the next line.
    pub fn pen(&mut self) -> Pen<'_> {
        let line = self.used;
        self.used += 1;
        self.is_blank = false;
        Pen::new(self.buffer, self.area, line)
    }

    /// Draws a rule with a title in it.
    pub fn rule(&mut self, title: &str, style: Style) {
        let look = self.look;
        let mut pen = self.pen();
        pen.fill("─", 2, look.faint());
        if !title.is_empty() {
            pen.skip(1).text(title, style).skip(1);
        }
        let rest = pen.room();
        pen.fill("─", rest, look.faint());
        self.is_blank = true;
    }

    /// Reverses the line that was written last.
    pub fn select(&mut self) {
        let line = self.used.saturating_sub(1);
        let row = Rect {
            y: self.area.y.saturating_add(line),
            height: 1,
            ..self.area
        };
        let row = row.intersection(self.buffer.area);
        self.buffer.set_style(row, self.look.selected());
    }

    /// Writes `text` on at most `limit` lines.
    pub fn write(&mut self, text: &str, limit: u16, style: Style) {
        let limit = limit.min(self.left());
        for line in wrap(text, self.area.width, usize::from(limit)) {
            self.pen().text(&line, style);
        }
    }

    /// Writes a finding's badge and message on at most `limit` lines.
    pub fn finding(&mut self, finding: &Finding, limit: u16) {
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
