//! Replaces non-ASCII characters for a terminal that supports only ASCII. This happens after a frame is drawn, so
//! that no panel has to handle it and no process name is missed.

use ratatui::buffer::Buffer;

pub(in crate::watch) fn replace(canvas: &mut Buffer) {
    for cell in &mut canvas.content {
        if !cell.symbol().is_ascii() {
            cell.set_symbol(likeness(cell.symbol()));
        }
    }
}

/// An ASCII character similar to the cell's, or `?`.
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

    /// Covers every character in the screen snapshots, except letters and emoji, which appear only in names.
    #[test]
    fn every_drawn_character_has_an_ascii_replacement() {
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
