//! Draws the panels. Drawing never changes the state.
//!
//! Each panel has a file; [`status`] is the panel below the table. Panels that have their own state
//! and keys are modules of [`super`]. [`small`] draws a screen without panels.

pub(super) mod ascii;
pub mod bar;
pub mod chart;
pub mod header;
pub mod help;
pub mod hints;
pub mod line_writer;
pub mod lines;
pub mod plot;
pub mod prompt;
pub mod small;
pub mod status;
pub mod table;

use super::reaping::panel;
use super::state::{App, Mode};
use super::theme::Styles;
use super::{charts, column_list, gpus, page};
use ratatui::buffer::Buffer;

pub fn draw(app: &App, canvas: &mut Buffer) {
    let styles = Styles { theme: app.theme, has_color: app.setup.has_color };
    canvas.reset();
    panels(app, styles, canvas);
    if app.setup.ascii {
        ascii::replace(canvas);
    }
}

fn panels(app: &App, styles: Styles, canvas: &mut Buffer) {
    let area = canvas.area;
    match (&app.mode, app.layout_of(area)) {
        (Mode::Help(line), _) => help::draw(app.help_context, styles, *line, area, canvas),
        (mode, None) => {
            small::draw(app, styles, area, canvas);
            if let Mode::Prompt(prompt) = mode {
                prompt::draw(app, prompt, styles, area, canvas);
            }
        }
        (Mode::Page, Some(layout)) => {
            header::draw(app, styles, layout.header, canvas);
            page::draw(app, styles, area, canvas);
            hints::draw(app, styles, &layout, layout.hints, canvas);
        }
        (_, Some(layout)) => {
            header::draw(app, styles, layout.header, canvas);
            header::draw_load(app, styles, layout.host, canvas);
            gpus::draw(app, styles, &layout, canvas);
            table::draw(app, styles, &layout, canvas);
            charts::draw(app, styles, &layout, canvas);
            status::draw(app, styles, &layout, canvas);
            match &app.mode {
                Mode::Prompt(prompt) => prompt::draw(app, prompt, styles, layout.hints, canvas),
                _ => hints::draw(app, styles, &layout, layout.hints, canvas),
            }
            match &app.mode {
                Mode::Plan => panel::draw(app, styles, area, canvas),
                Mode::Columns(list) => column_list::draw(list, styles, area, canvas),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
pub(in crate::watch) mod tests;
