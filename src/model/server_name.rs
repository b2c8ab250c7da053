//! What the name of a process says of whether it serves: inference servers, their workers, notebooks' kernels.
//!
//! A name is no proof. What follows from it is for [`serves`](crate::rules::serves) to tell, which asks where a
//! process listens, too. Names are compared by whole words: `reserve.py` does not serve.

use std::sync::Arc;

use super::Process;
use super::pool::tool;
use super::program::{file_name, is_interpreter};

/// Frameworks that serve and do little else.
const FRAMEWORKS: &[&str] = &[
    "vllm",
    "sglang",
    "tgi",
    "triton",
    "triton-server",
    "tritonserver",
    "tensorrt-llm",
    "lmdeploy",
    "ollama",
    "llama.cpp",
];

/// Programs that serve.
const PROGRAMS: &[&str] = &[
    "aphrodite",
    "bentoml",
    "daphne",
    "fastapi",
    "flask",
    "gunicorn",
    "hypercorn",
    "infinity_emb",
    "koboldcpp",
    "litserve",
    "llama-server",
    "lmdeploy",
    "marimo",
    "mlc_llm",
    "mlflow",
    "ollama",
    "rasa",
    "sglang",
    "streamlit",
    "tabby",
    "tensorflow_model_server",
    "text-embeddings-router",
    "text-generation-launcher",
    "text-generation-server",
    "torchserve",
    "tritonserver",
    "trtllm-serve",
    "uvicorn",
    "uwsgi",
    "vllm",
    "waitress-serve",
    "whisper-server",
    "wyoming-faster-whisper",
    "xinference-local",
    "xinference-worker",
];

/// Beginnings of the modules that serve (`python -m MODULE`).
const MODULES: &[&str] = &[
    "fastchat.serve",
    "gunicorn",
    "huggingfaceserver",
    "hypercorn",
    "llama_cpp.server",
    "lmdeploy",
    "marimo",
    "sglang.launch_server",
    "tensorrt_llm.commands.serve",
    "aphrodite.endpoints",
    "flask",
    "streamlit",
    "text_generation_server",
    "tritonserver",
    "uvicorn",
    "vllm.entrypoints",
    "wyoming_faster_whisper",
];

/// What the workers of servers call themselves. They hold the memory, and do not listen: their parent
/// does.
const WORKERS: &[&str] = &["VLLM::", "sglang::", "ray::ServeReplica", "triton_python_backend_stub"];

/// Words of which one in the name of a script says that it serves.
const WORDS: &[&str] = &["gradio", "serve", "server", "serving", "webui"];

impl Process {
    /// Whether it is a notebook's kernel by its command line.
    pub fn is_kernel(&self) -> bool {
        is_kernel_command(self.command.as_deref().unwrap_or_default())
    }

    /// Whether it calls itself a worker of a server.
    pub fn is_worker_of_a_server(&self) -> bool {
        let is_worker = |program: &str| WORKERS.iter().any(|worker| program.starts_with(worker));
        program(self).is_some_and(is_worker)
    }

    /// Whether its framework, program or script has the name of a server.
    pub fn looks_like_a_server(&self) -> bool {
        looks_like_server(self)
    }
}

/// Whether a command line is a notebook kernel's.
pub fn is_kernel_command(command: &[Arc<str>]) -> bool {
    command.iter().any(|argument| {
        matches!(&**argument, "ipykernel_launcher" | "ipykernel" | "colab_kernel_launcher")
    }) || command.iter().any(|argument| file_name(argument) == "ipykernel_launcher.py")
}

fn program(process: &Process) -> Option<&str> {
    process.command.as_deref()?.first().map(|program| file_name(program))
}

fn looks_like_server(process: &Process) -> bool {
    if process.framework.as_deref().is_some_and(|name| FRAMEWORKS.contains(&name)) {
        return true;
    }
    let command = process.command.as_deref().unwrap_or_default();
    let Some(program) = program(process) else {
        return false;
    };
    if PROGRAMS.contains(&program) {
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
    if is_module && MODULES.iter().any(|module| is_in(module)) {
        return true;
    }
    // A script of one's own: only its name tells, by a whole word.
    PROGRAMS.contains(&tool) || has_word(tool, WORDS)
}

/// Whether one of the words of a name is one of these, in any case: `modelServer_v2.py` has `model`, `server`,
/// `v2`, `py`.
fn has_word(name: &str, wanted: &[&str]) -> bool {
    let is_wanted = |word: &str| {
        let is_it = |it: &&str| word.chars().flat_map(char::to_lowercase).eq(it.chars());
        wanted.iter().any(is_it)
    };
    let mut start = None;
    let mut was_lower = false;
    for (at, character) in name.char_indices() {
        let is_part = character.is_alphanumeric();
        let is_break = !is_part || (was_lower && character.is_uppercase());
        if is_break
            && let Some(start) = start.take()
            && is_wanted(&name[start..at])
        {
            return true;
        }
        if is_part {
            start.get_or_insert(at);
        }
        was_lower = character.is_lowercase();
    }
    start.is_some_and(|start| is_wanted(&name[start..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::dice::Dice;

    /// The words of a name, in lower case, each made.
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
        words.retain(|word| !word.is_empty());
        words
    }

    #[test]
    fn a_word_is_looked_for_as_if_all_were_made() {
        assert_eq!(words("modelServer_v2.py"), ["model", "server", "v2", "py"]);
        let parts = [
            "serve", "Serve", "SERVER", "server", "r", "S", "webui", "UI", "_", "-", ".", "x", "1",
            "é", "İ", "ß", "日", " ",
        ];
        let mut dice = Dice(88_172_645_463_325_252);
        let mut found = 0;
        for _ in 0..20_000 {
            let name: String = (0..dice.roll(6)).map(|_| parts[dice.place(parts.len())]).collect();
            let is_there = words(&name).iter().any(|word| WORDS.contains(&&**word));
            assert_eq!(has_word(&name, WORDS), is_there, "{name:?}");
            found += usize::from(is_there);
        }
        assert!((2000..18_000).contains(&found), "{found}");
    }
}
