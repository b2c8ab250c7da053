//! What things look like: styles, with colour and without. Colour never says anything alone; the
//! text beside it says the same.

use ratatui::style::{Color, Modifier, Style};

use crate::model::Severity;

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

/// A theme.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Theme {
    /// For light text on a dark ground.
    #[default]
    Dark,
}

impl Theme {
    /// The next one, around.
    pub fn next(self) -> Self {
        self
    }
}

/// The styles of the screen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// The theme.
    pub theme: Theme,
    /// How many colours may be used.
    pub depth: Depth,
}

impl Look {
    fn colored(self, color: Color) -> Style {
        if self.depth > Depth::Mono {
            Style::new().fg(color)
        } else {
            Style::new()
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
        if self.depth > Depth::Mono {
            Style::new().fg(Color::DarkGray)
        } else {
            Style::new().add_modifier(Modifier::DIM)
        }
    }

    /// A column's heading.
    pub fn heading(self) -> Style {
        self.colored(Color::Cyan)
    }

    /// Something that is not as it should be.
    pub fn alarm(self) -> Style {
        self.colored(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// Something to keep an eye on.
    pub fn caution(self) -> Style {
        self.colored(Color::Yellow)
    }

    /// The selected row.
    pub fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Where the snapshots come from, if not from here.
    pub fn origin(self) -> Style {
        self.colored(Color::Magenta)
            .add_modifier(Modifier::REVERSED | Modifier::BOLD)
    }

    /// A finding's badge.
    pub fn badge(self, severity: Severity) -> Style {
        match severity {
            Severity::Info => self.colored(Color::Cyan),
            Severity::Warning => self.colored(Color::Yellow).add_modifier(Modifier::BOLD),
            Severity::Critical => self
                .colored(Color::Red)
                .add_modifier(Modifier::BOLD | Modifier::REVERSED),
        }
    }

    /// Memory that processes hold.
    pub fn held(self) -> Style {
        self.colored(Color::Green)
    }

    /// Memory that nobody visible holds.
    pub fn unattributed(self) -> Style {
        self.colored(Color::Yellow)
    }

    /// A share of something that can run out.
    pub fn fullness(self, percent: f64) -> Style {
        if percent >= 95.0 {
            self.caution()
        } else {
            self.plain()
        }
    }
}
