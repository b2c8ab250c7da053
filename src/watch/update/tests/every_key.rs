//! Tests that every key does what the help says, in each context.

use super::*;
use crate::reclaim::Target;
use crate::reclaim::target::Step;
use crate::reclaim::worker::{PlanRequest, PlanScope};
use crate::watch::column::Columns;
use crate::watch::keys::{Context, GROUPS, KeyAction};
use crate::watch::state::page::About;
use crate::watch::state::prompt::Purpose;
use crate::watch::state::reaping::Dialog;
use crate::watch::state::table::ColumnList;

/// Number of processes, more than the table has lines.
const PROCESSES: u32 = 12;
/// Times of the last sample and of the start of the finding, in seconds.
const LAST: i64 = 740;
const FOUND: i64 = 600;
const STEP: i64 = 20;

/// The keys to press first, and a check of the tested key's effect.
type Case = (&'static str, fn(&App, Option<&Effect>) -> bool);

#[test]
fn every_key_does_what_the_help_describes() {
    for (context, _, bindings) in GROUPS {
        for (names, does, action) in *bindings {
            let (before, is_done) = match context {
                Context::Main => on_the_table(*action),
                Context::Page => on_a_page(*action),
                Context::Plan => on_a_plan(*action),
                Context::Columns => on_columns(*action),
            }
            .unwrap_or_else(|| panic!("no case for {names}"));
            for key in crate::watch::keys::events(names) {
                let mut app = app_in(*context);
                keys(&mut app, before);
                let effect = press(&mut app, key);
                assert!(
                    is_done(&app, effect.as_ref()),
                    "{key:?} after {before:?} in {context:?}: {does}; {effect:?}, {:?}",
                    app.mode
                );
            }
        }
    }
}

fn app_in(context: Context) -> App {
    let mut app = screen(80, 16);
    for second in (0..=LAST).step_by(STEP as usize) {
        let mut snapshot = sample::later(1, PROCESSES, second as f64);
        for (at, process) in snapshot.processes.iter_mut().enumerate() {
            process.state = Some('S');
            process.start_time = process.start_time.map(|time| time.plus_seconds(-86_400.0));
            process.cpu_percent = Some(if at == 0 { 0.0 } else { 90.0 });
            process.command = Some(vec!["python".into(), "x".repeat(200).into()].into());
        }
        show_sample(&mut app, second as u64, snapshot);
    }
    match context {
        Context::Main => {}
        Context::Columns => {
            keys(&mut app, "<F2>");
        }
        Context::Page => {
            keys(&mut app, "g<Enter>");
        }
        Context::Plan => {
            let effect = keys(&mut app, "gx");
            let number = requested_plan(effect.as_ref()).unwrap().number;
            let advice = Target {
                steps: vec![Step::Advise { command: "scancel 7".into() }],
                ..sample::target(7)
            };
            let targets = (0..20).map(|at| sample::target(4000 + at));
            let plan = Ok(sample::proposal(targets.chain([advice]).collect()));
            update(&mut app, Event::Reclaim(ReclaimProgress::Planned { number, plan }));
            update(&mut app, Event::Drawn);
        }
    }
    app
}

fn requested_plan(effect: Option<&Effect>) -> Option<&PlanRequest> {
    match effect {
        Some(Effect::Reclaim(ReclaimRequest::Plan(request))) => Some(request),
        _ => None,
    }
}

fn second(app: &App) -> i64 {
    let start = sample::snapshot(1, 1).time;
    (app.shown_time().unwrap() - start) / 1000
}

/// Returns whether the effect requests a plan for only the process in row `at`.
fn plans_to_kill(app: &App, effect: Option<&Effect>, at: usize) -> bool {
    let row = app.subject_at(at).unwrap().row.key.identity;
    let wanted = PlanScope::Processes(vec![row]);
    app.mode == Mode::Plan
        && requested_plan(effect).is_some_and(|request| request.options.scope == wanted)
}

fn offset(app: &App) -> usize {
    match (&app.page, &app.reaping.dialog) {
        (Some(page), _) => page.offset,
        (None, Some(dialog)) => dialog.offset,
        (None, None) => 0,
    }
}

fn is_help(app: &App, over: Context) -> bool {
    app.mode == Mode::Help(0) && app.help_context == over
}

fn is_page(app: &App, about: About) -> bool {
    app.mode == Mode::Page && app.page.as_ref().is_some_and(|page| page.about == about)
}

fn is_prompt(app: &App, purpose: Purpose) -> bool {
    matches!(&app.mode, Mode::Prompt(prompt) if prompt.purpose == purpose)
}

fn at(app: &App) -> (Option<usize>, usize) {
    (app.table.selected(), app.table.offset)
}

fn is_sorted_by(app: &App, column: Column) -> bool {
    app.table.choice.sort.column == column
}

fn is_paused_at(app: &App, at: i64) -> bool {
    app.playback.is_paused && second(app) == at
}

fn interval(app: &App, effect: Option<&Effect>) -> f64 {
    assert_eq!(effect, Some(&Effect::Control(Control::Interval(app.playback.interval))));
    app.playback.interval.as_secs_f64()
}

fn on_the_table(action: KeyAction) -> Option<Case> {
    const END: usize = PROCESSES as usize - 1;
    Some(match action {
        KeyAction::Down => ("gj", |app, _| at(app).0 == Some(2)),
        KeyAction::Up => ("gj", |app, _| at(app).0 == Some(0)),
        KeyAction::PageDown => ("g", |app, _| at(app).0 == Some(app.page_rows())),
        KeyAction::PageUp => ("G", |app, _| at(app).0 == Some(END - app.page_rows())),
        KeyAction::First => ("G", |app, _| at(app) == (Some(0), 0)),
        KeyAction::Last => ("g", |app, _| at(app).0 == Some(END) && at(app).1 > 0),
        KeyAction::Right => ("", |app, _| app.table.scrolled > 0),
        KeyAction::Left => ("ll", |app, _| app.table.scrolled == 0),
        KeyAction::SwitchFocus => {
            ("", |app, _| app.focus == Focus::Findings && app.findings.selected.is_some())
        }
        KeyAction::Open => ("gj", |app, _| {
            is_page(app, About::Process(app.subject_at(1).unwrap().row.key.identity))
        }),
        // There is only GPU 0, so other digits show a note.
        KeyAction::Gpu(_) => {
            ("", |app, _| filter(app) == "gpu:0" || note(app).contains("there is no GPU"))
        }
        KeyAction::GpuPage => ("", |app, _| is_page(app, About::Gpu(0))),
        KeyAction::Totals => ("", |app, _| is_page(app, About::Totals)),
        KeyAction::Environment => ("g", |app, effect| {
            let identity = app.subject().unwrap().row.key.identity;
            is_page(app, About::Environment(identity))
                && effect == Some(&Effect::Reclaim(ReclaimRequest::Environment(identity)))
        }),
        KeyAction::Columns => ("", |app, _| matches!(app.mode, Mode::Columns(_))),
        KeyAction::Tag => ("g", |app, _| app.table.tagged.len() == 1 && at(app).0 == Some(1)),
        KeyAction::UntagAll => ("g  ", |app, _| app.table.tagged.is_empty()),
        KeyAction::Reap => ("gjj", |app, effect| {
            plans_to_kill(app, effect, 2) && !requested_plan(effect).unwrap().options.release
        }),
        KeyAction::Release => ("gjj", |app, effect| {
            plans_to_kill(app, effect, 2) && requested_plan(effect).unwrap().options.release
        }),
        KeyAction::ReapFindings => ("g", |app, effect| {
            let request = requested_plan(effect).unwrap();
            app.mode == Mode::Plan
                && request.options.scope == PlanScope::Findings
                && !request.findings.is_empty()
        }),
        KeyAction::Filter => ("", |app, _| is_prompt(app, Purpose::Filter)),
        KeyAction::Search => ("", |app, _| is_prompt(app, Purpose::Search)),
        KeyAction::Seek => ("", |app, _| is_prompt(app, Purpose::Seek)),
        KeyAction::Tree => ("", |app, _| app.table.choice.tree),
        KeyAction::Mine => {
            ("", |app, _| app.table.choice.mine && app.table.listing.lines.is_empty())
        }
        KeyAction::OnlyFindings => {
            ("", |app, _| app.table.choice.only_findings && app.table.listing.lines.len() == 1)
        }
        KeyAction::ChooseSort => ("", |app, _| app.mode == Mode::ChooseSort),
        KeyAction::SortLeft => ("", |app, _| is_sorted_by(app, Column::Memory.step(-1))),
        KeyAction::SortRight => ("", |app, _| is_sorted_by(app, Column::Memory.step(1))),
        KeyAction::SortBy(Column::Memory) => ("P", |app, _| is_sorted_by(app, Column::Memory)),
        KeyAction::SortBy(Column::CpuPercent) => {
            ("", |app, _| is_sorted_by(app, Column::CpuPercent))
        }
        KeyAction::SortBy(Column::Runtime) => ("", |app, _| is_sorted_by(app, Column::Runtime)),
        KeyAction::Reverse => {
            ("g", |app, _| app.table.choice.sort.reversed && at(app).0 == Some(END))
        }
        KeyAction::Pause => ("", |app, _| is_paused_at(app, LAST)),
        KeyAction::StepBack => ("", |app, _| is_paused_at(app, LAST - STEP)),
        KeyAction::StepOn => ("[[[", |app, _| is_paused_at(app, LAST - 2 * STEP)),
        KeyAction::LeapBack => ("", |app, _| is_paused_at(app, LAST - 60)),
        KeyAction::LeapOn => ("{{{", |app, _| is_paused_at(app, LAST - 120)),
        KeyAction::NextFinding => ("{{{{", |app, _| is_paused_at(app, FOUND)),
        KeyAction::PreviousFinding => ("", |app, _| is_paused_at(app, FOUND)),
        KeyAction::Now => ("{[", |app, _| !app.playback.is_paused && second(app) == LAST),
        KeyAction::Faster => ("", |app, effect| interval(app, effect) < 2.0),
        KeyAction::Slower => ("", |app, effect| interval(app, effect) > 2.0),
        KeyAction::Help => ("", |app, _| is_help(app, Context::Main)),
        KeyAction::WidenCharts | KeyAction::NarrowCharts => {
            ("", |app, _| note(app).starts_with("no charts beside"))
        }
        KeyAction::Hosts => {
            ("", |app, _| app.note.as_deref().is_some_and(|note| note.contains("--host")))
        }
        KeyAction::NextTheme => ("", |app, _| app.theme == Theme::default().next()),
        KeyAction::Repaint => ("", |_, effect| effect == Some(&Effect::Repaint)),
        KeyAction::Suspend => ("", |_, effect| effect == Some(&Effect::Suspend)),
        KeyAction::Back => {
            ("g", |app, effect| !app.table.is_chosen() && effect == Some(&Effect::Draw))
        }
        KeyAction::Quit => ("g", |_, effect| effect == Some(&Effect::Quit)),
        KeyAction::QuitAtOnce => ("g?", |_, effect| effect == Some(&Effect::Quit)),
        // Add a case for each new action on the table.
        _ => return None,
    })
}

fn on_columns(action: KeyAction) -> Option<Case> {
    fn list(app: &App) -> &ColumnList {
        match &app.mode {
            Mode::Columns(list) => list,
            mode => panic!("{mode:?}"),
        }
    }
    fn has_gpu(app: &App) -> bool {
        app.table.columns.has(Column::Gpu)
    }
    fn first(app: &App) -> Column {
        app.table.columns.iter().next().unwrap()
    }
    Some(match action {
        KeyAction::Down => ("", |app, _| list(app).cursor == 1),
        KeyAction::Up => ("jj", |app, _| list(app).cursor == 1),
        KeyAction::First => ("jj", |app, _| list(app).cursor == 0),
        KeyAction::Last => ("", |app, _| list(app).cursor == Column::ALL.len() - 1),
        KeyAction::SwitchColumn => ("", |app, _| !has_gpu(app)),
        KeyAction::ColumnLeft => ("j", |app, _| first(app) == Column::Pid),
        KeyAction::ColumnRight => ("", |app, _| first(app) == Column::Pid && has_gpu(app)),
        KeyAction::DefaultColumns => (" ", |app, _| app.table.columns == Columns::default()),
        KeyAction::Open => (" ", |app, _| app.mode == Mode::Main && !has_gpu(app)),
        KeyAction::Back => (" ", |app, _| app.mode == Mode::Main && has_gpu(app)),
        _ => return None,
    })
}

fn on_a_page(action: KeyAction) -> Option<Case> {
    Some(match action {
        KeyAction::Down => ("", |app, _| offset(app) == 1),
        KeyAction::Up => ("jj", |app, _| offset(app) == 1),
        KeyAction::PageDown => ("", |app, _| offset(app) > 1),
        KeyAction::PageUp => ("jG", |app, _| {
            let end = app.page.as_ref().unwrap().lines.len();
            offset(app) < end.saturating_sub(14)
        }),
        KeyAction::First => ("jj", |app, _| offset(app) == 0),
        KeyAction::Last => ("", |app, _| {
            let page = app.page.as_ref().unwrap();
            offset(app) > 1 && page.lines.len() - offset(app) <= 14
        }),
        KeyAction::Reap => ("", |app, effect| plans_to_kill(app, effect, 0)),
        KeyAction::Release => ("", |app, effect| {
            plans_to_kill(app, effect, 0) && requested_plan(effect).unwrap().options.release
        }),
        KeyAction::Pause => ("", |app, _| app.playback.is_paused && app.mode == Mode::Page),
        KeyAction::Help => ("", |app, _| is_help(app, Context::Page)),
        KeyAction::Back => ("", |app, _| app.mode == Mode::Main && app.page.is_none()),
        _ => return None,
    })
}

fn on_a_plan(action: KeyAction) -> Option<Case> {
    fn dialog(app: &App) -> &Dialog {
        app.reaping.dialog.as_ref().unwrap()
    }
    Some(match action {
        KeyAction::Confirm => ("", |app, _| dialog(app).countdown.is_some()),
        KeyAction::Undo => ("y", |app, _| {
            let dialog = dialog(app);
            let is_noted = dialog.note.as_deref() == Some("undone: nothing was sent");
            dialog.countdown.is_none() && is_noted
        }),
        KeyAction::NextSignal => ("", |_, effect| {
            requested_plan(effect).is_some_and(|request| request.options.signal.is_some())
        }),
        KeyAction::SwitchFocus => ("", |_, effect| {
            requested_plan(effect)
                .is_some_and(|request| !matches!(request.options.scope, PlanScope::Processes(_)))
        }),
        KeyAction::EveryUser => ("", |_, effect| {
            requested_plan(effect).is_some_and(|request| request.options.all_users)
        }),
        KeyAction::Direct => {
            ("", |_, effect| requested_plan(effect).is_some_and(|request| request.options.direct))
        }
        KeyAction::PlanAgain => ("", |app, effect| {
            requested_plan(effect).is_some_and(|request| request.options == dialog(app).options)
        }),
        KeyAction::Down => ("", |app, _| offset(app) == 1),
        KeyAction::Up => ("jj", |app, _| offset(app) == 1),
        KeyAction::Help => ("", |app, _| is_help(app, Context::Plan)),
        KeyAction::Back => ("", |app, _| app.mode == Mode::Main && app.reaping.dialog.is_none()),
        _ => return None,
    })
}
