//! Styles by role and theme. Everything that a colour shows is also in the text.
//!
//! Themes use the sixteen colours that users configure in their terminal, on the terminal's background.

use ratatui::style::{Color, Modifier, Style};
use serde::{Deserialize, Serialize};

use crate::model::Severity;
pub use crate::model::field::gpu::FillLevel;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Theme {
    #[default]
    Terminal,
    /// Colours that are readable on a light background.
    Light,
    /// Cyan, yellow and light red, which people with red-green colour blindness can distinguish.
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

    /// Returns the name in options and in saved settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Terminal => "terminal",
            Self::Light => "light",
            Self::ColourBlind => "colour-blind",
        }
    }

    /// Chooses a theme from `COLORFGBG`, which ends with the number of the background colour. As in
    /// vim, 7 and 9 to 15 are light.
    pub fn of_terminal(colorfgbg: &str) -> Self {
        let background = colorfgbg.rsplit(';').next();
        match background.and_then(|number| number.parse().ok()) {
            Some(7u8 | 9..=15) => Self::Light,
            _ => Self::Terminal,
        }
    }

    /// Chooses a theme from the terminal's answer, such as `11;rgb:ffff/ffff/ffff`.
    pub fn of_background(answer: &str) -> Option<Self> {
        let (_, color) = answer.split_once(':')?;
        let share = |hex: &str| {
            let max = 16f64.powi(hex.len() as i32) - 1.0;
            Some(f64::from(u32::from_str_radix(hex, 16).ok()?) / max)
        };
        let sum: f64 = color.split('/').take(3).map_while(share).sum();
        Some(if sum > 1.5 { Self::Light } else { Self::Terminal })
    }
}

/// Returns whether a terminal of the type `TERM` supports colour.
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
    /// Warnings and reclaimable memory.
    Caution,
    Full,
    /// Marks of remote hosts and recordings, and unattributed memory.
    Origin,
    Memory,
    MemoryFull,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Styles {
    pub theme: Theme,
    /// Without colour, styles use bold, dim, reversed and underlined text.
    pub has_color: bool,
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
            // Green, yellow and cyan are hard to read on white in most terminals.
            (Theme::Light, Role::Full) => Color::Red,
            (Theme::Light, Role::Caution | Role::Origin) => Color::Magenta,
            (Theme::Light, _) => Color::Blue,
            // People with red-green colour blindness can distinguish light red from light yellow by brightness.
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

    /// Returns the style of the selected row: the terminal's default colours, reversed.
    pub fn selected(self) -> Style {
        Style::new().fg(Color::Reset).bg(Color::Reset).add_modifier(Modifier::REVERSED)
    }

    pub fn tagged(self) -> Style {
        self.bold(Role::Caution)
    }

    /// Returns the style of the focused panel's title. Other panels use [`Styles::heading`].
    pub fn focused(self) -> Style {
        self.key().add_modifier(Modifier::UNDERLINED)
    }

    /// Returns the style of the key in a hint. The text after the key uses [`Styles::faint`].
    pub fn key(self) -> Style {
        self.bold(Role::Heading)
    }

    pub fn danger(self) -> Style {
        self.alarm().add_modifier(Modifier::REVERSED)
    }

    pub fn origin(self) -> Style {
        self.bold(Role::Origin).add_modifier(Modifier::REVERSED)
    }

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

    /// Returns the style of the utilization line in a chart.
    pub fn load(self) -> Style {
        self.key().remove_modifier(Modifier::DIM)
    }

    pub fn suspected(self) -> Style {
        self.colored(Role::Caution).add_modifier(Modifier::DIM)
    }

    pub fn reclaimable(self) -> Style {
        self.bold(Role::Caution)
    }

    /// Returns the style of a value for a resource that can run out.
    pub fn strain(self, level: FillLevel) -> Style {
        match level {
            FillLevel::Ok => self.plain(),
            FillLevel::Warm => self.caution(),
            FillLevel::Full if self.has_color => self.bold(Role::Full),
            FillLevel::Full => self.caution().add_modifier(Modifier::BOLD),
        }
    }

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
