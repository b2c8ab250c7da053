//! Completions and manual pages, rendered from the same definition that parses the arguments.

use clap::CommandFactory as _;
use clap_complete::Shell;
use clap_mangen::Man;

use super::args::Cli;
use super::rules;

/// The shells that completions are committed for, and their files.
pub const SHELLS: [(Shell, &str); 5] = [
    (Shell::Bash, "gpumem.bash"),
    (Shell::Zsh, "_gpumem"),
    (Shell::Fish, "gpumem.fish"),
    (Shell::Elvish, "gpumem.elv"),
    (Shell::PowerShell, "_gpumem.ps1"),
];

/// A shell's completion script.
pub fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "gpumem", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Every manual page: its file's name and its text.
pub fn man_pages() -> Vec<(String, String)> {
    let cli = command();
    let subcommands: Vec<_> = cli
        .get_subcommands()
        .map(|command| format!("gpumem-{}", command.get_name()))
        .collect();
    let mut pages = vec![("gpumem.1".to_owned(), render(cli.clone(), &subcommands))];
    for subcommand in cli.get_subcommands() {
        let name = format!("gpumem-{}", subcommand.get_name());
        // The page's title is the command's name, and its usage line the way it is typed.
        let typed = format!("gpumem {}", subcommand.get_name());
        let command = subcommand
            .clone()
            .display_name(name.clone())
            .bin_name(typed);
        pages.push((format!("{name}.1"), render(command, &["gpumem".to_owned()])));
    }
    pages
}

/// One manual page: gpumem's own, or a command's.
///
/// # Errors
///
/// Where there is no such command: which there are.
pub fn man_page(command: Option<&str>) -> Result<String, String> {
    let file = command.map_or_else(|| "gpumem.1".to_owned(), |name| format!("gpumem-{name}.1"));
    let mut pages = man_pages();
    match pages.iter().position(|(name, _)| *name == file) {
        Some(at) => Ok(pages.swap_remove(at).1),
        None => {
            let cli = command_names().join(", ");
            Err(format!("man: there is no such command; there are {cli}"))
        }
    }
}

/// What is told of rights in gpumem's own page.
const RIGHTS: &str = "\
What is another user's is seen and ended by root only (sudo -H gpumem), or with capabilities:

  CAP_SYS_PTRACE       to see files, programs and environments of others' processes
  CAP_DAC_READ_SEARCH  to look into their folders in /proc, and to read where notebook
                       servers listen
  CAP_KILL             to signal the processes of others

The services in packaging/ have these and no more. As capabilities of the program's file only
CAP_SYS_PTRACE and CAP_KILL are used, and all others given up at the start. Then
--nvml-library is refused and LD_LIBRARY_PATH ignored. With the bit for setuid nothing is done.

As root, or with capabilities of the file, nothing is obeyed that others may change:
configuration, notify command and state belong to root or to who runs gpumem, as does each
directory on their path, and neither group nor others may write to them. gpumem config check
says what is refused, and why.
";

fn command() -> clap::Command {
    let mut command = Cli::command();
    command.build();
    command
}

fn command_names() -> Vec<String> {
    Cli::command()
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .collect()
}

fn render(command: clap::Command, see_also: &[String]) -> String {
    let manual = format!("gpumem {}", env!("CARGO_PKG_VERSION"));
    let is_main = command.get_name() == "gpumem" && see_also.len() > 1;
    let is_rules = command.get_display_name() == Some("gpumem-rules");
    // The release's month is not in the page, so that it does not change with the day it is made.
    let man = Man::new(command)
        .date("")
        .source(manual)
        .manual("GPU memory monitor and reaper");
    let mut page = Vec::new();
    // Writing to a Vec cannot fail.
    let _ = man.render(&mut page);
    let mut page = String::from_utf8_lossy(&page).into_owned();
    if is_rules {
        page.push_str(&format!(".SH RULES\n.nf\n{}.fi\n", roff(&rules::manual())));
    }
    if is_main {
        page.push_str(&format!(".SH RIGHTS\n.nf\n{}.fi\n", roff(RIGHTS)));
    }
    page.push_str(".SH \"SEE ALSO\"\n");
    let references: Vec<_> = see_also
        .iter()
        .map(|name| format!("\\fB{}\\fR(1)", name.replace('-', "\\-")))
        .collect();
    page.push_str(&references.join(", "));
    page.push('\n');
    page
}

/// Text as it is, whatever in it roff would take for a request or an escape.
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
