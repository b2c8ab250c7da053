//! `gpumem reap --history`: shows past actions from the audit log.

use crate::cli::args::Global;
use crate::cli::exit::Exit;
use crate::cli::{print, store, style, terminal_width, warn};
use crate::model::json::document;
use crate::reclaim::ledger::{self, PastAct};
use crate::report::escape::escape;
use crate::report::reap::{self as text, ReapHistory};
use crate::report::style::Style;
use crate::report::table::{Align, Table};

pub(super) fn run(json: bool, global: &Global) -> anyhow::Result<Exit> {
    let path = store::state()?.join(ledger::FILE_NAME);
    let past = ledger::read(&path, ledger::MOST_READ_BYTES)?;
    let name = path.display().to_string();
    let history = ReapHistory::new(name.as_str().into(), past);
    if json {
        print(&document(&history)?)?;
        return Ok(Exit::Clean);
    }
    if history.is_cut {
        warn(&format!("{name} is long; only its end is shown"));
    }
    if history.unread_lines > 0 {
        let count = history.unread_lines;
        warn(&format!("{name}: {count} damaged lines were skipped"));
    }
    if history.acts.is_empty() {
        print(&format!("no actions so far ({})\n", escape(&name)))?;
    } else {
        print(&table(&history, terminal_width(), style(global.color)))?;
    }
    Ok(Exit::Clean)
}

fn table(history: &ReapHistory, width: Option<usize>, style: Style) -> String {
    let mut table = Table::new(&[
        ("TIME", Align::Left),
        ("BY", Align::Left),
        ("PID", Align::Right),
        ("USER", Align::Left),
        ("WHY", Align::Left),
        ("SENT", Align::Left),
        ("OUTCOME", Align::Left),
    ]);
    for act in &history.acts {
        table.row(row(act));
    }
    table.render(width, |heading| style.heading(heading))
}

fn row(act: &PastAct) -> Vec<String> {
    let unknown = || "-".to_owned();
    let target = act.target.as_deref();
    let lead = target.and_then(text::lead);
    let by = act.actor.as_ref().map(|actor| match (&actor.sudo_user, &actor.user) {
        (Some(user), _) => format!("{} (sudo)", escape(user)),
        (None, Some(user)) => escape(user).into_owned(),
        (None, None) => actor.uid.to_string(),
    });
    let sent: Vec<String> = act
        .deeds
        .iter()
        .map(|sent| {
            let words = text::deed(&sent.deed);
            match &sent.failures {
                Some(failures) if failures.is_empty() => words,
                Some(failures) => format!("{words} ({})", text::failures(failures)),
                None => format!("{words} (perhaps)"),
            }
        })
        .collect();
    let outcome = act.outcome.as_ref().map(ToString::to_string);
    vec![
        act.time.local().to_string(),
        by.unwrap_or_else(unknown),
        lead.map_or_else(unknown, |process| process.pid.to_string()),
        lead.map_or_else(unknown, text::owner),
        target.map_or_else(unknown, text::why),
        match sent.is_empty() {
            true => "nothing".to_owned(),
            false => sent.join(", "),
        },
        match outcome {
            Some(outcome) => escape(&outcome).into_owned(),
            None => "unknown: gpumem exited first".to_owned(),
        },
    ]
}
