//! GitHub workflow commands, which GitHub shows as annotations of a job.

use super::escape::escape;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    Error,
    Warning,
    Notice,
}

/// Formats an annotation. The texts are escaped, so they cannot start another workflow command.
pub fn annotation(level: Level, title: &str, message: &str) -> String {
    let command = match level {
        Level::Error => "error",
        Level::Warning => "warning",
        Level::Notice => "notice",
    };
    let title = data(title).replace(':', "%3A").replace(',', "%2C");
    let lines: Vec<String> = message.trim_end().split('\n').map(data).collect();
    format!("::{command} title={title}::{}\n", lines.join("%0A"))
}

/// Escapes text for a workflow command. [`escape`] has already replaced line feeds and carriage returns.
fn data(text: &str) -> String {
    escape(text).replace('%', "%25")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::dice::Dice;

    /// Parses a line as the runner's `ActionCommand.TryParseV2` does.
    fn read(line: &str) -> Option<(String, String, String)> {
        let (info, message) = line.trim_start().strip_prefix("::")?.split_once("::")?;
        let (command, properties) = info.split_once(' ')?;
        let mut properties =
            properties.split(',').map(|property| property.split_once('=').unwrap());
        let ("title", title) = properties.next()? else { return None };
        assert_eq!(properties.next(), None);
        let plain = |text: &str| text.replace("%0D", "\r").replace("%0A", "\n");
        let title = plain(title).replace("%3A", ":").replace("%2C", ",").replace("%25", "%");
        Some((command.to_owned(), title, plain(message).replace("%25", "%")))
    }

    #[test]
    fn untrusted_text_injects_no_command() {
        let words =
            ["::", ":", ",", "=", "%", "%0A", "\n", "\r\n", "##[", "::error::", "title", "ü", " "];
        let mut dice = Dice::new(7);
        for _ in 0..2000 {
            let mut text =
                || (0..dice.place(8)).map(|_| words[dice.place(words.len())]).collect::<String>();
            let (title, message) = (text(), text());
            let line = annotation(Level::Warning, &title, &message);
            assert_eq!(line.matches(['\n', '\r']).count(), 1, "{line:?}");
            let lines: Vec<_> = message.trim_end().split('\n').map(escape).collect();
            let expected = ("warning".to_owned(), escape(&title).into_owned(), lines.join("\n"));
            assert_eq!(read(line.trim_end_matches('\n')), Some(expected), "{line:?}");
        }
    }
}
