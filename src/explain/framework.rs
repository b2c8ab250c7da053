//! A framework's page: how it takes memory, what returns it, and what does not.

use super::page::{ExplainPage, Row, Section};
use super::steps::at_start;
use crate::advice::{self, Remark};
use crate::report::table::{Align, Table};

/// The page of a framework, by any usual spelling of its name; `None` if the table lacks it.
pub fn framework(name: &str) -> Option<ExplainPage> {
    let row = advice::find(name)?;
    let mut page = ExplainPage::new(format!("{} ({})", row.title, row.name), None, 0.0);
    let mut returns = section("What returns it, gentlest first", &row.inside);
    if row.inside.is_empty() {
        returns = Section::new("What returns it");
        returns.item("- ", "nothing while the process runs; only its exit does");
    }
    page.sections = vec![
        section("How it takes memory", std::slice::from_ref(&row.takes)),
        returns,
        section("At its next start", &row.at_start),
        section("What returns nothing", &row.unchanged),
        section("How to end it", &row.at_end),
    ];
    page.sections.retain(|section| !section.rows.is_empty());
    Some(page)
}

/// The list of all frameworks in the table.
pub fn frameworks() -> ExplainPage {
    let title = "Frameworks; gpumem explain --framework NAME shows one";
    let mut page = ExplainPage::new(title.to_owned(), None, 0.0);
    let mut table = Table::new(&[("NAME", Align::Left), ("FRAMEWORK", Align::Left)]);
    for row in advice::frameworks() {
        table.row(vec![row.name.to_string(), row.title.to_string()]);
    }
    page.sections.push(Section { rows: vec![Row::Table(table)], ..Section::default() });
    page
}

fn section(heading: &str, lines: &[Remark]) -> Section {
    let mut section = Section::new(heading);
    for line in lines {
        section.item("- ", at_start(&line.text));
        section.item("  source: ", &*line.source);
    }
    section
}
