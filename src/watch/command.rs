//! A process in words: its notebook, or else its command line.

use super::text::{UNKNOWN, clean, columns, head};
use super::view_model::Subject;
use crate::model::row::notebook;
use crate::model::snapshot::Process;
use crate::report::escape::{command_line, without_folder};

/// Columns for the command beside the evidence about an unlisted process.
const COMMAND_BESIDE: u16 = 16;

/// The text of a row in the command column: its role and the command; or why the process is unknown.
pub fn of_row(subject: &Subject<'_>, width: u16) -> String {
    match subject.process {
        Ok(process) => format!("{}{}", role(subject, width), brief(process, width)),
        Err(reason) => match subject.ended {
            Some(ended) => format!("ended: {}", brief(&ended.as_named(), width)),
            None => format!("unresolved: {}", clean(reason, width)),
        },
    }
}

/// The role of a process that a row does not show otherwise: unlisted (with the evidence, if there is room beside the
/// command), or part of the Multi-Process Service.
fn role(subject: &Subject<'_>, width: u16) -> String {
    if let Some(holding) = subject.holding() {
        let evidence = format!("[{}] ", clean(&holding, width));
        return if columns(&evidence) + COMMAND_BESIDE <= width {
            evidence
        } else {
            "[unlisted] ".to_owned()
        };
    }
    let role = subject.mps_role();
    role.map_or_else(String::new, |role| format!("[{role}] "))
}

/// The whole command line, cut to about `width` columns.
pub fn whole(process: &Process, width: u16) -> String {
    written(process, width, |program| program)
}

/// For a row of the table: without the program's folder, so that there is room for the arguments, which tell processes
/// apart.
pub fn brief(process: &Process, width: u16) -> String {
    let has_arguments = process.command.as_ref().is_some_and(|it| it.len() > 1);
    written(process, width, |program| without_folder(program, has_arguments))
}

fn written(process: &Process, width: u16, program: impl Fn(&str) -> &str) -> String {
    if let Some(path) = notebook(process) {
        return clean(path, width).into_owned();
    }
    // One more column than there is, so that a cut shows.
    let enough = usize::from(width) + 1;
    let mut length = 0;
    let mut words: Vec<&str> = Vec::new();
    for argument in process.command.iter().flat_map(|it| it.iter()) {
        if length > enough {
            break;
        }
        let argument = if words.is_empty() { program(argument) } else { argument };
        let word = head(argument, enough + 1 - length);
        length += word.chars().count() + 1;
        words.push(word);
    }
    if words.is_empty() {
        // Kernel threads and zombies have only a name; it stands in brackets, as in ps.
        return process
            .comm
            .as_deref()
            .map_or_else(|| UNKNOWN.to_owned(), |comm| format!("[{}]", clean(comm, width)));
    }
    command_line(&words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(command: &[&str]) -> Process {
        Process {
            command: Some(command.iter().map(|it| (*it).into()).collect()),
            ..Process::default()
        }
    }

    #[test]
    fn a_command_line_is_bounded_before_it_is_escaped() {
        let hostile = process(&[&"\x1b".repeat(4 << 20), "x"]);
        assert_eq!(whole(&hostile, 10), "\\e".repeat(12));
        assert_eq!(brief(&hostile, 10), "\\e".repeat(12));
        let zombie = Process { comm: Some("a)\n".into()), ..Process::default() };
        assert_eq!(whole(&zombie, 10), "[a)\\n]");
    }

    #[test]
    fn a_row_has_the_program_without_its_folder_and_all_of_the_rest() {
        for (command, expected) in [
            (&["/opt/a b/bin/python3", "/srv/x.py"][..], "python3 /srv/x.py"),
            (&["/usr/lib/Xorg vt1 -auth /run/x"], "'Xorg vt1 -auth /run/x'"),
            (&["./llama-server", "-m", "m.gguf"], "./llama-server -m m.gguf"),
            (&["ray::train /srv/a"], "'ray::train /srv/a'"),
            (&["/"], "/"),
            (&["/opt/bin/"], "/opt/bin/"),
            (&["/ x"], "'/ x'"),
            (&["", "/x"], "'' /x"),
        ] {
            assert_eq!(brief(&process(command), 80), expected);
        }
    }

    #[test]
    fn a_long_folder_leaves_room_for_the_arguments() {
        let folder = format!("/{}/python", "x".repeat(4000));
        let deep = process(&[&folder, "train.py"]);
        assert_eq!(brief(&deep, 20), "python train.py");
        assert!(whole(&deep, 20).starts_with("/xxx"));
    }
}
