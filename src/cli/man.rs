//! `gpumem man`: shows a manual page with man(1) on a terminal, and prints the roff(7) source otherwise.
//! `tests/it/generate.rs` generates the pages.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::{Command, Stdio};

use super::args::Man as Args;
use super::exit::{Exit, UsageError};
use super::output::print;

const PAGES: [(&str, &str); 24] = [
    ("gpumem-check", include_str!("../../man/gpumem-check.1")),
    ("gpumem-ci", include_str!("../../man/gpumem-ci.7")),
    ("gpumem-completions", include_str!("../../man/gpumem-completions.1")),
    ("gpumem-config", include_str!("../../man/gpumem-config.1")),
    ("gpumem-doctor", include_str!("../../man/gpumem-doctor.1")),
    ("gpumem-explain", include_str!("../../man/gpumem-explain.1")),
    ("gpumem-kill", include_str!("../../man/gpumem-kill.1")),
    ("gpumem-kubernetes", include_str!("../../man/gpumem-kubernetes.7")),
    ("gpumem-man", include_str!("../../man/gpumem-man.1")),
    ("gpumem-metrics", include_str!("../../man/gpumem-metrics.1")),
    ("gpumem-park", include_str!("../../man/gpumem-park.1")),
    ("gpumem-performance", include_str!("../../man/gpumem-performance.7")),
    ("gpumem-ps", include_str!("../../man/gpumem-ps.1")),
    ("gpumem-reap", include_str!("../../man/gpumem-reap.1")),
    ("gpumem-record", include_str!("../../man/gpumem-record.1")),
    ("gpumem-release", include_str!("../../man/gpumem-release.1")),
    ("gpumem-rules", include_str!("../../man/gpumem-rules.1")),
    ("gpumem-run", include_str!("../../man/gpumem-run.1")),
    ("gpumem-schema", include_str!("../../man/gpumem-schema.1")),
    ("gpumem-serve", include_str!("../../man/gpumem-serve.1")),
    ("gpumem-slurm", include_str!("../../man/gpumem-slurm.7")),
    ("gpumem-unpark", include_str!("../../man/gpumem-unpark.1")),
    ("gpumem-watch", include_str!("../../man/gpumem-watch.1")),
    ("gpumem", include_str!("../../man/gpumem.1")),
];

pub(super) fn run(args: &Args) -> anyhow::Result<Exit> {
    let typed = args.command.as_deref();
    let title = typed.map_or_else(|| "gpumem".to_owned(), |name| format!("gpumem-{name}"));
    let Some((_, page)) = PAGES.iter().find(|(name, _)| *name == title) else {
        let typed = typed.unwrap_or_default();
        let pages: Vec<&str> =
            PAGES.iter().filter_map(|(name, _)| name.strip_prefix("gpumem-")).collect();
        let pages = pages.join(", ");
        return Err(UsageError(format!("no manual page named {typed}; pages: {pages}")).into());
    };
    show(page).map(|()| Exit::Clean)
}

fn show(page: &str) -> anyhow::Result<()> {
    if !io::stdout().is_terminal() {
        return print(page);
    }
    match show_with_man(page) {
        Some(()) => Ok(()),
        None => print(&plain_text(page)),
    }
}

/// Shows a page with man(1), which starts a pager. Returns `None` if man(1) fails.
fn show_with_man(page: &str) -> Option<()> {
    let mut man = Command::new("man");
    man.args(["-l", "-"]).stdin(Stdio::piped()).stderr(Stdio::null());
    let mut child = man.spawn().ok()?;
    // Ignore the error: the user can quit the pager before the end of the page.
    let _ = child.stdin.take()?.write_all(page.as_bytes());
    child.wait().ok()?.success().then_some(())
}

/// Converts a page to plain text, for terminals without man(1).
fn plain_text(page: &str) -> String {
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

    #[test]
    fn a_page_is_plain_text_without_man() {
        for (name, page) in PAGES {
            let text = plain_text(page);
            assert!(text.contains("\nNAME\n") && text.lines().count() > 20, "{name}");
            for roff in ["\\f", "\\-", "\n.SH", "\n.PP", "\n.EX", "\\*"] {
                assert!(!text.contains(roff), "{name}: {roff}\n{text}");
            }
        }
    }
}
