//! Tests of recordings that a real [`Replay`] plays. The tests advance the clock.

use std::collections::HashSet;
use std::path::Path;
use std::time::Instant;

use super::*;
use crate::recording::RecordingReader;
use crate::source::replay::Replay;
use crate::source::{NextSnapshot, Source as _};
use crate::watch::state::timeline::Timeline;
use crate::watch::testing::events;

const LEAK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/corpus/leak_linear-100.jsonl");

/// A recording on the screen. Controls take effect immediately.
struct Reel {
    app: App,
    source: Replay,
    start: Instant,
    now: Duration,
    has_ended: bool,
}

impl Reel {
    fn new(reader: RecordingReader, timeline: Timeline) -> Self {
        let source = Replay::new(reader).at_speed(1.0);
        let mut reel = Self {
            app: screen_of(Some("r.jsonl"), 1, (80, 24)),
            source,
            start: Instant::now(),
            now: Duration::ZERO,
            has_ended: false,
        };
        reel.app.timeline = timeline;
        reel.deliver();
        reel
    }

    /// Plays the recording of a leak in `tests/data`.
    fn with_all_samples() -> Self {
        Self::with_timeline(Timeline::default())
    }

    /// Plays the same recording with a timeline that cannot hold all samples.
    fn with_short_timeline() -> Self {
        Self::with_timeline(Timeline::with_limit(200 << 10))
    }

    fn with_timeline(timeline: Timeline) -> Self {
        Self::new(RecordingReader::open(Path::new(LEAK)).unwrap(), timeline)
    }

    fn send(&mut self, event: Event) {
        let effect = update(&mut self.app, event);
        self.apply(effect);
    }

    fn apply(&mut self, effect: Option<Effect>) {
        if let Some(Effect::Control(control)) = effect {
            self.source.steer(control, self.start + self.now).unwrap();
            self.has_ended = false;
            if control == Control::Rewind {
                self.send(Event::SourceRewound);
            }
        }
    }

    fn deliver_one(&mut self) -> bool {
        let now = self.start + self.now;
        match self.source.due(now).unwrap() {
            NextSnapshot::In(Duration::ZERO) => {
                let snapshot = Box::new(self.source.take(now).unwrap().unwrap());
                self.send(Event::Snapshot { now: self.now, snapshot });
                true
            }
            NextSnapshot::Ended if !self.has_ended => {
                self.has_ended = true;
                self.send(Event::SourceEnded);
                true
            }
            _ => false,
        }
    }

    fn deliver(&mut self) {
        while self.deliver_one() {}
    }

    fn press(&mut self, line: &str) {
        for key in events(line) {
            let effect = press(&mut self.app, key);
            self.apply(effect);
            self.deliver();
        }
    }

    fn seek(&mut self, text: &str) {
        let effect = seek(&mut self.app, text).unwrap();
        self.apply(effect);
        self.deliver();
    }

    fn wait(&mut self, seconds: u64) {
        for _ in 0..seconds * 10 {
            self.now += Duration::from_millis(100);
            let tick = Event::Tick { now: self.now };
            self.send(tick);
            self.deliver();
        }
    }

    fn shown(&self) -> String {
        format!("{:?}", self.app.screenful)
    }

    fn number(&self) -> u64 {
        self.app.playback.shown.unwrap()
    }
}

/// Returns every frame of the leak's recording.
fn all_frames() -> Vec<String> {
    let mut reel = Reel::with_all_samples();
    let mut shown = vec![reel.shown()];
    reel.press("p");
    while reel.app.end.is_none() {
        reel.press("]");
        shown.push(reel.shown());
    }
    // The last step reached only the end of the recording.
    shown.pop();
    shown
}

#[test]
fn going_back_and_forth_shows_the_same_frames() {
    let all_frames = all_frames();
    let count = all_frames.len();
    assert!(count > 50, "{count}");
    assert_eq!(all_frames.iter().collect::<HashSet<_>>().len(), count);
    let mut reel = Reel::with_all_samples();
    reel.seek("end");
    assert_eq!(reel.app.end, Some(End::Complete));
    for number in (0..count).rev() {
        assert_eq!(reel.shown(), all_frames[number], "{number}");
        reel.press("[");
    }
    assert!(note(&reel.app).contains("beginning"), "{}", note(&reel.app));
    for screenful in &all_frames {
        assert_eq!(&reel.shown(), screenful);
        reel.press("]");
    }
}

/// Returns a recording of two boots, with a sample every ten seconds and a damaged line. During the
/// first boot, the clock is set back by an hour. After the second boot, the clock is a day behind.
fn recording_with_clock_changes() -> Vec<u8> {
    let mut bytes = Vec::new();
    for (at, (boot, second)) in (0..20)
        .map(|at| ("a", 200_000 + at * 10))
        .chain((0..20).map(|at| ("a", 196_600 + at * 10)))
        .chain((0..20).map(|at| ("b", 110_000 + at * 10)))
        .enumerate()
    {
        let mut snapshot = sample::snapshot(1, 2);
        snapshot.time = Time::from_unix_milliseconds(second * 1000);
        snapshot.host.boot_id = Some(boot.into());
        sample::entry(&mut snapshot, 0, 1).used_bytes = Some(at as u64);
        serde_json::to_writer(&mut bytes, &snapshot).unwrap();
        bytes.extend(if at == 30 { &b"\n{broken\n"[..] } else { b"\n" });
    }
    bytes
}

#[test]
fn every_sample_is_reached_despite_clock_changes() {
    let reel = |timeline| {
        let bytes = std::io::Cursor::new(recording_with_clock_changes());
        let mut reel = Reel::new(RecordingReader::from_read(bytes, "r.jsonl").unwrap(), timeline);
        reel.press("p");
        reel
    };
    let mut all_frames = Vec::new();
    let mut on = reel(Timeline::default());
    while on.app.end.is_none() {
        all_frames.push(on.shown());
        on.press("]");
    }
    assert_eq!(all_frames.len(), 60);
    for number in (0..60).rev() {
        assert_eq!(on.shown(), all_frames[number], "{number}");
        on.press("[");
    }

    // Leaps stop at the first sample after each clock change, forward and back.
    let mut leaps = reel(Timeline::default());
    let mut on = vec![leaps.number()];
    while leaps.app.end.is_none() && on.len() < 60 {
        leaps.press("}");
        on.push(leaps.number());
    }
    assert_eq!(on[..], [0, 6, 12, 18, 20, 26, 32, 38, 40, 46, 52, 58, 59]);
    let mut back = Vec::new();
    while leaps.number() > 0 && back.len() < 60 {
        leaps.press("{");
        back.push(leaps.number());
    }
    assert_eq!(back[..], [53, 47, 41, 40, 39, 33, 27, 21, 20, 19, 13, 7, 1, 0]);
    // The leaps stay the same when the timeline contains all samples.
    on.remove(0);
    for number in on {
        leaps.press("}");
        assert_eq!(leaps.number(), number);
    }
}

#[test]
fn a_recording_is_read_again_beyond_the_timeline() {
    let all_frames = all_frames();
    let last = all_frames.len() - 1;
    let mut reel = Reel::with_short_timeline();
    reel.seek("end");
    assert!(reel.app.timeline.oldest().unwrap().number > 20);
    for number in (last - 30..last).rev() {
        reel.press("[");
        assert_eq!(reel.shown(), all_frames[number], "{number}");
    }
    reel.seek("start");
    assert_eq!((reel.number(), &reel.shown()), (0, &all_frames[0]));
    assert!(reel.app.playback.is_paused);
    let first = reel.app.shown_time().unwrap();
    reel.seek("end");
    assert_eq!(reel.shown(), all_frames[last]);
    reel.seek(&first.plus_seconds(90.0).to_string());
    let at = usize::try_from(reel.number()).unwrap();
    assert_eq!(reel.shown(), all_frames[at]);
    assert!(reel.app.shown_time().unwrap() >= first.plus_seconds(90.0));
    assert!(at > 0 && at < last);
}

#[test]
fn n_and_shift_n_visit_every_beginning_of_a_finding() {
    let mut reel = Reel::with_short_timeline();
    let mut found = Vec::new();
    loop {
        reel.press("n");
        if reel.app.end.is_some() {
            break;
        }
        assert!(reel.app.playback.is_paused);
        found.push((reel.number(), reel.shown()));
    }
    assert!(!found.is_empty());
    assert!(note(&reel.app).contains("no other finding"), "{}", note(&reel.app));
    for (number, shown) in found.iter().rev() {
        reel.press("N");
        assert_eq!((&reel.number(), &reel.shown()), (number, shown));
    }
    let (first, _) = found[0];
    reel.press("N");
    assert_eq!(reel.number(), first);
}

#[test]
fn playback_resumes_from_an_earlier_sample() {
    let mut reel = Reel::with_all_samples();
    reel.press("p");
    let still = reel.number();
    reel.wait(20);
    assert_eq!(reel.number(), still);
    reel.press("]]]]]]]]]]{");
    let back = reel.number();
    assert!(back < 10);
    reel.press("p");
    assert!(!reel.app.playback.is_paused);
    let mut numbers = vec![back];
    for _ in 0..700 {
        reel.wait(1);
        if numbers.last() != Some(&reel.number()) {
            numbers.push(reel.number());
        }
        if reel.number() > 15 {
            break;
        }
    }
    // The samples come from the timeline and then from the source, without a gap.
    let all: Vec<u64> = (back..=16).collect();
    assert_eq!(numbers, all);
}

#[test]
fn a_time_key_cancels_a_seek() {
    for key in ["p", "[", "]", "{", "n", "L", "<Esc>"] {
        let mut reel = Reel::with_all_samples();
        let effect = seek(&mut reel.app, "end").unwrap();
        reel.apply(effect);
        for _ in 0..7 {
            reel.deliver_one();
        }
        assert!(reel.app.playback.is_seeking() && reel.number() == 0);
        reel.press(key);
        assert!(!reel.app.playback.is_seeking() && reel.app.playback.is_paused);
        assert_eq!((reel.number(), reel.app.end.clone()), (7, None), "{key:?}");
    }
}

#[test]
fn samples_sent_before_a_rewind_are_ignored() {
    let mut reel = Reel::with_short_timeline();
    reel.seek("end");
    let effect = seek(&mut reel.app, "start").unwrap();
    assert_eq!(effect, Some(Effect::Control(Control::Rewind)));
    let late = reel.app.screenful.as_ref().unwrap().snapshot.clone();
    let shown = reel.shown();
    assert_eq!(show_sample(&mut reel.app, 0, late), None);
    assert_eq!(reel.shown(), shown);
    // Cancelling the seek pauses the source, although the rewind is still pending.
    let effect = keys(&mut reel.app, "p");
    assert_eq!(effect, Some(Effect::Control(Control::Playing(false))));
    for control in [Control::Rewind, Control::Playing(false)] {
        reel.source.steer(control, reel.start).unwrap();
    }
    reel.has_ended = false;
    reel.send(Event::SourceRewound);
    reel.deliver();
    assert!(!reel.app.playback.is_seeking());
    assert_eq!((reel.number(), reel.app.playback.is_paused), (0, true));
}

#[test]
fn plus_and_minus_double_and_halve_the_speed() {
    let mut reel = Reel::with_all_samples();
    reel.press("))");
    assert_eq!(reel.app.playback.speed, 4.0);
    reel.press("((((((((((");
    assert_eq!(reel.app.playback.speed, 1.0 / 8.0);
    assert_ne!(note(&reel.app), "");
}

#[test]
fn a_paused_screen_needs_no_tick() {
    let mut reel = Reel::with_all_samples();
    reel.press("p");
    assert_eq!(reel.app.next_tick(), None);
    reel.seek("end");
    assert_eq!(reel.app.next_tick(), None);
    reel.press("[");
    assert_eq!(reel.app.next_tick(), None);
    reel.press("p");
    assert!(reel.app.next_tick().is_some());
}
