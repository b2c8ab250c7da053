//! The page for people: plain text of a given width; colour carries no meaning of its own.

pub use super::page::PageStyle;
use super::page::PageText;
use super::{ExplainReport, framework, gpu, process};

/// No page is narrower: a command that is cut in two cannot be typed.
const LEAST_WIDTH: usize = 40;
/// No page is wider: longer lines are hard to read.
const MOST_WIDTH: usize = 120;

/// The page, each line no wider than the look's width (but for 40 to 120 columns).
pub fn page(report: &ExplainReport, look: PageStyle) -> String {
    let mut sheet =
        PageText::new(PageStyle { width: look.width.clamp(LEAST_WIDTH, MOST_WIDTH), ..look });
    if let Some(page) = &report.process {
        process::write(&mut sheet, page, report);
    }
    if let Some(page) = &report.gpu {
        gpu::write(&mut sheet, page, report);
    }
    match &report.frameworks[..] {
        [] => {}
        [page] => framework::write(&mut sheet, page),
        pages => framework::list(&mut sheet, pages),
    }
    if !report.notes.is_empty() || !report.errors.is_empty() {
        sheet.section("What is missing");
        for note in &report.notes {
            sheet.item("- ", note);
        }
        for error in &report.errors {
            let gpu = error.gpu.map_or_else(String::new, |gpu| format!("GPU {gpu}: "));
            sheet.item("- ", &format!("{gpu}{}: {}", error.call, error.error));
        }
    }
    sheet.finish()
}
