//! Chance draws, and what is on the canvas is compared with ratatui's own buffer.

use ratatui::style::{Color, Modifier};

use super::*;
use crate::watch::sample::dice::Dice;

const AREA: Rect = Rect::new(0, 0, 11, 4);

/// Something to draw.
#[derive(Clone, Debug)]
enum Stroke {
    Text(u16, u16, &'static str, u16, Style),
    Fill(u16, u16, &'static str, u16, Style),
    Restyle(Rect, Style),
    Clear(Rect),
}

fn draw(strokes: &[Stroke], canvas: &mut Canvas) {
    for stroke in strokes.iter().cloned() {
        match stroke {
            Stroke::Text(x, y, text, room, style) => {
                canvas.text(x, y, text, room, style);
            }
            Stroke::Fill(x, y, symbol, times, style) => canvas.fill(x, y, symbol, times, style),
            Stroke::Restyle(area, style) => canvas.restyle(area, style),
            Stroke::Clear(area) => canvas.clear(area),
        }
    }
}

/// What ratatui's own buffer is after that.
fn expected(strokes: &[Stroke], ground: Style, is_ascii: bool) -> Buffer {
    let mut buffer = Buffer::empty(AREA);
    buffer.set_style(AREA, ground);
    for stroke in strokes.iter().cloned() {
        match stroke {
            Stroke::Text(x, y, text, room, style) if AREA.contains((x, y).into()) => {
                let mut line = buffer.clone();
                let (end, _) = line.set_stringn(x, y, text, usize::from(room), style);
                // What is under a wide character looks like it here.
                for x in x..end {
                    let symbol = line[(x, y)].symbol();
                    buffer[(x, y)].set_symbol(symbol).set_style(style);
                }
            }
            Stroke::Fill(x, y, symbol, times, style) => {
                for x in x..x + times {
                    if let Some(cell) = buffer.cell_mut((x, y)) {
                        cell.set_symbol(symbol).set_style(style);
                    }
                }
            }
            Stroke::Restyle(area, style) => buffer.set_style(area, style),
            Stroke::Clear(area) => {
                for at in area.intersection(AREA).positions() {
                    buffer[at].reset();
                    buffer[at].set_style(ground);
                }
            }
            Stroke::Text(..) => {}
        }
    }
    if is_ascii {
        for cell in &mut buffer.content {
            if !cell.symbol().is_ascii() {
                cell.set_symbol(ascii::likeness(cell.symbol()));
            }
        }
    }
    buffer
}

/// Strokes by chance.
struct Strokes(Dice);

impl Strokes {
    fn below(&mut self, most: u16) -> u16 {
        self.0.roll(u64::from(most)) as u16
    }

    fn style(&mut self) -> Style {
        match self.below(4) {
            0 => Style::new().fg(Color::Red).bg(Color::Blue),
            1 => Style::new().fg(Color::Green).bg(Color::Black),
            2 => Style::new().fg(Color::Red).bg(Color::Blue).bold(),
            _ => Style::new().fg(Color::White).bg(Color::Blue).underlined(),
        }
    }

    fn area(&mut self) -> Rect {
        Rect::new(self.below(12), self.below(5), self.below(6), 1 + self.below(3))
    }

    fn stroke(&mut self) -> Stroke {
        const TEXTS: [&str; 8] =
            ["", "gpu", "python train.py", "tra…", "日本語", "e\u{301}x", "a\u{301}b…", "⣿▇ 7"];
        let (x, y) = (self.below(13), self.below(5));
        match self.below(8) {
            0 => Stroke::Clear(self.area()),
            1 => {
                let style = Style::new().add_modifier(Modifier::REVERSED);
                Stroke::Restyle(self.area(), style)
            }
            2 | 3 => {
                let symbol = ["─", "▇", "x", " "][usize::from(self.below(4))];
                Stroke::Fill(x, y, symbol, self.below(14), self.style())
            }
            _ => {
                let text = TEXTS[usize::from(self.below(TEXTS.len() as u16))];
                Stroke::Text(x, y, text, self.below(14), self.style())
            }
        }
    }
}

#[test]
fn a_frame_is_as_if_it_was_drawn_on_a_blank_screen() {
    let mut chance = Strokes(Dice(9));
    let mut canvas = Canvas::new(AREA);
    let mut shown = Buffer::empty(AREA);
    let mut strokes: Vec<Stroke> = Vec::new();
    let mut ground = Style::new().bg(Color::Indexed(1)).fg(Color::Indexed(2));
    for round in 0..4000 {
        let is_ascii = round % 500 > 400;
        if chance.below(50) == 0 {
            ground = ground.bg(Color::Indexed(chance.below(9) as u8));
        }
        strokes.retain(|_| chance.below(4) > 0);
        for _ in 0..chance.below(4) {
            let at = chance.below(strokes.len() as u16 + 1);
            strokes.insert(usize::from(at), chance.stroke());
        }
        canvas.frame(ground, is_ascii, |canvas| draw(&strokes, canvas));
        let expected = expected(&strokes, ground, is_ascii);
        assert_eq!(*canvas, expected, "{round}: {strokes:?}");
        let differ = (0..shown.content.len()).filter(|&at| shown.content[at] != canvas.content[at]);
        let changed: Vec<usize> = canvas.changed().collect();
        for index in differ {
            assert!(changed.contains(&index), "{round}: {index}: {strokes:?}");
        }
        for y in 0..AREA.height {
            let line = (0..AREA.width).map(|x| canvas[(x, y)].symbol());
            let is_narrow = line.into_iter().all(is_narrow);
            assert_eq!(canvas.is_narrow(y), is_narrow, "{round}: {strokes:?}");
        }
        shown.clone_from(&canvas);
        canvas.forget_changes();
    }
}

#[test]
fn a_frame_like_the_one_before_changes_nothing() {
    let mut canvas = Canvas::new(AREA);
    let style = Style::new().fg(Color::Red);
    for round in 0..3 {
        canvas.frame(Style::new(), false, |canvas| {
            canvas.text(0, 1, "python …", 20, style);
            canvas.char(3, 2, '⣿', style);
        });
        assert_eq!(canvas.changed().count(), [9, 0, 0][round], "{round}");
        canvas.forget_changes();
    }
    // What is written over what this frame wrote is the same in the end; it may be looked at again.
    canvas.frame(Style::new(), false, |canvas| {
        canvas.text(0, 1, "python …", 20, style);
        canvas.text(0, 1, "x", 1, style);
        canvas.char(3, 2, '⣿', style);
    });
    assert_eq!(canvas.changed().collect::<Vec<_>>(), [11]);
}

#[test]
fn what_is_called_narrow_is_one_column_wide() {
    use unicode_width::UnicodeWidthStr as _;
    for char in '\u{80}'..='\u{ffff}' {
        let symbol = char.to_string();
        assert!(!is_narrow(&symbol) || symbol.width() == 1, "{char:?}");
    }
}
