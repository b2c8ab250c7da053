//! Replaces non-ASCII characters in the finished frame, so that no panel and no name is missed.

use ratatui::buffer::Buffer;

pub(in crate::watch) fn replace(canvas: &mut Buffer) {
    for cell in &mut canvas.content {
        if !cell.symbol().is_ascii() {
            cell.set_symbol(ascii_for(cell.symbol()));
        }
    }
}

/// Returns an ASCII character that resembles `symbol`, or `?`.
fn ascii_for(symbol: &str) -> &'static str {
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
        "▌" => "#",
        "▒" => "%",
        "░" => "-",
        "▓" => "&",
        "▔" => "\"",
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

    /// Letters and emoji, which appear only in names, need no replacement.
    #[test]
    fn every_drawn_character_has_an_ascii_replacement() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/screens");
        let mut characters = BTreeSet::new();
        for file in fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            characters.extend(fs::read_to_string(path).unwrap().chars());
        }
        assert!(characters.contains(&'▸') && characters.contains(&'█'), "{characters:?}");
        characters.retain(|c| !c.is_alphanumeric() && !c.is_control() && c.width() == Some(1));
        let missing = |c: &char| !c.is_ascii() && ascii_for(&c.to_string()) == "?";
        let missing: Vec<char> = characters.into_iter().filter(missing).collect();
        assert_eq!(missing, [] as [char; 0]);
    }
}
