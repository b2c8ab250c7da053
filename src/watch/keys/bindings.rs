//! The table of keys itself: those of the table and the findings, and habits that are bound to nothing. What
//! is open over them is in [`overlays`].

use crossterm::event::KeyCode;

use super::{Binding, Context, Group, Hint, Key, KeyAction, overlays};
use crate::watch::column::Column;

pub(super) const fn char(c: char) -> Key {
    Key::Plain(KeyCode::Char(c))
}

pub(super) const fn plain(code: KeyCode) -> Key {
    Key::Plain(code)
}

pub(super) const fn bind(
    keys: &'static [Key],
    label: &'static str,
    does: &'static str,
    action: KeyAction,
) -> Binding {
    Binding { keys, label, does, hint: None, action }
}

impl Binding {
    /// With its place in the bottom line, and how long it stays there.
    pub(super) const fn hinted(
        mut self,
        key: &'static str,
        word: &'static str,
        place: u8,
        rank: u8,
    ) -> Self {
        self.hint = Some(Hint { key, word, place, rank });
        self
    }
}

const fn main(title: &'static str, bindings: &'static [Binding]) -> Group {
    Group { context: Context::Main, title, bindings }
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
            ),
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
            bind(&[plain(KeyCode::Home), char('g')], "Home g", "the first", KeyAction::First),
            bind(&[plain(KeyCode::End), char('G')], "End G", "the last", KeyAction::Last),
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
            .hinted("Enter", "Explain", 11, 10),
            bind(
                &[char('i'), plain(KeyCode::F(8))],
                "i F8",
                "the page of the GPU; there again: the next GPU's",
                KeyAction::GpuPage,
            )
            .hinted("F8", "GPU", 8, 9),
            bind(
                &[char('s'), plain(KeyCode::F(7))],
                "s F7",
                "totals by user, job, container and framework",
                KeyAction::Totals,
            )
            .hinted("F7", "Totals", 7, 8),
            bind(
                &[char('e')],
                "e",
                "environment of the process, secrets masked",
                KeyAction::Environment,
            ),
        ],
    ),
    main(
        "Get memory back",
        &[
            bind(&[char(' ')], "Space", "mark the process, and go on to the next", KeyAction::Tag)
                .hinted("Space", "Mark", 12, 11),
            bind(&[char('U')], "U", "take all marks away", KeyAction::UntagAll),
            bind(
                &[char('x'), char('K'), plain(KeyCode::F(9)), plain(KeyCode::Delete)],
                "x K F9 Del",
                "show the plan to kill the marked, or the selected",
                KeyAction::Reap,
            )
            .hinted("F9", "Kill", 9, 2),
            bind(
                &[char('X')],
                "X",
                "show the plan to kill all that the rules found",
                KeyAction::ReapFindings,
            ),
            bind(
                &[char('R')],
                "R",
                "show the plan to have them release memory and live on",
                KeyAction::Release,
            )
            .hinted("R", "Release", 14, 13),
        ],
    ),
    main(
        "Which processes, in which order",
        &[
            bind(
                &[char('/'), char('\\'), plain(KeyCode::F(4))],
                "/ \\ F4",
                "filter: words, or user:ann gpu:0 idle>10m mem>4GiB",
                KeyAction::Filter,
            )
            .hinted("F4", "Filter", 4, 3),
            bind(
                &[plain(KeyCode::F(3))],
                "F3",
                "search: select the next row that fits; F3 again: one more",
                KeyAction::Search,
            )
            .hinted("F3", "Find", 3, 7),
            bind(&[char('t'), plain(KeyCode::F(5))], "t F5", "families as trees", KeyAction::Tree)
                .hinted("F5", "Tree", 5, 6),
            bind(
                &[
                    char('0'),
                    char('1'),
                    char('2'),
                    char('3'),
                    char('4'),
                    char('5'),
                    char('6'),
                    char('7'),
                    char('8'),
                    char('9'),
                ],
                "0-9",
                "only the GPU of this number, of one or two digits; again: all",
                KeyAction::Gpu(0),
            ),
            bind(&[char('u')], "u", "only my own", KeyAction::Mine),
            bind(&[char('f')], "f", "only those with findings", KeyAction::OnlyFindings),
            bind(&[char('z')], "z", "hide what holds little", KeyAction::HideSmall),
            bind(
                &[char('o'), plain(KeyCode::F(6))],
                "o F6",
                "sort by a column: its letter, or arrows",
                KeyAction::ChooseSort,
            )
            .hinted("F6", "Sort", 6, 4),
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
            bind(&[char('M')], "M", "sort by GPU memory", KeyAction::SortBy(Column::Memory)),
            bind(&[char('P')], "P", "sort by CPU use", KeyAction::SortBy(Column::CpuPercent)),
            bind(&[char('T')], "T", "sort by runtime", KeyAction::SortBy(Column::Runtime)),
            bind(&[char('r'), char('I')], "r I", "turn the order around", KeyAction::Reverse),
        ],
    ),
    main(
        "Time",
        &[
            bind(&[char('p'), char('Z')], "p Z", "pause; again: resume", KeyAction::Pause)
                .hinted("p", "Pause", 13, 12),
            bind(&[char('[')], "[", "the sample before", KeyAction::StepBack),
            bind(&[char(']')], "]", "the sample after", KeyAction::StepOn),
            bind(&[char('{')], "{", "a minute back", KeyAction::LeapBack),
            bind(&[char('}')], "}", "a minute on", KeyAction::LeapOn),
            bind(&[char('n')], "n", "to where the next finding begins", KeyAction::NextFinding),
            bind(
                &[char('N')],
                "N",
                "to where the finding before began",
                KeyAction::PreviousFinding,
            ),
            bind(&[char('@')], "@", "to a time: 10:04, -5m, +1h", KeyAction::Seek),
            bind(&[char('L')], "L", "to the newest sample", KeyAction::Now),
            bind(
                &[char('+'), char('=')],
                "+ =",
                "sample more often; play faster",
                KeyAction::Faster,
            ),
            bind(&[char('-')], "-", "sample less often; play slower", KeyAction::Slower),
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
            .hinted("F1", "Help", 1, 0),
            bind(&[plain(KeyCode::F(2))], "F2", "choose the table's columns", KeyAction::Columns)
                .hinted("F2", "Columns", 2, 5),
            bind(&[char('v')], "v", "the GPUs in another form", KeyAction::NextForm),
            bind(&[char('C')], "C", "the next theme", KeyAction::NextTheme),
            bind(
                &[Key::Ctrl('l'), Key::Ctrl('r')],
                "Ctrl-L Ctrl-R",
                "draw the screen again",
                KeyAction::Repaint,
            ),
            bind(&[Key::Ctrl('z')], "Ctrl-Z", "back to the shell; fg returns", KeyAction::Suspend),
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
            .hinted("F10", "Quit", 10, 1),
            bind(&[Key::Ctrl('c')], "Ctrl-C", "quit, whatever is open", KeyAction::QuitAtOnce),
        ],
    ),
    overlays::PAGE,
    overlays::PLAN,
    overlays::COLUMNS,
];

/// Keys that are habits from elsewhere and bound to nothing, and what does here what they do there.
pub(super) const HABITS: &[(&[Key], &str)] = &[
    // nvitop's display modes; htop's affinity, and tagging with children.
    (&[char('a')], "v changes how the GPUs are shown"),
    (&[char('c')], "v changes how the GPUs are shown; Tab in a plan (x) takes whole families"),
    // top's, and nvtop's by its setup.
    (&[char('d')], "+ and - change the time between samples"),
    // htop's.
    (&[char('F')], "the selection follows its process by itself"),
    (&[char('H')], "z hides what holds little"),
    // top's and nvtop's.
    (&[char('W'), plain(KeyCode::F(12))], "how the screen is arranged is remembered by itself"),
];
