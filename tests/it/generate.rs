//! Renders completions and manual pages from the clap definition. The results in `completions` and `man` are
//! committed, and compiled into the binary.

use clap::{CommandFactory as _, ValueHint};
use clap_complete::Shell as Renderer;
use clap_mangen::Man;
use gpumem::api::cli::{Cli, Shell};
use gpumem::api::report::metrics::{METRICS, Metric};

use crate::support::run;

/// The shells and the names of their completion scripts.
pub const SHELLS: [(Shell, &str); 3] =
    [(Shell::Bash, "gpumem.bash"), (Shell::Zsh, "_gpumem"), (Shell::Fish, "gpumem.fish")];

/// Parts of the completion scripts that query gpumem for values.
const VALUES_IN_BASH: &str = include_str!("generate/gpumem.bash");
const VALUES_IN_ZSH: &str = include_str!("generate/gpumem.zsh");
const VALUES_IN_FISH: &str = include_str!("generate/gpumem.fish");

/// Returns the completion script of a shell. `clap_complete` writes the commands, options and built-in values, and
/// `gpumem complete` supplies the other values at run time.
pub fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    let renderer = match shell {
        Shell::Bash => Renderer::Bash,
        Shell::Zsh => Renderer::Zsh,
        Shell::Fish => Renderer::Fish,
    };
    clap_complete::generate(renderer, &mut Cli::command(), "gpumem", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => script + VALUES_IN_BASH,
        Shell::Zsh => with_values_in_zsh(&script),
        Shell::Fish => with_values_in_fish(&script),
    }
}

/// Wraps zsh's function, so that it queries gpumem first and otherwise uses the static completions.
fn with_values_in_zsh(script: &str) -> String {
    let script = script.replacen("\n_gpumem() {\n", "\n_gpumem_static() {\n", 1);
    let registration = "if [ \"$funcstack[1]\"";
    script.replacen(registration, &format!("{VALUES_IN_ZSH}{registration}"), 1)
}

/// Adds a query to options and arguments that take neither files nor built-in values.
fn with_values_in_fish(script: &str) -> String {
    const ASKED: &str = "-k -a \"(__fish_gpumem_values)\"";
    let mut out = VALUES_IN_FISH.to_owned();
    for line in script.lines() {
        match line.strip_suffix(" -r") {
            Some(option) => out.push_str(&format!("{option} -x {ASKED}\n")),
            None => out.push_str(&format!("{line}\n")),
        }
    }
    for command in Cli::command().get_subcommands() {
        let mut values = command.get_positionals();
        let is_asked = |value: &clap::Arg| {
            value.get_value_hint() == ValueHint::Unknown && value.get_possible_values().is_empty()
        };
        if values.any(is_asked) {
            let name = command.get_name();
            out.push_str(&format!(
                "complete -c gpumem -n \"__fish_gpumem_using_subcommand {name}\" -f {ASKED}\n"
            ));
        }
    }
    out
}

/// Returns the file name and text of every manual page.
pub fn man_pages() -> Vec<(String, String)> {
    let cli = command();
    let mut others: Vec<_> =
        cli.get_subcommands().map(|command| format!("gpumem-{}(1)", command.get_name())).collect();
    others.extend(TOPICS.iter().map(|name| format!("{name}(7)")));
    let mut pages = vec![("gpumem.1".to_owned(), render(cli.clone(), &others))];
    for name in TOPICS {
        let page = handwritten(name).replace("@VERSION@", env!("CARGO_PKG_VERSION"));
        pages.push((format!("{name}.7"), page));
    }
    for subcommand in cli.get_subcommands() {
        let name = format!("gpumem-{}", subcommand.get_name());
        // The title is the name of the command. The usage line shows what the user types.
        let typed = format!("gpumem {}", subcommand.get_name());
        let command = subcommand.clone().display_name(name.clone()).bin_name(typed);
        pages.push((format!("{name}.1"), render(command, &["gpumem(1)".to_owned()])));
    }
    pages
}

/// Pages about a topic.
const TOPICS: [&str; 4] = ["gpumem-ci", "gpumem-kubernetes", "gpumem-performance", "gpumem-slurm"];

/// Returns a topic's page, or the handwritten sections of a command's page, in roff(7). Generated text replaces the
/// placeholders below.
fn handwritten(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cli/manual");
    std::fs::read_to_string(format!("{folder}/{name}.roff")).expect(name)
}

/// Placeholder for the exit codes.
const EXIT_STATUS: &str = ".\\\" EXIT STATUS\n";

/// Placeholder for the list of rules.
const RULES: &str = ".\\\" RULES\n";

/// Placeholder for the list of metrics.
const METRIC_LIST: &str = ".\\\" METRICS\n";

fn command() -> clap::Command {
    let mut command = Cli::command();
    command.build();
    command
}

/// Renders a page with references to the pages in `see_also`.
fn render(mut command: clap::Command, see_also: &[String]) -> String {
    let manual = format!("gpumem {}", env!("CARGO_PKG_VERSION"));
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let exit_status = exit_status(&command);
    let usage = command.render_usage().to_string();
    let nested: Vec<clap::Command> = command.get_subcommands().cloned().collect();
    let is_main = name == "gpumem";
    // A date would change the page daily.
    let man = Man::new(command).date("").source(manual).manual("GPU memory monitor and reaper");
    let mut page = Vec::new();
    // Writing to a vector cannot fail.
    let _ = man.render_title(&mut page);
    let _ = man.render_name_section(&mut page);
    page.extend(synopsis(&usage).bytes());
    let _ = man.render_description_section(&mut page);
    let _ = man.render_options_section(&mut page);
    if is_main {
        let _ = man.render_subcommands_section(&mut page);
    } else if !nested.is_empty() {
        page.extend(commands(&nested).bytes());
    }
    let mut page = String::from_utf8_lossy(&page).into_owned();
    let rules = format!(".SH RULES\n.nf\n{}.fi\n", roff(&run(&["rules"]).exits(0).stdout));
    let text = handwritten(&name).replace(EXIT_STATUS, &exit_status).replace(RULES, &rules);
    page.push_str(&text.replace(METRIC_LIST, &metrics()));
    page.push_str(".SH \"SEE ALSO\"\n");
    let references: Vec<_> = see_also
        .iter()
        .filter_map(|page| page.split_once('('))
        .map(|(name, section)| format!("\\fB{}\\fR({section}", name.replace('-', "\\-")))
        .collect();
    page.push_str(&references.join(", "));
    page.push('\n');
    page
}

fn synopsis(usage: &str) -> String {
    let typed = usage.trim_start_matches("Usage: ");
    format!(".SH SYNOPSIS\n\\fB{}\\fR\n", roff(typed).trim_end())
}

/// Describes nested subcommands, which have no page.
fn commands(nested: &[clap::Command]) -> String {
    let mut section = ".SH COMMANDS\n".to_owned();
    for command in nested {
        let usage = command.clone().render_usage().to_string();
        let about = command.get_long_about().or_else(|| command.get_about());
        let about = about.map(ToString::to_string).unwrap_or_default();
        section.push_str(&format!(
            ".TP\n\\fB{}\\fR\n{}",
            roff(usage.trim_start_matches("Usage: ")).trim_end(),
            roff(&about)
        ));
    }
    section
}

/// Formats the exit codes in the help of a command.
fn exit_status(command: &clap::Command) -> String {
    let codes = command.get_after_help().map(ToString::to_string);
    let mut section = ".SH \"EXIT STATUS\"\n".to_owned();
    for line in codes.unwrap_or_default().lines().skip(1) {
        let text = line.trim_start();
        match text.split_once("  ") {
            Some((code, meaning)) if code.bytes().all(|byte| byte.is_ascii_digit()) => {
                section.push_str(&format!(".TP\n.B {code}\n{}", roff(meaning)));
            }
            _ => section.push_str(&roff(text)),
        }
    }
    section
}

fn metrics() -> String {
    let metric = |metric: &Metric| {
        let labels = metric.labels.join(", ");
        let labels = if labels.is_empty() { labels } else { format!(" {{{labels}}}") };
        format!(".TP\n\\fB{}\\fR{labels}\n{}.", metric.name, roff(metric.help).trim_end())
    };
    METRICS.iter().map(|entry| metric(entry) + "\n").collect()
}

/// Escapes text, so that roff prints it literally.
fn roff(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        if line.starts_with(['.', '\'']) {
            out.push_str("\\&");
        }
        out.push_str(&line.replace('\\', "\\e").replace('-', "\\-"));
        out.push('\n');
    }
    out
}
