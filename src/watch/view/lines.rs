//! Writes the lines of the lower panel from top to bottom.

use ratatui::layout::Rect;
use ratatui::style::Style;

use ratatui::buffer::Buffer;

use super::line_writer::LineWriter;
use crate::model::finding::Finding;
use crate::watch::text::{MESSAGE_CHARS, clean, columns, wrap};
use crate::watch::theme::Styles;
use crate::watch::view_model::badge;

pub struct PanelWriter<'a> {
    pub styles: Styles,
    pub area: Rect,
    /// Whether nothing has been written below the title line.
    pub is_blank: bool,
    canvas: &'a mut Buffer,
    used: u16,
}

impl<'a> PanelWriter<'a> {
    pub fn new(styles: Styles, area: Rect, canvas: &'a mut Buffer) -> Self {
        Self { styles, area, is_blank: true, canvas, used: 0 }
    }

    pub fn left(&self) -> u16 {
        self.area.height.saturating_sub(self.used)
    }

    pub fn next_line(&mut self) -> LineWriter<'_> {
        let line = self.used;
        self.used += 1;
        self.is_blank = false;
        LineWriter::new(self.canvas, self.area, line)
    }

    pub fn rule(&mut self, title: &str, style: Style) {
        let faint = self.styles.faint();
        self.next_line().rule(title, style, faint);
        self.is_blank = true;
    }

    pub fn select(&mut self) {
        let line = self.used.saturating_sub(1);
        let row = Rect { y: self.area.y.saturating_add(line), height: 1, ..self.area };
        self.canvas.set_style(row, self.styles.selected());
    }

    pub fn write(&mut self, text: &str, limit: u16, style: Style) {
        let limit = limit.min(self.left());
        for line in wrap(text, self.area.width, usize::from(limit)) {
            self.next_line().text(&line, style);
        }
    }

    pub fn finding(&mut self, finding: &Finding, limit: u16) {
        let styles = self.styles;
        let limit = limit.min(self.left());
        let badge = badge(finding);
        let indent = columns(&badge) + 1;
        let message = clean(&finding.message, MESSAGE_CHARS);
        let width = self.area.width.saturating_sub(indent);
        for (at, line) in wrap(&message, width, usize::from(limit)).iter().enumerate() {
            let mut writer = self.next_line();
            if at == 0 {
                writer.left(&badge, indent, styles.badge(finding.severity));
            } else {
                writer.skip(indent);
            }
            writer.text(line, styles.plain());
        }
    }
}
