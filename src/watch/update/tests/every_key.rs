//! Every key of the table does what its line in the help says, in the place where it says so.

use super::*;
use crate::reclaim::Target;
use crate::reclaim::target::Step;
use crate::watch::hand::{Question, Scope};
use crate::watch::keys::{Action, Context, GROUPS};
use crate::watch::layout::Form;
use crate::watch::state::dialog::Button;
use crate::watch::state::prompt::Purpose;

/// Processes on the only GPU; more than the table has lines.
const PROCESSES: u32 = 12;
/// The seconds of the samples that were seen, and of the finding that began in them: the process that
/// holds least was idle for long enough then.
const LAST: i64 = 740;
const FOUND: i64 = 600;

/// What is pressed before a key, and whether it has done what it is there for.
type Case = (&'static str, fn(&App, Option<&Effect>) -> bool);

#[test]
fn every_key_does_what_the_help_says_of_it() {
    let mut pressed = 0;
    for group in GROUPS {
        for binding in group.bindings {
            let (before, is_done) = match group.context {
                Context::Main => on_the_table(binding.action),
                Context::Page => on_a_page(binding.action),
                Context::Plan => on_a_plan(binding.action),
            }
            .unwrap_or_else(|| panic!("no case for {binding:?}"));
            for key in binding.keys {
                let mut app = opened(group.context);
                for key in before.chars() {
                    press(&mut app, KeyCode::Char(key));
                }
                let effect = update(&mut app, Event::Key(key.event()));
                assert!(
                    is_done(&app, effect.as_ref()),
                    "{key:?} after {before:?} in {:?}: {}; {effect:?}, {:?}",
                    group.context,
                    binding.does,
                    app.mode
                );
                pressed += 1;
            }
        }
    }
    let bound: usize = GROUPS
        .iter()
        .flat_map(|group| group.bindings)
        .map(|binding| binding.keys.len())
        .sum();
    assert_eq!(pressed, bound);
}

/// The screen where the keys of this context hold: 80 by 16, of this machine.
fn opened(context: Context) -> App {
    let mut app = app();
    update(&mut app, Event::Resize(80, 16));
    for second in (0..=LAST).step_by(10) {
        let mut snapshot = sample::snapshot(1, PROCESSES);
        snapshot.time = snapshot.time.plus_seconds(second as f64);
        for (at, process) in snapshot.processes.iter_mut().enumerate() {
            process.state = Some('S');
            process.cpu_percent = Some(if at == 0 { 0.0 } else { 90.0 });
            process.command = Some(vec!["python".into(), "x".repeat(200).into()].into());
        }
        see(&mut app, second as u64, snapshot);
    }
    match context {
        Context::Main => {}
        Context::Page => {
            press(&mut app, KeyCode::Char('j'));
            press(&mut app, KeyCode::Enter);
        }
        Context::Plan => {
            press(&mut app, KeyCode::Char('j'));
            let effect = press(&mut app, KeyCode::Char('x'));
            let number = asked(effect.as_ref()).unwrap().number;
            let advice = Target {
                steps: vec![Step::Advise {
                    command: "scancel 7".into(),
                }],
                ..sample::target(7)
            };
            let own = (0..20).map(|at| sample::target(4000 + at));
            let plan = Ok(sample::proposal(own.chain([advice]).collect()));
            update(&mut app, Event::Hand(News::Planned { number, plan }));
            update(&mut app, Event::Drawn);
        }
    }
    app
}

/// What a plan is asked for.
fn asked(effect: Option<&Effect>) -> Option<&Question> {
    match effect {
        Some(Effect::Hand(Ask::Plan(question))) => Some(question),
        _ => None,
    }
}

/// Which second is shown.
fn second(app: &App) -> i64 {
    let start = sample::snapshot(1, 1).time;
    (app.picture.as_ref().unwrap().snapshot.time - start) / 1000
}

/// Whether one process is asked to be ended, and it is the `at`th of the table.
fn is_asked_for(app: &App, effect: Option<&Effect>, at: usize) -> bool {
    let row = app.subject_at(at).unwrap().row.key;
    let wanted = Scope::Processes(vec![row]);
    app.mode == Mode::Plan && asked(effect).is_some_and(|question| question.wish.scope == wanted)
}

fn offset(app: &App) -> usize {
    match (&app.page, &app.reaping.dialog) {
        (Some(page), _) => page.offset,
        (None, Some(dialog)) => dialog.offset,
        (None, None) => 0,
    }
}

fn is_help(app: &App, over: Context) -> bool {
    app.mode == Mode::Help(0) && app.help_over == over
}

fn on_the_table(action: Action) -> Option<Case> {
    const END: usize = PROCESSES as usize - 1;
    Some(match action {
        Action::Down => ("jj", |app, _| app.selected() == Some(2)),
        Action::Up => ("jj", |app, _| app.selected() == Some(0)),
        Action::PageDown => ("j", |app, _| app.selected() == Some(app.page_rows())),
        Action::PageUp => ("G", |app, _| app.selected() == Some(END - app.page_rows())),
        Action::First => ("G", |app, _| app.selected() == Some(0) && app.offset == 0),
        Action::Last => ("j", |app, _| app.selected() == Some(END) && app.offset > 0),
        Action::Right => ("", |app, _| app.scrolled > 0),
        Action::Left => ("ll", |app, _| app.scrolled == 0),
        Action::SwitchFocus => ("", |app, _| {
            app.focus == Focus::Findings && app.finding.is_some()
        }),
        Action::Open => ("jj", |app, _| {
            app.mode == Mode::Page && app.page.is_some() && app.selected() == Some(1)
        }),
        Action::Tag => ("j", |app, _| {
            app.tagged.len() == 1 && app.selected() == Some(1)
        }),
        Action::UntagAll => ("j  ", |app, _| app.tagged.is_empty()),
        Action::Reap => ("jjj", |app, effect| is_asked_for(app, effect, 2)),
        Action::ReapFindings => ("j", |app, effect| {
            let question = asked(effect);
            app.mode == Mode::Plan
                && question
                    .is_some_and(|it| it.wish.scope == Scope::Findings && !it.findings.is_empty())
        }),
        Action::Filter => (
            "",
            |app, _| matches!(&app.mode, Mode::Prompt(it) if it.purpose == Purpose::Filter),
        ),
        Action::Tree => ("", |app, _| app.choice.tree),
        Action::Mine => ("", |app, _| app.choice.mine && app.listing.lines.is_empty()),
        Action::OnlyFindings => ("", |app, _| {
            app.choice.only_findings && app.listing.lines.len() == 1
        }),
        Action::HideSmall => ("", |app, _| app.choice.hide_small),
        Action::ChooseSort => ("", |app, _| app.mode == Mode::ChooseSort),
        Action::SortLeft => ("", |app, _| {
            app.choice.sort.column == Column::Memory.step(-1)
                && Column::Memory.step(-1) != Column::Memory
        }),
        Action::SortRight => ("", |app, _| {
            app.choice.sort.column == Column::Memory.step(1)
                && Column::Memory.step(1) != Column::Memory
        }),
        Action::SortBy(Column::Memory) => ("P", |app, _| app.choice.sort.column == Column::Memory),
        Action::SortBy(Column::CpuPercent) => {
            ("", |app, _| app.choice.sort.column == Column::CpuPercent)
        }
        Action::SortBy(Column::Runtime) => ("", |app, _| app.choice.sort.column == Column::Runtime),
        // Another column's key has to have a case of its own.
        Action::SortBy(_) => return None,
        Action::Reverse => ("", |app, _| {
            app.choice.sort.reversed && first_pid(app) == Some(sample::pid(0, 0))
        }),
        Action::Pause => ("", |app, _| app.playback.is_paused && second(app) == LAST),
        Action::StepBack => ("", |app, _| {
            app.playback.is_paused && second(app) == LAST - 10
        }),
        Action::StepOn => ("[[[", |app, _| second(app) == LAST - 20),
        Action::LeapBack => ("", |app, _| {
            app.playback.is_paused && second(app) == LAST - 60
        }),
        Action::LeapOn => ("{{{", |app, _| second(app) == LAST - 120),
        Action::NextFinding => ("{{{{", |app, _| second(app) == FOUND),
        Action::PreviousFinding => ("", |app, _| app.playback.is_paused && second(app) == FOUND),
        Action::Seek => (
            "",
            |app, _| matches!(&app.mode, Mode::Prompt(it) if it.purpose == Purpose::Seek),
        ),
        Action::Now => ("{[", |app, _| {
            !app.playback.is_paused && second(app) == LAST
        }),
        Action::Faster => ("", |app, effect| {
            app.playback.interval < Duration::from_secs(2)
                && effect == Some(&Effect::Control(Control::Interval(app.playback.interval)))
        }),
        Action::Slower => ("", |app, effect| {
            app.playback.interval > Duration::from_secs(2)
                && effect == Some(&Effect::Control(Control::Interval(app.playback.interval)))
        }),
        Action::Help => ("", |app, _| is_help(app, Context::Main)),
        Action::NextForm => ("", |app, _| app.form == Form::after(None)),
        Action::NextTheme => ("", |app, _| app.theme == Theme::default().next()),
        Action::Repaint => ("", |_, effect| effect == Some(&Effect::Repaint)),
        Action::Suspend => ("", |_, effect| effect == Some(&Effect::Suspend)),
        Action::Back => ("j", |app, effect| {
            app.selected().is_none() && effect == Some(&Effect::Draw)
        }),
        Action::Quit => ("j", |_, effect| effect == Some(&Effect::Quit)),
        Action::QuitAtOnce => ("j?", |_, effect| effect == Some(&Effect::Quit)),
        Action::Confirm
        | Action::Undo
        | Action::ChooseSignal
        | Action::EveryUser
        | Action::Direct
        | Action::OtherButton
        | Action::PlanAgain => return None,
    })
}

fn on_a_page(action: Action) -> Option<Case> {
    Some(match action {
        Action::Down => ("", |app, _| offset(app) == 1),
        Action::Up => ("jj", |app, _| offset(app) == 1),
        Action::PageDown => ("", |app, _| offset(app) > 1),
        Action::PageUp => ("jG", |app, _| {
            let end = app.page.as_ref().unwrap().lines.len();
            offset(app) < end.saturating_sub(14)
        }),
        Action::First => ("jj", |app, _| offset(app) == 0),
        Action::Last => ("", |app, _| {
            let page = app.page.as_ref().unwrap();
            offset(app) > 1 && page.lines.len() - offset(app) <= 14
        }),
        Action::Reap => ("", |app, effect| is_asked_for(app, effect, 0)),
        Action::Pause => ("", |app, _| {
            app.playback.is_paused && app.mode == Mode::Page
        }),
        Action::Help => ("", |app, _| is_help(app, Context::Page)),
        Action::Back => ("", |app, _| app.mode == Mode::Main && app.page.is_none()),
        _ => return None,
    })
}

fn on_a_plan(action: Action) -> Option<Case> {
    fn dialog(app: &App) -> &crate::watch::state::dialog::Dialog {
        app.reaping.dialog.as_ref().unwrap()
    }
    Some(match action {
        Action::Confirm => ("", |app, _| dialog(app).countdown.is_some()),
        Action::Undo => ("y", |app, _| {
            let dialog = dialog(app);
            let is_said = dialog.note.as_deref() == Some("undone: nothing was sent");
            dialog.countdown.is_none() && is_said
        }),
        Action::Open => ("", |app, _| {
            // The marked button is the one that does no harm.
            app.mode == Mode::Main && app.reaping.dialog.is_none() && app.reaping.batch.is_none()
        }),
        Action::OtherButton => ("", |app, _| dialog(app).button == Button::Begin),
        Action::ChooseSignal => ("", |app, _| dialog(app).signals == Some(0)),
        Action::SwitchFocus => ("", |_, effect| {
            asked(effect).is_some_and(|it| !matches!(it.wish.scope, Scope::Processes(_)))
        }),
        Action::EveryUser => ("", |_, effect| {
            asked(effect).is_some_and(|it| it.wish.all_users)
        }),
        Action::Direct => ("", |_, effect| {
            asked(effect).is_some_and(|it| it.wish.direct)
        }),
        Action::PlanAgain => ("", |app, effect| {
            asked(effect).is_some_and(|it| it.wish == dialog(app).wish)
        }),
        Action::Down => ("", |app, _| offset(app) == 1),
        Action::Up => ("jj", |app, _| offset(app) == 1),
        Action::Help => ("", |app, _| is_help(app, Context::Plan)),
        Action::Back => ("", |app, _| {
            app.mode == Mode::Main && app.reaping.dialog.is_none()
        }),
        _ => return None,
    })
}
