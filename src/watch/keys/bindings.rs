//! The table of keys itself.

use crossterm::event::KeyCode;

use super::{Binding, Context, Group, Key, KeyAction};
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
    action: KeyAction,
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
                KeyAction::Down,
            )
            .hinted("j k", "select"),
            bind(
                &[char('k'), plain(KeyCode::Up), Key::Ctrl('p')],
                "k Up",
                "select the one before",
                KeyAction::Up,
            ),
            bind(
                &[plain(KeyCode::PageDown), Key::Ctrl('f'), Key::Ctrl('d')],
                "PgDn Ctrl-F D",
                "a screenful down",
                KeyAction::PageDown,
            ),
            bind(
                &[plain(KeyCode::PageUp), Key::Ctrl('b'), Key::Ctrl('u')],
                "PgUp Ctrl-B U",
                "a screenful up",
                KeyAction::PageUp,
            ),
            bind(
                &[plain(KeyCode::Home), char('g')],
                "Home g",
                "the first",
                KeyAction::First,
            ),
            bind(
                &[plain(KeyCode::End), char('G')],
                "End G",
                "the last",
                KeyAction::Last,
            ),
            bind(
                &[plain(KeyCode::Left), char('^'), Key::Ctrl('a')],
                "Left ^",
                "back to the beginning of the commands",
                KeyAction::Left,
            ),
            bind(
                &[plain(KeyCode::Right), char('l')],
                "Right l",
                "more of the commands",
                KeyAction::Right,
            ),
            bind(
                &[plain(KeyCode::Tab), plain(KeyCode::BackTab)],
                "Tab",
                "to the findings, and back to the table",
                KeyAction::SwitchFocus,
            ),
            bind(
                &[plain(KeyCode::Enter)],
                "Enter",
                "explain the selected process or finding",
                KeyAction::Open,
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
                KeyAction::Tag,
            ),
            bind(
                &[char('U')],
                "U",
                "take all marks away",
                KeyAction::UntagAll,
            ),
            bind(
                &[
                    char('x'),
                    char('K'),
                    plain(KeyCode::F(9)),
                    plain(KeyCode::Delete),
                ],
                "x K F9 Del",
                "show the plan to kill the marked, or the selected",
                KeyAction::Reap,
            )
            .hinted("x", "kill"),
            bind(
                &[char('X')],
                "X",
                "show the plan to kill all that the rules found",
                KeyAction::ReapFindings,
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
                KeyAction::Filter,
            )
            .hinted("/", "filter"),
            bind(
                &[char('t'), plain(KeyCode::F(5))],
                "t F5",
                "families as trees",
                KeyAction::Tree,
            )
            .hinted("t", "tree"),
            bind(&[char('u')], "u", "only my own", KeyAction::Mine),
            bind(
                &[char('f')],
                "f",
                "only those with findings",
                KeyAction::OnlyFindings,
            ),
            bind(
                &[char('z')],
                "z",
                "hide what holds little",
                KeyAction::HideSmall,
            ),
            bind(
                &[char('o'), plain(KeyCode::F(6))],
                "o F6",
                "sort by a column: its letter, or arrows",
                KeyAction::ChooseSort,
            )
            .hinted("o", "sort"),
            bind(
                &[char('<'), char(',')],
                "< ,",
                "sort by the column to the left",
                KeyAction::SortLeft,
            ),
            bind(
                &[char('>'), char('.')],
                "> .",
                "sort by the column to the right",
                KeyAction::SortRight,
            ),
            bind(
                &[char('M')],
                "M",
                "sort by GPU memory",
                KeyAction::SortBy(Column::Memory),
            ),
            bind(
                &[char('P')],
                "P",
                "sort by CPU use",
                KeyAction::SortBy(Column::CpuPercent),
            ),
            bind(
                &[char('T')],
                "T",
                "sort by runtime",
                KeyAction::SortBy(Column::Runtime),
            ),
            bind(
                &[char('r'), char('I')],
                "r I",
                "turn the order around",
                KeyAction::Reverse,
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
                KeyAction::Pause,
            )
            .hinted("p", "pause"),
            bind(&[char('[')], "[", "the sample before", KeyAction::StepBack),
            bind(&[char(']')], "]", "the sample after", KeyAction::StepOn),
            bind(&[char('{')], "{", "a minute back", KeyAction::LeapBack),
            bind(&[char('}')], "}", "a minute on", KeyAction::LeapOn),
            bind(
                &[char('n')],
                "n",
                "to where the next finding begins",
                KeyAction::NextFinding,
            ),
            bind(
                &[char('N')],
                "N",
                "to where the finding before began",
                KeyAction::PreviousFinding,
            ),
            bind(
                &[char('@')],
                "@",
                "to a time: 10:04, -5m, +1h",
                KeyAction::Seek,
            ),
            bind(&[char('L')], "L", "to the newest sample", KeyAction::Now),
            bind(
                &[char('+'), char('=')],
                "+ =",
                "sample more often; play faster",
                KeyAction::Faster,
            ),
            bind(
                &[char('-')],
                "-",
                "sample less often; play slower",
                KeyAction::Slower,
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
                KeyAction::Help,
            )
            .hinted("?", "help"),
            bind(
                &[char('v')],
                "v",
                "the GPUs in another form",
                KeyAction::NextForm,
            ),
            bind(&[char('C')], "C", "the next theme", KeyAction::NextTheme),
            bind(
                &[Key::Ctrl('l'), Key::Ctrl('r')],
                "Ctrl-L Ctrl-R",
                "draw the screen again",
                KeyAction::Repaint,
            ),
            bind(
                &[Key::Ctrl('z')],
                "Ctrl-Z",
                "back to the shell; fg returns",
                KeyAction::Suspend,
            ),
            bind(
                &[plain(KeyCode::Esc)],
                "Esc",
                "one step back: what is open, the selection, marks, filters",
                KeyAction::Back,
            ),
            bind(
                &[char('q'), char('Q'), plain(KeyCode::F(10))],
                "q Q F10",
                "quit",
                KeyAction::Quit,
            )
            .hinted("q", "quit"),
            bind(
                &[Key::Ctrl('c')],
                "Ctrl-C",
                "quit, whatever is open",
                KeyAction::QuitAtOnce,
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
                KeyAction::Down,
            )
            .hinted("j k", "scroll"),
            bind(
                &[char('k'), plain(KeyCode::Up), Key::Ctrl('p')],
                "k Up",
                "a line up",
                KeyAction::Up,
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
                KeyAction::PageDown,
            ),
            bind(
                &[plain(KeyCode::PageUp), Key::Ctrl('b'), Key::Ctrl('u')],
                "PgUp",
                "a screenful up",
                KeyAction::PageUp,
            ),
            bind(
                &[plain(KeyCode::Home), char('g')],
                "Home g",
                "the beginning",
                KeyAction::First,
            ),
            bind(
                &[plain(KeyCode::End), char('G')],
                "End G",
                "the end",
                KeyAction::Last,
            ),
            bind(
                &[
                    char('x'),
                    char('K'),
                    plain(KeyCode::F(9)),
                    plain(KeyCode::Delete),
                ],
                "x K F9 Del",
                "show the plan to kill the process",
                KeyAction::Reap,
            )
            .hinted("x", "kill"),
            bind(
                &[char('p'), char('Z')],
                "p Z",
                "hold the screen still; go on",
                KeyAction::Pause,
            ),
            bind(
                &[char('?'), char('h'), plain(KeyCode::F(1))],
                "? h F1",
                "this help",
                KeyAction::Help,
            )
            .hinted("?", "help"),
            bind(
                &[plain(KeyCode::Esc), plain(KeyCode::Enter), char('q')],
                "Esc Enter q",
                "back",
                KeyAction::Back,
            )
            .hinted("Esc", "back"),
        ],
    },
    Group {
        context: Context::Plan,
        title: "On a plan",
        bindings: &[
            bind(
                &[char('y')],
                "y",
                "yes: do what the plan says, after a few seconds",
                KeyAction::Confirm,
            ),
            bind(
                &[char('u')],
                "u",
                "undo, until the first signal; then stop",
                KeyAction::Undo,
            ),
            bind(
                &[plain(KeyCode::Enter)],
                "Enter",
                "press the button that is marked",
                KeyAction::Open,
            ),
            bind(
                &[plain(KeyCode::Left), plain(KeyCode::Right)],
                "Left Right",
                "mark the other button",
                KeyAction::OtherButton,
            ),
            bind(
                &[char('s'), plain(KeyCode::F(9))],
                "s F9",
                "choose another signal",
                KeyAction::ChooseSignal,
            ),
            bind(
                &[plain(KeyCode::Tab), plain(KeyCode::BackTab)],
                "Tab",
                "the selected, their families, all findings",
                KeyAction::SwitchFocus,
            ),
            bind(
                &[char('a')],
                "a",
                "processes of other users, too",
                KeyAction::EveryUser,
            ),
            bind(
                &[char('d')],
                "d",
                "what a scheduler or service owns, too",
                KeyAction::Direct,
            ),
            bind(
                &[char('r'), plain(KeyCode::F(5))],
                "r F5",
                "make the plan anew, of what is so now",
                KeyAction::PlanAgain,
            ),
            bind(
                &[char('j'), plain(KeyCode::Down), Key::Ctrl('n')],
                "j Down",
                "a line down",
                KeyAction::Down,
            ),
            bind(
                &[char('k'), plain(KeyCode::Up), Key::Ctrl('p')],
                "k Up",
                "a line up",
                KeyAction::Up,
            ),
            bind(
                &[char('?'), char('h'), plain(KeyCode::F(1))],
                "? h F1",
                "this help",
                KeyAction::Help,
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
                KeyAction::Back,
            )
            .hinted("Esc", "leave"),
        ],
    },
];
