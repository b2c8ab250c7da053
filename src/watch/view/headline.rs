//! How much memory is reclaimable, in the words of `check` and `ps`, as many as fit; each part in the style it has in a
//! bar.

use ratatui::style::Style;

use super::line_writer::LineWriter;
use crate::model::Reclaimable;
use crate::model::reclaimable::Headline;
use crate::watch::state::App;
use crate::watch::text::columns;
use crate::watch::theme::Styles;

fn reclaimable(app: &App) -> Option<Reclaimable> {
    Some(app.screenful.as_ref()?.reclaimable)
}

/// Whether anything is reclaimable, or looks like it.
pub fn is_waste(app: &App) -> bool {
    reclaimable(app).is_some_and(|it| it.processes > 0 || it.suspected_processes > 0)
}

/// The columns of its shortest form with the blanks after it; 0 if there is nothing to say.
pub fn least(app: &App) -> u16 {
    let [.., least] = reclaimable(app).unwrap_or_default().headlines();
    if is_waste(app) { columns(&least.text(app.setup.ascii)) + 2 } else { 0 }
}

/// Writes as many words as fit; returns whether any did.
pub fn draw(app: &App, styles: Styles, writer: &mut LineWriter<'_>) -> bool {
    let Some((headline, style)) = within(app, styles, writer.room()) else {
        return false;
    };
    writer.text(&headline.found, style);
    if let Some(suspected) = &headline.suspected {
        if !headline.found.is_empty() {
            let separator = Headline::separator(app.setup.ascii);
            writer.text(separator, styles.faint());
        }
        writer.text(suspected, styles.suspected());
    }
    true
}

/// The longest form that fits, and its style.
pub fn within(app: &App, styles: Styles, room: u16) -> Option<(Headline, Style)> {
    let reclaimable = reclaimable(app)?;
    let fits = |it: &Headline| columns(&it.text(app.setup.ascii)) <= room;
    let headline = reclaimable.headlines().into_iter().find(fits)?;
    let style = match (reclaimable.processes, &headline.suspected) {
        (0, Some(_)) if headline.found.is_empty() => styles.suspected(),
        (0, _) => styles.faint(),
        _ => styles.reclaimable(),
    };
    Some((headline, style))
}
