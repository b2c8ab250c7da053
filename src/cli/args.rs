//! Command-line arguments. The doc comments become the help, the man pages and the completions.

mod park;
mod reap;
mod run;
mod watch;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::{
    NonEmptyStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser,
};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum, ValueHint};
pub use park::{ParkArgs, UnparkArgs};
pub use reap::{HowToKill, Kill, NamedTargets, ReapArgs, ReleaseArgs};
pub use run::{RunArgs, RunFailure};
pub(super) use watch::cells;
pub use watch::{Once, ThemeChoice, WatchArgs};

use crate::model::field::{Field, GROUPED, SORTED};
use crate::model::{Kind, Selector, Severity};
use crate::report::SCHEMAS;
use crate::units::{Amount, Bytes, Span};

/// Lists the exit codes in the help of a command. `$one` describes exit code 1.
macro_rules! exit_codes {
    ($($one:literal)?) => {
        concat!(
            "Exit codes:\n  0  done",
            $("\n  1  ", $one,)?
            "\n  2  wrong usage or configuration\n  3  could not measure: no driver, or an unreadable \
            GPU and no finding"
        )
    };
}

const EXIT_CODES: &str = exit_codes!();
const EXIT_CODES_OF_CHECK: &str =
    exit_codes!("finding at or above --fail-on, limit exceeded, new holder, or --timeout");
const EXIT_CODES_OF_REAP: &str =
    exit_codes!("a target could not be terminated, or its memory was not freed");
const EXIT_CODES_OF_RELEASE: &str = exit_codes!("a target released nothing");

const EXIT_CODES_OF_PARK: &str = exit_codes!("a target was not parked or restored");

/// Exit codes of commands that only print built-in text.
const EXIT_CODES_OF_PRINTING: &str = "\
Exit codes:
  0  done
  2  wrong usage";

/// See who is using GPU memory, whether they still need it, and reclaim it
///
/// gpumem samples the memory and activity of every process on every NVIDIA GPU of this machine and
/// applies rules with configurable thresholds. It shows the result on the terminal, returns a verdict to
/// scripts, or records the samples so that rules can be applied later.
///
/// Without a command, gpumem runs `gpumem watch` on a terminal, and prints this help otherwise.
#[derive(Parser, Debug)]
#[command(
    name = "gpumem",
    after_help = EXIT_CODES,
    disable_help_flag = true,
    disable_version_flag = true,
    disable_help_subcommand = true,
    max_term_width = 100
)]
pub struct Cli {
    /// Print the versions of gpumem and, if there is a driver, of NVML and the driver
    #[arg(short = 'V', long, action = ArgAction::SetTrue)]
    pub version: bool,

    /// Print help; for details, see `gpumem man COMMAND`
    #[arg(short, long, global = true, action = ArgAction::HelpShort, display_order = 999)]
    pub help: Option<bool>,

    /// Options that all commands accept.
    #[command(flatten)]
    pub global: Global,

    /// Subcommand. Without one, gpumem runs `watch` on a terminal and prints this help otherwise.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Options that all commands accept.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// NVML library to load instead of the system's libnvidia-ml.so.1
    #[arg(long, global = true, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub nvml_library: Option<PathBuf>,

    /// How long to wait for a GPU before showing it as stale
    ///
    /// The other GPUs are still sampled.
    #[arg(long, global = true, value_name = "DURATION", default_value = "2s")]
    pub nvml_timeout: Span,

    /// Configuration file to use (/dev/null for none)
    ///
    /// The default files are /etc/gpumem/config.toml and ~/.config/gpumem/config.toml.
    #[arg(long, global = true, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,

    /// When to use colour
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: Color,

    /// Show times in UTC instead of local time, as JSON always does
    #[arg(long, global = true)]
    pub utc: bool,

    /// Directory of the stored history
    ///
    /// Replaces /var/lib/gpumem/store and ~/.local/state/gpumem/store.
    #[arg(long, global = true, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub store_dir: Option<PathBuf>,
}

/// When to use colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set or TERM is dumb
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

// The variants have no doc comments, because those would replace the longer comments of the argument structs in the
// help.
#[derive(Subcommand, Debug)]
pub enum Command {
    Ps(Ps),
    Check(CheckArgs),
    Explain(Explain),
    Watch(WatchArgs),
    Reap(ReapArgs),
    Kill(Kill),
    Release(ReleaseArgs),
    Park(ParkArgs),
    Unpark(UnparkArgs),
    Run(RunArgs),
    Record(RecordArgs),
    Metrics(MetricsArgs),
    Serve(ServeArgs),
    Rules(RulesArgs),
    Config(ConfigArgs),
    Doctor(Doctor),
    Schema(SchemaArgs),
    Completions(Completions),
    Man(Man),
}

/// A recording to read instead of sampling this machine.
#[derive(Args, Clone, Debug, Default)]
pub struct Recorded {
    /// Replay a recording (.jsonl, .jsonl.zst, or - for standard input)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "demo")]
    pub replay: Option<PathBuf>,

    /// Replay the built-in recording of four GPUs
    ///
    /// It contains training, an idle notebook, a leak and an orphan.
    #[arg(long)]
    pub demo: bool,
}

impl Recorded {
    /// Returns whether samples come from this machine rather than from a recording.
    pub fn is_live(&self) -> bool {
        self.replay.is_none() && !self.demo
    }
}

/// Remote machines to query instead of this one.
#[derive(Args, Clone, Debug, Default)]
pub struct OtherHosts {
    /// Query these machines over ssh instead of this one (HOST or USER@HOST, n[01-64], separated by commas)
    #[arg(long, value_name = "HOST", value_hint = ValueHint::Hostname, conflicts_with_all = ["replay", "demo"])]
    pub host: Vec<String>,

    /// Query the machines listed in this file, one per line
    ///
    /// A line has the form of --host. Text after # is ignored.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["replay", "demo"])]
    pub hosts: Option<PathBuf>,

    /// Command that runs gpumem on these machines, such as `sudo -n gpumem`
    ///
    /// The command is interpreted by the remote shell.
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString, value_parser = NonEmptyStringValueParser::new(), default_value = "gpumem")]
    pub host_command: String,
}

/// Controls the use of the history stored by `gpumem record --store`.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Stored {
    /// Ignore the history stored by `gpumem record --store`
    #[arg(long)]
    pub no_store: bool,
}

/// Show who holds GPU memory now
///
/// Prints a table of the GPUs and a table of the processes that NVML lists on them. "-" means unknown, never 0. The
/// first line says how much memory is reclaimable and how much is suspected. One sample proves little without the
/// history stored by `gpumem record --store`, so FINDING also marks processes that `gpumem check` would have to
/// observe for longer.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct Ps {
    /// Print the snapshot as JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub selected: Selected,

    /// Sort the processes by this field
    #[arg(long, value_name = "KEY", default_value = "gpu")]
    pub sort: Field,

    /// Print totals by user, job, container or framework instead, largest first
    #[arg(long, value_name = "KEY", value_parser = grouped(), conflicts_with = "sort")]
    pub by: Option<Field>,

    #[command(flatten)]
    pub stored: Stored,

    #[command(flatten)]
    pub recorded: Recorded,

    #[command(flatten)]
    pub others: OtherHosts,
}

/// Check whether GPU memory is wasted; the exit code is the verdict
///
/// Samples this machine for the time given by --window or, with --replay, reads a whole recording. Then reports the
/// current findings, most severe first. Rules that need more history, or data that the driver does not provide, are
/// listed as undecided. If `gpumem record --store` is running, its history is used too, and two seconds of sampling
/// are enough.
///
/// The first line says how much memory is reclaimable. This is the memory that `gpumem reap --all-users` would target
/// before checking which processes are protected. A suspected process is listed with the command
/// that gives a verdict, because its history is too short. Suspects do not affect the exit code and are never acted
/// on.
///
/// --max-used and --max-unattributed fail the check if a GPU exceeds the limit, and --baseline fails it if a new
/// process holds memory. If a value is unknown, the exit code is 3. With no further options except --gpu, the first
/// sample decides, and no rules are applied. With --kind, --fail-on or --window, or with --user or --where but
/// without --baseline, rules are applied as well, and the last sample decides.
///
/// With --wait-free, the exit code is 0 if the memory became free in time, and 1 otherwise. The report begins with
/// this result and the processes that hold the rest of the memory. Findings are listed only if the memory did not
/// become free, and affect the exit code only with --fail-on.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXIT_CODES_OF_CHECK)]
pub struct CheckArgs {
    /// Output format [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<CheckFormat>,

    /// Print one JSON document, even on failure; short for --format json
    #[arg(long, conflicts_with = "format")]
    pub json: bool,

    /// Sampling time [default: 30s; 2s if `gpumem record --store` is running]
    ///
    /// With --max-used, --max-unattributed or --baseline, the default is one sample.
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["replay", "demo"])]
    pub window: Option<Span>,

    /// Time between samples [default: 1s, or as configured]
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["replay", "demo"])]
    pub interval: Option<Span>,

    /// Minimum severity for exit code 1 [default: warning; none with --wait-free]
    #[arg(long, value_name = "SEVERITY")]
    pub fail_on: Option<Severity>,

    /// Apply only rules of these kinds, even disabled ones
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub kind: Vec<Kind>,

    #[command(flatten)]
    pub selected: Selected,

    /// Fail if more than this amount of memory is used on a GPU in the last sample
    ///
    /// Accepts a size (500MiB) or a share of the GPU's memory (90%). Memory reserved by the driver and firmware does
    /// not count as used, except with drivers before R510, which do not report it separately.
    #[arg(long, value_name = "SIZE|PERCENT")]
    pub max_used: Option<Amount>,

    /// Fail if more than this amount of memory on a GPU is unattributed (held by no listed process)
    ///
    /// Accepts a size or share, like --max-used. The value is known only if gpumem runs in the host's pid namespace,
    /// MIG is disabled, and the memory of every listed process is known.
    #[arg(long, value_name = "SIZE|PERCENT")]
    pub max_unattributed: Option<Amount>,

    /// Wait until this much memory is free on the given GPU, or on any GPU
    ///
    /// If the option is repeated, all requests must be satisfied at the same time; one GPU can satisfy several. If
    /// CUDA_VISIBLE_DEVICES is set, only the GPUs in it are considered. On a GPU in MIG mode, the memory must be free
    /// on a single MIG device. A GPU is not free if it is drained, needs a reset, is closed by its compute mode, or
    /// is claimed (`gpumem run --claim`); naming a claimed GPU overrides the claim. With --replay or --demo, time is
    /// measured by the recording.
    #[arg(long, value_name = "SIZE[:GPU]", conflicts_with = "window")]
    pub wait_free: Vec<WaitFree>,

    /// Print only the free GPUs, for scripts
    ///
    /// The output has the format of CUDA_VISIBLE_DEVICES. The report goes to standard error. Nothing is
    /// printed unless the exit code is 0, because an empty CUDA_VISIBLE_DEVICES hides every GPU.
    #[arg(long, value_name = "NAME", requires = "wait_free", conflicts_with_all = ["json", "format"])]
    pub print: Option<GpuName>,

    /// How long --wait-free waits before gpumem exits with 1
    #[arg(long, value_name = "DURATION", default_value = "5m", requires = "wait_free")]
    pub timeout: Span,

    /// Fail on holders that are not in FILE (output of `gpumem ps --json`)
    ///
    /// A process is new if it did not hold memory on that GPU before. A process that now holds more memory is not
    /// new; use --max-used to limit growth. FILE must be from the current boot of this machine.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub baseline: Option<PathBuf>,

    /// With --wait-free, also list findings and undecided rules
    #[arg(short, long)]
    pub verbose: bool,

    /// Do not print a report; only set the exit code
    #[arg(short, long, conflicts_with_all = ["json", "format", "verbose"])]
    pub quiet: bool,

    #[command(flatten)]
    pub stored: Stored,

    #[command(flatten)]
    pub recorded: Recorded,

    #[command(flatten)]
    pub others: OtherHosts,
}

impl CheckArgs {
    pub fn format(&self) -> CheckFormat {
        match self.format {
            None if self.json => CheckFormat::Json,
            format => format.unwrap_or(CheckFormat::Text),
        }
    }
}

/// Output format of `check`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum CheckFormat {
    /// Text for people
    Text,
    /// JSON document (gpumem.check/1)
    Json,
    /// JUnit XML, with a test for each rule, limit, wait and baseline
    Junit,
    /// Annotations for GitHub Actions
    Github,
}

/// How to identify a GPU in the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum GpuName {
    /// By its UUID
    Uuid,
    /// By NVML index, which equals CUDA's only if CUDA_DEVICE_ORDER is PCI_BUS_ID
    Index,
}

/// An amount of memory to wait for, optionally on a given GPU: `8GiB`, `8GiB:1` or `8GiB:GPU-…`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitFree {
    pub size: Bytes,
    /// Index or UUID of the GPU, or `None` for any GPU.
    pub gpu: Option<String>,
}

impl std::str::FromStr for WaitFree {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (size, gpu) = match text.split_once(':') {
            Some((_, "")) => return Err("no GPU follows the colon; write 8GiB:0 or 8GiB".into()),
            Some((size, gpu)) => (size, Some(gpu.to_owned())),
            None => (text, None),
        };
        let size: Bytes =
            size.parse().map_err(|error: crate::units::ParseError| error.to_string())?;
        if size.0 == 0 {
            return Err("0 bytes are always free; write 8GiB or 8GiB:0".into());
        }
        Ok(Self { size, gpu })
    }
}

impl ValueEnum for Kind {
    fn value_variants<'a>() -> &'a [Self] {
        Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()))
    }
}

impl ValueEnum for Severity {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Info, Self::Warning, Self::Critical]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            Self::Info => ("info", "Anything found"),
            Self::Warning => ("warning", "Memory is wasted"),
            Self::Critical => ("critical", "Work is in danger"),
        };
        Some(PossibleValue::new(name).help(help))
    }
}

/// Record samples, one JSON snapshot per line
///
/// A recording contains observations but no findings, so `gpumem check --replay` always applies the current rules. If
/// FILE exists, snapshots are appended; if FILE is moved while gpumem is recording, a new file is created. Recording
/// ends on SIGINT or SIGTERM, after --duration, or with an error when the disk is full. Every line in FILE is
/// complete.
///
/// With --store, compressed recordings are kept in a directory, limited by age and size. `gpumem check`
/// and `gpumem watch` use them. When the disk is full, the oldest recordings are removed. The directory
/// is --store-dir, the service's $STATE_DIRECTORY, /var/lib/gpumem/store for root, or
/// $XDG_STATE_HOME/gpumem/store (~/.local/state/gpumem/store) for other users.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct RecordArgs {
    /// Output file [default: standard output]
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "store")]
    pub file: Option<PathBuf>,

    /// Time between samples [default: 1s, 5s with --store, or as configured]
    ///
    /// GPU utilization between samples is not lost: gpumem reads the driver's buffer at least every 4s.
    #[arg(long, value_name = "DURATION")]
    pub interval: Option<Span>,

    /// Stop recording after this time
    #[arg(long, value_name = "DURATION")]
    pub duration: Option<Span>,

    /// First write the stored history of this length
    #[arg(long = "history", value_name = "DURATION", conflicts_with = "store")]
    pub history_span: Option<Span>,

    #[command(flatten)]
    pub store: StoreArgs,

    /// Also serve metrics on this address, as `gpumem serve --listen` does [default: as configured, with --store]
    #[arg(long, value_name = "ADDRESS", value_parser = address, requires = "store")]
    pub serve: Option<SocketAddr>,
}

/// Options of the store.
#[derive(Args, Clone, Debug, Default)]
pub struct StoreArgs {
    /// Store the recording in a directory of limited size, for use by check and watch
    #[arg(long)]
    pub store: bool,

    /// Remove recordings older than this from the store
    #[arg(long, value_name = "DURATION", default_value = "24h", requires = "store")]
    pub store_age: Span,

    /// Remove the oldest recordings when the store exceeds this size
    #[arg(long, value_name = "SIZE", default_value = "256MiB", requires = "store")]
    pub store_size: Bytes,
}

/// List the rules with their settings
///
/// For each rule, prints what it finds and the current value and meaning of each setting. If a value has been
/// changed, the default is shown as well.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct RulesArgs {
    /// Show only this rule, or the rules of this kind
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
}

/// Show, validate or test the configuration
///
/// A [rules.KIND] table changes the settings of a kind's built-in rule; `gpumem rules` lists them. The following
/// tables may occur any number of times. `[[rule]]` adds a rule with its own name, kind, settings and `where`. The
/// rule starts with the settings of its kind, and applies to every process if `where` is missing. `[[override]]`
/// changes a rule's settings for matching processes. `[[keep]]` exempts matching processes from all rules or from
/// certain rules, with a reason and an optional expiry date (until).
///
/// `where` selects processes by the terms of --where, such as "user=ann gpu:0 mem>50%", except idle, finding and is.
/// Users, containers, pods, jobs and units are matched by their full name (user=ann) or by a pattern (user=st-*),
/// because part of a name might also match other names. Each GPU of a process is matched separately: "!gpu:0" matches
/// the process on its other GPUs.
///
/// The action of a rule determines what `gpumem reap --watch` does about its findings. "notify" (the
/// default) notifies the owner. "release" also asks the process to release memory, as `gpumem release`
/// does, and never kills; it is valid for idle, server-idle and pressure. For pressure, every process on
/// the GPU that has announced a release signal is asked, even while it is active. "reap" warns the owner
/// and then kills the process; it is valid for orphan, stopped, hung, idle and leak.
///
/// `[reap]` configures these actions. warn (default 15m) is the time from the first to the last warning, grace (1m)
/// the time from the last warning to the kill, and settle (15s) the pause after each kill. At most `most` processes
/// (3) are killed within `within` (10m), and an active process is asked at most once in this time. notify is the
/// absolute path of a program, followed by its arguments. The program is run without a shell, receives the finding as
/// JSON on its standard input, and must exit within 10s. If the program fails, the owner is treated as not warned.
/// never lists the file names of programs that must never be killed, not even by `gpumem reap` or `gpumem kill`.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct ConfigArgs {
    #[command(subcommand)]
    pub action: ConfigAction,
}

/// Actions on the configuration.
#[derive(Subcommand, Debug)]
pub enum ConfigAction {
    /// Print the current configuration as TOML, including defaults
    Show,
    /// Validate a file, or the current configuration; errors state the file, line and key
    Check {
        /// File to validate
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
    },
    /// Show what each rule would have found in a recording, and when
    ///
    /// Lists all findings of all rules, including exempt ones. Findings do not affect the exit code.
    Test {
        /// Print the result as JSON (gpumem.test/1)
        #[arg(long)]
        json: bool,

        #[command(flatten)]
        recorded: Recorded,
    },
}

/// Show what works on this machine, what does not, and what to do about it
///
/// Checks the driver and its library, device files, each GPU, access to other users' processes, the configuration and
/// the stored history. The result of each check is ok, limited (gpumem works with less data), broken, unknown or n/a,
/// with the command to run next. gpumem changes nothing, and needs neither root nor a driver. The exit code is 0 if
/// NVML answers and at least one GPU can be read, otherwise 3.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct Doctor {
    /// Print the result as JSON (gpumem.doctor/1)
    #[arg(long)]
    pub json: bool,
}

/// Print the JSON Schema of a format that gpumem writes
///
/// The schema follows draft 2020-12. Readers must ignore unknown fields and treat null as absent; an unknown value is
/// never 0.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_OF_PRINTING)]
pub struct SchemaArgs {
    /// Name of the format
    #[arg(value_name = "FORMAT", value_parser = schemas())]
    pub name: String,
}

fn schemas() -> PossibleValuesParser {
    SCHEMAS.map(|(name, help, _)| PossibleValue::new(name).help(help)).into()
}

/// Print the completion script for a shell
///
/// Tab also completes processes (largest first), GPUs, users and rules of this machine.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_OF_PRINTING)]
pub struct Completions {
    /// Shell for which to print the script
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Show a manual page; if standard output is not a terminal, print its roff source
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_OF_PRINTING)]
pub struct Man {
    /// A command, or ci, kubernetes, performance or slurm [default: the page of gpumem]
    #[arg(value_name = "PAGE")]
    pub command: Option<String>,
}

/// Options that select GPUs and processes.
#[derive(Args, Clone, Debug, Default)]
pub struct Selected {
    /// Only these GPUs, by index, UUID, UUID prefix or device file
    #[arg(long, value_name = "GPU", value_delimiter = ',')]
    pub gpu: Vec<String>,

    /// Only processes of these users, by name or uid
    #[arg(long, value_name = "USER", value_delimiter = ',')]
    pub user: Vec<String>,

    #[command(flatten)]
    pub terms: Where,
}

/// Options that select rows.
#[derive(Args, Clone, Debug, Default)]
pub struct Where {
    /// Select rows by terms, as with / in watch: 'user:ann gpu:0 idle>10m'
    ///
    /// All terms must match. A plain word matches in any field, and NAME:VALUE matches in one field. Commas separate
    /// alternatives. < and > compare numbers, and ! negates a term. An unknown value never matches, even if the term
    /// is negated.
    ///
    /// For example, 'mem>4GiB' selects large processes, and 'runtime>1d !user:ann' selects processes of users other
    /// than ann that have run for more than a day. Press ? in `gpumem watch` for a list of the fields.
    #[arg(long = "where", value_name = "TERMS", value_parser = terms)]
    pub terms: Vec<Selector>,
}

/// Parses terms. Rejects an empty string, which is probably an unset variable in a script.
fn terms(text: &str) -> Result<Selector, String> {
    match Selector::parse(text) {
        Ok(Some(selector)) => Ok(selector),
        Ok(None) => Err("no terms are given; write user:ann, or leave the option out".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses the name of a field by which totals can be grouped.
fn grouped() -> impl TypedValueParser<Value = Field> {
    let names = GROUPED.iter().filter_map(|field| field.spec().names.first());
    PossibleValuesParser::new(names).map(|typed| {
        let mut fields = GROUPED.iter();
        let has_name = |field: &&Field| field.spec().names.first() == Some(&typed.as_str());
        *fields.find(has_name).unwrap_or(&Field::User)
    })
}

impl ValueEnum for Field {
    fn value_variants<'a>() -> &'a [Self] {
        &SORTED
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = self.spec().sort;
        Some(PossibleValue::new(name).help(help))
    }
}

/// Print metrics and findings for Prometheus, once
///
/// Prints metrics of GPUs, processes and findings, from one sample and the stored history. Unknown values are
/// omitted. No label contains a command line or a path. Only the 512 processes that hold the most memory have their
/// own series.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct MetricsArgs {
    /// Write to this file atomically, for node_exporter's textfile collector
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,

    #[command(flatten)]
    pub recorded: Recorded,

    #[command(flatten)]
    pub stored: Stored,
}

/// Serve metrics and the newest verdict over HTTP, for Prometheus
///
/// /metrics serves the output of `gpumem metrics` and the waste counters, /check serves the output of
/// `gpumem check --json`, and /-/healthy reports whether the newest sample is recent. Requests are
/// answered from the newest sample and never trigger one. The server runs until SIGINT or SIGTERM.
///
/// To record and serve in one process, use `gpumem record --store --serve ADDRESS`.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct ServeArgs {
    /// Address to listen on
    ///
    /// Everyone who can reach this address can see users and programs.
    #[arg(long, value_name = "ADDRESS", value_parser = address, default_value = "127.0.0.1:9836")]
    pub listen: SocketAddr,

    /// Time between samples [default: 5s]
    #[arg(long, value_name = "DURATION")]
    pub interval: Option<Span>,

    /// Source of snapshots. For a recording, the last snapshot is served; the demo is played.
    #[command(flatten)]
    pub recorded: Recorded,

    #[command(flatten)]
    pub stored: Stored,
}

/// Parses an IP address and a port. Rejects host names, which may resolve to several addresses.
fn address(typed: &str) -> Result<SocketAddr, String> {
    typed.parse().map_err(|_| "write an IP address and a port: 127.0.0.1:9836".to_owned())
}

/// Explain a process, GPU or finding: its owner, history and evidence, and what to do
///
/// Shows the owner and start of the process or GPU, the history of its memory, its findings with their evidence, what
/// holds the memory, and ways to free it, gentlest first. If `gpumem record --store` is running, its history is used.
/// Otherwise, gpumem samples briefly, and the page lists what is missing. With --replay or --demo, the page describes
/// the end of the recording.
///
/// With --oom, the page shows which processes held the memory of a full GPU, and when it was fullest.
///
/// With --framework, the page explains how a framework allocates memory and what makes it return memory to the
/// driver; no GPU is needed. With --snippet, gpumem prints code that releases memory when asked, for use in your own
/// program.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct Explain {
    /// A PID, a notebook's path, a GPU (gpu:0, GPU-…, MIG-…), a finding's id or a server (vllm)
    ///
    /// For a notebook, the end of its path or the id of its kernel is enough. For a finding, an unambiguous prefix of
    /// its id is enough; `gpumem check --json` prints the ids.
    #[arg(
        value_name = "TARGET",
        required_unless_present_any = ["framework", "snippet", "oom"],
        conflicts_with_all = ["framework", "oom"]
    )]
    pub target: Option<String>,

    /// Explain a framework; without NAME, list all known frameworks
    #[arg(
        long,
        value_name = "NAME",
        num_args = 0..=1,
        default_missing_value = "list",
        conflicts_with_all = ["window", "replay", "demo", "no_store"]
    )]
    pub framework: Option<String>,

    /// Print Python code for your own program that releases memory when `gpumem release` asks
    ///
    /// The code is a signal handler that releases cached memory of PyTorch, TensorFlow, JAX and CuPy. With
    /// --framework tensorflow, it trains in a child process that saves and exits when asked, because TensorFlow frees
    /// its memory pool only when the process exits.
    #[arg(long, conflicts_with_all = ["target", "json", "window", "replay", "demo"])]
    pub snippet: bool,

    /// After an out-of-memory error, show which processes held the fullest GPU's memory
    ///
    /// Also shows how much of the memory was unused, when the GPU was fullest, and which processes would have freed
    /// enough. gpumem cannot detect failed allocations.
    #[arg(long, conflicts_with_all = ["framework", "snippet", "window"])]
    pub oom: bool,

    /// Time for --oom: 10:04, 2026-11-21 10:04:30 or -5m [default: now, or the end of the recording]
    ///
    /// The page describes the last sample before that time, from the recording or from the history stored by `gpumem
    /// record --store`. Relative times such as -5m are not valid with a recording.
    #[arg(long, value_name = "TIME", requires = "oom", conflicts_with_all = ["target", "framework", "snippet"], allow_hyphen_values = true)]
    pub at: Option<String>,

    /// GPU for --oom, by index or UUID [default: the fullest in CUDA_VISIBLE_DEVICES]
    #[arg(long, value_name = "GPU", requires = "oom", conflicts_with_all = ["target", "framework", "snippet"])]
    pub gpu: Option<String>,

    /// Size of the failed allocation for --oom, as given in the program's error message
    #[arg(long, value_name = "SIZE", requires = "oom", conflicts_with_all = ["target", "framework", "snippet"])]
    pub asked: Option<Bytes>,

    /// Print the page as JSON (gpumem.explain/1)
    #[arg(long)]
    pub json: bool,

    /// Sampling time [default: one sample; for a finding, up to 2s]
    ///
    /// CPU and GPU use over time is shown only with a window or a stored history.
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["replay", "demo"])]
    pub window: Option<Span>,

    #[command(flatten)]
    pub stored: Stored,

    #[command(flatten)]
    pub recorded: Recorded,
}
