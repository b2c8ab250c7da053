//! A framework's page: how it takes memory, what returns it, and what does not.

use super::page::PageText;
use super::parts::at_start;
use super::{AdviceLine, FrameworkPage};
use crate::report::escape::escape;
use crate::report::table::{Align, Table};

pub(super) fn write(sheet: &mut PageText, page: &FrameworkPage) {
    sheet.title(&format!("{} ({})", page.title, page.name));
    section(sheet, "How it takes memory", std::slice::from_ref(&page.takes));
    section(sheet, "What returns it, gentlest first", &page.inside);
    if page.inside.is_empty() {
        sheet.section("What returns it");
        sheet.item("- ", "nothing while the process runs; only its exit does");
    }
    section(sheet, "At its next start", &page.at_start);
    section(sheet, "What returns nothing", &page.unchanged);
    section(sheet, "How to end it", &page.at_end);
}

fn section(sheet: &mut PageText, heading: &str, lines: &[AdviceLine]) {
    if lines.is_empty() {
        return;
    }
    sheet.section(heading);
    for line in lines {
        sheet.item("- ", at_start(&line.text));
        let measured =
            line.measured.as_ref().map_or_else(String::new, |by| format!("; measured: {by}"));
        sheet.item("  source: ", &format!("{}{measured}", line.source));
    }
}

pub(super) fn list(sheet: &mut PageText, pages: &[FrameworkPage]) {
    sheet.title("Frameworks; gpumem explain --framework NAME shows one");
    let mut table = Table::new(&[("NAME", Align::Left), ("FRAMEWORK", Align::Left)]);
    for page in pages {
        table.row(vec![escape(&page.name).into_owned(), escape(&page.title).into_owned()]);
    }
    let style = sheet.look.style;
    let width = sheet.look.width;
    sheet.table(&table.render(Some(width), |text| style.heading(text)));
}
