//! The colours of the themes: for each role an exact one, and one of the sixteen that a terminal has by
//! name.
//!
//! The exact ones are readable on their theme's ground: a contrast of 4.5 to 1, and of 7 to 1 in the
//! theme of high contrast, as WCAG 2.2 counts it (1.4.3, 1.4.6). The tests beside `look.rs` measure it.

use ratatui::style::Color;

use super::Theme;

/// What a colour is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PaletteRole {
    Ground,
    Text,
    Faint,
    Heading,
    Alarm,
    Caution,
    Info,
    Origin,
    Held,
    InUse,
    InUseFull,
    Suspected,
    Reclaimable,
    Unattributed,
    Full,
    WorkLow,
    WorkHigh,
    Tag,
    Focus,
    Prompt,
    Key,
}

/// The exact colour of a role.
pub fn exact(theme: Theme, role: PaletteRole) -> [u8; 3] {
    let hex: u32 = match theme {
        Theme::Dark | Theme::Mono => match role {
            PaletteRole::Ground => 0x000000,
            PaletteRole::Text => 0xd0d0d0,
            PaletteRole::Faint => 0x8a8a8a,
            PaletteRole::Heading | PaletteRole::Info | PaletteRole::Key => 0x56c8d8,
            PaletteRole::Alarm => 0xff6b6b,
            PaletteRole::Caution | PaletteRole::Reclaimable => 0xe5c04b,
            PaletteRole::Suspected => 0x9a8440,
            PaletteRole::Unattributed => 0xb794f6,
            PaletteRole::Full => 0xff8c5a,
            PaletteRole::WorkLow => 0x2f8f9f,
            PaletteRole::WorkHigh => 0xb4f2fa,
            PaletteRole::Origin => 0xd787ff,
            PaletteRole::InUse => 0x4f9a58,
            PaletteRole::Held => 0x6cc070,
            PaletteRole::InUseFull => 0xa8eba0,
            PaletteRole::Focus => 0x6cb6ff,
            PaletteRole::Prompt => 0x9ad1ff,
            PaletteRole::Tag => 0xffaf5f,
        },
        Theme::Light => match role {
            PaletteRole::Ground => 0xffffff,
            PaletteRole::Text => 0x1f1f1f,
            PaletteRole::Faint => 0x666666,
            PaletteRole::Heading | PaletteRole::Key => 0x005f87,
            PaletteRole::Info => 0x00626c,
            PaletteRole::Alarm => 0xb00020,
            PaletteRole::Caution | PaletteRole::Reclaimable => 0x855200,
            PaletteRole::Suspected => 0x8a6d3b,
            PaletteRole::Unattributed => 0x6d3fb0,
            PaletteRole::Full => 0xb83a00,
            PaletteRole::WorkLow => 0x2070a0,
            PaletteRole::WorkHigh => 0x003a54,
            PaletteRole::Origin => 0x7a3aa0,
            PaletteRole::InUse => 0x008700,
            PaletteRole::Held => 0x1e6b2e,
            PaletteRole::InUseFull => 0x003f10,
            PaletteRole::Focus | PaletteRole::Prompt => 0x0a50a8,
            PaletteRole::Tag => 0xa04000,
        },
        Theme::HighContrast => match role {
            PaletteRole::Ground => 0x000000,
            PaletteRole::Text | PaletteRole::Prompt => 0xffffff,
            PaletteRole::Faint => 0xdadada,
            PaletteRole::Heading | PaletteRole::Info | PaletteRole::Key => 0x00ffff,
            PaletteRole::Alarm => 0xff8080,
            PaletteRole::Caution | PaletteRole::Reclaimable | PaletteRole::Focus => 0xffff00,
            PaletteRole::Suspected => 0xd7af5f,
            PaletteRole::Unattributed => 0xd7afff,
            PaletteRole::Full => 0xff9f40,
            PaletteRole::WorkLow => 0x00b8b8,
            PaletteRole::WorkHigh => 0xc8ffff,
            PaletteRole::Origin => 0xff9cff,
            PaletteRole::InUse => 0x00c850,
            PaletteRole::Held => 0x00ff5f,
            PaletteRole::InUseFull => 0xc8ffc8,
            PaletteRole::Tag => 0xffb000,
        },
        // After the colours that Okabe and Ito chose for everybody (2008), brighter on black.
        Theme::ColourBlind => match role {
            PaletteRole::Ground => 0x000000,
            PaletteRole::Text => 0xd6d6d6,
            PaletteRole::Faint => 0x8c8c8c,
            PaletteRole::Heading | PaletteRole::Focus | PaletteRole::Key => 0x7fc4f5,
            PaletteRole::InUse => 0x3a86b4,
            PaletteRole::WorkLow => 0x5a8cb0,
            PaletteRole::WorkHigh => 0xd2ecff,
            PaletteRole::Info | PaletteRole::Held => 0x56b4e9,
            PaletteRole::InUseFull => 0xb4e0ff,
            PaletteRole::Alarm | PaletteRole::Full => 0xe25a10,
            PaletteRole::Caution | PaletteRole::Prompt | PaletteRole::Reclaimable => 0xfbe64d,
            PaletteRole::Suspected => 0x9c8f3a,
            PaletteRole::Tag => 0xf0a030,
            PaletteRole::Origin | PaletteRole::Unattributed => 0xd9a6d0,
        },
    };
    parts(hex)
}

fn parts(hex: u32) -> [u8; 3] {
    let [_, red, green, blue] = hex.to_be_bytes();
    [red, green, blue]
}

/// The colour of a role among the sixteen. What they look like is the terminal's own choice.
pub fn named(theme: Theme, role: PaletteRole) -> Color {
    match theme {
        Theme::Dark | Theme::Mono => match role {
            PaletteRole::Ground | PaletteRole::Text => Color::Reset,
            PaletteRole::Faint => Color::DarkGray,
            PaletteRole::Heading
            | PaletteRole::Info
            | PaletteRole::Key
            | PaletteRole::WorkLow
            | PaletteRole::Focus
            | PaletteRole::Prompt => Color::Cyan,
            PaletteRole::WorkHigh => Color::LightCyan,
            PaletteRole::Alarm => Color::Red,
            PaletteRole::Caution
            | PaletteRole::Reclaimable
            | PaletteRole::Suspected
            | PaletteRole::Tag => Color::Yellow,
            PaletteRole::Full => Color::LightRed,
            PaletteRole::Origin | PaletteRole::Unattributed => Color::Magenta,
            PaletteRole::InUse | PaletteRole::Held => Color::Green,
            PaletteRole::InUseFull => Color::LightGreen,
        },
        // Green, yellow and cyan are too pale on white in most terminals.
        Theme::Light => match role {
            PaletteRole::Ground | PaletteRole::Text => Color::Reset,
            PaletteRole::Faint => Color::DarkGray,
            PaletteRole::Alarm | PaletteRole::Full => Color::Red,
            PaletteRole::Caution
            | PaletteRole::Reclaimable
            | PaletteRole::Suspected
            | PaletteRole::Unattributed
            | PaletteRole::Tag
            | PaletteRole::Origin => Color::Magenta,
            PaletteRole::Heading
            | PaletteRole::Info
            | PaletteRole::Key
            | PaletteRole::InUse
            | PaletteRole::Held
            | PaletteRole::InUseFull
            | PaletteRole::WorkLow
            | PaletteRole::WorkHigh
            | PaletteRole::Focus
            | PaletteRole::Prompt => Color::Blue,
        },
        Theme::HighContrast => match role {
            PaletteRole::Ground => Color::Black,
            PaletteRole::Text | PaletteRole::Faint | PaletteRole::Prompt => Color::White,
            PaletteRole::Heading
            | PaletteRole::Info
            | PaletteRole::Key
            | PaletteRole::WorkLow
            | PaletteRole::WorkHigh => Color::LightCyan,
            PaletteRole::Alarm => Color::LightRed,
            PaletteRole::Caution
            | PaletteRole::Reclaimable
            | PaletteRole::Suspected
            | PaletteRole::Focus
            | PaletteRole::Tag => Color::LightYellow,
            PaletteRole::Full => Color::LightRed,
            PaletteRole::Origin | PaletteRole::Unattributed => Color::LightMagenta,
            PaletteRole::InUse | PaletteRole::Held | PaletteRole::InUseFull => Color::LightGreen,
        },
        // There is no orange among them; a light red is the darker beside a light yellow.
        Theme::ColourBlind => match role {
            PaletteRole::Ground | PaletteRole::Text => Color::Reset,
            PaletteRole::Faint => Color::DarkGray,
            PaletteRole::Alarm | PaletteRole::Full => Color::LightRed,
            PaletteRole::Caution
            | PaletteRole::Reclaimable
            | PaletteRole::Suspected
            | PaletteRole::Tag
            | PaletteRole::Prompt => Color::LightYellow,
            PaletteRole::Origin | PaletteRole::Unattributed => Color::LightMagenta,
            PaletteRole::Heading
            | PaletteRole::Info
            | PaletteRole::Key
            | PaletteRole::InUse
            | PaletteRole::Held
            | PaletteRole::InUseFull
            | PaletteRole::WorkLow
            | PaletteRole::WorkHigh
            | PaletteRole::Focus => Color::LightCyan,
        },
    }
}

/// The colour at a share of the way from one to another.
pub fn between(low: [u8; 3], high: [u8; 3], share: f64) -> [u8; 3] {
    let part = |at: usize| {
        let (low, high) = (f64::from(low[at]), f64::from(high[at]));
        (low + (high - low) * share.clamp(0.0, 1.0)).round() as u8
    };
    [part(0), part(1), part(2)]
}

/// The levels of red, green and blue in xterm's cube of 216 colours (`256colres.pl` in its source).
const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];

/// The one of xterm's colours 16 to 255 that is nearest; those below 16 are the terminal's own.
pub fn nearest(color: [u8; 3]) -> u8 {
    let step = |value: u8| match value {
        0..48 => 0,
        48..115 => 1,
        _ => (value - 35) / 40,
    };
    let [red, green, blue] = color.map(step);
    let cube = 16 + 36 * red + 6 * green + blue;
    let mean = color.iter().map(|&value| u16::from(value)).sum::<u16>() / 3;
    // 24 greys: 8, 18 … 238.
    let grey = 232 + (mean.saturating_sub(3) / 10).min(23) as u8;
    if distance(color, fixed(grey)) < distance(color, fixed(cube)) { grey } else { cube }
}

/// What xterm's own sixteen look like (`XTerm-col.ad` in its source).
const SIXTEEN: [u32; 16] = [
    0x000000, 0xcd0000, 0x00cd00, 0xcdcd00, 0x0000ee, 0xcd00cd, 0x00cdcd, 0xe5e5e5, 0x7f7f7f,
    0xff0000, 0x00ff00, 0xffff00, 0x5c5cff, 0xff00ff, 0x00ffff, 0xffffff,
];

/// What any colour looks like in xterm; `None` for the terminal's own.
pub fn shown(color: Color) -> Option<[u8; 3]> {
    let index = match color {
        Color::Reset => return None,
        Color::Rgb(red, green, blue) => return Some([red, green, blue]),
        Color::Indexed(index) => index,
        Color::Black => 0,
        Color::Red => 1,
        Color::Green => 2,
        Color::Yellow => 3,
        Color::Blue => 4,
        Color::Magenta => 5,
        Color::Cyan => 6,
        Color::Gray => 7,
        Color::DarkGray => 8,
        Color::LightRed => 9,
        Color::LightGreen => 10,
        Color::LightYellow => 11,
        Color::LightBlue => 12,
        Color::LightMagenta => 13,
        Color::LightCyan => 14,
        Color::White => 15,
    };
    Some(match SIXTEEN.get(usize::from(index)) {
        Some(&hex) => parts(hex),
        None => fixed(index),
    })
}

/// What xterm's colours from 16 on look like.
pub fn fixed(index: u8) -> [u8; 3] {
    match index {
        232.. => [8 + 10 * (index - 232); 3],
        _ => {
            let at = index.saturating_sub(16);
            [at / 36, at / 6 % 6, at % 6].map(|step| LEVELS[usize::from(step)])
        }
    }
}

fn distance(one: [u8; 3], other: [u8; 3]) -> u32 {
    one.iter().zip(other).map(|(&one, other)| u32::from(one.abs_diff(other)).pow(2)).sum()
}
