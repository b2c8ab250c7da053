//! How each framework takes GPU memory and what returns it, as NVML sees it, in words to type.
//!
//! One table, a row for each framework, read by findings, by `explain` and by recipes; the rows stand
//! in `training`, `serving` and `arrays`. What makes NVML's number fall while the process lives is kept
//! apart from what people try in vain: `del model`, `gc.collect()`, `clear_session()` and a smaller
//! batch leave it where it is, because allocators keep what they have freed, and so they are never
//! printed alone under a finding. Each line names its source, and the script that measured it where one
//! has.
//!
//! Where a server is spoken to is filled in by `address`. Nothing here looks at a machine. What ends a
//! process where it runs in a container, a job, a unit or a notebook is in `place`, and who owns it in
//! `owner`. What a process itself runs to give back what it caches is [`recipe`]. To add a framework, write its row, and its marks in `host::framework`.

mod address;
mod arrays;
mod owner;
mod place;
pub mod recipe;
mod serving;
mod snippet;
#[cfg(test)]
mod tests;
mod training;
pub mod unload;

use crate::model::Process;
use crate::model::program::file_name;

pub use owner::owner;
pub use place::{place_lines, quote};
pub use snippet::{snippet, snippet_names};

/// One thing to know or to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remark {
    /// The words: one line, what is to be typed in backquotes, without a full stop.
    pub text: &'static str,
    /// Where it is documented or was seen: a host and a page, a project and a file, or a repository and
    /// an issue's number.
    pub source: &'static str,
    /// The script under `tests/gpu` whose run on a GPU showed it; `None` until one did.
    pub measured: Option<&'static str>,
    /// Of which processes it holds.
    pub when: When,
}

/// Of which processes a line holds, by the environment that they were started with: names of variables,
/// each with a part of its value in lower case; an empty part is any value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// Of all.
    Always,
    /// Not of those that have one of these, because what the line asks for is done.
    UnlessSet(&'static [(&'static str, &'static str)]),
    /// Of those only that have one of these.
    OnlyIfSet(&'static [(&'static str, &'static str)]),
}

impl Remark {
    const fn new(text: &'static str, source: &'static str) -> Self {
        Self { text, source, measured: None, when: When::Always }
    }

    const fn unless_set(self, settings: &'static [(&'static str, &'static str)]) -> Self {
        Self { when: When::UnlessSet(settings), ..self }
    }

    const fn only_if_set(self, settings: &'static [(&'static str, &'static str)]) -> Self {
        Self { when: When::OnlyIfSet(settings), ..self }
    }

    /// Whether the line holds of this process. Where its environment may not be read, nothing counts as
    /// set.
    pub fn applies(&self, process: &Process) -> bool {
        let is_set = |settings: &[(&str, &str)]| {
            process.environment.as_deref().is_some_and(|environment| {
                settings.iter().any(|(variable, part)| {
                    environment
                        .get(*variable)
                        .is_some_and(|value| value.to_lowercase().contains(part))
                })
            })
        };
        match self.when {
            When::Always => true,
            When::UnlessSet(settings) => !is_set(settings),
            When::OnlyIfSet(settings) => is_set(settings),
        }
    }
}

/// What there is to know of a framework.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Framework {
    /// As a snapshot names it, lower case: `pytorch`.
    pub name: &'static str,
    /// As it names itself: `PyTorch`.
    pub title: &'static str,
    /// How it takes memory, and what NVML shows of that.
    pub takes: Remark,
    /// What returns memory to the driver while the process lives. The first line is the whole way in
    /// brief; those after it go into what else holds memory. Empty where nothing returns it.
    pub inside: &'static [Remark],
    /// What makes it take less when it starts the next time.
    pub at_start: &'static [Remark],
    /// What people try that returns nothing to the driver, and what it is good for.
    pub unchanged: &'static [Remark],
    /// How to end it without leftovers, where there is more to it than a signal.
    pub at_end: &'static [Remark],
}

/// Every row: engines that serve, what trains, what computes with arrays; then what only launches or
/// links.
static FRAMEWORKS: &[Framework] = &[
    serving::VLLM,
    serving::SGLANG,
    serving::TGI,
    serving::TRITON_SERVER,
    serving::TENSORRT_LLM,
    serving::OLLAMA,
    serving::LLAMA_CPP,
    serving::CTRANSLATE2,
    training::PYTORCH,
    training::TENSORFLOW,
    training::TENSORFLOW_1,
    training::KERAS,
    training::JAX,
    training::PADDLE,
    training::MXNET,
    arrays::RAPIDS,
    arrays::ONNXRUNTIME,
    arrays::CUPY,
    arrays::TENSORRT,
    arrays::NUMBA,
    arrays::CUDA,
    training::DEEPSPEED,
    training::NCCL,
    training::RAY,
];

/// What else people call what has a row, letters and digits only.
const SPELLINGS: &[(&str, &str)] = &[
    ("accelerate", "pytorch"),
    ("apachemxnet", "mxnet"),
    ("cudaruntime", "cuda"),
    ("cudatoolkit", "cuda"),
    ("cudf", "rapids"),
    ("cuml", "rapids"),
    ("cupycuda11x", "cupy"),
    ("cupycuda12x", "cupy"),
    ("cupycuda13x", "cupy"),
    ("diffusers", "pytorch"),
    ("fasterwhisper", "ctranslate2"),
    ("flax", "jax"),
    ("haiku", "jax"),
    ("huggingface", "pytorch"),
    ("huggingfacetgi", "tgi"),
    ("jaxcuda", "jax"),
    ("jaxlib", "jax"),
    ("keras2", "keras"),
    ("keras3", "keras"),
    ("libtorch", "pytorch"),
    ("lightning", "pytorch"),
    ("llamacpppython", "llama.cpp"),
    ("llamacppserver", "llama.cpp"),
    ("llamaserver", "llama.cpp"),
    ("nvidiatriton", "triton-server"),
    ("onnx", "onnxruntime"),
    ("onnxruntimegpu", "onnxruntime"),
    ("ort", "onnxruntime"),
    ("paddlepaddlegpu", "paddle"),
    ("pytorchlightning", "pytorch"),
    ("rmm", "rapids"),
    ("sgl", "sglang"),
    ("tensorflow115", "tensorflow1"),
    ("tensorflowcpu", "tensorflow"),
    ("tensorflowgpu", "tensorflow"),
    ("textgenerationserver", "tgi"),
    ("tf", "tensorflow"),
    ("tf1", "tensorflow1"),
    ("tf115", "tensorflow1"),
    ("tf1x", "tensorflow1"),
    ("tf2", "tensorflow"),
    ("tf2x", "tensorflow"),
    ("tfcompatv1", "tensorflow1"),
    ("tfkeras", "keras"),
    ("tfv1", "tensorflow1"),
    ("torch", "pytorch"),
    ("torchaudio", "pytorch"),
    ("torchrun", "pytorch"),
    ("torchvision", "pytorch"),
    ("transformers", "pytorch"),
    ("triton", "triton-server"),
    ("trt", "tensorrt"),
    ("trtllm", "tensorrt-llm"),
    ("ultralytics", "pytorch"),
    ("xla", "jax"),
];

/// Under Jupyter the server restarts a kernel that is merely killed, and loses the notebook's state
/// all the same.
const KERNEL: Remark = Remark::new(
    "shut the kernel down: Kernel > Shut Down Kernel in Jupyter; interrupting it frees nothing",
    "jupyter_server: KernelRestarter; ipython/ipython#11572",
);

/// Linux's driver frees what a process held when its last file of the GPU closes.
const END: Remark = Remark::new(
    "kill it: its memory is freed within seconds",
    "NVML reports no memory for a client whose device files are closed",
);

/// Every row of the table.
pub fn frameworks() -> &'static [Framework] {
    FRAMEWORKS
}

/// The row of a framework by its name, its title or another usual spelling, in any case and with or
/// without what joins its words: `torch`, `TF`, `llama-cpp`. `None` where the table has none.
pub fn find(name: &str) -> Option<&'static Framework> {
    // As snapshots name it: that is asked of every process of which something is found, in every sample.
    if let Some(row) = FRAMEWORKS.iter().find(|row| row.name == name) {
        return Some(row);
    }
    let wanted = plain(name);
    let is_spelled = |text: &str, wanted: &str| letters(text).eq(wanted.chars());
    let named = |wanted: &str| {
        FRAMEWORKS.iter().find(|row| is_spelled(row.name, wanted) || is_spelled(row.title, wanted))
    };
    named(&wanted).or_else(|| {
        let (_, name) = SPELLINGS.iter().find(|(spelling, _)| *spelling == wanted)?;
        named(&plain(name))
    })
}

/// Letters and digits only, in lower case.
fn plain(name: &str) -> String {
    letters(name).collect()
}

fn letters(name: &str) -> impl Iterator<Item = char> {
    let letters = name.chars().filter(|c| c.is_alphanumeric());
    letters.flat_map(char::to_lowercase)
}

/// The row of what holds a process's memory, by framework and version. `None` where that is unknown.
pub fn of(process: &Process) -> Option<&'static Framework> {
    let name = process.framework.as_deref()?;
    // Older recordings name Ollama's runner by the libraries that it maps, and only Ollama can unload
    // its models.
    let is_ollama = process
        .command
        .as_deref()
        .and_then(<[_]>::first)
        .is_some_and(|program| file_name(program) == "ollama");
    let is_first = process
        .framework_version
        .as_deref()
        .is_some_and(|version| version.split('.').next() == Some("1"));
    find(match name {
        "llama.cpp" if is_ollama => "ollama",
        "tensorflow" if is_first => "tensorflow1",
        name => name,
    })
}

/// The rows of what a process has loaded beside its framework.
pub fn beside(process: &Process) -> Vec<&'static Framework> {
    let libraries = process.libraries.as_deref().unwrap_or_default();
    libraries.iter().filter_map(|name| find(name)).collect()
}

/// What a person who names a framework means, as snapshots name it: `tf2` is `tensorflow`. A name that is
/// not known stays as it is.
pub fn meant(name: &str) -> &str {
    find(name).map_or(name, |row| row.name)
}

/// That what another framework of this process has taken stays until its end, whatever the one does that
/// holds the most; `None` where all of them can return it.
pub fn stays_beside(process: &Process) -> Option<String> {
    let mut rows = beside(process).into_iter();
    // What launches and links takes through the framework.
    let takes = |row: &Framework| !matches!(row.name, "deepspeed" | "nccl" | "ray");
    let row = rows.find(|row| takes(row) && row.inside.is_empty())?;
    let title = row.title;
    Some(format!("{title} is loaded too: what that has taken goes back only when the process ends"))
}

/// What gives this process's memory back, gentlest first, in brief: what returns it while the process
/// lives, if anything does, and its end.
pub fn lines(process: &Process) -> Vec<Remark> {
    let end = if place::is_notebook(process) && !process.has_lost_server() { KERNEL } else { END };
    inside(process).into_iter().chain([end]).collect()
}

/// The same for a finding: its end as it is right where the process runs.
pub fn steps(process: &Process) -> Vec<String> {
    let places = place_lines(process);
    let ends = if places.is_empty() { vec![END.text.to_owned()] } else { places };
    inside(process)
        .map(|line| line.text_for(process))
        .into_iter()
        .chain(stays_beside(process))
        .chain(ends)
        .collect()
}

/// The first thing that returns memory while this process lives.
fn inside(process: &Process) -> Option<Remark> {
    let mut lines = of(process)?.inside.iter();
    lines.find(|line| line.applies(process)).copied()
}

/// What makes this process reserve less when it starts the next time: the first way that its
/// environment does not show to be taken. `None` where its framework is unknown or all is done.
pub fn at_start(process: &Process) -> Option<Remark> {
    let mut lines = of(process)?.at_start.iter();
    lines.find(|line| line.applies(process)).copied()
}
