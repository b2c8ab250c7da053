//! The screen for a terminal that knows only ASCII: drawn as ever, then each other character is
//! replaced. So no panel has to know, and no name that a process chose slips through.

use ratatui::buffer::Buffer;

/// Replaces what is not ASCII; what has no likeness becomes `?`.
pub fn flatten(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        if !cell.symbol().is_ascii() {
            cell.set_symbol(likeness(cell.symbol()));
        }
    }
}

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
        "│" => "|",
        "┌" => ",",
        "├" => "|",
        "└" => "`",
        "▒" => "=",
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
        _ => dots(symbol).unwrap_or("?"),
    }
}

/// What stands as high as the highest dot of a braille pattern.
fn dots(symbol: &str) -> Option<&'static str> {
    let c = symbol.chars().next()? as u32;
    let bits = c.checked_sub(0x2800).filter(|bits| *bits <= 0xff)?;
    // From the top: dots 1 and 4, 2 and 5, 3 and 6, 7 and 8.
    let rows = [(0x09, "#"), (0x12, "+"), (0x24, ":"), (0xc0, ".")];
    let highest = rows.into_iter().find(|(row, _)| bits & row > 0);
    Some(highest.map_or(" ", |(_, likeness)| likeness))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_of_dots_keeps_its_heights() {
        let likenesses: String = "⠀⣀⢀⡀⣤⣠⣶⣰⣿⢸⡇"
            .chars()
            .map(|c| likeness(&c.to_string()))
            .collect();
        assert_eq!(likenesses, " ...::++###");
        assert_eq!(likeness("🦀"), "?");
    }
}
