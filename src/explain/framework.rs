//! What there is to say of a framework: its row of the table of advice.

use crate::advice::{self, Framework};
use crate::report::explain::{AdviceLine, ExplainReport, FrameworkPage};

/// The page of the framework of this name, in any usual spelling; `None` where nothing is known of it.
pub fn framework(name: &str) -> Option<ExplainReport> {
    let mut report = ExplainReport::new(None, 0.0);
    report.frameworks.push(page(advice::find(name)?));
    Some(report)
}

/// The list of all frameworks of which something is known.
pub fn frameworks() -> ExplainReport {
    let mut report = ExplainReport::new(None, 0.0);
    report.frameworks = advice::frameworks().iter().map(page).collect();
    report
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

fn line(line: &advice::Remark) -> AdviceLine {
    AdviceLine { text: line.text.to_owned(), source: line.source.to_owned(), measured: None }
}
