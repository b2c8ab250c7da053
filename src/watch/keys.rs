//! The keys: one table that both handles them and is the help.
//!
//! Keys of nvitop, nvtop, htop and vi where they agree. What an action does is in `app.rs`.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::column::Column;

/// What a key asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
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
    /// Type a filter.
    Filter,
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
    /// Hold the screen still, or go on.
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

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    /// The keys that do it.
    pub keys: &'static [Key],
    /// The keys as the help writes them.
    pub label: &'static str,
    /// What they do, as the help says it.
    pub does: &'static str,
    /// Key and word in the bottom line, for those that stand there.
    pub hint: Option<(&'static str, &'static str)>,
    /// What is done.
    pub action: Action,
}

const fn char(c: char) -> Key {
    Key::Plain(KeyCode::Char(c))
}

const fn plain(code: KeyCode) -> Key {
    Key::Plain(code)
}

const fn bind(
    keys: &'static [Key],
    label: &'static str,
    does: &'static str,
    action: Action,
) -> Binding {
    Binding {
        keys,
        label,
        does,
        hint: None,
        action,
    }
}

impl Binding {
    const fn hinted(mut self, key: &'static str, word: &'static str) -> Self {
        self.hint = Some((key, word));
        self
    }
}

/// Every key, in the order of the help, under its headings.
pub const GROUPS: &[(&str, &[Binding])] = &[
    (
        "Look around",
        &[
            bind(
                &[char('j'), plain(KeyCode::Down)],
                "j Down",
                "select the next process",
                Action::Down,
            )
            .hinted("j k", "select"),
            bind(
                &[char('k'), plain(KeyCode::Up)],
                "k Up",
                "select the one before",
                Action::Up,
            ),
            bind(
                &[plain(KeyCode::PageDown), Key::Ctrl('f')],
                "PgDn Ctrl-F",
                "a screenful down",
                Action::PageDown,
            ),
            bind(
                &[plain(KeyCode::PageUp), Key::Ctrl('b')],
                "PgUp Ctrl-B",
                "a screenful up",
                Action::PageUp,
            ),
            bind(
                &[plain(KeyCode::Home), char('g')],
                "Home g",
                "the first",
                Action::First,
            ),
            bind(
                &[plain(KeyCode::End), char('G')],
                "End G",
                "the last",
                Action::Last,
            ),
            bind(
                &[plain(KeyCode::Left)],
                "Left",
                "back to the beginning of the commands",
                Action::Left,
            ),
            bind(
                &[plain(KeyCode::Right), char('l')],
                "Right l",
                "more of the commands",
                Action::Right,
            ),
            bind(
                &[plain(KeyCode::Tab), plain(KeyCode::BackTab)],
                "Tab",
                "to the findings, and back to the table",
                Action::SwitchFocus,
            ),
            bind(
                &[plain(KeyCode::Enter)],
                "Enter",
                "explain the selected process or finding",
                Action::Open,
            )
            .hinted("Enter", "explain"),
        ],
    ),
    (
        "Get memory back",
        &[
            bind(
                &[char(' ')],
                "Space",
                "mark the process, and go on to the next",
                Action::Tag,
            ),
            bind(&[char('U')], "U", "take all marks away", Action::UntagAll),
            bind(
                &[
                    char('x'),
                    char('K'),
                    plain(KeyCode::F(9)),
                    plain(KeyCode::Delete),
                ],
                "x K F9 Del",
                "show how the marked, or the selected, would be ended",
                Action::Reap,
            )
            .hinted("x", "end"),
            bind(
                &[char('X')],
                "X",
                "show how all that the rules found would be ended",
                Action::ReapFindings,
            ),
        ],
    ),
    (
        "Which processes, in which order",
        &[
            bind(
                &[char('/'), plain(KeyCode::F(4))],
                "/ F4",
                "filter: words, or user:ann gpu:0 idle>10m mem>4GiB",
                Action::Filter,
            )
            .hinted("/", "filter"),
            bind(&[char('t')], "t", "families as trees", Action::Tree).hinted("t", "tree"),
            bind(&[char('u')], "u", "only my own", Action::Mine),
            bind(
                &[char('f')],
                "f",
                "only those with findings",
                Action::OnlyFindings,
            ),
            bind(
                &[char('z')],
                "z",
                "hide what holds little",
                Action::HideSmall,
            ),
            bind(
                &[char('o'), plain(KeyCode::F(6))],
                "o F6",
                "sort by a column, named by its letter",
                Action::ChooseSort,
            )
            .hinted("o", "sort"),
            bind(
                &[char('<'), char(',')],
                "< ,",
                "sort by the column to the left",
                Action::SortLeft,
            ),
            bind(
                &[char('>'), char('.')],
                "> .",
                "sort by the column to the right",
                Action::SortRight,
            ),
            bind(
                &[char('M')],
                "M",
                "sort by GPU memory",
                Action::SortBy(Column::Memory),
            ),
            bind(
                &[char('P')],
                "P",
                "sort by CPU use",
                Action::SortBy(Column::CpuPercent),
            ),
            bind(
                &[char('r'), char('I')],
                "r I",
                "turn the order around",
                Action::Reverse,
            ),
        ],
    ),
    (
        "Time",
        &[
            bind(
                &[char('p'), char('Z')],
                "p Z",
                "hold the screen still; go on",
                Action::Pause,
            )
            .hinted("p", "pause"),
            bind(&[char('[')], "[", "the sample before", Action::StepBack),
            bind(&[char(']')], "]", "the sample after", Action::StepOn),
            bind(&[char('{')], "{", "a minute back", Action::LeapBack),
            bind(&[char('}')], "}", "a minute on", Action::LeapOn),
            bind(
                &[char('n')],
                "n",
                "to where the next finding begins",
                Action::NextFinding,
            ),
            bind(
                &[char('N')],
                "N",
                "to where the finding before began",
                Action::PreviousFinding,
            ),
            bind(
                &[char('@')],
                "@",
                "to a time: 10:04, -5m, +1h",
                Action::Seek,
            ),
            bind(&[char('L')], "L", "to the newest sample", Action::Now),
            bind(
                &[char('+'), char('=')],
                "+ =",
                "sample more often; play faster",
                Action::Faster,
            ),
            bind(
                &[char('-')],
                "-",
                "sample less often; play slower",
                Action::Slower,
            ),
        ],
    ),
    (
        "The screen",
        &[
            bind(
                &[char('?'), char('h'), plain(KeyCode::F(1))],
                "? h F1",
                "this help",
                Action::Help,
            )
            .hinted("?", "help"),
            bind(
                &[char('v')],
                "v",
                "the GPUs in another form",
                Action::NextForm,
            ),
            bind(&[char('C')], "C", "the next theme", Action::NextTheme),
            bind(
                &[Key::Ctrl('l'), plain(KeyCode::F(5))],
                "Ctrl-L F5",
                "draw the screen again",
                Action::Repaint,
            ),
            bind(
                &[Key::Ctrl('z')],
                "Ctrl-Z",
                "back to the shell; fg returns",
                Action::Suspend,
            ),
            bind(
                &[plain(KeyCode::Esc)],
                "Esc",
                "one step back: what is open, the selection, quit",
                Action::Back,
            ),
            bind(
                &[char('q'), plain(KeyCode::F(10))],
                "q F10",
                "quit",
                Action::Quit,
            )
            .hinted("q", "quit"),
            bind(
                &[Key::Ctrl('c')],
                "Ctrl-C",
                "quit, whatever is open",
                Action::QuitAtOnce,
            ),
        ],
    ),
];

/// Every key.
pub fn table() -> impl Iterator<Item = &'static Binding> {
    GROUPS.iter().flat_map(|(_, bindings)| *bindings)
}

/// What a key asks for, if anything.
pub fn action(event: &KeyEvent) -> Option<Action> {
    let key = pressed(event)?;
    table()
        .find(|binding| binding.keys.contains(&key))
        .map(|binding| binding.action)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_bound_twice() {
        let keys: Vec<Key> = table().flat_map(|binding| binding.keys).copied().collect();
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[..at].contains(key), "{key:?}");
        }
    }

    #[test]
    fn a_key_counts_when_it_is_pressed_with_nothing_else_held() {
        let event = |code, modifiers| KeyEvent::new(code, modifiers);
        let q = KeyCode::Char('q');
        assert_eq!(action(&event(q, KeyModifiers::NONE)), Some(Action::Quit));
        assert_eq!(action(&event(q, KeyModifiers::ALT)), None);
        assert_eq!(action(&event(q, KeyModifiers::CONTROL)), None);
        assert_eq!(
            action(&event(KeyCode::Char('c'), KeyModifiers::CONTROL)),
            Some(Action::QuitAtOnce)
        );
        assert_eq!(
            action(&event(KeyCode::Char('G'), KeyModifiers::SHIFT)),
            Some(Action::Last)
        );
    }
}
