//! The table of keys itself.

use crossterm::event::KeyCode;

use super::{Action, Binding, Context, Group, Key};
use crate::watch::column::Column;

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

const fn main(title: &'static str, bindings: &'static [Binding]) -> Group {
    Group {
        context: Context::Main,
        title,
        bindings,
    }
}

/// Every key, in the order of the help, under its headings. What is bound for the table and the
/// findings holds elsewhere, too, where the same key means nothing else.
pub const GROUPS: &[Group] = &[
    main(
        "Look around",
        &[
            bind(
                &[char('j'), plain(KeyCode::Down), Key::Ctrl('n')],
                "j Down",
                "select the next process",
                Action::Down,
            )
            .hinted("j k", "select"),
            bind(
                &[char('k'), plain(KeyCode::Up), Key::Ctrl('p')],
                "k Up",
                "select the one before",
                Action::Up,
            ),
            bind(
                &[plain(KeyCode::PageDown), Key::Ctrl('f'), Key::Ctrl('d')],
                "PgDn Ctrl-F D",
                "a screenful down",
                Action::PageDown,
            ),
            bind(
                &[plain(KeyCode::PageUp), Key::Ctrl('b'), Key::Ctrl('u')],
                "PgUp Ctrl-B U",
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
                &[plain(KeyCode::Left), char('^'), Key::Ctrl('a')],
                "Left ^",
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
    main(
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
    main(
        "Which processes, in which order",
        &[
            bind(
                &[
                    char('/'),
                    char('\\'),
                    plain(KeyCode::F(3)),
                    plain(KeyCode::F(4)),
                ],
                "/ \\ F3 F4",
                "filter: words, or user:ann gpu:0 idle>10m mem>4GiB",
                Action::Filter,
            )
            .hinted("/", "filter"),
            bind(
                &[char('t'), plain(KeyCode::F(5))],
                "t F5",
                "families as trees",
                Action::Tree,
            )
            .hinted("t", "tree"),
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
                "sort by a column: its letter, or arrows",
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
                &[char('T')],
                "T",
                "sort by runtime",
                Action::SortBy(Column::Runtime),
            ),
            bind(
                &[char('r'), char('I')],
                "r I",
                "turn the order around",
                Action::Reverse,
            ),
        ],
    ),
    main(
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
    main(
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
                &[Key::Ctrl('l'), Key::Ctrl('r')],
                "Ctrl-L Ctrl-R",
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
                "one step back: what is open, the selection, marks, filters",
                Action::Back,
            ),
            bind(
                &[char('q'), char('Q'), plain(KeyCode::F(10))],
                "q Q F10",
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
    Group {
        context: Context::Page,
        title: "On a page of explanation",
        bindings: &[
            bind(
                &[char('j'), plain(KeyCode::Down), Key::Ctrl('n')],
                "j Down",
                "a line down",
                Action::Down,
            )
            .hinted("j k", "scroll"),
            bind(
                &[char('k'), plain(KeyCode::Up), Key::Ctrl('p')],
                "k Up",
                "a line up",
                Action::Up,
            ),
            bind(
                &[
                    char(' '),
                    plain(KeyCode::PageDown),
                    Key::Ctrl('f'),
                    Key::Ctrl('d'),
                ],
                "Space PgDn",
                "a screenful down",
                Action::PageDown,
            ),
            bind(
                &[plain(KeyCode::PageUp), Key::Ctrl('b'), Key::Ctrl('u')],
                "PgUp",
                "a screenful up",
                Action::PageUp,
            ),
            bind(
                &[plain(KeyCode::Home), char('g')],
                "Home g",
                "the beginning",
                Action::First,
            ),
            bind(
                &[plain(KeyCode::End), char('G')],
                "End G",
                "the end",
                Action::Last,
            ),
            bind(
                &[
                    char('x'),
                    char('K'),
                    plain(KeyCode::F(9)),
                    plain(KeyCode::Delete),
                ],
                "x K F9 Del",
                "show how the process would be ended",
                Action::Reap,
            )
            .hinted("x", "end"),
            bind(
                &[char('p'), char('Z')],
                "p Z",
                "hold the screen still; go on",
                Action::Pause,
            ),
            bind(
                &[char('?'), char('h'), plain(KeyCode::F(1))],
                "? h F1",
                "this help",
                Action::Help,
            )
            .hinted("?", "help"),
            bind(
                &[plain(KeyCode::Esc), plain(KeyCode::Enter), char('q')],
                "Esc Enter q",
                "back",
                Action::Back,
            )
            .hinted("Esc", "back"),
        ],
    },
    Group {
        context: Context::Plan,
        title: "On a plan of whom to end",
        bindings: &[
            bind(
                &[char('y')],
                "y",
                "yes: do what the plan says, after a few seconds",
                Action::Confirm,
            ),
            bind(
                &[char('u')],
                "u",
                "undo, until the first signal; then stop",
                Action::Undo,
            ),
            bind(
                &[plain(KeyCode::Enter)],
                "Enter",
                "press the button that is marked",
                Action::Open,
            ),
            bind(
                &[plain(KeyCode::Left), plain(KeyCode::Right)],
                "Left Right",
                "mark the other button",
                Action::OtherButton,
            ),
            bind(
                &[char('s'), plain(KeyCode::F(9))],
                "s F9",
                "choose another signal",
                Action::ChooseSignal,
            ),
            bind(
                &[plain(KeyCode::Tab), plain(KeyCode::BackTab)],
                "Tab",
                "the selected, their families, all findings",
                Action::SwitchFocus,
            ),
            bind(
                &[char('a')],
                "a",
                "processes of other users, too",
                Action::EveryUser,
            ),
            bind(
                &[char('d')],
                "d",
                "what a scheduler or service owns, too",
                Action::Direct,
            ),
            bind(
                &[char('r'), plain(KeyCode::F(5))],
                "r F5",
                "make the plan anew, of what is so now",
                Action::PlanAgain,
            ),
            bind(
                &[char('j'), plain(KeyCode::Down), Key::Ctrl('n')],
                "j Down",
                "a line down",
                Action::Down,
            ),
            bind(
                &[char('k'), plain(KeyCode::Up), Key::Ctrl('p')],
                "k Up",
                "a line up",
                Action::Up,
            ),
            bind(
                &[char('?'), char('h'), plain(KeyCode::F(1))],
                "? h F1",
                "this help",
                Action::Help,
            )
            .hinted("?", "help"),
            bind(
                &[
                    plain(KeyCode::Esc),
                    char('n'),
                    char('q'),
                    char('x'),
                    plain(KeyCode::F(10)),
                ],
                "Esc n q x",
                "no; leave the plan",
                Action::Back,
            )
            .hinted("Esc", "leave"),
        ],
    },
];
