//! The table of terms: what each is called and looks at. The filter is parsed by it; the help shows it.

/// What a term looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Field {
    User,
    Gpu,
    Pid,
    Name,
    Command,
    Notebook,
    Framework,
    Container,
    Pod,
    Job,
    Unit,
    State,
    Finding,
    Kind,
    Is,
    Memory,
    Sm,
    Cpu,
    Rss,
    Idle,
    Runtime,
}

/// A term: its names, an example, and what it looks at, as the help says it.
#[derive(Clone, Copy, Debug)]
pub struct TermSpec {
    /// What it may be called; the first is its name.
    pub names: &'static [&'static str],
    /// One as it may be typed.
    pub example: &'static str,
    /// What it looks at.
    pub says: &'static str,
    pub(super) field: Field,
}

const fn term(
    names: &'static [&'static str],
    example: &'static str,
    says: &'static str,
    field: Field,
) -> TermSpec {
    TermSpec {
        names,
        example,
        says,
        field,
    }
}

/// Every term that there is.
pub const TERMS: [TermSpec; 21] = [
    term(&["user"], "user:ann,bob", "the owner", Field::User),
    term(
        &["gpu"],
        "gpu:0",
        "the GPU's index, its part (0:3) or its name",
        Field::Gpu,
    ),
    term(
        &["pid"],
        "pid:4242",
        "the process id, here or in its container",
        Field::Pid,
    ),
    term(&["name"], "name:python", "the program", Field::Name),
    term(
        &["command", "cmd"],
        "command:train.py",
        "the command line",
        Field::Command,
    ),
    term(
        &["notebook"],
        "notebook:a.ipynb",
        "the notebook",
        Field::Notebook,
    ),
    term(
        &["framework"],
        "framework:pytorch",
        "what it computes with",
        Field::Framework,
    ),
    term(
        &["container"],
        "container:bert",
        "the container",
        Field::Container,
    ),
    term(
        &["pod"],
        "pod:bert-0",
        "the pod or its namespace",
        Field::Pod,
    ),
    term(&["job"], "job:812", "the Slurm job", Field::Job),
    term(&["unit"], "unit:vllm", "the systemd unit", Field::Unit),
    term(
        &["state"],
        "state:stopped",
        "what the scheduler says",
        Field::State,
    ),
    term(
        &["finding"],
        "finding:idle",
        "what the rules say; any: anything",
        Field::Finding,
    ),
    term(
        &["kind", "type"],
        "kind:compute",
        "which of NVML's lists it is on",
        Field::Kind,
    ),
    term(&["is"], "is:mine", "mine, unlisted", Field::Is),
    term(
        &["mem", "memory"],
        "mem>4GiB",
        "memory on the GPU, or its share (50%)",
        Field::Memory,
    ),
    term(&["sm"], "sm<5", "use of the GPU, in percent", Field::Sm),
    term(
        &["cpu"],
        "cpu>100",
        "use of the CPU, in percent",
        Field::Cpu,
    ),
    term(&["rss", "host"], "rss>1GiB", "host memory", Field::Rss),
    term(&["idle"], "idle>10m", "how long it is idle", Field::Idle),
    term(
        &["runtime", "time"],
        "runtime>2h",
        "how long it has run",
        Field::Runtime,
    ),
];

/// The terms' names.
pub(super) fn names() -> String {
    TERMS.map(|term| term.names[0]).join(" ")
}

/// The states by the name that one types, and the kernel's letter.
pub(super) const STATES: [(&str, char); 9] = [
    ("running", 'R'),
    ("sleeping", 'S'),
    ("disk", 'D'),
    ("stopped", 'T'),
    ("traced", 't'),
    ("zombie", 'Z'),
    ("defunct", 'Z'),
    ("dead", 'X'),
    ("kernel", 'I'),
];
/// NVML's lists.
pub(super) const KINDS: [&str; 4] = ["compute", "graphics", "mps", "other"];
/// What a process can be.
pub(super) const TRAITS: [&str; 2] = ["mine", "unlisted"];
/// Fits whatever the rules found.
pub(super) const ANY: &str = "any";
