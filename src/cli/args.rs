//! What a person may type. These doc comments are the help, the man pages and the completions.

mod reap;
mod run;
mod watch;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::{
    NonEmptyStringValueParser, PossibleValue, PossibleValuesParser, Styles, TypedValueParser,
};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum, ValueHint};
pub use reap::{HowToKill, Kill, ReapArgs, ReleaseArgs};
pub use run::{RunArgs, RunFailure};
pub(super) use watch::cells;
pub use watch::{Once, ThemeChoice, WatchArgs};

use crate::model::field::{Field, GROUPED, SORTED};
use crate::model::{Kind, Selector, Severity};
use crate::units::{Amount, Bytes, Span};

/// The exit codes of a command, with the reasons for 1, if there are any.
macro_rules! exit_codes {
    ($($one:literal)?) => {
        concat!(
            "Exit codes:\n  0  done",
            $("\n  1  ", $one,)?
            "\n  2  wrong usage or configuration\n  3  could not measure: no driver, or a GPU that cannot \
            be read and nothing found"
        )
    };
}

const EXIT_CODES: &str = exit_codes!();
const EXIT_CODES_OF_CHECK: &str = exit_codes!(
    "a finding at or above --fail-on, a limit exceeded, a holder that is new since --baseline,\n     or \
    memory not free in time"
);
const EXIT_CODES_OF_REAP: &str =
    exit_codes!("a target could not be terminated, or its memory was not freed");
const EXIT_CODES_OF_RELEASE: &str = exit_codes!("a target released nothing");

/// The exit codes of a command that only prints built-in text.
const EXIT_CODES_OF_PRINTING: &str = "\
Exit codes:
  0  done
  2  wrong usage";

/// See who is using GPU memory, whether they still need it, and reclaim it
///
/// gpumem samples what every process holds and does on every NVIDIA GPU of this machine, applies rules
/// with configurable thresholds, and shows the result on the terminal, as a verdict for scripts, or as
/// a recording to which rules can be applied again later.
///
/// Without a command it runs `gpumem watch` on a terminal, and prints this help otherwise.
#[derive(Parser, Debug)]
#[command(
    name = "gpumem",
    after_help = EXIT_CODES,
    disable_help_flag = true,
    disable_version_flag = true,
    disable_help_subcommand = true,
    styles = Styles::plain(),
    max_term_width = 100
)]
pub struct Cli {
    /// Print the versions of gpumem and, if there is a driver, of NVML and the driver
    #[arg(short = 'V', long, action = ArgAction::SetTrue)]
    pub version: bool,

    /// Print help; `gpumem man COMMAND` has the details
    #[arg(short, long, global = true, action = ArgAction::HelpShort, display_order = 999)]
    pub help: Option<bool>,

    /// Options of every command.
    #[command(flatten)]
    pub global: Global,

    /// The subcommand; without one, watch on a terminal, otherwise this help.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Options of every command.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// The NVML library to load, instead of the loader's libnvidia-ml.so.1
    #[arg(long, global = true, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub nvml_library: Option<PathBuf>,

    /// Time for one GPU to answer; after it the GPU is shown as stale, and the others are still sampled
    #[arg(long, global = true, value_name = "DURATION", default_value = "2s")]
    pub nvml_timeout: Span,

    /// Configuration file, instead of /etc/gpumem/config.toml and ~/.config/gpumem/config.toml;
    /// /dev/null for none
    #[arg(long, global = true, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,

    /// When to use colour; NO_COLOR is honoured
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: Color,

    /// Show times in UTC instead of this machine's time zone; JSON always uses UTC
    #[arg(long, global = true)]
    pub utc: bool,

    /// Directory of the stored history, instead of /var/lib/gpumem/store and
    /// ~/.local/state/gpumem/store
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

/// A subcommand.
// A variant's own comment would replace the longer one of its arguments in the help.
#[derive(Subcommand, Debug)]
pub enum Command {
    Ps(Ps),
    Check(CheckArgs),
    Explain(Explain),
    Watch(WatchArgs),
    Reap(ReapArgs),
    Kill(Kill),
    Release(ReleaseArgs),
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

/// Where snapshots come from.
#[derive(Args, Clone, Debug, Default)]
pub struct Recorded {
    /// Read a recording (.jsonl, .jsonl.zst, or - for standard input) instead of this machine
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "demo")]
    pub replay: Option<PathBuf>,

    /// Use the built-in recording: four GPUs, training, an idle notebook, a leak, an orphan
    #[arg(long)]
    pub demo: bool,
}

impl Recorded {
    /// Whether they come from this machine.
    pub fn is_live(&self) -> bool {
        self.replay.is_none() && !self.demo
    }
}

/// Other machines to ask instead of this one.
#[derive(Args, Clone, Debug, Default)]
pub struct OtherHosts {
    /// Ask these machines over your own ssh (HOST or USER@HOST, as for ssh), instead of this one
    #[arg(long, value_name = "HOST", value_hint = ValueHint::Hostname, value_delimiter = ',', conflicts_with_all = ["replay", "demo"])]
    pub host: Vec<String>,

    /// Ask the machines listed in this file, one per line
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["replay", "demo"])]
    pub hosts: Option<PathBuf>,

    /// Command that runs gpumem on those machines, for the remote shell: `sudo -n gpumem`
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString, value_parser = NonEmptyStringValueParser::new(), default_value = "gpumem")]
    pub host_command: String,
}

/// Whether the history that `gpumem record --store` keeps is used.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Stored {
    /// Do not use the history that `gpumem record --store` keeps
    #[arg(long)]
    pub no_store: bool,
}

/// Show who holds GPU memory now
///
/// One table of the GPUs and one of the processes that NVML lists on them. "-" means unknown, never 0.
/// The first line says how much memory is reclaimable, and how much is suspected. Without the history
/// that `gpumem record --store` keeps, one sample proves little; FINDING then marks processes that
/// `gpumem check` would have to watch.
///
/// With --json it prints the snapshot itself. With --by it prints totals instead.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct Ps {
    /// Print the snapshot as JSON
    #[arg(long)]
    pub json: bool,

    /// Only these GPUs, by index or UUID (or its beginning)
    #[arg(long, value_name = "GPU", value_delimiter = ',')]
    pub gpu: Vec<String>,

    /// Only processes of these users, by name or uid
    #[arg(long, value_name = "USER", value_delimiter = ',')]
    pub user: Vec<String>,

    /// Selects rows.
    #[command(flatten)]
    pub terms: Where,

    /// Sort the processes by this field
    #[arg(long, value_name = "KEY", default_value = "gpu")]
    pub sort: Field,

    /// Print totals instead: memory, processes and GPUs by user, job, container or framework, most
    /// memory first
    #[arg(long, value_name = "KEY", value_parser = grouped(), conflicts_with = "sort")]
    pub by: Option<Field>,

    /// Whether the stored history is used.
    #[command(flatten)]
    pub stored: Stored,

    /// Where snapshots come from.
    #[command(flatten)]
    pub recorded: Recorded,

    /// The machines to ask.
    #[command(flatten)]
    pub others: OtherHosts,
}

/// Check whether GPU memory is wasted; the exit code is the verdict
///
/// Samples this machine for --window, or reads a whole recording with --replay, and reports the
/// findings at its end, most severe first. Rules that need more history, or data that the driver does
/// not provide, are listed as undecided and never produce a finding. If `gpumem record --store` is
/// running, its history is used too, and two seconds of sampling are enough.
///
/// The first line says how much memory is reclaimable: what `gpumem reap --all-users` would target by
/// default, before its plan checks what protects a process. A process that looks like waste but is not
/// yet proved to be is listed as a suspect, with the command that decides it. Suspects never change the
/// exit code, and nothing is done about them.
///
/// With --max-used or --max-unattributed, a GPU that exceeds the limit fails the check; with
/// --baseline, a process that held no memory before does. If the value is unknown, the check could not
/// measure (3). Alone, or with --gpu, these are decided by the first sample, and no rules are applied.
/// With --kind, --fail-on, --window or, without --baseline, --user or --where, findings count too, and
/// limits are checked at the end.
///
/// With --wait-free, the question is whether the memory became free in time: 0 if so, 1 if not. The
/// report begins with that answer and who holds the rest. Findings are listed if the memory did not
/// become free, and affect the exit code only with --fail-on.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXIT_CODES_OF_CHECK)]
pub struct CheckArgs {
    /// Output format [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<CheckFormat>,

    /// Print the verdict as JSON: one document, even if the check fails; short for --format json
    #[arg(long, conflicts_with = "format")]
    pub json: bool,

    /// How long to sample this machine [default: 30s; 2s while `gpumem record --store` runs]
    ///
    /// With --max-used, --max-unattributed or --baseline, one sample is the default.
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["replay", "demo"])]
    pub window: Option<Span>,

    /// Time between samples [default: 1s, or the configuration's]
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["replay", "demo"])]
    pub interval: Option<Span>,

    /// Exit with 1 if there is a finding of this severity [default: warning; none with --wait-free]
    #[arg(long, value_name = "SEVERITY")]
    pub fail_on: Option<Severity>,

    /// Apply only rules of these kinds, even if they are disabled
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub kind: Vec<Kind>,

    /// Report only on these GPUs, by index or UUID (or its beginning)
    ///
    /// Read errors on other GPUs are ignored.
    #[arg(long, value_name = "GPU", value_delimiter = ',')]
    pub gpu: Vec<String>,

    /// Report only on processes of these users, by name or uid
    #[arg(long, value_name = "USER", value_delimiter = ',')]
    pub user: Vec<String>,

    /// Further selection.
    #[command(flatten)]
    pub terms: Where,

    /// Fail if a GPU uses more than this at the end
    ///
    /// A size (500MiB) or a share of the GPU's memory (90%). Memory that the driver and firmware
    /// reserve does not count as used, except with drivers before R510, which do not report it
    /// separately.
    #[arg(long, value_name = "SIZE|PERCENT")]
    pub max_used: Option<Amount>,

    /// Fail if more than this is in use on a GPU and held by no process that NVML lists
    ///
    /// A size or share, as for --max-used. It is known only in the host's pid namespace, without MIG,
    /// and if the memory of every listed process is known.
    #[arg(long, value_name = "SIZE|PERCENT")]
    pub max_unattributed: Option<Amount>,

    /// Wait until this much memory is free on that GPU, or on any GPU; then exit with 0
    ///
    /// If given several times, all have to be free at once, each checked by itself. The GPUs are those
    /// of CUDA_VISIBLE_DEVICES, if that is set; of a GPU divided by MIG, a MIG device has to have the
    /// memory. A GPU that is drained, in need of a reset, or closed by its compute mode is not free, nor
    /// is one that is claimed (`gpumem run --claim`), unless it is named here. With --replay or --demo,
    /// time is the recording's.
    #[arg(long, value_name = "SIZE[:GPU]", conflicts_with = "window")]
    pub wait_free: Vec<WaitFree>,

    /// Print the GPUs that --wait-free found, for CUDA_VISIBLE_DEVICES, and nothing else
    ///
    /// The report goes to standard error. Nothing is printed unless the exit code is 0: an empty
    /// CUDA_VISIBLE_DEVICES hides every GPU.
    #[arg(long, value_name = "NAME", requires = "wait_free", conflicts_with_all = ["json", "format"])]
    pub print: Option<GpuName>,

    /// How long --wait-free waits; then exit with 1
    #[arg(long, value_name = "DURATION", default_value = "5m", requires = "wait_free")]
    pub timeout: Span,

    /// Fail if a process holds memory that held none in FILE, the output of `gpumem ps --json`
    ///
    /// A process that holds more than before is not new; --max-used limits that. FILE has to be from
    /// the current boot of this machine.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub baseline: Option<PathBuf>,

    /// With --wait-free, also list findings and undecided rules
    #[arg(short, long)]
    pub verbose: bool,

    /// Print no report; only the exit code answers
    #[arg(short, long, conflicts_with_all = ["json", "format", "verbose"])]
    pub quiet: bool,

    /// Whether the stored history is used.
    #[command(flatten)]
    pub stored: Stored,

    /// Where snapshots come from.
    #[command(flatten)]
    pub recorded: Recorded,

    /// The machines to ask.
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
    /// For people
    Text,
    /// gpumem.check/1
    Json,
    /// JUnit XML: a test for each rule, limit, wait and baseline
    Junit,
    /// Annotations for a GitHub Actions job
    Github,
}

impl CheckFormat {
    /// Whether it can hold the verdicts on several hosts.
    pub(super) fn is_for_hosts(self) -> bool {
        match self {
            Self::Text | Self::Json => true,
            Self::Junit | Self::Github => false,
        }
    }

    /// The names of the formats for several hosts, or of the others.
    pub(super) fn names(for_hosts: bool) -> Vec<String> {
        let formats = Self::value_variants().iter().filter(|it| it.is_for_hosts() == for_hosts);
        let values = formats.filter_map(ValueEnum::to_possible_value);
        values.map(|value| value.get_name().to_owned()).collect()
    }
}

/// How to name a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum GpuName {
    /// By its UUID
    Uuid,
    /// By NVML's index, which equals CUDA's only if CUDA_DEVICE_ORDER is PCI_BUS_ID
    Index,
}

/// How much memory has to become free, and on which GPU: `8GiB`, `8GiB:1`, `8GiB:GPU-…`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitFree {
    /// The amount.
    pub size: Bytes,
    /// Index or UUID; `None` is any one GPU.
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

/// Record what is observed, one JSON snapshot per line
///
/// The recording holds what was observed, never what was concluded: `gpumem check --replay` applies
/// today's rules to it. An existing FILE is appended to; when it is moved away, a new one is begun. It
/// grows until the recording ends: on SIGINT or SIGTERM, after --duration, or with an error when the
/// disk is full; every line in FILE is complete.
///
/// With --store it keeps a ring of compressed recordings in a directory, bounded by age and size, which
/// `gpumem check` and `gpumem watch` use; when the disk is full it removes the oldest and continues.
/// The directory is --store-dir, the service's $STATE_DIRECTORY, /var/lib/gpumem/store for root, or
/// $XDG_STATE_HOME/gpumem/store (~/.local/state/gpumem/store) for other users.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct RecordArgs {
    /// Output file [default: standard output]
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "store")]
    pub file: Option<PathBuf>,

    /// Time between samples [default: 1s, 5s with --store, or the configuration's]
    ///
    /// GPU use between two samples is not missed: it is read from the driver at least every 4s.
    #[arg(long, value_name = "DURATION")]
    pub interval: Option<Span>,

    /// Stop after this long
    #[arg(long, value_name = "DURATION")]
    pub duration: Option<Span>,

    /// First write this much of the most recent history from `gpumem record --store`
    #[arg(long = "history", value_name = "DURATION", conflicts_with = "store")]
    pub history_span: Option<Span>,

    /// The store.
    #[command(flatten)]
    pub store: StoreArgs,

    /// Also serve what is recorded on this address, as `gpumem serve --listen` does
    #[arg(long, value_name = "ADDRESS", value_parser = address, requires = "store")]
    pub serve: Option<SocketAddr>,
}

/// The store to keep.
#[derive(Args, Clone, Debug, Default)]
pub struct StoreArgs {
    /// Keep a ring of recordings in a directory, for check and watch
    #[arg(long)]
    pub store: bool,

    /// Remove recordings older than this from the store
    #[arg(long, value_name = "DURATION", default_value = "24h", requires = "store")]
    pub store_age: Span,

    /// Remove the oldest recordings when the store would grow larger
    #[arg(long, value_name = "SIZE", default_value = "256MiB", requires = "store")]
    pub store_size: Bytes,
}

/// List the rules: what each finds, its settings, their values and what they mean
///
/// The values are those in force; if one is not the default, the default is shown beside it.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct RulesArgs {
    /// Show only this rule, or the rules of this kind
    #[arg(value_name = "NAME")]
    pub name: Option<String>,

    /// Print the rules as JSON (gpumem.rules/1)
    #[arg(long)]
    pub json: bool,
}

/// Show, validate or test the configuration
///
/// The configuration has [rules.KIND] tables with the settings that `gpumem rules` lists, and any number of the
/// following entries. `[[rule]]` adds a rule of a kind, with its own name, settings and `where`; it
/// starts from the settings of its kind, and without a `where` it matches every process. `[[override]]`
/// changes a rule's settings for matching processes. `[[keep]]` exempts matching processes from all
/// rules or the named ones, with a reason and an optional expiry date (until). If it is unknown whether
/// a process matches, an exemption protects it, and a rule or an override does not apply.
///
/// The `where` of an entry selects processes. It takes the terms of --where, such as "user=ann gpu:0
/// mem>50%", except idle, finding and is. Users, containers, pods, jobs and units are given by their
/// whole names (user=ann), because other names may contain a part of a name, or by a pattern for the
/// whole name (user=st-*). Each GPU of a process is matched separately: "!gpu:0" matches the process
/// on its other GPUs.
///
/// The action of a `[[rule]]`, or of a kind's own rule, is what `gpumem reap --watch` does about its
/// findings. "notify" (the default) notifies the owner. "release" notifies the owner and asks the
/// process to release memory, as `gpumem release` does, and never kills; it is for idle, server-idle
/// and pressure, and for pressure it asks each process on the GPU that has announced a signal for that,
/// while it works. "reap" warns the owner, then kills; it is for orphan, stopped, hung, idle and leak.
///
/// `[reap]` sets how: warn (15m: from the first warning to the last), grace (1m: from the last warning
/// to the kill), settle (15s: a pause after each kill), most (3 kills) within (10m; a working process
/// is not asked twice in that time either), notify (a program by its whole path and its arguments, run
/// without a shell, with the finding as JSON on its standard input; it has 10s, and if it fails the
/// owner does not count as warned) and never (file names of programs that are never killed, not by
/// `gpumem reap` and `gpumem kill` either).
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct ConfigArgs {
    /// The action.
    #[command(subcommand)]
    pub action: ConfigAction,
}

/// What to do with the configuration.
#[derive(Subcommand, Debug)]
pub enum ConfigAction {
    /// Print the configuration in force, defaults included, as TOML
    Show,
    /// Validate a file, or the configuration in force; errors name file, line and key
    Check {
        /// The file to validate
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
    },
    /// Show what each rule would have found in a recording, and when
    ///
    /// Lists every finding of every rule, including findings that an exemption covers; they do not
    /// affect the exit code.
    Test {
        /// Print the result as JSON (gpumem.test/1)
        #[arg(long)]
        json: bool,

        /// The recording.
        #[command(flatten)]
        recorded: Recorded,
    },
}

/// Show what works on this machine, what does not, and what to do about it
///
/// Checks the driver and its library, device files, each GPU, access to other users' processes, the
/// configuration in force and the stored history. Each check is ok, limited (gpumem works, with less
/// data), broken, unknown or n/a, with the command to run next. It changes nothing and needs neither
/// root nor a driver. The exit code is 0 if NVML answers and at least one GPU can be read, otherwise 3.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct Doctor {
    /// Print the result as JSON (gpumem.doctor/1)
    #[arg(long)]
    pub json: bool,
}

/// Print the JSON Schema of a format that gpumem writes
///
/// Draft 2020-12. Readers must ignore unknown fields and treat null as absent; an unknown value is
/// never 0.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_OF_PRINTING)]
pub struct SchemaArgs {
    /// The format
    #[arg(value_name = "FORMAT")]
    pub name: SchemaName,
}

/// A published format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum SchemaName {
    /// What check --json prints (gpumem.check/1)
    Check,
    /// What doctor --json prints (gpumem.doctor/1)
    Doctor,
    /// What explain --json prints (gpumem.explain/1)
    Explain,
    /// What reap --history --json prints (gpumem.history/1)
    History,
    /// What ps --json and check --json print for other machines (gpumem.hosts/1)
    Hosts,
    /// What reap --json prints (gpumem.reap/1)
    Reap,
    /// What release --json prints (gpumem.release/1)
    Release,
    /// What run --report FILE.json writes (gpumem.run/1)
    Run,
    /// What ps --json prints, and each line of a recording (gpumem.snapshot/1)
    Snapshot,
    /// What ps --by --json prints (gpumem.totals/1)
    Totals,
}

/// Print the completion script of a shell
///
/// Tab also completes values that gpumem knows: processes (largest first), GPUs, users, rules,
/// findings.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES_OF_PRINTING)]
pub struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// A supported shell
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
    /// The command whose page to show, or ci or performance [default: gpumem's own page]
    #[arg(value_name = "COMMAND")]
    pub command: Option<String>,
}

/// Selects rows.
#[derive(Args, Clone, Debug, Default)]
pub struct Where {
    /// Only what matches all of these terms: 'user:ann gpu:0 idle>10m mem>4GiB', as after / in watch
    ///
    /// A word is searched for in all fields; NAME:VALUE in one field, with commas between alternatives;
    /// < and > compare numbers; ! before a term negates it. Unknown values never match, negated or not.
    ///
    /// 'mem>4GiB' selects large processes, 'idle>2h' those that have been idle for long, 'runtime>1d
    /// !user:ann' those that have run for long and are not ann's. ? in `gpumem watch` lists the fields.
    #[arg(long = "where", value_name = "TERMS", value_parser = terms)]
    pub terms: Vec<Selector>,
}

/// Rejects terms that leave nothing out: a script's variable was probably empty.
fn terms(text: &str) -> Result<Selector, String> {
    match Selector::parse(text) {
        Ok(Some(selector)) => Ok(selector),
        Ok(None) => Err("it is empty; write user:ann, or leave it out".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The fields that totals can be grouped by, by their names.
fn grouped() -> impl TypedValueParser<Value = Field> {
    let names = GROUPED.iter().filter_map(|field| field.spec().names.first());
    PossibleValuesParser::new(names).map(|typed| {
        let mut fields = GROUPED.iter();
        let is_it = |field: &&Field| field.spec().names.first() == Some(&typed.as_str());
        *fields.find(is_it).unwrap_or(&Field::User)
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
/// Metrics of GPUs, processes and findings, from one sample and the stored history. Unknown values are
/// absent. No label contains a command line or a path. The 512 processes with the most memory have
/// their own series.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct MetricsArgs {
    /// Replace this file atomically, for node_exporter's textfile collector, instead of printing
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,

    /// Where the snapshots come from.
    #[command(flatten)]
    pub recorded: Recorded,

    /// Whether the stored history is used.
    #[command(flatten)]
    pub stored: Stored,
}

/// Serve metrics and the newest verdict over HTTP, for Prometheus
///
/// /metrics is the page of `gpumem metrics` with counters of waste, /check the document of `gpumem check --json`,
/// and /-/healthy tells whether the newest sample is recent. Requests are answered from the newest sample;
/// they never cause one. It runs until SIGINT or SIGTERM.
///
/// With `gpumem record --store --serve ADDRESS`, one process records and serves.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct ServeArgs {
    /// Address to listen on; everyone who can reach it sees users and programs
    #[arg(long, value_name = "ADDRESS", value_parser = address, default_value = "127.0.0.1:9836")]
    pub listen: SocketAddr,

    /// Time between samples [default: 5s]
    #[arg(long, value_name = "DURATION")]
    pub interval: Option<Span>,

    /// Where the snapshots come from; for a recording, its end is served.
    #[command(flatten)]
    pub recorded: Recorded,

    /// Whether the stored history is used.
    #[command(flatten)]
    pub stored: Stored,
}

/// Where to listen. A name may stand for several addresses, and the wrong one is open to others.
fn address(typed: &str) -> Result<SocketAddr, String> {
    typed.parse().map_err(|_| "write an IP address and a port: 127.0.0.1:9836".to_owned())
}

/// Explain one process, GPU or finding: whose, since when, why, and what to do
///
/// Shows what the process or GPU is, its owner and start, how its memory changed, its findings with
/// their evidence, what holds it, and what would free the memory, gentlest first. If `gpumem record
/// --store` is running, its history is used; otherwise a short sample is, and the page lists what that
/// cannot show. With --replay or --demo it describes the end of the recording.
///
/// With --oom it explains a moment at which a GPU had no memory left.
///
/// With --framework it explains how a framework takes memory, what returns it and what does not; that
/// needs no GPU. With --snippet it prints code for your own program that releases memory when asked.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub struct Explain {
    /// A PID, a notebook's path or the end of it, a kernel's id, a GPU (gpu:0, GPU-…, MIG-…), a
    /// finding's id as printed by check --json or the beginning of one if unambiguous, or the name of
    /// an inference server (vllm)
    #[arg(
        value_name = "TARGET",
        required_unless_present_any = ["framework", "snippet", "oom"],
        conflicts_with_all = ["framework", "oom"]
    )]
    pub target: Option<String>,

    /// Explain a framework; without NAME, list the known ones
    #[arg(
        long,
        value_name = "NAME",
        num_args = 0..=1,
        default_missing_value = "list",
        conflicts_with_all = ["window", "replay", "demo", "no_store"]
    )]
    pub framework: Option<String>,

    /// Print a signal handler in Python, to paste into a program, that releases cached memory when
    /// `gpumem release` asks; for PyTorch, TensorFlow, JAX and CuPy. With --framework tensorflow:
    /// training in a child process that saves and exits when asked, because TensorFlow's own pool is
    /// freed only when its process exits
    #[arg(long, conflicts_with_all = ["target", "json", "window", "replay", "demo"])]
    pub snippet: bool,

    /// Explain why a GPU had no memory left: who held it, how much of it was unused, and what would
    /// have been enough
    #[arg(long, conflicts_with_all = ["framework", "snippet", "window"])]
    pub oom: bool,

    /// With --oom, the time: 10:04, 2026-11-21 10:04:30 or, on this machine, -5m [default: now, or the
    /// recording's end]
    ///
    /// The page describes the last sample up to that time, in a recording or in the history that
    /// `gpumem record --store` keeps.
    #[arg(long, value_name = "TIME", requires = "oom", conflicts_with_all = ["target", "framework", "snippet"], allow_hyphen_values = true)]
    pub at: Option<String>,

    /// With --oom, the GPU, by index or UUID [default: the one with the least memory free]
    #[arg(long, value_name = "GPU", requires = "oom", conflicts_with_all = ["target", "framework", "snippet"])]
    pub gpu: Option<String>,

    /// With --oom, the size of the failed allocation, as in the program's message
    #[arg(long, value_name = "SIZE", requires = "oom", conflicts_with_all = ["target", "framework", "snippet"])]
    pub asked: Option<Bytes>,

    /// Print the page as JSON (gpumem.explain/1)
    #[arg(long)]
    pub json: bool,

    /// How long to sample this machine first; CPU and GPU use over time is known only with a window or
    /// a stored history [default: a single sample; for a finding until it is found, at most 2s]
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["replay", "demo"])]
    pub window: Option<Span>,

    /// Whether the stored history is used.
    #[command(flatten)]
    pub stored: Stored,

    /// Where snapshots come from.
    #[command(flatten)]
    pub recorded: Recorded,
}
