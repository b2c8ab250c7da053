//! The environment of a process, as a page of text.

use super::escape::{escape, wrap};
use super::style::Style;

/// Maximum number of lines for one variable. A process can set values of any length.
const LINES_MAX: usize = 40;
const HANG: usize = 4;

/// Formats the variables of a process. `None` means that gpumem is still reading the variables.
pub fn page(
    title: &str,
    variables: Option<&Result<Vec<(String, String)>, String>>,
    width: usize,
    style: Style,
) -> String {
    let mut out = String::new();
    let mut put = |line: &str| {
        out.push_str(line);
        out.push('\n');
    };
    put(&style.heading(title));
    match variables {
        None => put("reading the environment"),
        Some(Err(error)) => {
            for line in wrap(&escape(error), (width, width), LINES_MAX) {
                put(&line);
            }
        }
        Some(Ok(variables)) => {
            let note = match variables.is_empty() {
                true => "the process has no variables",
                false => {
                    "as of the start of the process; values are masked (***), except those of \
                    variables that are known to be harmless"
                }
            };
            for line in wrap(note, (width, width), LINES_MAX) {
                put(&line);
            }
            put("");
            for (name, value) in variables {
                let text = format!("{}={}", escape(name), escape(value));
                let widths = (width, width.saturating_sub(HANG));
                for (at, line) in wrap(&text, widths, LINES_MAX).iter().enumerate() {
                    match at {
                        0 => put(line),
                        _ => put(&format!("{:HANG$}{line}", "")),
                    }
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr as _;

    use super::*;

    #[test]
    fn every_line_fits_and_untrusted_text_is_escaped() {
        let variables = Ok(vec![
            ("A".to_owned(), "x y ".repeat(60)),
            ("B\x1b".to_owned(), "\x1b[2J\n".to_owned()),
        ]);
        let page = page("environment of 7", Some(&variables), 40, Style::default());
        assert!(page.lines().all(|line| line.width() <= 40), "{page}");
        assert!(!page.contains('\x1b') && page.contains(r"B\e=\e[2J\n"), "{page}");
    }
}
