//! `gpumem watch`: the terminal screen. The layout is saved in the state directory.

use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal as _, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use rustix::fs::OFlags;

use super::args::{Color, Global, Once, ThemeChoice, WatchArgs, cells};
use super::exit::Exit;
use super::output::shows_unicode;
use super::reap::tools_here;
use super::selection::{Selection, current_user};
use super::{
    UsageError, config, hosts, live, print, recorded, signals, store, style, unreadable, warn,
    warn_of_damage,
};
use crate::config::Config;
use crate::deadline::Task;
use crate::host::replace_file;
use crate::model::Snapshot;
use crate::reclaim::worker::{OpenTools, ReclaimWorker};
use crate::rules::Engine;
use crate::source::Source;
use crate::source::live::Live;
use crate::source::remote::{Hangup, RemoteHost, RemoteRequest, RemoteSource};
use crate::source::replay::{DEMO_HISTORY_SECONDS, Replay};
use crate::watch::column::Columns;
use crate::watch::once::StillScreen;
use crate::watch::theme::{Theme, has_colors};
use crate::watch::ui_state::{UiState, parse};
use crate::watch::{self, EarlierHistory, Options, WatchOutcome, Watched, terminal};

const SIZE: (u16, u16) = (80, 24);

pub(super) fn run(args: &WatchArgs, global: &Global) -> anyhow::Result<Exit> {
    let config = config::load(global)?;
    let interval = args.interval.unwrap_or(config.sample.interval).0;
    if let Some(format) = args.once {
        return once(format, args, global, config, interval);
    }
    if !io::stdout().is_terminal() {
        // Fail before waiting for the driver.
        return Err(watch::WatchError::NotATerminal.into());
    }
    if is_dumb() {
        let why =
            "a terminal with TERM=dumb cannot show a screen; use `gpumem ps` or `gpumem check`";
        return Err(UsageError(why.to_owned()).into());
    }
    let mut options = options(args, global, interval);
    let others = hosts::named(&args.others)?;
    let is_elsewhere = !args.recorded.is_live() || !others.is_empty();
    let mut hangups = Vec::new();
    let watched = match others.is_empty() {
        true => vec![this_machine(args, global, &config, interval)?],
        false => {
            let needed = config.rules.longest();
            let request = hosts::request(interval, None, args.stored, needed);
            let watched = others.into_iter().map(|host| {
                let hangup = Hangup::default();
                hangups.push(hangup.clone());
                Watched {
                    past: EarlierHistory::new(Engine::new(config.rules.clone())),
                    worker: ReclaimWorker::on_host(&config, host.clone()),
                    source: Box::new(RemoteSource::new(host.clone(), request, hangup)),
                    host: Some(host),
                }
            });
            watched.collect()
        }
    };
    let mut ui_state = load_ui_state();
    options.asks_background &= options.has_color && !ui_state.contains_key("theme");
    // Options on the command line override the saved layout.
    if args.theme.is_some() {
        ui_state.remove("theme");
    }
    if args.sort.is_some() {
        ui_state.remove("sort");
    }
    if !args.columns.is_empty() {
        ui_state.remove("columns");
    }
    let outcome = watch::run(watched, &options, &mut ui_state, warn);
    hangups.iter().for_each(Hangup::hang_up);
    if !is_elsewhere {
        // Do not save the layout of a recording or a remote host.
        save_ui_state(ui_state);
    }
    match outcome? {
        WatchOutcome::Quit => Ok(Exit::Clean),
        WatchOutcome::Signal(signal) => {
            // `end_as_by` returns if the default action ignores the signal.
            signals::end_as_by(signal)?;
            Ok(Exit::Clean)
        }
    }
}

fn this_machine(
    args: &WatchArgs,
    global: &Global,
    config: &Config,
    interval: Duration,
) -> anyhow::Result<Watched> {
    let worker = worker(args, config);
    let mut past = EarlierHistory::new(Engine::new(config.rules.clone()));
    let source: Box<dyn Source> = match recorded(&args.recorded)? {
        Some(replay) => Box::new(replay.at_speed(args.speed)),
        None => Box::new(judged_live(args, global, interval, &mut past)?),
    };
    Ok(Watched { host: None, source, past, worker })
}

/// Returns the worker, which cannot carry out plans for a recording.
fn worker(args: &WatchArgs, config: &Config) -> ReclaimWorker {
    let open_tools = || tools_here().map_err(|error| format!("{error:#}"));
    ReclaimWorker::new(config, args.recorded.is_live().then_some(open_tools as OpenTools))
}

pub(super) fn has_screen() -> bool {
    io::stdout().is_terminal() && !is_dumb()
}

fn is_dumb() -> bool {
    variable("TERM") == "dumb"
}

/// Opens the driver, and applies the rules to the stored history, so that the first frame shows findings.
fn judged_live(
    args: &WatchArgs,
    global: &Global,
    interval: Duration,
    past: &mut EarlierHistory,
) -> anyhow::Result<Live> {
    Selection::new(&args.selected).check_users()?;
    let live = live(global, interval)?;
    let ask = store::Ask::new(global, args.stored, store::MOST_FOR_WATCH);
    let all_series = &mut past.all_series;
    store::feed_each(&mut past.engine, &live, ask, |engine, snapshot| {
        all_series.follow(engine.history(), snapshot);
    })?;
    Ok(live)
}

fn options(args: &WatchArgs, global: &Global, interval: Duration) -> Options {
    Options {
        interval,
        speed: args.speed,
        mouse: !args.no_mouse,
        me: current_user(),
        filter: Selection::new(&args.selected).into_selector(),
        sort: args.sort,
        columns: Columns::new(args.columns.iter().copied()),
        theme: match args.theme {
            Some(ThemeChoice::Terminal) => Theme::Terminal,
            Some(ThemeChoice::Light) => Theme::Light,
            Some(ThemeChoice::ColourBlind) => Theme::ColourBlind,
            Some(ThemeChoice::Auto) | None => Theme::of_terminal(&variable("COLORFGBG")),
        },
        asks_background: matches!(args.theme, Some(ThemeChoice::Auto) | None),
        has_color: match global.color {
            Color::Always => true,
            _ => style(global.color).color && has_colors(&variable("TERM")),
        },
        ascii: args.ascii || !shows_unicode(),
    }
}

fn once(
    format: Once,
    args: &WatchArgs,
    global: &Global,
    config: Config,
    interval: Duration,
) -> anyhow::Result<Exit> {
    let mut others = hosts::named(&args.others)?;
    let host = others.pop();
    if !others.is_empty() {
        let why = "--once shows one machine; name one host, or use `gpumem ps`";
        return Err(UsageError(why.to_owned()).into());
    }
    let mut worker = match &host {
        Some(host) => ReclaimWorker::on_host(&config, host.clone()),
        None => worker(args, &config),
    };
    let needed = config.rules.longest();
    let mut past = EarlierHistory::new(Engine::new(config.rules));
    let mut options = options(args, global, interval);
    if format != Once::Text {
        // The file may be viewed on another terminal or in another locale.
        options.has_color = global.color != Color::Never;
        options.ascii = args.ascii;
    }
    let size = args.size.unwrap_or_else(picture_size);
    let (mut still, last, is_live) = match recorded(&args.recorded)? {
        Some(mut replay) => {
            let name = replay.name().to_owned();
            let mut still = StillScreen::new(options, Some(name), None, past, size);
            let last = play(&mut replay, &mut still, args.recorded.demo)?;
            (still, last, false)
        }
        None => {
            // NVML reports utilization from the second sample on.
            let snapshots = match &host {
                Some(host) => {
                    let time = interval * 2;
                    let request = hosts::request(interval, Some(time), args.stored, needed);
                    host_snapshots(host, request, time)?
                }
                None => {
                    let mut live = judged_live(args, global, interval, &mut past)?;
                    let mut next =
                        || live.next()?.context("no sample could be taken; run `gpumem doctor`");
                    vec![next()?, next()?]
                }
            };
            let last = snapshots.last().cloned().context("received no snapshot")?;
            let mut still = StillScreen::new(options, None, host, past, size);
            snapshots.into_iter().for_each(|snapshot| still.add_sample(snapshot));
            (still, last, true)
        }
    };
    still.press(args.keys.as_ref(), &mut worker).map_err(|error| UsageError(error.to_string()))?;
    print(&match format {
        Once::Text => still.text(has_escapes(global.color)),
        Once::Svg => still.svg(),
    })?;
    // A machine without GPUs is not an error.
    Ok(if is_live && unreadable(&last) && !last.gpus.is_empty() {
        warn("not every GPU could be read; the picture shows which");
        Exit::CannotMeasure
    } else {
        Exit::Clean
    })
}

fn host_snapshots(
    host: &RemoteHost,
    request: RemoteRequest,
    time: Duration,
) -> anyhow::Result<Vec<Snapshot>> {
    let collect = move |host: &RemoteHost, hangup: &Hangup| {
        let mut snapshots = Vec::new();
        hosts::sample_host(host, request, hangup, |snapshot| {
            snapshots.push(snapshot.clone());
            Ok(())
        })?;
        Ok(snapshots)
    };
    let (_, answer) =
        hosts::ask_all(vec![host.clone()], time, collect).next().context("no host was asked")?;
    answer.with_context(|| host.name.to_string())
}

/// Plays a recording to the end, or the demo up to its start position. Returns the last snapshot.
fn play(replay: &mut Replay, still: &mut StillScreen, is_demo: bool) -> anyhow::Result<Snapshot> {
    let (mut first, mut last) = (None, None);
    while let Some(snapshot) = replay.next()? {
        let first = *first.get_or_insert(snapshot.time);
        if is_demo && snapshot.time.seconds_since(first) >= DEMO_HISTORY_SECONDS {
            break;
        }
        still.add_sample(snapshot.clone());
        last = Some(snapshot);
    }
    if !is_demo {
        still.end();
        warn_of_damage(replay);
    }
    last.context("the recording contains no snapshot")
}

/// Returns the columns and rows for a frame. On a terminal, one row remains for the prompt. Otherwise, COLUMNS and
/// LINES determine the size.
fn picture_size() -> (u16, u16) {
    if io::stdout().is_terminal() {
        let (columns, rows) = terminal::size();
        return (columns, rows.saturating_sub(1).max(1));
    }
    let (columns, rows) = (cells(&variable("COLUMNS")), cells(&variable("LINES")));
    (columns.unwrap_or(SIZE.0), rows.unwrap_or(SIZE.1))
}

fn has_escapes(color: Color) -> bool {
    color == Color::Always || has_screen()
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// Maximum number of bytes read from the saved layout.
const MOST_BYTES: u64 = 64 * 1024;
/// Maximum time that a hung file system delays the exit.
const PATIENCE: Duration = Duration::from_secs(2);

fn load_ui_state() -> UiState {
    ui_state_path().map_or_else(UiState::default, |path| read_ui_state(&path))
}

/// Writes `changes` to the saved layout, but keeps values that another screen has saved meanwhile.
fn save_ui_state(changes: UiState) {
    let Some(path) = ui_state_path().filter(|_| !changes.is_empty()) else {
        return;
    };
    // The home directory may be on a file server that does not answer.
    if let Ok(writing) = Task::start("watch-state", move || write_ui_state(&path, changes)) {
        let _ = writing.wait(PATIENCE);
    }
}

fn ui_state_path() -> Option<PathBuf> {
    store::state().ok().map(|folder| folder.join("watch.json"))
}

fn read_ui_state(path: &Path) -> UiState {
    let read = || -> io::Result<Vec<u8>> {
        let file = OpenOptions::new()
            .read(true)
            // If the file is a named pipe, open(2) must not wait for a writer.
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(path)?;
        let mut text = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut text)?;
        Ok(text)
    };
    read().map_or_else(|_| UiState::default(), |text| parse(&text))
}

fn write_ui_state(path: &Path, changes: UiState) -> io::Result<()> {
    let mut all = read_ui_state(path);
    all.extend(changes);
    let mut text = serde_json::to_vec_pretty(&all)?;
    text.push(b'\n');
    if let Some(folder) = path.parent() {
        // Keep the default mode, because root's state directory also contains a store that all users can read.
        fs::create_dir_all(folder)?;
    }
    replace_file(path, &text, 0o600)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn tree(tree: bool) -> UiState {
        UiState::from_iter([("tree".to_owned(), tree.into())])
    }

    #[test]
    fn a_written_state_is_private_and_keeps_the_changes_of_other_screens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("not/yet/there/watch.json");
        assert_eq!(read_ui_state(&path), UiState::default());
        let theme = UiState::from_iter([("theme".to_owned(), "dark".into())]);
        for changes in [tree(true), theme.clone(), tree(false)] {
            write_ui_state(&path, changes).unwrap();
        }
        assert_eq!(read_ui_state(&path), tree(false).into_iter().chain(theme).collect::<UiState>());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let count = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(count, 1, "no temporary file remains");
    }

    #[test]
    fn an_invalid_state_file_is_treated_as_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("watch.json");
        fs::create_dir(&path).unwrap();
        assert_eq!(read_ui_state(&path), UiState::default());
        assert!(write_ui_state(&path, tree(true)).is_err());
        fs::remove_dir(&path).unwrap();
        let pipe = rustix::fs::FileType::Fifo;
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, pipe, mode, 0).unwrap();
        assert_eq!(read_ui_state(&path), UiState::default(), "opening it does not block");
        fs::remove_file(&path).unwrap();
        fs::write(&path, vec![b'['; 1 << 20]).unwrap();
        assert_eq!(read_ui_state(&path), UiState::default());
        write_ui_state(&path, tree(true)).unwrap();
        assert_eq!(read_ui_state(&path), tree(true));
        assert!(fs::metadata(&path).unwrap().len() < MOST_BYTES);
    }

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("watch.json");
        write_ui_state(&path, tree(true)).unwrap();
        // A directory in place of the temporary file makes the write fail, as a full disk would.
        let new = folder.path().join(format!(".watch.json.{}.new", std::process::id()));
        fs::create_dir(&new).unwrap();
        assert!(write_ui_state(&path, tree(false)).is_err());
        assert_eq!(read_ui_state(&path), tree(true));
        fs::remove_dir(&new).unwrap();
        write_ui_state(&path, tree(false)).unwrap();
        let in_a_file = path.join("watch.json");
        assert!(write_ui_state(&in_a_file, tree(false)).is_err());
        assert_eq!(read_ui_state(&path), tree(false));
    }
}
