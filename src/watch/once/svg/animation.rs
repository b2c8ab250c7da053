//! Frames in turn, as an SVG document that plays without a script, also where it is shown as an image.
//!
//! A line that is the same in several frames is written once: it is in a group that a style sheet shows at
//! the times of those frames (CSS Animations Level 1, `steps` at their ends). Where nothing moves, because
//! the reader asked for that or the program knows no animations, one of the frames is shown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ratatui::buffer::Buffer;

use super::{END, begin, lines, written};
use crate::watch::theme::Theme;

/// A screen, and for how long it is shown.
#[derive(Clone, PartialEq, Debug)]
pub struct Frame {
    /// What is shown.
    pub buffer: Buffer,
    /// For how long.
    pub milliseconds: u32,
}

/// In which of the frames something is shown.
type ShownIn = Vec<bool>;

/// Writes frames of one size, which are shown again and again; the one at `still` where nothing moves.
pub fn write(frames: &[Frame], still: usize, theme: Theme, description: &str) -> String {
    let Some(first) = frames.first() else {
        return String::new();
    };
    // A line by its place and as it is written.
    let mut shown: BTreeMap<(usize, String), ShownIn> = BTreeMap::new();
    for (number, frame) in frames.iter().enumerate() {
        for (at, line) in lines(&frame.buffer).enumerate() {
            let text = written(line, at, theme);
            if !text.is_empty() {
                let none = || vec![false; frames.len()];
                shown.entry((at, text)).or_insert_with(none)[number] = true;
            }
        }
    }
    let mut groups: BTreeMap<ShownIn, String> = BTreeMap::new();
    for ((_, text), frames) in shown {
        groups.entry(frames).or_default().push_str(&text);
    }
    let moving = || groups.iter().filter(|(shown, _)| shown.contains(&false));
    let mut style = String::new();
    for (number, (shown, _)) in moving().enumerate() {
        rule(number, shown, frames, still, &mut style);
    }
    let seconds = f64::from(total(frames)) / 1000.0;
    let style = format!(
        "<style>\n.f{{animation:{seconds}s step-end infinite}}\n{style}\
         @media (prefers-reduced-motion:reduce){{.f{{animation:none}}}}\n</style>\n"
    );
    let mut out = String::new();
    begin(&first.buffer, theme, description, &style, &mut out);
    // To a string nothing fails to be written.
    for (_, text) in groups.iter().filter(|(shown, _)| !shown.contains(&false)) {
        out.push_str(text);
    }
    for (number, (_, text)) in moving().enumerate() {
        let _ = write!(out, "<g class=\"f f{number}\">\n{text}</g>\n");
    }
    out.push_str(END);
    out
}

/// When a group is shown, and whether it is where nothing moves.
fn rule(number: usize, shown: &[bool], frames: &[Frame], still: usize, out: &mut String) {
    let word = |is_shown: bool| if is_shown { "visible" } else { "hidden" };
    let is_still = shown.get(still).copied().unwrap_or_default();
    let _ = write!(
        out,
        ".f{number}{{animation-name:k{number};visibility:{}}}\n@keyframes k{number}{{",
        word(is_still)
    );
    let all = f64::from(total(frames).max(1));
    let (mut before, mut passed) = (None, 0);
    for (frame, &is_shown) in frames.iter().zip(shown) {
        if before != Some(is_shown) {
            let percent = f64::from(passed) * 100.0 / all;
            let _ = write!(out, "{percent:.3}%{{visibility:{}}}", word(is_shown));
        }
        (before, passed) = (Some(is_shown), passed + frame.milliseconds);
    }
    out.push_str("}\n");
}

fn total(frames: &[Frame]) -> u32 {
    frames.iter().map(|frame| frame.milliseconds).sum()
}
