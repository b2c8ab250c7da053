//! What is written on a terminal that knows only ASCII in place of each other character. It is replaced once a frame
//! is drawn: so no panel has to know, and no name that a process chose slips through.

use ratatui::buffer::Buffer;

/// Replaces whatever is not ASCII.
pub(in crate::watch) fn replace(canvas: &mut Buffer) {
    for cell in &mut canvas.content {
        if !cell.symbol().is_ascii() {
            cell.set_symbol(likeness(cell.symbol()));
        }
    }
}

/// What is in a cell instead of what is not ASCII: `?` where nothing is like it.
fn likeness(symbol: &str) -> &'static str {
    match symbol {
        "▁" => "_",
        "▂" => ".",
        "▃" => ":",
        "▄" => "-",
        "▅" => "=",
        "▆" => "+",
        "▇" => "*",
        "█" => "#",
        "◆" => "@",
        "│" | "▕" | "┤" => "|",
        "┌" => ",",
        "┐" => ".",
        "├" => "|",
        "└" => "`",
        "┘" => "'",
        "■" => "#",
        "▬" => "=",
        "□" => "o",
        "▌" => "#",
        "▒" => "%",
        "░" => "-",
        "▚" => "+",
        "·" => ".",
        "—" | "─" => "-",
        "…" => "~",
        "▸" => ">",
        "▲" => "^",
        "▼" => "v",
        "°" => "'",
        "×" => "x",
        _ => "?",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use unicode_width::UnicodeWidthChar as _;

    use super::*;

    /// Every character of the screens as they are committed, but for letters and pictures, which are
    /// only in names.
    #[test]
    fn whatever_a_panel_draws_has_a_likeness() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/screens");
        let mut seen = BTreeSet::new();
        for file in fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            seen.extend(fs::read_to_string(path).unwrap().chars());
        }
        assert!(seen.contains(&'▸') && seen.contains(&'█'), "{seen:?}");
        seen.retain(|c| !c.is_alphanumeric() && !c.is_control() && c.width() == Some(1));
        let strange = |c: &char| !c.is_ascii() && likeness(&c.to_string()) == "?";
        let strange: Vec<char> = seen.into_iter().filter(strange).collect();
        assert_eq!(strange, [] as [char; 0]);
    }
}
