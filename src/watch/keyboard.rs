//! The thread that reads keys, clicks, pastes and resizes from the terminal.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use nix::sys::signal::{SigSet, Signal};

use super::theme::Theme;
use super::{TRY_AGAIN, ThreadMessage, WatchError, terminal};
use crate::watch::state::Event;

/// Interval at which the reading thread checks whether another program needs the keyboard.
const POLL: Duration = Duration::from_millis(200);
/// Maximum length of the terminal's answer, such as `11;rgb:ffff/ffff/ffff`.
const ANSWER_MAX: usize = 32;

#[derive(Clone, Default)]
pub(super) struct Pausing(Arc<(Mutex<KeysFor>, Condvar)>);

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum KeysFor {
    #[default]
    Screen,
    /// Another program waits until the reading thread releases the keyboard.
    Wanted,
    Other,
}

impl Pausing {
    /// Stops the reading thread from reading the keyboard while `work` runs.
    pub(super) fn while_paused(&self, work: impl FnOnce()) {
        let (keys, changed) = &*self.0;
        let lock = || keys.lock().unwrap_or_else(PoisonError::into_inner);
        *lock() = KeysFor::Wanted;
        // Without the timeout, gpumem would wait forever if the reading thread had ended.
        drop(changed.wait_timeout_while(lock(), POLL * 5, |keys| *keys == KeysFor::Wanted));
        work();
        *lock() = KeysFor::Screen;
        changed.notify_all();
    }

    fn wait_for_turn(&self) {
        let (keys, changed) = &*self.0;
        let mut keys = keys.lock().unwrap_or_else(PoisonError::into_inner);
        while *keys != KeysFor::Screen {
            *keys = KeysFor::Other;
            changed.notify_all();
            keys = changed.wait(keys).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Sends events until the channel closes or the terminal cannot be read. Pauses during [`Pausing::while_paused`].
pub(super) fn read(start: Instant, sender: &SyncSender<ThreadMessage>, pausing: Option<&Pausing>) {
    fail_in_background();
    let mut is_last_try = false;
    let mut answer = BackgroundAnswer::default();
    loop {
        if let Some(pausing) = pausing {
            pausing.wait_for_turn();
            if let Ok(false) = crossterm::event::poll(POLL) {
                continue;
            }
        }
        let read = crossterm::event::read();
        if let Err(error) = &read
            && terminal::is_gone(error)
            && !is_last_try
        {
            // A read fails if gpumem is in the background or the terminal is gone. In the
            // foreground, try once more: gpumem may have been moved there after the read.
            is_last_try = terminal::is_foreground();
            thread::sleep(TRY_AGAIN);
            continue;
        }
        is_last_try = false;
        let message = match read {
            Ok(crossterm::event::Event::Key(key)) if answer.takes(key) => {
                let Some(theme) = answer.theme.take() else { continue };
                ThreadMessage::Event(Event::Background(theme))
            }
            Ok(crossterm::event::Event::Key(key)) => {
                let mut keys = pressed(key).map(|key| ThreadMessage::Event(Event::Key(key)));
                if keys.try_for_each(|key| sender.send(key)).is_err() {
                    return;
                }
                continue;
            }
            Ok(crossterm::event::Event::Mouse(event)) => {
                let now = start.elapsed();
                ThreadMessage::Event(Event::Mouse { now, event })
            }
            Ok(crossterm::event::Event::Paste(text)) => ThreadMessage::Event(Event::Paste(text)),
            Ok(crossterm::event::Event::Resize(..)) => {
                let (columns, rows) = terminal::size();
                ThreadMessage::Event(Event::Resize(columns, rows))
            }
            Ok(_) => continue,
            Err(error) => ThreadMessage::Failed(WatchError::Keyboard(error)),
        };
        let failed = matches!(message, ThreadMessage::Failed(_));
        if sender.send(message).is_err() || failed {
            return;
        }
    }
}

/// Makes reads fail with `EIO` in the background instead of raising SIGTTIN. A stopped gpumem would
/// react to a termination signal only after it is continued.
fn fail_in_background() {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTTIN);
    let _ = signals.thread_block();
}

/// The terminal's answer about its background: `ESC ] 11 ; rgb:R/G/B`, then `BEL` or `ESC \`. crossterm reports the
/// answer as keys. The answer can arrive at any time, or never.
#[derive(Default)]
struct BackgroundAnswer {
    /// The characters received after the first key of an answer, or `None` outside an answer.
    text: Option<String>,
    theme: Option<Theme>,
}

impl BackgroundAnswer {
    /// Returns whether the key is part of the answer. The last key sets the theme.
    fn takes(&mut self, key: KeyEvent) -> bool {
        let KeyCode::Char(c) = key.code else { return false };
        let Some(text) = &mut self.text else {
            let is_start = c == ']' && key.modifiers == KeyModifiers::ALT;
            self.text = is_start.then(String::new);
            return is_start;
        };
        if text.len() < ANSWER_MAX
            && (c.is_ascii_hexdigit() || matches!(c, ';' | ':' | '/' | 'r' | 'g'))
            && key.modifiers.is_empty()
        {
            text.push(c);
            return true;
        }
        self.theme = Theme::of_background(text);
        self.text = None;
        self.theme.is_some()
    }
}

/// Splits Alt with a character into Esc and the character: terminals send the same bytes for both,
/// and no binding uses Alt.
fn pressed(key: KeyEvent) -> impl Iterator<Item = KeyEvent> {
    let is_second =
        key.modifiers.contains(KeyModifiers::ALT) && matches!(key.code, KeyCode::Char(_));
    let esc = is_second.then(|| KeyEvent::from(KeyCode::Esc));
    let modifiers = match is_second {
        true => key.modifiers - KeyModifiers::ALT,
        false => key.modifiers,
    };
    esc.into_iter().chain([KeyEvent { modifiers, ..key }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_about_the_background_presses_no_key() {
        let alt = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::ALT);
        let key = |c| KeyEvent::from(KeyCode::Char(c));
        let bell = KeyEvent::new(KeyCode::Char('g'), KeyModifiers::CONTROL);
        let answer = |color: &str, end| {
            let text: Vec<KeyEvent> = color.chars().map(key).collect();
            [&[alt(']')][..], &text, &[end]].concat()
        };
        let mut background = BackgroundAnswer::default();
        for (color, end, theme) in [
            ("11;rgb:ffff/ffff/dddd", alt('\\'), Theme::Light),
            ("11;rgb:1e/1e/2e", bell, Theme::Terminal),
            ("11;rgba:f/f/e/f", bell, Theme::Light),
        ] {
            for key in answer(color, end) {
                assert!(background.takes(key), "{color} {key:?}");
            }
            assert_eq!(background.theme.take(), Some(theme), "{color}");
        }
        assert!(!background.takes(key('x')) && !background.takes(bell));
        // After the user presses Alt-], keys that cannot be part of an answer still work.
        assert!(background.takes(alt(']')) && !background.takes(key('x')));
        assert!(!background.takes(key('b')) && background.theme.is_none());
    }

    #[test]
    fn alt_with_a_character_is_split_into_two_keys() {
        let keys = |code, modifiers| pressed(KeyEvent::new(code, modifiers)).collect::<Vec<_>>();
        let q = KeyEvent::from(KeyCode::Char('q'));
        let alt = KeyModifiers::ALT;
        assert_eq!(keys(q.code, alt), [KeyCode::Esc.into(), q]);
        assert_eq!(keys(q.code, KeyModifiers::NONE), [q]);
        let control = KeyModifiers::CONTROL;
        let both = keys(q.code, alt | control);
        assert_eq!(both[1], KeyEvent::new(q.code, control));
        // A terminal sends Alt with an arrow key as a single escape sequence.
        assert_eq!(keys(KeyCode::Up, alt), [KeyEvent::new(KeyCode::Up, alt)]);
    }
}
