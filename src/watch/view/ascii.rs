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
        _ => "?",
    }
}
