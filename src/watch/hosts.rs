//! The screens of several machines, and the list of machines.
//!
//! Every screen judges its machine's samples even while another screen is shown. A machine that
//! stops answering raises an alarm on its own screen and delays no other screen.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEventKind};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::keys::{self, Context, KeyAction};
use super::memory_shares::{MemoryShare, MemoryShares};
use super::state::{App, Effect, Event};
use super::text::{MESSAGE_CHARS, clean, columns};
use super::theme::{Styles, Theme};
use super::update::update;
use super::view::bar::{bar, legend};
use super::view::line_writer::LineWriter;
use super::view_model::badge;
use super::{Control, Options, gpus, view};
use crate::model::finding::Finding;
use crate::model::reclaimable::Headline;
use crate::reclaim::worker::mailbox::ReclaimHandle;
use crate::units::{Bytes, Span};

const NAME: u16 = 24;
/// Minimum and maximum width of the memory bar.
const BAR: (u16, u16) = (8, 40);
/// Minimum number of columns for the finding, which takes precedence over the bar.
const FOUND: u16 = 16;
const SUM: &str = "GPUS AND MEMORY USED";
const RECLAIMABLE: u16 = 24;
/// Screen lines outside the list: two above and one below.
const AROUND: u16 = 3;

pub(super) struct AppScreen {
    pub(super) app: App,
    pub(super) controls: Sender<Control>,
    pub(super) reclaim: ReclaimHandle,
}

pub(super) struct Stage {
    pub(super) screens: Vec<AppScreen>,
    styles: Styles,
    ascii: bool,
    is_list: bool,
    /// Index of the shown screen, or of the selected line in the list.
    selected: usize,
    first: usize,
    /// The theme for the terminal's background, or `None` until the terminal reports its background.
    pub(super) background: Option<Theme>,
}

impl Stage {
    /// Creates a stage for `count` screens, which the caller then adds.
    pub(super) fn new(options: &Options, count: usize) -> Self {
        Self {
            screens: Vec::with_capacity(count),
            styles: Styles { theme: options.theme, has_color: options.has_color },
            ascii: options.ascii,
            is_list: count > 1,
            selected: 0,
            first: 0,
            background: None,
        }
    }

    pub(super) fn app(&self) -> &App {
        &self.screens[self.selected].app
    }

    fn app_mut(&mut self) -> &mut App {
        &mut self.screens[self.selected].app
    }

    /// Returns whether the terminal shows the screen, or the list with a line for the screen.
    pub(super) fn shows(&self, screen: usize) -> bool {
        self.is_list || screen == self.selected
    }

    pub(super) fn show_list(&mut self) {
        self.is_list = self.screens.len() > 1;
    }

    pub(super) fn update_screen(&mut self, screen: usize, event: Event) -> Option<Effect> {
        update(&mut self.screens[screen].app, event)
    }

    /// Applies a tick, a resize or the background to all screens, and any other event to the shown screen or to the
    /// list. Returns the effect with the index of its screen.
    pub(super) fn update(&mut self, event: Event) -> (usize, Option<Effect>) {
        let shown = self.selected;
        match event {
            Event::Tick { now } => {
                let mut due = None;
                for (at, screen) in self.screens.iter_mut().enumerate() {
                    let effect = update(&mut screen.app, Event::Tick { now });
                    if at == shown || due.is_none() {
                        due = effect.map(|effect| (at, effect)).or(due);
                    }
                }
                due.map_or((shown, None), |(at, effect)| (at, Some(effect)))
            }
            Event::Resize(columns, rows) => {
                for screen in &mut self.screens {
                    update(&mut screen.app, Event::Resize(columns, rows));
                }
                self.scroll();
                (shown, Some(Effect::Repaint))
            }
            Event::Background(theme) => {
                (self.styles.theme, self.background) = (theme, Some(theme));
                for screen in &mut self.screens {
                    update(&mut screen.app, Event::Background(theme));
                }
                (shown, Some(Effect::Draw))
            }
            Event::Key(key) if self.is_list => (shown, self.on_key(&key)),
            Event::Mouse { event, .. } if self.is_list => {
                let effect = match event.kind {
                    MouseEventKind::Down(MouseButton::Left) => self.click(event.row),
                    MouseEventKind::ScrollDown => self.select(self.selected + 1),
                    MouseEventKind::ScrollUp => self.select(self.selected.saturating_sub(1)),
                    _ => None,
                };
                (self.selected, effect)
            }
            Event::Paste(_) if self.is_list => (shown, None),
            event => (shown, update(self.app_mut(), event)),
        }
    }

    pub(super) fn drawn(&mut self) {
        if !self.is_list {
            update(self.app_mut(), Event::Drawn);
        }
    }

    pub(super) fn request_commands(&mut self) {
        let Some(screen) = self.screens.get_mut(self.selected).filter(|_| !self.is_list) else {
            return;
        };
        if let Some(ask) = screen.app.request_commands() {
            screen.reclaim.send(ask, Instant::now());
        }
    }

    pub(super) fn next_tick(&self) -> Option<Duration> {
        self.screens.iter().filter_map(|screen| screen.app.next_tick()).min()
    }

    fn on_key(&mut self, key: &KeyEvent) -> Option<Effect> {
        if key.is_release() {
            return None;
        }
        if key.code == KeyCode::Char('c') && key.modifiers == KeyModifiers::CONTROL {
            return Some(Effect::Quit);
        }
        let page = self.lines();
        match keys::action(Context::Main, key)? {
            KeyAction::Down => self.select(self.selected + 1),
            KeyAction::Up => self.select(self.selected.saturating_sub(1)),
            KeyAction::PageDown => self.select(self.selected + page),
            KeyAction::PageUp => self.select(self.selected.saturating_sub(page)),
            KeyAction::First => self.select(0),
            KeyAction::Last => self.select(usize::MAX),
            KeyAction::NextFinding => self.select_next_finding(),
            KeyAction::Open => {
                self.is_list = false;
                Some(Effect::Repaint)
            }
            KeyAction::Repaint => Some(Effect::Repaint),
            KeyAction::Suspend => Some(Effect::Suspend),
            KeyAction::Quit => Some(Effect::Quit),
            _ => None,
        }
    }

    /// Selects the machine in this row. A click on the selected machine opens its screen.
    fn click(&mut self, row: u16) -> Option<Effect> {
        let line = usize::from(row.checked_sub(AROUND - 1)?);
        let at = self.first + line;
        if line >= self.lines() || at >= self.screens.len() {
            return None;
        }
        if at == self.selected {
            self.is_list = false;
            return Some(Effect::Repaint);
        }
        self.select(at)
    }

    /// Selects the next machine with an unresolved finding. The search wraps around.
    fn select_next_finding(&mut self) -> Option<Effect> {
        let count = self.screens.len();
        let mut next = (1..=count).map(|step| (self.selected + step) % count);
        let at = next.find(|&at| worst(&self.screens[at].app).is_some())?;
        self.select(at)
    }

    fn select(&mut self, at: usize) -> Option<Effect> {
        self.selected = at.min(self.screens.len().saturating_sub(1));
        self.scroll();
        Some(Effect::Draw)
    }

    fn lines(&self) -> usize {
        usize::from(self.app().area.height.saturating_sub(AROUND)).max(1)
    }

    fn scroll(&mut self) {
        let lines = self.lines();
        let last = self.screens.len().saturating_sub(lines);
        let first_min = (self.selected + 1).saturating_sub(lines);
        self.first = self.first.clamp(first_min, self.selected).min(last.max(first_min));
    }

    pub(super) fn draw(&self, canvas: &mut Buffer) {
        match self.is_list {
            false => view::draw(self.app(), canvas),
            true => {
                canvas.reset();
                self.draw_list(canvas);
                if self.ascii {
                    view::ascii::replace(canvas);
                }
            }
        }
    }

    fn draw_list(&self, canvas: &mut Buffer) {
        let (area, styles) = (canvas.area, self.styles);
        self.draw_sum(LineWriter::new(canvas, area, 0));
        let name = self.screens.iter().map(|screen| columns(&host_name(&screen.app)));
        let name = name.max().unwrap_or(0).clamp(4, NAME);
        let sum = |screen: &AppScreen| columns(&host_sum(&screen.app));
        let sum = self.screens.iter().map(sum).max().unwrap_or(0).max(columns(SUM)) + 2;
        let left = area.width.saturating_sub(name + 2 + sum + RECLAIMABLE + FOUND);
        let bars = if left < BAR.0 { 0 } else { (left / 2).clamp(BAR.0, BAR.1) };
        let mut heading = LineWriter::new(canvas, area, 1);
        heading.left("HOST", name, styles.heading()).skip(2);
        let held = [MemoryShare::InUse, MemoryShare::Suspected, MemoryShare::Reclaimable];
        if bars > 0 {
            legend(&held, bars - 2, styles, &mut heading);
            heading.skip(2);
        }
        heading.left(SUM, sum, styles.heading());
        heading.left("TO RECLAIM", RECLAIMABLE, styles.heading()).text("FOUND", styles.heading());
        let shown = self.screens.iter().enumerate().skip(self.first).take(self.lines());
        for (line, (at, screen)) in (AROUND - 1..).zip(shown) {
            let mut writer = LineWriter::new(canvas, area, line);
            writer.left(&host_name(&screen.app), name, styles.strong()).skip(2);
            self.draw_host(&screen.app, (bars, sum), &mut writer);
            if at == self.selected {
                let row = Rect { y: area.y + line, height: 1, ..area };
                canvas.set_style(row.intersection(area), styles.selected());
            }
        }
        let mut bottom = LineWriter::new(canvas, area, area.height.saturating_sub(1));
        let hints = [("Enter", "Open"), ("n", "Next finding"), ("F10", "Quit")];
        for (key, word) in hints {
            bottom.text(key, styles.key()).skip(1).text(word, styles.faint()).skip(2);
        }
        let last = (self.first + self.lines()).min(self.screens.len());
        let range = format!("{}-{last} of {}", self.first + 1, self.screens.len());
        bottom.at_end(&range, styles.faint());
    }

    fn draw_sum(&self, mut writer: LineWriter<'_>) {
        let styles = self.styles;
        let apps = || self.screens.iter().map(|screen| &screen.app);
        let screenfuls = || apps().filter_map(|app| app.screenful.as_ref());
        let silent = self.screens.len() - apps().filter(|app| is_answering(app)).count();
        writer.text(&format!("{} hosts", self.screens.len()), styles.strong()).skip(2);
        if silent > 0 {
            writer.text(&format!("{silent} not answering"), styles.alarm()).skip(2);
        }
        let all: Vec<_> = screenfuls().flat_map(|screenful| &screenful.snapshot.gpus).collect();
        writer.text(&gpus::sum(&all), styles.plain()).skip(2);
        let bytes = screenfuls().map(|screenful| screenful.reclaimable.bytes).sum();
        let processes: usize = screenfuls().map(|screenful| screenful.reclaimable.processes).sum();
        if processes > 0 {
            let text = format!("{} reclaimable: {processes} processes", Bytes(bytes));
            writer.text(&text, styles.reclaimable());
        }
    }

    fn draw_host(&self, app: &App, (bars, sum): (u16, u16), writer: &mut LineWriter<'_>) {
        let styles = self.styles;
        let trouble = app.trouble.as_deref().map(|reason| clean(reason, MESSAGE_CHARS));
        let Some(screenful) = &app.screenful else {
            match &trouble {
                Some(reason) => writer.text(reason, styles.alarm()),
                None => writer.text("waiting for its first sample", styles.faint()),
            };
            return;
        };
        if bars > 0 {
            let shares = screenful.shares.iter().filter_map(|gpu| gpu.whole.as_ref());
            let shares = MemoryShares::sum(shares);
            bar(shares.as_ref(), !is_answering(app), bars - 2, styles, writer);
            writer.skip(2);
        }
        writer.left(&host_sum(app), sum, styles.plain());
        if !is_answering(app) {
            let age = Span::from_seconds(app.age_seconds().unwrap_or_default() as f64);
            let reason = trouble.unwrap_or_default();
            writer.text(&format!("no answer for {age}  {reason}"), styles.alarm());
            return;
        }
        let fits = |headline: &Headline| columns(&headline.text(self.ascii)) < RECLAIMABLE;
        let headline = screenful.reclaimable.headlines().into_iter().find(fits);
        let text = headline.map_or_else(String::new, |headline| headline.text(self.ascii));
        let style = match screenful.reclaimable.processes {
            0 => styles.faint(),
            _ => styles.reclaimable(),
        };
        writer.left(&text, RECLAIMABLE, style);
        if let Some(worst) = worst(app) {
            writer.text(&badge(worst), styles.badge(worst.severity)).skip(1);
            writer.text(&clean(&worst.message, MESSAGE_CHARS), styles.plain());
        }
    }
}

/// Returns whether the newest sample is recent, or the machine has yet to answer for the first time.
fn is_answering(app: &App) -> bool {
    !app.is_overdue() && (app.screenful.is_some() || app.trouble.is_none())
}

fn worst(app: &App) -> Option<&Finding> {
    let mut findings = app.screenful.as_ref()?.findings.iter();
    findings.find(|finding| finding.resolved_at.is_none())
}

fn host_sum(app: &App) -> String {
    let screenful = app.screenful.as_ref();
    screenful
        .map_or_else(String::new, |screenful| gpus::sum(&Vec::from_iter(&screenful.snapshot.gpus)))
}

fn host_name(app: &App) -> String {
    app.setup.host.as_ref().map_or_else(String::new, |host| host.name.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::reclaim::worker::mailbox::mailbox;
    use crate::rules::{Engine, RuleSet};
    use crate::source::remote::RemoteHost;
    use crate::watch::EarlierHistory;
    use crate::watch::testing::{lines, show_sample};
    use crate::watch::tests::sample;

    /// Creates a list of `count` machines. Machine N has N GPUs; the last machine has not answered.
    fn stage(count: u32, (width, height): (u16, u16)) -> Stage {
        let options = Options {
            me: crate::model::row::CurrentUser::default(),
            filter: None,
            sort: None,
            columns: None,
            interval: Duration::from_secs(1),
            theme: Theme::Terminal,
            asks_background: false,
            speed: 1.0,
            has_color: false,
            ascii: false,
            mouse: false,
        };
        let mut stage = Stage::new(&options, count as usize);
        for number in 1..=count {
            let host = RemoteHost { name: format!("gpu{number:02}").into(), command: "".into() };
            let past = EarlierHistory::new(Engine::new(RuleSet::default()));
            let mut app = options.clone().start(None, Some(host), past, width, height);
            match number == count {
                true => app.trouble = Some("ssh failed: no route".to_owned()),
                false => drop(show_sample(&mut app, 0, sample::snapshot(number, 2))),
            }
            stage.screens.push(AppScreen { app, controls: channel().0, reclaim: mailbox().0 });
        }
        stage
    }

    fn drawn(stage: &Stage) -> Vec<String> {
        let mut canvas = Buffer::empty(stage.app().area);
        stage.draw(&mut canvas);
        lines(&canvas)
    }

    fn press(stage: &mut Stage, line: &str) -> Option<Effect> {
        let mut effect = None;
        for key in crate::watch::testing::events(line) {
            (_, effect) = stage.update(Event::Key(key));
        }
        effect
    }

    #[test]
    fn the_background_sets_the_theme_of_every_screen() {
        let mut hosts = stage(3, (80, 24));
        hosts.update(Event::Background(Theme::Light));
        let themes = hosts.screens.iter().map(|screen| screen.app.theme);
        assert!(themes.chain([hosts.styles.theme]).all(|theme| theme == Theme::Light));
        // `run` reads this field so that it does not save a theme that the user did not choose.
        assert_eq!(hosts.background, Some(Theme::Light));
    }

    #[test]
    fn the_host_list_shows_names_and_totals_at_any_size() {
        let mut hosts = stage(4, (120, 10));
        let list = drawn(&hosts);
        assert!(list[0].starts_with("4 hosts  1 not answering  6 GPUs  "), "{list:#?}");
        for (line, (name, content)) in (2..).zip([
            ("gpu01", "1 GPU "),
            ("gpu02", "2 GPUs "),
            ("gpu03", "3 GPUs "),
            ("gpu04", "ssh failed: no route"),
        ]) {
            assert!(list[line].starts_with(name) && list[line].contains(content), "{list:#?}");
        }
        hosts.screens[3].app.trouble = None;
        let list = drawn(&hosts);
        assert!(
            list[0].starts_with("4 hosts  6 GPUs  ") && list[5].contains("waiting"),
            "{list:#?}"
        );
        for width in [1, 7, 40, 80, 300] {
            for height in 1..12 {
                let list = drawn(&stage(6, (width, height)));
                assert_eq!(list.len(), usize::from(height));
                assert!(width < 40 || height < 4 || list[2].starts_with("gpu01"), "{list:#?}");
            }
        }
    }

    #[test]
    fn keys_move_in_the_list_and_open_and_leave_a_host() {
        let mut stage = stage(30, (100, 12));
        for (keys, selected) in [("k", 0), ("jj", 2), ("<PgDn>", 11), ("G", 29), ("<PgUp>k", 19)] {
            press(&mut stage, keys);
            assert_eq!(stage.selected, selected, "{keys}");
            let name = format!("gpu{:02}", selected + 1);
            assert!(drawn(&stage).iter().any(|line| line.starts_with(&name)), "{keys}");
        }
        assert_eq!(press(&mut stage, "<Enter>"), Some(Effect::Repaint));
        assert!(!stage.is_list && drawn(&stage)[0].contains("gpu20"));
        assert_eq!(press(&mut stage, "H"), Some(Effect::Hosts));
        stage.show_list();
        assert!(drawn(&stage)[0].starts_with("30 hosts"));
        assert_eq!(press(&mut stage, "q"), Some(Effect::Quit));
    }

    #[test]
    fn a_command_for_a_remote_process_uses_its_exact_name() {
        let mut stage = stage(2, (100, 30));
        press(&mut stage, "<Enter>");
        // Without the boot ID, the command would name the process by PID, which can be reused.
        press(&mut stage, "jx");
        for (at, boot_id) in (1..).zip(["\x1b[2J", "'; id; '", "$(id)", "b00t"]) {
            assert!(stage.app().note.as_deref().is_some_and(|note| note.contains("is unknown")));
            let mut snapshot = sample::later(1, 2, at as f64);
            snapshot.host.boot_id = Some(Arc::from(boot_id));
            show_sample(&mut stage.screens[0].app, at, snapshot);
            if boot_id != "b00t" {
                assert_eq!(press(&mut stage, "x"), Some(Effect::Draw), "{boot_id:?}");
            }
        }
        let Some(Effect::OnHost(command)) = press(&mut stage, "x") else {
            panic!("{:?}", stage.app().note);
        };
        let identity = stage.app().subject().unwrap().row.key.identity;
        let name = identity.exact_name("b00t").unwrap();
        assert_eq!(command, format!("gpumem kill --all-users {name}"));
        let release = format!("gpumem release --all-users {name}");
        assert_eq!(press(&mut stage, "R"), Some(Effect::OnHost(release)));
    }
}
