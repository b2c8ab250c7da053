//! Takes over the terminal and restores it.
//!
//! [`Screen`] sets raw mode, the alternate screen, a hidden cursor, bracketed paste and optionally mouse clicks.
//! [`restore`] undoes this before gpumem returns, fails, panics on any thread or is stopped, so that later output
//! appears on a normal terminal. Signals arrive as events; `mod.rs` restores the terminal before it exits or
//! stops. None of this blocks if the terminal does not accept output (see `output.rs`).

use std::io::{self, IsTerminal, Write as _};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once};
use std::time::Duration;

use crossterm::cursor::{Hide, Show};
use crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use crossterm::queue;
use crossterm::style::{Print, ResetColor};
use crossterm::terminal::{
    EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode,
};
use ratatui::layout::Rect;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::double_buffer::DoubleBuffer;
use super::output::TerminalOutput;
pub(super) use super::output::is_foreground;
use ratatui::buffer::Buffer;

/// Whether the terminal is taken. This is a static, because a panic hook cannot reach other state.
static TAKEN: AtomicBool = AtomicBool::new(false);
/// The last terminal that was taken, for [`restore`].
static TERMINAL: Mutex<Option<TerminalOutput>> = Mutex::new(None);

/// Reports buttons and the wheel, on screens of any size (xterm modes 1000 and 1006). crossterm's
/// `EnableMouseCapture` also reports motion.
const MOUSE_ON: &str = "\x1b[?1000h\x1b[?1006h";
const MOUSE_OFF: &str = "\x1b[?1006l\x1b[?1000l";

/// The terminal while it is taken. Dropping the value restores the terminal.
#[derive(Debug)]
pub struct Screen {
    frames: DoubleBuffer<TerminalOutput>,
    output: TerminalOutput,
    mouse: bool,
}

impl Screen {
    /// Takes over the terminal of standard output, and the mouse if requested.
    ///
    /// # Errors
    ///
    /// Fails if the terminal cannot be put into raw mode or written to. Also fails if no keys can be read, because
    /// neither standard input nor a controlling terminal is available.
    pub fn take(mouse: bool) -> io::Result<Self> {
        let output = TerminalOutput::open()?;
        if let Ok(mut terminal) = TERMINAL.lock() {
            *terminal = Some(output.clone());
        }
        let (columns, rows) = size();
        let mut screen = Self {
            frames: DoubleBuffer::new(output.clone(), Rect::new(0, 0, columns, rows)),
            output,
            mouse,
        };
        restore_on_panic();
        screen.retake()?;
        Ok(screen)
    }

    /// Takes over the terminal again after `restore`, or after a shell changed it while gpumem was stopped. The
    /// terminal's content is then unknown; [`Screen::resize`] clears it.
    pub fn retake(&mut self) -> io::Result<()> {
        TAKEN.store(true, Ordering::SeqCst);
        // crossterm assumes that raw mode is still on, but a shell may have changed it.
        disable_raw_mode()?;
        enable_raw_mode()?;
        let output = self.frames.output();
        // Without bracketed paste, pasted text would act as key presses: `x` and `y` kill a process.
        queue!(output, EnterAlternateScreen, Hide, EnableBracketedPaste)?;
        if self.mouse {
            queue!(output, Print(MOUSE_ON))?;
        }
        output.flush()
    }

    /// Whether drawing must wait because the terminal has not accepted the last frame yet.
    pub fn is_behind(&self) -> bool {
        TAKEN.load(Ordering::SeqCst) && self.output.is_behind()
    }

    /// Writes as much of the pending output as the terminal accepts.
    pub fn catch_up(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    /// Applies a new size; the next frame clears the screen and is drawn in full.
    pub fn resize(&mut self, area: Rect) {
        self.frames.resize(area);
    }

    /// Draws a frame and writes the changed cells; does nothing while the terminal is not taken.
    pub fn draw(&mut self, paint: impl FnOnce(&mut Buffer)) -> io::Result<()> {
        if !TAKEN.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.frames.draw(paint)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Runs `work` with the terminal taken, then restores the terminal, even after a panic.
pub fn with_screen<T>(mouse: bool, work: impl FnOnce(&mut Screen) -> T) -> io::Result<T> {
    let mut screen = Screen::take(mouse)?;
    Ok(work(&mut screen))
}

/// Waits up to `timeout` for input while the terminal is not taken.
pub(super) fn has_input(timeout: Duration) -> bool {
    let input = io::stdin();
    let mut polled = [PollFd::new(&input, PollFlags::IN)];
    poll(&mut polled, Timespec::try_from(timeout).ok().as_ref()).is_ok_and(|count| count > 0)
}

/// Restores the terminal, if it is taken.
pub fn restore() {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    let mut bytes = Vec::new();
    let _ = queue!(
        bytes,
        // Otherwise the terminal waits for the rest of an unfinished frame.
        EndSynchronizedUpdate,
        Print(MOUSE_OFF),
        DisableBracketedPaste,
        ResetColor,
        LeaveAlternateScreen,
        Show
    );
    // Other threads hold the lock only to set or copy the value.
    let output = TERMINAL.try_lock().ok().and_then(|terminal| terminal.clone());
    if let Some(output) = output {
        output.write_last(&bytes);
    }
    // In the background, the shell has already reset the modes, and changing them would stop gpumem.
    if is_foreground() {
        let _ = disable_raw_mode();
    }
}

/// Makes every panic restore the terminal before it prints its message.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            restore();
            report(info);
        }));
    });
}

pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Returns columns and rows: 80 by 24 if the terminal does not report a size.
pub fn size() -> (u16, u16) {
    match rustix::termios::tcgetwinsize(rustix::stdio::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
        _ => (80, 24),
    }
}

/// Whether an error means that the terminal is gone, for example because its window was closed.
pub fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::IO, Errno::PIPE, Errno::NXIO];
    gone.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_window_is_distinguished_from_other_errors() {
        assert!(is_gone(&Errno::IO.into()) && is_gone(&Errno::PIPE.into()));
        assert!(!is_gone(&Errno::ACCESS.into()) && !is_gone(&io::Error::other("full")));
    }
}
