//! `gpumem man`: on a terminal as man(1) shows the page, elsewhere as roff(7).

use std::io::{self, IsTerminal as _, Write as _};
use std::process::{Command, Stdio};

use super::output::print;

/// Prints a page of roff.
pub(super) fn show(page: &str) -> anyhow::Result<()> {
    if !io::stdout().is_terminal() {
        return print(page);
    }
    match by_man(page) {
        Some(()) => Ok(()),
        None => print(&plain(page)),
    }
}

/// Shows a page with man(1) and its pager; `None` if there is no man that takes a page.
fn by_man(page: &str) -> Option<()> {
    let mut man = Command::new("man");
    man.args(["-l", "-"]).stdin(Stdio::piped()).stderr(Stdio::null());
    let mut child = man.spawn().ok()?;
    // A pager that was left early has read no more.
    let _ = child.stdin.take()?.write_all(page.as_bytes());
    child.wait().ok()?.success().then_some(())
}

/// The page as text: headings, paragraphs and lists, without what only a typesetter needs.
fn plain(page: &str) -> String {
    let mut text = String::new();
    for line in page.lines() {
        let (request, rest) = match line.strip_prefix('.') {
            Some(request) => request.split_once(' ').unwrap_or((request, "")),
            None => ("", line),
        };
        match request {
            "" | "B" | "BR" => text.push_str(&format!("{}\n", unescaped(rest))),
            "SH" | "SS" => text.push_str(&format!("\n{}\n", unescaped(rest))),
            "PP" | "TP" | "IP" => text.push('\n'),
            _ => {}
        }
    }
    text
}

/// A line of roff without its escapes.
fn unescaped(line: &str) -> String {
    let escapes = [
        ("\\fB", ""),
        ("\\fI", ""),
        ("\\fR", ""),
        ("\\-", "-"),
        ("\\&", ""),
        ("\\(aq", "'"),
        ("\\*(Aq", "'"),
        ("\\(bu", "*"),
        ("\\[em]", "-"),
        ("\\e", "\\"),
    ];
    escapes.iter().fold(line.to_owned(), |line, (escape, text)| line.replace(escape, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::generate::man_pages;

    #[test]
    fn without_man_a_page_is_text() {
        for (name, page) in man_pages() {
            let text = plain(&page);
            assert!(text.contains("\nNAME\n") && text.lines().count() > 20, "{name}");
            for roff in ["\\f", "\\-", "\n.SH", "\n.PP", "\n.EX", "\\*"] {
                assert!(!text.contains(roff), "{name}: {roff}\n{text}");
            }
        }
    }
}
