//! Tests with recordings that a real source plays, and a manual clock.

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

/// A recording as the screen plays it; controls take effect at once.
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

    /// The recording of a leak in `tests/data`.
    fn whole() -> Self {
        Self::on(Timeline::default())
    }

    /// The same recording, with a timeline of a few samples.
    fn short() -> Self {
        Self::on(Timeline::of(200 << 10))
    }

    fn on(timeline: Timeline) -> Self {
        Self::new(RecordingReader::open(Path::new(LEAK)).unwrap(), timeline)
    }

    fn send(&mut self, event: Event) {
        let effect = update(&mut self.app, event);
        self.obey(effect);
    }

    fn obey(&mut self, effect: Option<Effect>) {
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
            self.obey(effect);
            self.deliver();
        }
    }

    fn seek(&mut self, text: &str) {
        let effect = seek(&mut self.app, text).unwrap();
        self.obey(effect);
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

/// Every frame of the leak, played without interruption.
fn straight() -> Vec<String> {
    let mut reel = Reel::whole();
    let mut shown = vec![reel.shown()];
    reel.press("p");
    while reel.app.end.is_none() {
        reel.press("]");
        shown.push(reel.shown());
    }
    // The last step only reached the end.
    shown.pop();
    shown
}

#[test]
fn going_back_and_forth_shows_the_same_frames() {
    let straight = straight();
    let count = straight.len();
    assert!(count > 50, "{count}");
    assert_eq!(straight.iter().collect::<HashSet<_>>().len(), count);
    let mut reel = Reel::whole();
    reel.seek("end");
    assert_eq!(reel.app.end, Some(End::Complete));
    for number in (0..count).rev() {
        assert_eq!(reel.shown(), straight[number], "{number}");
        reel.press("[");
    }
    assert!(note(&reel.app).contains("beginning"), "{}", note(&reel.app));
    for screenful in &straight {
        assert_eq!(&reel.shown(), screenful);
        reel.press("]");
    }
}

/// A sample every ten seconds, from two boots. During the first, the clock is set back by an hour; the clock of the
/// second is a day off. One line in between is damaged.
fn crooked() -> Vec<u8> {
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
fn every_sample_is_reached_although_the_clock_was_set_back() {
    let reel = |timeline| {
        let bytes = std::io::Cursor::new(crooked());
        let mut reel = Reel::new(RecordingReader::from_read(bytes, "r.jsonl").unwrap(), timeline);
        reel.press("p");
        reel
    };
    let mut straight = Vec::new();
    let mut on = reel(Timeline::default());
    while on.app.end.is_none() {
        straight.push(on.shown());
        on.press("]");
    }
    assert_eq!(straight.len(), 60);
    for number in (0..60).rev() {
        assert_eq!(on.shown(), straight[number], "{number}");
        on.press("[");
    }

    // From 0 to the first sample after each clock change, to the end, and back.
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
    // The same when the timeline contains all samples.
    on.remove(0);
    for number in on {
        leaps.press("}");
        assert_eq!(leaps.number(), number);
    }
}

#[test]
fn beyond_the_timeline_a_recording_is_read_again() {
    let straight = straight();
    let last = straight.len() - 1;
    let mut reel = Reel::short();
    reel.seek("end");
    assert!(reel.app.timeline.oldest().unwrap().number > 20);
    for number in (last - 30..last).rev() {
        reel.press("[");
        assert_eq!(reel.shown(), straight[number], "{number}");
    }
    reel.seek("start");
    assert_eq!((reel.number(), &reel.shown()), (0, &straight[0]));
    assert!(reel.app.playback.is_paused);
    let first = reel.app.shown_time().unwrap();
    reel.seek("end");
    assert_eq!(reel.shown(), straight[last]);
    reel.seek(&first.plus_seconds(90.0).to_string());
    let at = usize::try_from(reel.number()).unwrap();
    assert_eq!(reel.shown(), straight[at]);
    assert!(reel.app.shown_time().unwrap() >= first.plus_seconds(90.0));
    assert!(at > 0 && at < last);
}

#[test]
fn findings_are_found_one_after_the_other_and_back_again() {
    let mut reel = Reel::short();
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
fn a_recording_plays_on_from_where_a_person_went_back_to() {
    let mut reel = Reel::whole();
    reel.press("p");
    let still = reel.number();
    reel.wait(20);
    assert_eq!(reel.number(), still);
    reel.press("]]]]]]]]]]{");
    let back = reel.number();
    assert!(back < 10);
    reel.press("p");
    assert!(!reel.app.playback.is_paused);
    let mut seen = vec![back];
    for _ in 0..700 {
        reel.wait(1);
        if seen.last() != Some(&reel.number()) {
            seen.push(reel.number());
        }
        if reel.number() > 15 {
            break;
        }
    }
    // From the timeline, then from the source, without gaps.
    let all: Vec<u64> = (back..=16).collect();
    assert_eq!(seen, all);
}

#[test]
fn a_time_key_cancels_a_seek() {
    for key in ["p", "[", "]", "{", "n", "L", "<Esc>"] {
        let mut reel = Reel::whole();
        let effect = seek(&mut reel.app, "end").unwrap();
        reel.obey(effect);
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
    let mut reel = Reel::short();
    reel.seek("end");
    let effect = seek(&mut reel.app, "start").unwrap();
    assert_eq!(effect, Some(Effect::Control(Control::Rewind)));
    let late = reel.app.screenful.as_ref().unwrap().snapshot.clone();
    let shown = reel.shown();
    assert_eq!(see(&mut reel.app, 0, late), None);
    assert_eq!(reel.shown(), shown);
    // After a cancelled seek, the source is told to stop before the next control.
    let given_up = keys(&mut reel.app, "p");
    assert_eq!(given_up, Some(Effect::Control(Control::Playing(false))));
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
fn a_pipe_that_cannot_be_read_again_is_noted() {
    let bytes = std::fs::read(LEAK).unwrap();
    let reader = RecordingReader::from_read(std::io::Cursor::new(bytes), "standard input").unwrap();
    let mut reel = Reel::new(reader, Timeline::of(200 << 10));
    reel.app.setup.replay = Some("standard input".to_owned());
    reel.app.playback.can_rewind = false;
    reel.seek("end");
    let oldest = reel.app.timeline.oldest().unwrap();
    reel.seek("start");
    assert_eq!(reel.number(), oldest.number);
    reel.press("[");
    assert!(note(&reel.app).contains("standard input cannot be read again"));
    let error = seek(&mut reel.app, "-1h").unwrap_err();
    assert!(error.contains("is kept"), "{error}");
}

#[test]
fn plus_and_minus_double_and_halve_the_speed() {
    let mut reel = Reel::whole();
    reel.press("++");
    assert_eq!(reel.app.playback.speed, 4.0);
    reel.press("----------");
    assert_eq!(reel.app.playback.speed, 1.0 / 8.0);
    assert_ne!(note(&reel.app), "");
}

#[test]
fn a_paused_screen_has_nothing_to_wait_for() {
    let mut reel = Reel::whole();
    reel.press("p");
    assert_eq!(reel.app.next_tick(), None);
    reel.seek("end");
    assert_eq!(reel.app.next_tick(), None);
    reel.press("[");
    assert_eq!(reel.app.next_tick(), None);
    // The timeline plays, so a sample is due.
    reel.press("p");
    assert!(reel.app.next_tick().is_some());
}
