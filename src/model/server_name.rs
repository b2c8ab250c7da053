//! Decides whether the names of a process suggest an inference server, a worker of a server, or a notebook kernel.
//!
//! A name proves nothing. [`serves`](crate::rules::serves) combines the names with the addresses of listening
//! sockets. Names are compared by whole words, so `reserve.py` does not suggest a server.

use std::sync::Arc;

use super::Process;
use super::names::{NAMES, is_on};
use super::owners::is_owners_program;
use super::program::tool;
use super::program::{file_name, is_interpreter};

impl Process {
    pub fn is_kernel(&self) -> bool {
        is_kernel_command(self.command.as_deref().unwrap_or_default())
    }

    pub fn is_worker_of_a_server(&self) -> bool {
        is_worker_command(self.command.as_deref().unwrap_or_default())
    }

    pub fn looks_like_a_server(&self) -> bool {
        let framework = self.framework.as_deref();
        framework.is_some_and(|name| is_on(&NAMES.server_frameworks, name))
            || is_server_command(self.command.as_deref().unwrap_or_default())
    }
}

pub fn is_kernel_command(command: &[Arc<str>]) -> bool {
    command.iter().any(|argument| {
        let name = file_name(argument);
        NAMES.kernels.contains_key(name.strip_suffix(".py").unwrap_or(argument))
            || (name.starts_with("kernel-") && name.ends_with(".json"))
    })
}

pub fn is_worker_command(command: &[Arc<str>]) -> bool {
    let Some(program) = command.first().map(|program| file_name(program)) else {
        return false;
    };
    NAMES.server_workers.iter().any(|worker| match worker.split_once(' ') {
        Some((name, first)) => {
            program == name && command.get(1).is_some_and(|argument| &**argument == first)
        }
        None => program.starts_with(&**worker),
    })
}

/// Returns whether a command line starts an inference server, according to the name of its program, module or script.
pub fn is_server_command(command: &[Arc<str>]) -> bool {
    let Some(program) = command.first().map(|program| file_name(program)) else {
        return false;
    };
    if is_on(&NAMES.server_programs, program) {
        return true;
    }
    if !is_interpreter(program) {
        return false;
    }
    let Some((tool, _)) = tool(command) else {
        return false;
    };
    let is_module = command.iter().any(|argument| &**argument == "-m");
    let is_in = |module: &str| {
        let rest = tool.strip_prefix(module);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    if is_module && NAMES.server_modules.iter().any(|module| is_in(module)) {
        return true;
    }
    // A user's own script is a server if its name contains a listed word as a whole word. The words are also in the
    // names of programs that are known not to be servers.
    is_on(&NAMES.server_programs, tool)
        || !is_on(&NAMES.attendants, tool)
            && !is_owners_program(tool)
            && words(tool).iter().any(|word| is_on(&NAMES.server_words, word))
}

/// Splits a name into lower-case words: `modelServer_v2.py` consists of `model`, `server`, `v2` and `py`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for character in name.chars() {
        let is_break = !character.is_alphanumeric() || (was_lower && character.is_uppercase());
        if is_break {
            words.push(String::new());
        }
        if character.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(character.to_lowercase());
        }
        was_lower = character.is_lowercase();
    }
    words
}
