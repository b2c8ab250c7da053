//! The keys: one table (in `keys/bindings.rs`) that handles them, is the help, and has the words of
//! the bottom line.
//!
//! Keys of nvitop, nvtop, htop and vi where they agree; where they do not, none of them ends a process
//! at once. What an action does is in `update/key.rs`; what a page and a plan make of it in `page.rs` and
//! `reaping.rs`.

mod bindings;
mod overlays;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

pub use bindings::GROUPS;
use bindings::HABITS;

use super::column::Column;

/// What a key asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyAction {
    /// The next row.
    Down,
    /// The row before.
    Up,
    /// A screenful down.
    PageDown,
    /// A screenful up.
    PageUp,
    /// The first row.
    First,
    /// The last row.
    Last,
    /// What lies to the left of the commands that are shown.
    Left,
    /// What lies to the right of them.
    Right,
    /// From the table to the findings and back.
    SwitchFocus,
    /// Explain what is selected.
    Open,
    /// Mark the selected process, or take its mark away, and go on to the next.
    Tag,
    /// Take all marks away.
    UntagAll,
    /// Show how the marked processes, or the selected one, would be ended.
    Reap,
    /// Show how what the rules found would be ended.
    ReapFindings,
    /// Show how the marked processes, or the selected one, would be asked to release memory.
    Release,
    /// Type a filter.
    Filter,
    /// Search: type what the selection jumps to.
    Search,
    /// Families as trees, or a flat list.
    Tree,
    /// Only one's own processes, or everybody's.
    Mine,
    /// Only processes of which something was found, or all.
    OnlyFindings,
    /// Hide what holds little, or show it.
    HideSmall,
    /// Sort by a column whose letter comes next.
    ChooseSort,
    /// Sort by the next column to the right.
    SortRight,
    /// Sort by the next column to the left.
    SortLeft,
    /// Sort by this column.
    SortBy(Column),
    /// Turn the order around.
    Reverse,
    /// Pause, or resume.
    Pause,
    /// The sample before.
    StepBack,
    /// The sample after.
    StepOn,
    /// A minute back.
    LeapBack,
    /// A minute on.
    LeapOn,
    /// Where the next finding begins.
    NextFinding,
    /// Where the finding before began.
    PreviousFinding,
    /// Type a time to go to.
    Seek,
    /// The newest sample.
    Now,
    /// Sample more often; play faster.
    Faster,
    /// Sample less often; play slower.
    Slower,
    /// The GPUs in another form.
    NextForm,
    /// The next theme.
    NextTheme,
    /// Show or leave the help.
    Help,
    /// Draw everything again.
    Repaint,
    /// Stop, as Ctrl-Z does to any program.
    Suspend,
    /// One step back: leave what is open, clear the selection, quit.
    Back,
    /// Carry out the plan.
    Confirm,
    /// Cancel the plan that was confirmed.
    Undo,
    /// Mark the other button of the plan.
    OtherButton,
    /// Choose another signal for the plan.
    ChooseSignal,
    /// Plan for processes of other users, too.
    EveryUser,
    /// Plan for what a scheduler, a service manager or a container runtime owns, too.
    Direct,
    /// Refresh the plan.
    PlanAgain,
    /// Only the rows of the GPU of this number; two digits in a moment are one number.
    Gpu(u8),
    /// The page of a GPU.
    GpuPage,
    /// The environment of a process.
    Environment,
    /// What each user, job, container and framework holds.
    Totals,
    /// Choose the table's columns.
    Columns,
    /// Show the column, or hide it.
    SwitchColumn,
    /// Move the column to the left in the table.
    ColumnLeft,
    /// Move it to the right.
    ColumnRight,
    /// All columns, in their order.
    DefaultColumns,
    /// Leave.
    Quit,
    /// Leave, whatever is open.
    QuitAtOnce,
}

/// A key as it is pressed. Shift is in the character itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// Without modifiers.
    Plain(KeyCode),
    /// With Ctrl.
    Ctrl(char),
}

impl Key {
    /// The event of pressing it.
    pub fn event(self) -> KeyEvent {
        match self {
            Self::Plain(code) => KeyEvent::new(code, KeyModifiers::NONE),
            Self::Ctrl(c) => KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL),
        }
    }
}

/// Where keys are pressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Context {
    /// The table and the findings.
    #[default]
    Main,
    /// The page of explanation.
    Page,
    /// The plan, or what is being done by it.
    Plan,
    /// The list of columns.
    Columns,
}

/// Keys under a heading of the help.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Where they are pressed.
    pub context: Context,
    /// The heading.
    pub title: &'static str,
    /// The keys.
    pub bindings: &'static [Binding],
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    /// The keys that do it.
    pub keys: &'static [Key],
    /// The keys as the help writes them.
    pub label: &'static str,
    /// What they do, as the help says it.
    pub does: &'static str,
    /// Key and word in the bottom line, for those that are there.
    pub hint: Option<Hint>,
    /// What is done.
    pub action: KeyAction,
}

/// A key in the bottom line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hint {
    /// The key as it is written there.
    pub key: &'static str,
    /// What it does, in a word.
    pub word: &'static str,
    /// Its place from left to right.
    pub place: u8,
    /// Its place from the one that stays longest on a narrow screen to the one that goes first.
    pub rank: u8,
}

/// Keys that are of this context alone.
pub fn table(context: Context) -> impl Iterator<Item = &'static Binding> {
    GROUPS.iter().filter(move |group| group.context == context).flat_map(|group| group.bindings)
}

/// What a key asks for there, if anything.
pub fn action(context: Context, event: &KeyEvent) -> Option<KeyAction> {
    let key = pressed(event)?;
    table(context).chain(table(Context::Main)).find(|binding| binding.keys.contains(&key)).map(
        |binding| match (binding.action, key) {
            (KeyAction::Gpu(_), Key::Plain(KeyCode::Char(digit @ '0'..='9'))) => {
                KeyAction::Gpu(digit as u8 - b'0')
            }
            (action, _) => action,
        },
    )
}

/// The key of an event; `None` for a release and for modifiers that nothing is bound to.
fn pressed(event: &KeyEvent) -> Option<Key> {
    if event.is_release() {
        return None;
    }
    match (event.code, event.modifiers - KeyModifiers::SHIFT) {
        (code, KeyModifiers::NONE) => Some(Key::Plain(code)),
        (KeyCode::Char(c), KeyModifiers::CONTROL) => Some(Key::Ctrl(c.to_ascii_lowercase())),
        _ => None,
    }
}

/// What is said of a key that nothing is bound to: where it is a habit from elsewhere, what does it
/// here. `None` of what is hardly a key that a person pressed.
pub fn unbound(event: &KeyEvent) -> Option<String> {
    let key = pressed(event)?;
    let habit = HABITS.iter().find(|(habits, _)| habits.contains(&key));
    if let Some((_, instead)) = habit {
        return Some((*instead).to_owned());
    }
    let name = match key {
        Key::Plain(KeyCode::Char(c)) if !c.is_control() => format!("{c:?}"),
        Key::Plain(KeyCode::F(number)) => format!("F{number}"),
        Key::Ctrl(c) if c.is_ascii_alphabetic() => format!("Ctrl-{}", c.to_ascii_uppercase()),
        _ => return None,
    };
    Some(format!("{name} does nothing here; ? lists the keys"))
}

#[cfg(test)]
mod tests;
