//! Series are bounded, and keep what a chart needs.

use super::*;
use crate::history::testing::Scene;
use crate::units::GIB;

fn series(values: impl IntoIterator<Item = (i64, u64)>) -> MemorySeries {
    let mut course = MemorySeries::default();
    for (seconds, bytes) in values {
        let time = Time::from_unix_milliseconds(seconds * 1000);
        let sample = SeriesSample { time, vouched: 60_000, most: MOST_BUCKETS };
        course.observe(sample, Some(bytes), None);
    }
    course
}

#[test]
fn a_series_is_bounded_and_keeps_every_peak_and_the_ends() {
    let bytes = |second: i64| match second {
        7777 => 9 * GIB,
        second => GIB + (second as u64 % 2) * GIB,
    };
    let course = series((0..20_000).map(|second| (second, bytes(second))));
    let buckets = course.buckets();
    assert!(buckets.len() <= MOST_BUCKETS && buckets.len() >= MOST_BUCKETS / 4);
    assert_eq!(course.samples(), 20_000);
    assert_eq!(buckets[0].since.unix_seconds(), 0);
    assert_eq!(buckets[buckets.len() - 1].until.unix_seconds(), 19_999);
    let peak: Vec<_> = buckets.iter().filter(|b| b.high > 2 * GIB).collect();
    assert_eq!(peak.len(), 1);
    assert!(peak[0].since.unix_seconds() <= 7777 && 7777 <= peak[0].until.unix_seconds());
    assert!(buckets.windows(2).all(|two| two[0].until < two[1].since));
}

#[test]
fn many_series_are_coarser_and_keep_every_peak() {
    let all_series = |processes: u32| {
        let mut scene = Scene::new(1, 1.0);
        for pid in 1..=processes {
            scene.holder(pid, &[0], GIB);
        }
        let mut courses = Courses::default();
        for second in 0..200 {
            for pid in 1..=processes {
                scene.row(0, pid).used_bytes = Some((1 + second % 2) * GIB);
            }
            if second == 77 {
                scene.row(0, 1).used_bytes = Some(3 * GIB);
            }
            courses.observe(scene.step());
        }
        courses
    };
    let total = |courses: &Courses| {
        let rows = courses.rows.values();
        rows.map(|course| course.buckets().len()).sum::<usize>()
    };
    let few = all_series(10);
    assert!(total(&few) > 10 * MOST_BUCKETS / 4);
    let many = all_series(600);
    assert!(total(&many) <= SHARED_BUCKETS && total(&many) >= 600 * LEAST_BUCKETS / 4);
    let highest = |courses: &Courses| {
        let buckets = courses.rows.values().flat_map(MemorySeries::buckets);
        buckets.map(|bucket| bucket.high).max()
    };
    assert_eq!([highest(&few), highest(&many)], [Some(3 * GIB); 2]);
}

#[test]
fn gpu_use_is_a_bounded_series_too() {
    let mut scene = Scene::new(1, 1.0);
    scene.holder(7, &[0], GIB);
    let mut courses = Courses::default();
    for second in 0..1000 {
        scene.gpu(0).gpu_percent = (second % 4 > 0).then_some(30 + second % 4 * 10);
        courses.observe(scene.step());
    }
    let now = scene.step();
    let course = courses.gpu(&now.gpus[0]).unwrap();
    let loads = course.loads();
    assert!(loads.len() <= MOST_BUCKETS && loads.len() >= MOST_BUCKETS / 4);
    assert!(loads.windows(2).all(|two| two[0].until < two[1].since));
    let samples: u64 = loads.iter().map(|load| u64::from(load.samples)).sum();
    assert_eq!(samples, 750, "what is not told is no sample");
    let row = &now.gpus[0].processes.as_ref().unwrap()[0];
    let row = courses.row(now.processes[0].identity(), &now.gpus[0], row);
    let of_process = row.unwrap().loads();
    assert!(!of_process.is_empty() && of_process.len() <= MOST_BUCKETS);
}

#[test]
fn a_reused_pid_starts_a_new_series() {
    let mut scene = Scene::new(1, 1.0);
    scene.holder(7, &[0], GIB);
    let mut courses = Courses::default();
    courses.observe(scene.step());
    scene.process(7).start_ticks = Some(99);
    let now = scene.step();
    courses.observe(now);
    let (gpu, who) = (&now.gpus[0], now.processes[0].identity());
    let row = &gpu.processes.as_ref().unwrap()[0];
    assert_eq!(courses.row(who, gpu, row).unwrap().samples(), 1);
    assert_eq!(courses.last_on_gpu(7), Some((now.time, 0)));
    assert_eq!(courses.last_on_gpu(8), None);
}

#[test]
fn an_unknown_value_is_no_sample_and_a_silent_gpu_no_news() {
    let mut scene = Scene::new(1, 1.0);
    scene.holder(7, &[0], GIB);
    scene.row(0, 7).used_bytes = None;
    let mut courses = Courses::default();
    courses.observe(scene.step());
    scene.gpu(0).stale_seconds = Some(3.0);
    scene.row(0, 7).used_bytes = Some(GIB);
    let now = scene.step();
    courses.observe(now);
    let (gpu, who) = (&now.gpus[0], now.processes[0].identity());
    let course = courses.row(who, gpu, &gpu.processes.as_ref().unwrap()[0]);
    assert_eq!(course.unwrap().samples(), 0);
    assert!(course.unwrap().last_seen() < Some(now.time));
}

#[test]
fn it_restarts_with_the_history_and_skips_the_same_snapshots() {
    let mut scene = Scene::new(1, 1.0);
    scene.memory(0, GIB, 80 * GIB);
    let (mut history, mut courses) = (History::default(), Courses::default());
    let mut see = |snapshot: &Snapshot| {
        history.observe(snapshot);
        courses.follow(&history, snapshot);
        let course = courses.gpu(&snapshot.gpus[0]);
        course.map(MemorySeries::samples)
    };
    let early = scene.step().clone();
    see(&early);
    assert_eq!(see(scene.step()), Some(2));
    assert_eq!(see(&early), Some(2), "its clock is behind");
    let mut next = scene.step().clone();
    next.host.boot_id = Some("another boot".into());
    assert_eq!(see(&next), Some(1));
}
