//! Detects an engine by its command line, if its libraries only show what it is built on.
//!
//! Only whole names count: of the program, of an interpreter's script, of the module after `-m`, and of the
//! titles that workers set. Arguments such as a model's name prove nothing.

use std::sync::Arc;

use super::TABLE;
use crate::model::program::file_name;

/// Python options that take the next argument.
const WITH_VALUE: &[&str] = &["-W", "-X", "--check-hash-based-pycs"];

/// The engine that runs with this argv; `None` if no known one does.
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

/// Whether its title is that of a Ray worker.
pub(super) fn is_ray(command: &[Arc<str>]) -> bool {
    command.first().is_some_and(|title| title.starts_with("ray::"))
}

/// What a command line runs.
enum Runs<'a> {
    /// A program's or script's file name.
    Program(&'a str),
    /// A Python module.
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
