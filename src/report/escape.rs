//! Text that a process chose, as a terminal shows it: escaped by [`escape`].

pub use super::wrap::fit;
pub use crate::model::escape::escape;

/// A command line for people: arguments joined by spaces, empty ones and those with a space in quotes,
/// all of it escaped.
pub fn command_line<S: AsRef<str>>(arguments: &[S]) -> String {
    let mut line = String::new();
    for argument in arguments {
        let argument = escape(argument.as_ref());
        if !line.is_empty() {
            line.push(' ');
        }
        if argument.is_empty() || argument.contains(' ') {
            line.push('\'');
            line.push_str(&argument);
            line.push('\'');
        } else {
            line.push_str(&argument);
        }
    }
    line
}

/// A program without its directory. An argv of a single string may be a title of several words that the
/// process set itself: only its first word is a path.
pub fn without_folder(program: &str, has_arguments: bool) -> &str {
    if !program.starts_with('/') {
        return program;
    }
    let path = match program.find(' ') {
        Some(end) if !has_arguments => &program[..end],
        _ => program,
    };
    match path.rfind('/') {
        Some(at) if at + 1 < path.len() => &program[at + 1..],
        _ => program,
    }
}

/// What a process runs: its command line, or else its `comm` in brackets; escaped.
pub fn program<S: AsRef<str>>(command: Option<&[S]>, comm: Option<&str>) -> Option<String> {
    command.map(command_line).or_else(|| comm.map(|comm| format!("[{}]", escape(comm))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_shows_where_arguments_end() {
        assert_eq!(
            command_line(&["python", "my file.py", "", "--x=\n"]),
            "python 'my file.py' '' --x=\\n"
        );
        assert_eq!(command_line::<&str>(&[]), "");
    }
}
