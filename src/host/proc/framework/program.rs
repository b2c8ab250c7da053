//! Which engine a program is, by its command line, where its libraries are those of what it is built on.
//!
//! Only whole names count: of the program, of the script that an interpreter runs, of the module after
//! `-m`, and the titles that workers give themselves. An argument such as a model's name tells nothing.

use std::sync::Arc;

use super::TABLE;
use crate::model::program::file_name;

/// Options of Python that take the next argument.
const WITH_VALUE: &[&str] = &["-W", "-X", "--check-hash-based-pycs"];

/// The engine that a process with this argv is; `None` where it is none that is known.
pub(super) fn engine(command: &[Arc<str>]) -> Option<&'static str> {
    let title = command.first()?;
    let titled = TABLE.titles.iter().find(|(start, _)| title.starts_with(start.as_str()));
    if let Some((_, engine)) = titled {
        return Some(engine);
    }
    let engine = match runs(command)? {
        Runs::Program(name) => TABLE.programs.get(name),
        Runs::Module(module) => TABLE.modules.get(module.split('.').next()?),
    };
    engine.map(String::as_str)
}

/// Whether DeepSpeed launched it, or it was told to train with DeepSpeed.
pub(super) fn is_deepspeed(command: &[Arc<str>]) -> bool {
    match runs(command) {
        Some(Runs::Program("deepspeed")) => return true,
        Some(Runs::Module(module)) if module.starts_with("deepspeed.") => return true,
        _ => {}
    }
    command.iter().any(|argument| {
        matches!(argument.split('=').next(), Some("--deepspeed" | "--deepspeed_config"))
    })
}

/// Whether it is a worker of Ray by its title.
pub(super) fn is_ray(command: &[Arc<str>]) -> bool {
    command.first().is_some_and(|title| title.starts_with("ray::"))
}

/// What a command line runs.
enum Runs<'a> {
    /// A program, or an interpreter's script, without its folder.
    Program(&'a str),
    /// A module of Python.
    Module(&'a str),
}

fn runs(command: &[Arc<str>]) -> Option<Runs<'_>> {
    let (program, arguments) = command.split_first()?;
    let program = file_name(program);
    if !program.starts_with("python") {
        return Some(Runs::Program(program));
    }
    let mut arguments = arguments.iter().map(|argument| &**argument);
    while let Some(argument) = arguments.next() {
        match argument {
            "-m" => return arguments.next().map(Runs::Module),
            "-c" => return None,
            _ if WITH_VALUE.contains(&argument) => {
                arguments.next();
            }
            _ if argument.starts_with('-') => {}
            _ => return Some(Runs::Program(file_name(argument))),
        }
    }
    None
}
