//! `gpumem explain --framework`: rows of the table of advice.

use crate::advice::{self, Framework};
use crate::cli::Misuse;
use crate::report::explain::{FrameworkPage, Line, Report};

/// The word that asks for all of them.
const LIST: &str = "list";

/// The page of the framework of this name; all of them for `list`.
///
/// # Errors
///
/// The table has no such framework.
pub(super) fn report(name: &str) -> Result<Report, Misuse> {
    let mut report = Report::new(None, 0.0);
    if name == LIST {
        report.frameworks = advice::frameworks().iter().map(page).collect();
        return Ok(report);
    }
    let framework = advice::find(name).ok_or_else(|| {
        let known: Vec<&str> = advice::frameworks().iter().map(|it| it.name).collect();
        Misuse(format!(
            "--framework {name}: nothing is known of it; there are {}",
            known.join(", ")
        ))
    })?;
    report.frameworks.push(page(framework));
    Ok(report)
}

fn page(framework: &Framework) -> FrameworkPage {
    FrameworkPage {
        name: framework.name.to_owned(),
        title: framework.title.to_owned(),
        takes: line(&framework.takes),
        inside: framework.inside.iter().map(line).collect(),
        at_start: framework.at_start.iter().map(line).collect(),
        unchanged: framework.unchanged.iter().map(line).collect(),
        at_end: framework.at_end.iter().map(line).collect(),
    }
}

fn line(line: &advice::Line) -> Line {
    Line {
        text: line.text.to_owned(),
        source: line.source.to_owned(),
        measured: line.measured.map(str::to_owned),
    }
}
