//! Takes over the terminal and restores it.
//!
//! [`Screen`] sets raw mode, the alternate screen and bracketed paste, hides the cursor, and
//! optionally enables the mouse. [`restore`] resets the terminal before gpumem exits, stops or
//! prints a panic message. Neither blocks on a terminal that accepts no output (see `output.rs`).

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

/// Whether the terminal is taken over. This is a static, because a panic hook has no access to the [`Screen`].
static TAKEN: AtomicBool = AtomicBool::new(false);
/// The output that [`restore`] uses.
static TERMINAL: Mutex<Option<TerminalOutput>> = Mutex::new(None);

/// Reports buttons and the wheel (xterm mode 1000) with unlimited coordinates (1006). crossterm's
/// `EnableMouseCapture` would also report motion.
const MOUSE_ON: &str = "\x1b[?1000h\x1b[?1006h";
const MOUSE_OFF: &str = "\x1b[?1006l\x1b[?1000l";

/// Asks for the background colour. The answer arrives as keyboard input; many terminals do not answer.
const ASK_BACKGROUND: &str = "\x1b]11;?\x1b\\";

/// The terminal while gpumem has taken it over. Dropping a `Screen` restores the terminal.
#[derive(Debug)]
pub struct Screen {
    frames: DoubleBuffer<TerminalOutput>,
    output: TerminalOutput,
    mouse: bool,
}

impl Screen {
    /// Takes over the terminal of standard output. Enables the mouse and asks for the background colour if requested.
    ///
    /// # Errors
    ///
    /// Returns an error if the terminal cannot be written to or set to raw mode, or if keys can be
    /// read neither from standard input nor from the controlling terminal.
    pub fn take(mouse: bool, asks_background: bool) -> io::Result<Self> {
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
        if asks_background {
            queue!(screen.frames.output(), Print(ASK_BACKGROUND))?;
        }
        screen.retake()?;
        Ok(screen)
    }

    /// Takes over the terminal after [`restore`], or after a shell used it. The caller must call
    /// [`Screen::resize`] to clear unknown content.
    pub fn retake(&mut self) -> io::Result<()> {
        TAKEN.store(true, Ordering::SeqCst);
        // crossterm believes that raw mode is on, even if a shell has reset it.
        disable_raw_mode()?;
        enable_raw_mode()?;
        let output = self.frames.output();
        // Without bracketed paste, pasted text would press keys, and `x` followed by `y` kills a process.
        queue!(output, EnterAlternateScreen, Hide, EnableBracketedPaste)?;
        if self.mouse {
            queue!(output, Print(MOUSE_ON))?;
        }
        output.flush()
    }

    /// Returns whether drawing must wait until the terminal has accepted the last frame.
    pub fn is_behind(&self) -> bool {
        TAKEN.load(Ordering::SeqCst) && self.output.is_behind()
    }

    pub fn catch_up(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    pub fn resize(&mut self, area: Rect) {
        self.frames.resize(area);
    }

    /// Draws a frame. Does nothing while the terminal is restored.
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

pub fn with_screen<T>(
    mouse: bool,
    asks_background: bool,
    work: impl FnOnce(&mut Screen) -> T,
) -> io::Result<T> {
    let mut screen = Screen::take(mouse, asks_background)?;
    Ok(work(&mut screen))
}

/// Waits up to `timeout` for input. Call [`restore`] first.
pub(super) fn has_input(timeout: Duration) -> bool {
    let input = io::stdin();
    let mut polled = [PollFd::new(&input, PollFlags::IN)];
    poll(&mut polled, Timespec::try_from(timeout).ok().as_ref()).is_ok_and(|count| count > 0)
}

pub fn restore() {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    let mut bytes = Vec::new();
    let _ = queue!(
        bytes,
        // A terminal in a synchronized update would not show the following output.
        EndSynchronizedUpdate,
        Print(MOUSE_OFF),
        DisableBracketedPaste,
        ResetColor,
        LeaveAlternateScreen,
        Show
    );
    // Other threads hold the lock only briefly.
    let output = TERMINAL.try_lock().ok().and_then(|terminal| terminal.clone());
    if let Some(output) = output {
        output.write_last(&bytes);
    }
    // In the background, the shell has already reset the modes, and a change would stop gpumem.
    if is_foreground() {
        let _ = disable_raw_mode();
    }
}

/// Makes panics restore the terminal before they print a message.
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

/// Returns columns and rows, or 80 by 24 if the terminal reports no size.
pub fn size() -> (u16, u16) {
    match rustix::termios::tcgetwinsize(rustix::stdio::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
        _ => (80, 24),
    }
}

/// Returns whether the error means that the terminal is gone, for example because its window was closed.
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
