//! Styles for each role, by theme. Colour never carries information alone; text always repeats it.
//!
//! All themes use the terminal's sixteen named colours on the terminal's own background.

use ratatui::style::{Color, Modifier, Style};
use serde::{Deserialize, Serialize};

use crate::model::Severity;
pub use crate::model::field::gpu::FillLevel;

/// A set of colours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Theme {
    /// Colours that most programs use.
    #[default]
    Terminal,
    /// Colours that are readable on a light background.
    Light,
    /// Cyan, yellow and light red, which are safe for red-green colour blindness.
    ColourBlind,
}

impl Theme {
    pub const ALL: [Self; 3] = [Self::Terminal, Self::Light, Self::ColourBlind];

    pub fn next(self) -> Self {
        match self {
            Self::Terminal => Self::Light,
            Self::Light => Self::ColourBlind,
            Self::ColourBlind => Self::Terminal,
        }
    }

    /// The theme's name in options and in saved settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Terminal => "terminal",
            Self::Light => "light",
            Self::ColourBlind => "colour-blind",
        }
    }

    /// Returns the theme for a terminal with this `COLORFGBG`. The last number is the background colour: as in vim, 7
    /// and numbers above 8 mean a light background.
    pub fn of_terminal(colorfgbg: &str) -> Self {
        let background = colorfgbg.rsplit(';').next();
        match background.and_then(|number| number.parse().ok()) {
            Some(7u8 | 9..=15) => Self::Light,
            _ => Self::Terminal,
        }
    }
}

/// Whether the terminal supports colour, according to its `TERM`.
pub fn has_colors(term: &str) -> bool {
    let is_mono = matches!(term, "" | "dumb" | "unknown" | "network")
        || term.starts_with("vt")
        || term.ends_with("-m")
        || term.ends_with("-mono");
    !is_mono
}

#[derive(Clone, Copy)]
enum Role {
    Faint,
    Heading,
    Alarm,
    /// Also used for reclaimable memory.
    Caution,
    Full,
    /// The source of snapshots, and unattributed memory.
    Origin,
    Memory,
    MemoryFull,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Styles {
    pub theme: Theme,
    /// Without colour, styles are bold, dim, reversed or underlined.
    pub has_color: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChartColor {
    Memory,
    Work,
}

impl Styles {
    fn colored(self, role: Role) -> Style {
        if !self.has_color {
            return Style::new();
        }
        Style::new().fg(match (self.theme, role) {
            (_, Role::Faint) => Color::DarkGray,
            (Theme::Terminal, Role::Heading) => Color::Cyan,
            (Theme::Terminal, Role::Caution) => Color::Yellow,
            (Theme::Terminal, Role::Full) => Color::LightRed,
            (Theme::Terminal, Role::Origin) => Color::Magenta,
            (Theme::Terminal, Role::Memory) => Color::Green,
            (Theme::Terminal, Role::MemoryFull) => Color::LightGreen,
            (Theme::Terminal | Theme::Light, Role::Alarm) => Color::Red,
            // In most terminals, green, yellow and cyan have too little contrast on white.
            (Theme::Light, Role::Full) => Color::Red,
            (Theme::Light, Role::Caution | Role::Origin) => Color::Magenta,
            (Theme::Light, _) => Color::Blue,
            // The palette has no orange; light red is darker than light yellow.
            (Theme::ColourBlind, Role::Alarm | Role::Full) => Color::LightRed,
            (Theme::ColourBlind, Role::Caution) => Color::LightYellow,
            (Theme::ColourBlind, Role::Origin) => Color::LightMagenta,
            (Theme::ColourBlind, _) => Color::LightCyan,
        })
    }

    fn bold(self, role: Role) -> Style {
        self.colored(role).add_modifier(Modifier::BOLD)
    }

    pub fn plain(self) -> Style {
        Style::new()
    }

    pub fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub fn faint(self) -> Style {
        match self.has_color {
            true => self.colored(Role::Faint),
            false => Style::new().add_modifier(Modifier::DIM),
        }
    }

    pub fn heading(self) -> Style {
        self.colored(Role::Heading)
    }

    pub fn alarm(self) -> Style {
        self.bold(Role::Alarm)
    }

    pub fn caution(self) -> Style {
        match self.has_color {
            true => self.colored(Role::Caution),
            false => Style::new().add_modifier(Modifier::UNDERLINED),
        }
    }

    /// Style of the selected row: one reversed bar without other colours.
    pub fn selected(self) -> Style {
        Style::new().fg(Color::Reset).bg(Color::Reset).add_modifier(Modifier::REVERSED)
    }

    /// Style of the mark on a row that the user marked.
    pub fn tagged(self) -> Style {
        self.bold(Role::Caution)
    }

    /// Style of the focused panel's title. Other titles use [`Styles::heading`].
    pub fn focused(self) -> Style {
        self.key().add_modifier(Modifier::UNDERLINED)
    }

    /// Style of a key. The text next to the key uses [`Styles::faint`].
    pub fn key(self) -> Style {
        self.bold(Role::Heading)
    }

    /// Style of the key that kills a process.
    pub fn danger(self) -> Style {
        self.alarm().add_modifier(Modifier::REVERSED)
    }

    /// Style of the mark for a remote host or a recording.
    pub fn origin(self) -> Style {
        self.bold(Role::Origin).add_modifier(Modifier::REVERSED)
    }

    /// Style of the left edge of a row with a finding.
    pub fn edge(self, severity: Severity) -> Style {
        match severity {
            Severity::Info => self.heading(),
            Severity::Warning => self.reclaimable(),
            Severity::Critical => self.alarm(),
        }
    }

    pub fn badge(self, severity: Severity) -> Style {
        match severity {
            Severity::Info => self.heading(),
            Severity::Warning => self.bold(Role::Caution),
            Severity::Critical => self.danger(),
        }
    }

    pub fn held(self) -> Style {
        self.colored(Role::Memory)
    }

    pub fn unattributed(self) -> Style {
        self.colored(Role::Origin)
    }

    /// Style of the top line of a chart, or of the area below it.
    pub fn chart(self, color: ChartColor, is_line: bool) -> Style {
        let style = self.colored(match color {
            ChartColor::Memory => Role::Memory,
            ChartColor::Work => Role::Heading,
        });
        if is_line { style } else { style.add_modifier(Modifier::DIM) }
    }

    /// Style of suspected memory, and of text about it.
    pub fn suspected(self) -> Style {
        self.colored(Role::Caution).add_modifier(Modifier::DIM)
    }

    /// Style of memory that `reap` selects by default.
    pub fn reclaimable(self) -> Style {
        self.bold(Role::Caution)
    }

    /// Style of a figure for a resource that can run out.
    pub fn strain(self, level: FillLevel) -> Style {
        match level {
            FillLevel::Ok => self.plain(),
            FillLevel::Warm => self.caution(),
            FillLevel::Full if self.has_color => self.bold(Role::Full),
            FillLevel::Full => self.caution().add_modifier(Modifier::BOLD),
        }
    }

    /// Style of a figure for utilization.
    pub fn work(self, level: FillLevel) -> Style {
        match level {
            FillLevel::Ok => self.plain(),
            FillLevel::Warm => self.held(),
            FillLevel::Full => self.bold(Role::MemoryFull),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn severity_and_strain_styles_differ_in_every_theme() {
        use FillLevel::{Full, Ok, Warm};
        for theme in Theme::ALL {
            for has_color in [false, true] {
                let styles = Styles { theme, has_color };
                let badges = [Severity::Info, Severity::Warning, Severity::Critical];
                let strains = [Ok, Warm, Full].map(|level| styles.strain(level));
                for [a, b, c] in [badges.map(|severity| styles.badge(severity)), strains] {
                    assert!(a != b && b != c && a != c, "{styles:?}");
                }
                assert_ne!(styles.alarm(), styles.caution());
                assert_ne!(styles.focused(), styles.heading());
                assert_ne!(styles.suspected(), styles.reclaimable());
                assert_eq!(styles.alarm().fg.is_some(), has_color);
            }
        }
    }

    #[test]
    fn colour_support_and_background_are_read_from_variables() {
        for term in ["xterm-256color", "xterm", "screen", "linux", "rxvt", "tmux-direct"] {
            assert!(has_colors(term), "{term}");
        }
        for term in ["vt100", "vt220", "xterm-mono", "linux-m", "dumb", ""] {
            assert!(!has_colors(term), "{term}");
        }
        for colorfgbg in ["0;15", "0;default;15", "0;7"] {
            assert_eq!(Theme::of_terminal(colorfgbg), Theme::Light, "{colorfgbg}");
        }
        for colorfgbg in ["", "15;0", "15;8", "15;default", "0;99999", ";"] {
            assert_eq!(Theme::of_terminal(colorfgbg), Theme::Terminal, "{colorfgbg}");
        }
    }
}
