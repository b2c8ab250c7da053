//! How each framework takes GPU memory and what returns it, as NVML sees it, in words to type.
//!
//! One table, a row for each framework, read by findings, by `explain` and by recipes; the rows stand
//! in `training`, `serving` and `arrays`. What makes NVML's number fall while the process lives is
//! kept apart from what people try in vain: `del model`, `gc.collect()`, `clear_session()` and a smaller
//! batch leave it where it is, because allocators keep what they have freed, and so they are never
//! printed under a finding. Each line names its source, and the script that measured it where one has.
//!
//! Nothing here looks at a machine. What to type where a process runs in a container, a job, a unit or a
//! notebook is in `place`.

mod arrays;
mod place;
mod serving;
#[cfg(test)]
mod tests;
mod training;

use crate::model::Process;

pub use place::place_lines;

/// One thing to know or to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line {
    /// The words: one line, what is to be typed in backquotes, without a full stop.
    pub text: &'static str,
    /// Where it is documented or was seen: a host and a page, or a repository and an issue's number.
    pub source: &'static str,
    /// The script under `tests/gpu` whose run on a GPU showed it; `None` until one did.
    pub measured: Option<&'static str>,
    /// Environment variables, each with a part of its value, any of which shows that what the line asks
    /// for is done; an empty part means any value.
    pub unless_set: &'static [(&'static str, &'static str)],
}

impl Line {
    const fn new(text: &'static str, source: &'static str) -> Self {
        Self {
            text,
            source,
            measured: None,
            unless_set: &[],
        }
    }

    const fn unless_set(self, unless_set: &'static [(&'static str, &'static str)]) -> Self {
        Self { unless_set, ..self }
    }

    /// Whether the process was started with what the line asks for. No where its environment may not
    /// be read.
    pub fn is_done(&self, process: &Process) -> bool {
        let Some(environment) = process.environment.as_deref() else {
            return false;
        };
        self.unless_set.iter().any(|(variable, part)| {
            environment
                .get(*variable)
                .is_some_and(|value| value.to_lowercase().contains(part))
        })
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
    pub takes: Line,
    /// What returns memory to the driver while the process lives. The first line is the whole way in
    /// brief; those after it go into what holds memory back, gentlest first. Empty where nothing does.
    pub inside: &'static [Line],
    /// What makes it take less when it starts the next time.
    pub at_start: &'static [Line],
    /// What people try that returns nothing to the driver, and what it is good for.
    pub unchanged: &'static [Line],
    /// How to end it without loss or leftovers, where there is more to it than a signal.
    pub at_end: &'static [Line],
}

/// Every row: engines that serve, then what trains, then what computes with arrays.
static FRAMEWORKS: &[Framework] = &[
    serving::VLLM,
    serving::OLLAMA,
    training::PYTORCH,
    training::TENSORFLOW,
    arrays::CUDA,
];

/// Usual spellings, in lower case and without what joins their words, of names that rows have.
const SPELLINGS: &[(&str, &str)] = &[("torch", "pytorch"), ("tf", "tensorflow")];

/// Under Jupyter the server restarts a kernel that is merely killed, and loses the notebook's state
/// all the same.
const KERNEL: Line = Line::new(
    "shut the kernel down: Kernel > Shut Down Kernel in Jupyter; interrupting it frees nothing",
    "jupyter_server: KernelRestarter; ipython#11572",
);

/// Linux's driver frees what a process held when its last file of the GPU closes.
const END: Line = Line::new(
    "end the process: its memory is free within seconds",
    "NVML reports no memory for a client whose device files are closed",
);

/// Every row of the table.
pub fn frameworks() -> &'static [Framework] {
    FRAMEWORKS
}

/// The row of a framework by its name, its title or another usual spelling, in any case: `torch`,
/// `TF`, `llama-cpp`. `None` where the table has none.
pub fn find(name: &str) -> Option<&'static Framework> {
    let plain = plain(name);
    let named = |name: &str| FRAMEWORKS.iter().find(|row| self::plain(row.name) == name);
    named(&plain).or_else(|| {
        let (_, name) = SPELLINGS.iter().find(|(spelling, _)| *spelling == plain)?;
        named(&self::plain(name))
    })
}

/// Letters and digits only, in lower case.
fn plain(name: &str) -> String {
    name.chars()
        .filter(|c| c.is_alphanumeric())
        .flat_map(char::to_lowercase)
        .collect()
}

/// The row of what a process has loaded, by framework and version. `None` where it is unknown.
pub fn of(process: &Process) -> Option<&'static Framework> {
    let name = process.framework.as_deref()?;
    let is_first = process
        .framework_version
        .as_deref()
        .is_some_and(|version| version.split('.').next() == Some("1"));
    find(if name == "tensorflow" && is_first {
        "tensorflow1"
    } else {
        name
    })
}

/// What gives this process's memory back, gentlest first, in brief. The last line is its end.
pub fn lines(process: &Process) -> Vec<Line> {
    let inside = of(process).and_then(|row| row.inside.first());
    let is_notebook = process.jupyter.is_some();
    inside
        .copied()
        .into_iter()
        .chain([if is_notebook { KERNEL } else { END }])
        .collect()
}

/// What makes this process reserve less when it starts the next time: the first way that its
/// environment does not show to be taken already. `None` where its framework is unknown or all is done.
pub fn at_start(process: &Process) -> Option<Line> {
    let mut lines = of(process)?.at_start.iter();
    lines.find(|line| !line.is_done(process)).copied()
}
