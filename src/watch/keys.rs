//! Key bindings, which [`action`] looks up and the help prints.
//!
//! Keys follow nvitop, nvtop, htop and vi where these programs agree. Killing a process takes more
//! than one key. `update/key.rs` carries out the actions.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use self::KeyAction as Do;
use super::column::Column;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyAction {
    Down,
    Up,
    PageDown,
    PageUp,
    First,
    Last,
    Left,
    Right,
    /// Moves the focus between table and findings. In a plan, selects the next scope.
    SwitchFocus,
    /// Opens the page about the selection. In the list of columns, accepts the changes.
    Open,
    Tag,
    UntagAll,
    Reap,
    ReapFindings,
    Release,
    Filter,
    Search,
    Tree,
    Mine,
    OnlyFindings,
    ChooseSort,
    SortRight,
    SortLeft,
    SortBy(Column),
    Reverse,
    Pause,
    StepBack,
    StepOn,
    LeapBack,
    LeapOn,
    NextFinding,
    PreviousFinding,
    Seek,
    Now,
    Faster,
    Slower,
    WidenCharts,
    NarrowCharts,
    NextTheme,
    Help,
    Repaint,
    Suspend,
    /// Goes back one step: closes a dialog or page, or clears the selection, marks or filters.
    Back,
    Confirm,
    Undo,
    NextSignal,
    EveryUser,
    Direct,
    PlanAgain,
    /// A digit of a GPU's number. Two digits in quick succession form one number.
    Gpu(u8),
    GpuPage,
    Environment,
    Totals,
    Columns,
    Hosts,
    SwitchColumn,
    ColumnLeft,
    ColumnRight,
    DefaultColumns,
    Quit,
    QuitAtOnce,
}

/// A part of the screen with its own keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Context {
    #[default]
    Main,
    Page,
    /// The plan, or the batch that carries it out.
    Plan,
    Columns,
}

pub type Binding = (&'static str, &'static str, KeyAction);

pub type Group = (Context, &'static str, &'static [Binding]);

/// All bindings, in the order of the help, which moves the current context to the front. `Main` keys work in every
/// context that does not rebind them.
pub const GROUPS: &[Group] = &[
    (Context::Main, "Navigation", LOOK),
    (Context::Main, "Free memory", RECLAIM),
    (Context::Main, "Filter and sort", CHOOSE),
    (Context::Main, "Time", TIME),
    (Context::Main, "Screen", SCREEN),
    (Context::Page, "On an explanation page", PAGE),
    (Context::Plan, "On a plan", PLAN),
    (Context::Columns, "In the list of columns (F2)", COLUMNS),
];

const LOOK: &[Binding] = &[
    ("j Down", "select the next process", Do::Down),
    ("k Up", "select the previous process", Do::Up),
    ("PgDn Ctrl-F", "one screen down", Do::PageDown),
    ("PgUp Ctrl-B", "one screen up", Do::PageUp),
    ("Home g", "select the first process", Do::First),
    ("End G", "select the last process", Do::Last),
    ("Left ^", "scroll the commands back to their start", Do::Left),
    ("Right l", "scroll the commands to the right", Do::Right),
    ("Tab", "switch between table and findings", Do::SwitchFocus),
    ("Enter", "explain the selected process or finding", Do::Open),
    ("i F8", "show the page of the GPU; again: the next GPU", Do::GpuPage),
    ("s F7", "show totals by user, job, container and framework", Do::Totals),
    ("e", "show the environment of the process, secrets masked", Do::Environment),
];

const RECLAIM: &[Binding] = &[
    ("Space", "mark the process and select the next", Do::Tag),
    ("U", "clear all marks", Do::UntagAll),
    ("x K F9 Del", "show the plan to kill the marked or selected processes", Do::Reap),
    ("X", "show the plan to kill all processes with findings", Do::ReapFindings),
    ("R", "free memory, keep running", Do::Release),
];

const CHOOSE: &[Binding] = &[
    ("/ \\ F4", "filter: words, or user:ann gpu:0 idle>10m mem>4GiB", Do::Filter),
    ("F3", "search: select the next match; F3 again: the one after", Do::Search),
    ("t F5", "show families as trees", Do::Tree),
    (DIGITS, "only the GPU with this number (one or two digits); again: all", Do::Gpu(0)),
    ("u", "only my processes", Do::Mine),
    ("f", "only processes with findings", Do::OnlyFindings),
    ("o F6", "sort by a column: press its letter, or use arrows", Do::ChooseSort),
    ("< ,", "sort by the column to the left", Do::SortLeft),
    ("> .", "sort by the column to the right", Do::SortRight),
    ("M", "sort by GPU memory", Do::SortBy(Column::Memory)),
    ("P", "sort by CPU use", Do::SortBy(Column::CpuPercent)),
    ("T", "sort by runtime", Do::SortBy(Column::Runtime)),
    ("r I", "reverse the order", Do::Reverse),
];

const TIME: &[Binding] = &[
    ("p Z", "pause; again: resume", Do::Pause),
    ("[", "previous sample", Do::StepBack),
    ("]", "next sample", Do::StepOn),
    ("{", "a minute back", Do::LeapBack),
    ("}", "a minute forward", Do::LeapOn),
    ("n", "start of the next finding", Do::NextFinding),
    ("N", "start of the previous finding", Do::PreviousFinding),
    ("@", "go to a time: 10:04, -5m, +1h", Do::Seek),
    ("L", "go to the newest sample", Do::Now),
    (")", "sample more often; play faster", Do::Faster),
    ("(", "sample less often; play slower", Do::Slower),
];

const SCREEN: &[Binding] = &[
    ("? h F1", "show this help", Do::Help),
    ("F2", "choose the table's columns", Do::Columns),
    ("+ =", "widen the charts beside the table", Do::WidenCharts),
    ("-", "narrow the charts beside the table", Do::NarrowCharts),
    ("C", "next theme", Do::NextTheme),
    ("H", "show the list of hosts (--host)", Do::Hosts),
    ("Ctrl-L Ctrl-R", "redraw the screen", Do::Repaint),
    ("Ctrl-Z", "suspend gpumem; fg resumes it", Do::Suspend),
    ("Esc", "one step back: close, deselect, unmark, remove filters", Do::Back),
    ("q Q F10", "quit", Do::Quit),
    ("Ctrl-C", "quit immediately", Do::QuitAtOnce),
];

const PAGE: &[Binding] = &[
    ("j Down", "a line down", Do::Down),
    ("k Up", "a line up", Do::Up),
    ("Space PgDn", "a screenful down", Do::PageDown),
    ("x K F9 Del", "show the plan to kill the process", Do::Reap),
    ("R", "free memory, keep running", Do::Release),
    ("Esc Enter q", "back", Do::Back),
];

const PLAN: &[Binding] = &[
    ("y", "yes: carry out the plan after a countdown", Do::Confirm),
    ("u", "undo before the first signal, stop after it", Do::Undo),
    ("s F9", "the next signal", Do::NextSignal),
    ("Tab", "scope: selected, their families, all findings", Do::SwitchFocus),
    ("a", "include processes of other users", Do::EveryUser),
    ("d", "include processes of schedulers and services", Do::Direct),
    ("r F5", "refresh the plan", Do::PlanAgain),
    ("j Down", "a line down", Do::Down),
    ("k Up", "a line up", Do::Up),
    ("Esc Enter n q x", "no: close the plan", Do::Back),
];

const COLUMNS: &[Binding] = &[
    ("j Down", "the next column", Do::Down),
    ("k Up", "the previous column", Do::Up),
    ("Space", "show or hide the column", Do::SwitchColumn),
    ("Left < F7", "move the column to the left", Do::ColumnLeft),
    ("Right > F8", "move the column to the right", Do::ColumnRight),
    ("r", "show all columns, in the default order", Do::DefaultColumns),
    ("Enter F2", "keep the columns, also for later sessions", Do::Open),
    ("Esc q F10", "discard the changes", Do::Back),
];

const DIGITS: &str = "0-9";

/// Alternative keys for every context. The help omits most of them.
const ALIASES: [(&str, KeyCode); 8] = [
    ("Ctrl-N", KeyCode::Down),
    ("Ctrl-P", KeyCode::Up),
    ("Ctrl-F", KeyCode::PageDown),
    ("Ctrl-D", KeyCode::PageDown),
    ("Ctrl-B", KeyCode::PageUp),
    ("Ctrl-U", KeyCode::PageUp),
    ("Ctrl-A", KeyCode::Left),
    ("BackTab", KeyCode::Tab),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hint {
    pub context: Context,
    /// Names of the keys. A click on the hint presses the first key.
    pub key: &'static str,
    pub word: &'static str,
    /// Hints with a high rank are dropped first.
    pub rank: u8,
}

const fn hint(context: Context, key: &'static str, word: &'static str, rank: u8) -> Hint {
    Hint { context, key, word, rank }
}

const HINTS: &[Hint] = &[
    hint(Context::Main, "F1", "Help", 0),
    hint(Context::Main, "F2", "Columns", 5),
    hint(Context::Main, "F3", "Find", 7),
    hint(Context::Main, "F4", "Filter", 3),
    hint(Context::Main, "F5", "Tree", 6),
    hint(Context::Main, "F6", "Sort", 4),
    hint(Context::Main, "F7", "Totals", 8),
    hint(Context::Main, "F8", "GPU", 9),
    hint(Context::Main, "F9", "Kill", 2),
    hint(Context::Main, "F10", "Quit", 1),
    hint(Context::Main, "Enter", "Explain", 10),
    hint(Context::Main, "Space", "Mark", 11),
    hint(Context::Main, "p", "Pause", 12),
    hint(Context::Main, "R", "Release", 13),
    hint(Context::Page, "F1", "Help", 1),
    hint(Context::Page, "F9", "Kill", 2),
    hint(Context::Page, "R", "Release", 3),
    hint(Context::Page, "j k", "Scroll", 4),
    hint(Context::Page, "Esc", "Back", 0),
    hint(Context::Plan, "F1", "Help", 1),
    hint(Context::Plan, "Esc", "Leave", 0),
    hint(Context::Columns, "Space", "Switch", 2),
    hint(Context::Columns, "Left Right", "Move", 3),
    hint(Context::Columns, "r", "Reset", 4),
    hint(Context::Columns, "Enter", "Keep", 0),
    hint(Context::Columns, "Esc", "Cancel", 1),
];

pub fn hints(context: Context) -> impl Iterator<Item = Hint> {
    HINTS.iter().filter(move |hint| hint.context == context).copied()
}

pub fn events(names: &str) -> impl Iterator<Item = KeyEvent> {
    names.split(' ').filter_map(named)
}

/// Parses a key: a character, or a name such as `PgDn`, `F9` or `Ctrl-F`. Case does not matter in names. Returns
/// `None` if there is no such key.
pub fn named(name: &str) -> Option<KeyEvent> {
    let mut characters = name.chars();
    if let (Some(only), None) = (characters.next(), characters.next())
        && !only.is_control()
    {
        return Some(KeyCode::Char(only).into());
    }
    let name = name.to_ascii_lowercase();
    if let Some(letter) = name.strip_prefix("ctrl-") {
        return Some(KeyEvent::new(named(letter)?.code, KeyModifiers::CONTROL));
    }
    let code = match name.as_str() {
        "enter" => KeyCode::Enter,
        "esc" => KeyCode::Esc,
        "tab" => KeyCode::Tab,
        "backtab" => KeyCode::BackTab,
        "space" => KeyCode::Char(' '),
        "lt" => KeyCode::Char('<'),
        "backspace" => KeyCode::Backspace,
        "del" => KeyCode::Delete,
        "up" => KeyCode::Up,
        "down" => KeyCode::Down,
        "left" => KeyCode::Left,
        "right" => KeyCode::Right,
        "home" => KeyCode::Home,
        "end" => KeyCode::End,
        "pgup" => KeyCode::PageUp,
        "pgdn" => KeyCode::PageDown,
        other => match other.strip_prefix('f')?.parse() {
            Ok(number @ 1..=12) => KeyCode::F(number),
            _ => return None,
        },
    };
    Some(code.into())
}

pub fn action(context: Context, event: &KeyEvent) -> Option<KeyAction> {
    // A character already reflects Shift.
    let modifiers = event.modifiers - KeyModifiers::SHIFT;
    let mut key = KeyEvent::new(event.code, modifiers);
    if let KeyCode::Char(c) = event.code
        && modifiers == KeyModifiers::CONTROL
    {
        key.code = KeyCode::Char(c.to_ascii_lowercase());
    }
    match key.code {
        _ if event.is_release() => return None,
        KeyCode::Char(digit @ '0'..='9') if modifiers.is_empty() => {
            return Some(KeyAction::Gpu(digit as u8 - b'0'));
        }
        _ => {}
    }
    if let Some((_, code)) = ALIASES.iter().find(|(name, _)| named(name) == Some(key)) {
        key = (*code).into();
    }
    let find = |context: Context| {
        let groups = GROUPS.iter().filter(|group| group.0 == context);
        let mut bindings = groups.flat_map(|group| group.2);
        bindings
            .find(|binding| events(binding.0).any(|event| event == key))
            .map(|binding| binding.2)
    };
    find(context).or_else(|| find(Context::Main))
}

/// Returns a message about an unbound key, or `None` if the key has no printable name.
pub fn unbound(event: &KeyEvent) -> Option<String> {
    let name = match event.code {
        KeyCode::Char(c) if event.modifiers == KeyModifiers::CONTROL && c.is_ascii_alphabetic() => {
            format!("Ctrl-{}", c.to_ascii_uppercase())
        }
        KeyCode::Char(c) if !c.is_control() => format!("{c:?}"),
        KeyCode::F(number) => format!("F{number}"),
        _ => return None,
    };
    Some(format!("{name} does nothing here; ? lists the keys"))
}

#[cfg(test)]
mod tests;
