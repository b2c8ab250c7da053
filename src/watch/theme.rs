//! What things look like: a style for each role, by theme and by how many colours there are. Colour
//! never says anything alone; the text beside it says the same.
//!
//! The colours themselves are in `palette`. Where colours are stated exactly (256 or all), so is the
//! ground that they were chosen for; the sixteen are the terminal's own and are on its own ground.

mod palette;

use ratatui::style::{Color, Modifier, Style};
use serde::{Deserialize, Serialize};

use self::palette::PaletteRole;
use crate::model::Severity;
pub use crate::model::field::gpu::FillLevel;

/// How many colours a terminal has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Depth {
    /// None, or none are wanted.
    Mono,
    /// The sixteen that every theme of a terminal has.
    Ansi16,
    /// xterm's cube.
    Ansi256,
    /// Any.
    True,
}

impl Depth {
    /// What a terminal says of itself: `TERM`, `COLORTERM`, and whether it is inside GNU screen (`STY`),
    /// which swallows exact colours whatever `COLORTERM` it was started with.
    pub fn of_terminal(term: &str, colorterm: &str, in_screen: bool) -> Self {
        /// They know all colours, also where `COLORTERM` is lost on the way, as over ssh.
        const TRUE: [&str; 5] = ["kitty", "alacritty", "foot", "ghostty", "wezterm"];
        let is_mono = matches!(term, "" | "dumb" | "unknown" | "network")
            || term.starts_with("vt")
            || term.ends_with("-m")
            || term.ends_with("-mono");
        if is_mono {
            return Self::Mono;
        }
        let is_true = matches!(colorterm, "truecolor" | "24bit")
            || term.ends_with("-direct")
            || TRUE.iter().any(|name| term.contains(name));
        match (is_true, in_screen) {
            (true, false) => Self::True,
            _ if is_true || term.contains("256color") => Self::Ansi256,
            _ => Self::Ansi16,
        }
    }
}

/// A theme.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Theme {
    /// Light text on a dark ground.
    #[default]
    Dark,
    /// Dark text on a light ground.
    Light,
    /// The strongest colours on black, bold and never dim.
    HighContrast,
    /// Blue, yellow and orange: safe for red-green colour blindness.
    ColourBlind,
    /// No colours: bold, dim, reversed and underlined.
    Mono,
}

impl Theme {
    /// Every theme, in the order in which a key goes through them.
    pub const ALL: [Self; 5] =
        [Self::Dark, Self::Light, Self::HighContrast, Self::ColourBlind, Self::Mono];

    /// The next one, around.
    pub fn next(self) -> Self {
        let at = Self::ALL.iter().position(|&theme| theme == self);
        Self::ALL[(at.unwrap_or(0) + 1) % Self::ALL.len()]
    }

    /// The theme as it is typed and written down: `high-contrast`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dark => "dark",
            Self::Light => "light",
            Self::HighContrast => "high-contrast",
            Self::ColourBlind => "colour-blind",
            Self::Mono => "mono",
        }
    }

    /// The theme that suits a terminal whose `COLORFGBG` is this: light where it says so. Its last
    /// number is the ground's, of the sixteen; 7 and those above 8 are light, as vim has it.
    pub fn of_terminal(colorfgbg: &str) -> Self {
        let ground = colorfgbg.rsplit(';').next();
        match ground.and_then(|number| number.parse().ok()) {
            Some(7u8 | 9..=15) => Self::Light,
            _ => Self::Dark,
        }
    }

    /// The ground that the theme's colours are chosen for, as red, green and blue.
    pub fn ground(self) -> [u8; 3] {
        palette::exact(self, PaletteRole::Ground)
    }

    /// What plain text has on that ground, as red, green and blue.
    pub fn text(self) -> [u8; 3] {
        palette::exact(self, PaletteRole::Text)
    }
}

/// What a colour looks like, as red, green and blue, where the sixteen are xterm's; `None` for
/// [`Color::Reset`], which is the terminal's own.
pub fn shown(color: Color) -> Option<[u8; 3]> {
    palette::shown(color)
}

/// The styles of the screen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Styles {
    /// The theme.
    pub theme: Theme,
    /// How many colours may be used.
    pub depth: Depth,
}

/// What a chart is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChartColor {
    /// Memory that is held.
    Memory,
    /// Work that is done.
    Work,
}

impl Styles {
    fn is_mono(self) -> bool {
        self.theme == Theme::Mono || self.depth == Depth::Mono
    }

    fn color(self, role: PaletteRole) -> Option<Color> {
        if self.is_mono() {
            return None;
        }
        match self.depth {
            Depth::Ansi16 => Some(palette::named(self.theme, role)),
            _ => self.mixed(palette::exact(self.theme, role)),
        }
    }

    /// An exact colour, as near as the terminal has it; `None` where it has no exact ones.
    fn mixed(self, [red, green, blue]: [u8; 3]) -> Option<Color> {
        match self.depth {
            Depth::Mono | Depth::Ansi16 => None,
            Depth::Ansi256 => Some(Color::Indexed(palette::nearest([red, green, blue]))),
            Depth::True => Some(Color::Rgb(red, green, blue)),
        }
    }

    fn colored(self, role: PaletteRole) -> Style {
        self.in_color(self.color(role))
    }

    fn in_color(self, color: Option<Color>) -> Style {
        match color {
            Some(color) if self.theme == Theme::HighContrast => {
                Style::new().fg(color).add_modifier(Modifier::BOLD)
            }
            Some(color) => Style::new().fg(color),
            None => Style::new(),
        }
    }

    fn bold(self, role: PaletteRole) -> Style {
        self.colored(role).add_modifier(Modifier::BOLD)
    }

    /// What the whole screen is painted with before anything is drawn on it.
    pub fn ground(self) -> Style {
        let is_own = self.depth <= Depth::Ansi16 && self.theme != Theme::HighContrast;
        match (self.color(PaletteRole::Ground), self.color(PaletteRole::Text)) {
            (Some(ground), Some(text)) if !is_own => Style::new().bg(ground).fg(text),
            _ => Style::new(),
        }
    }

    /// Plain text.
    pub fn plain(self) -> Style {
        Style::new()
    }

    /// What matters most on its line.
    pub fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// What is there to be looked up.
    pub fn faint(self) -> Style {
        match self.color(PaletteRole::Faint) {
            Some(color) => Style::new().fg(color),
            None if self.theme == Theme::HighContrast => Style::new(),
            None => Style::new().add_modifier(Modifier::DIM),
        }
    }

    /// A column's heading.
    pub fn heading(self) -> Style {
        self.colored(PaletteRole::Heading)
    }

    /// Something that is not as it should be.
    pub fn alarm(self) -> Style {
        self.bold(PaletteRole::Alarm)
    }

    /// Something to keep an eye on.
    pub fn caution(self) -> Style {
        let style = self.colored(PaletteRole::Caution);
        if self.is_mono() { style.add_modifier(Modifier::UNDERLINED) } else { style }
    }

    /// The selected row: one bar, whatever colours stood in it.
    pub fn selected(self) -> Style {
        Style::new()
            .fg(Color::Reset)
            .bg(Color::Reset)
            .patch(self.ground())
            .add_modifier(Modifier::REVERSED)
    }

    /// A row's mark, where a person has marked it.
    pub fn tagged(self) -> Style {
        self.bold(PaletteRole::Tag)
    }

    /// The title of the panel that the keys move in; another's is [`Styles::heading`].
    pub fn focused(self) -> Style {
        self.bold(PaletteRole::Focus).add_modifier(Modifier::UNDERLINED)
    }

    /// What is being typed.
    pub fn prompt(self) -> Style {
        self.bold(PaletteRole::Prompt)
    }

    /// A key that can be pressed; what it does, beside it, is [`Styles::faint`].
    pub fn key(self) -> Style {
        self.bold(PaletteRole::Key)
    }

    /// The key that ends a process.
    pub fn danger(self) -> Style {
        self.alarm().add_modifier(Modifier::REVERSED)
    }

    /// Where the snapshots come from, if not from here.
    pub fn origin(self) -> Style {
        self.bold(PaletteRole::Origin).add_modifier(Modifier::REVERSED)
    }

    /// A finding's badge.
    pub fn badge(self, severity: Severity) -> Style {
        match severity {
            Severity::Info => self.colored(PaletteRole::Info),
            Severity::Warning => self.bold(PaletteRole::Caution),
            Severity::Critical => self.danger(),
        }
    }

    /// Memory that processes hold.
    pub fn held(self) -> Style {
        self.colored(PaletteRole::Held)
    }

    /// Memory that no one visible holds.
    pub fn unattributed(self) -> Style {
        self.colored(PaletteRole::Unattributed)
    }

    /// Memory that processes use, brighter the less is left.
    pub fn in_use(self, level: FillLevel) -> Style {
        match level {
            FillLevel::Ok => self.colored(PaletteRole::InUse),
            FillLevel::Warm => self.held(),
            FillLevel::Full => self.bold(PaletteRole::InUseFull),
        }
    }

    /// A chart at a share of its height, from 0 to 1: the higher the brighter, as a bar that is full is.
    pub fn chart(self, of: ChartColor, share: f64) -> Style {
        let [low, middle, high] = match of {
            ChartColor::Memory => [PaletteRole::InUse, PaletteRole::Held, PaletteRole::InUseFull],
            ChartColor::Work => [PaletteRole::WorkLow, PaletteRole::Heading, PaletteRole::WorkHigh],
        };
        if self.is_mono() {
            return Style::new();
        }
        if self.depth == Depth::Ansi16 {
            let steps = [low, middle, high];
            return self.colored(steps[((share * 3.0) as usize).min(2)]);
        }
        let exact = |role| palette::exact(self.theme, role);
        let (from, to, share) = match share {
            0.5.. => (middle, high, share * 2.0 - 1.0),
            _ => (low, middle, share * 2.0),
        };
        self.in_color(self.mixed(palette::between(exact(from), exact(to), share)))
    }

    /// Memory that looks unused, and what says so.
    pub fn suspected(self) -> Style {
        let style = self.colored(PaletteRole::Suspected);
        match self.theme {
            // It is dim by not being bold.
            Theme::HighContrast => style.remove_modifier(Modifier::BOLD),
            _ if self.depth <= Depth::Ansi16 || self.is_mono() => style.add_modifier(Modifier::DIM),
            _ => style,
        }
    }

    /// Memory that `reap` takes by default.
    pub fn reclaimable(self) -> Style {
        self.bold(PaletteRole::Reclaimable)
    }

    /// A figure of something that can run out.
    pub fn strain(self, level: FillLevel) -> Style {
        match level {
            FillLevel::Ok => self.plain(),
            FillLevel::Warm => self.caution(),
            FillLevel::Full if self.is_mono() => self.caution().add_modifier(Modifier::BOLD),
            FillLevel::Full => self.bold(PaletteRole::Full),
        }
    }

    /// A figure of work that is done.
    pub fn work(self, level: FillLevel) -> Style {
        match level {
            FillLevel::Ok => self.plain(),
            FillLevel::Warm => self.held(),
            FillLevel::Full => self.bold(PaletteRole::InUseFull),
        }
    }
}

#[cfg(test)]
mod tests;
