//! Filters as they are typed, and what they keep.

use super::*;
use crate::history::course::Courses;
use crate::model::snapshot::{Jupyter, ProcessType, Slurm};
use crate::watch::column::Column;
use crate::watch::picture::{Picture, Sort};
use crate::watch::sample;

fn filter(text: &str) -> Filter {
    Filter::parse(text).unwrap().unwrap()
}

fn error(text: &str) -> String {
    Filter::parse(text).unwrap_err().to_string()
}

/// One GPU with five processes: 4000 of ann (idle, a Slurm job), 4001 of bob, 4002 of hana in a
/// container, 4003 of ann as unresolved, and 3999, unlisted, of ann, with the files of GPUs 0 and 1.
fn picture() -> Picture {
    let mut snapshot = sample::snapshot(2, 4);
    snapshot.gpus[1].processes = Some(Vec::new());
    snapshot.processes.truncate(4);
    sample::hide(&mut snapshot);
    snapshot.processes[0].slurm = Some(
        Slurm {
            job_id: Some("812".into()),
            ..Slurm::default()
        }
        .into(),
    );
    snapshot.processes[1].cpu_percent = None;
    snapshot.processes[1].jupyter = Some(
        Jupyter {
            notebook_path: Some("reports/Q3 Überblick.ipynb".into()),
            ..Jupyter::default()
        }
        .into(),
    );
    snapshot.processes[2].container = snapshot.processes[4].container.clone();
    snapshot.processes[3].unresolved = Some("of another namespace".into());
    sample::entry(&mut snapshot, 0, 2).kind = ProcessType::ComputeGraphics;
    let time = snapshot.time;
    let findings = vec![sample::finding(&snapshot, 0, 0)];
    Picture::new(snapshot, findings, Vec::new(), |identity, _| {
        (identity.pid == 4000).then(|| time.plus_seconds(-1790.0))
    })
}

fn fitting(text: &str) -> Vec<u32> {
    let picture = picture();
    let me = Me {
        uid: None,
        name: Some("bob".into()),
    };
    let filter = filter(text);
    let sort = Sort {
        column: Column::Pid,
        reversed: false,
    };
    let order = picture.order(sort, &Courses::default()).into_iter();
    order
        .filter_map(|at| picture.subject(at))
        .filter(|subject| filter.fits(subject, &me))
        .map(|subject| subject.row.key.identity.pid)
        .collect()
}

#[test]
fn words_fit_wherever_the_row_says_them() {
    for (text, pids) in [
        ("ANN", &[3999, 4000][..]),
        ("train.py", &[4000]),
        ("überblick", &[4001]),
        ("idle", &[4000]),
        ("4002", &[4002]),
        ("h100", &[3999, 4000, 4001, 4002, 4003]),
        ("namespace", &[4003]),
        ("812", &[4000]),
        ("bert", &[3999, 4002]),
        ("h100 bert", &[3999, 4002]),
        ("\"python train.py\"", &[4000]),
        ("!h100", &[]),
        ("-h100", &[]),
        ("!python", &[4003]),
        ("nowhere", &[]),
    ] {
        assert_eq!(fitting(text), pids, "{text}");
    }
}

#[test]
fn terms_look_at_one_thing() {
    for (text, pids) in [
        ("user:ann", &[3999, 4000][..]),
        ("user:an,HANA", &[3999, 4000, 4002]),
        ("user=an", &[]),
        ("gpu:0", &[3999, 4000, 4001, 4002, 4003]),
        ("gpu:1", &[3999]),
        ("gpu:7", &[]),
        ("gpu:h100", &[3999, 4000, 4001, 4002, 4003]),
        ("gpu>=1", &[]),
        ("pid:4001", &[4001]),
        ("pid:17", &[3999]),
        ("pid>4001", &[4002, 4003]),
        ("job:812", &[4000]),
        ("notebook:q3", &[4001]),
        ("notebook:\"q3 ü\"", &[4001]),
        ("container:bert", &[3999, 4002]),
        ("finding:idle", &[4000]),
        ("finding:any", &[4000]),
        ("finding:leak", &[]),
        ("state:stopped", &[]),
        ("state:sleep", &[3999, 4000]),
        ("state:R", &[4001]),
        ("kind:graphics", &[4002]),
        ("kind:compute", &[4000, 4001, 4002, 4003]),
        ("is:mine", &[4001]),
        ("is:unlisted", &[3999]),
        ("name:python3", &[3999, 4000, 4001, 4002]),
        ("cmd:ipykernel", &[4001]),
        ("framework:2.9", &[3999]),
    ] {
        assert_eq!(fitting(text), pids, "{text}");
    }
}

#[test]
fn numbers_are_compared_in_their_units() {
    for (text, pids) in [
        ("mem>4GiB", &[4001, 4002, 4003][..]),
        ("mem>=6GiB", &[4001, 4002, 4003]),
        ("mem<50%", &[4000, 4001, 4002, 4003]),
        ("mem>10%", &[4002, 4003]),
        ("mem=3GiB", &[4000]),
        ("sm<5", &[4000, 4002]),
        ("sm=41", &[4001]),
        ("sm:0%", &[4000, 4002]),
        ("cpu>100", &[4002]),
        ("rss>2200MiB", &[4002]),
        ("idle>10m", &[4000]),
        ("idle=1790s", &[4000]),
        ("runtime>2h", &[]),
        ("runtime<5m", &[3999, 4000]),
    ] {
        assert_eq!(fitting(text), pids, "{text}");
    }
}

#[test]
fn what_is_not_known_fits_neither_a_term_nor_the_term_turned_around() {
    // cpu of 4001 is not known; all of 4003; the memory and use of 3999.
    for (text, pids) in [
        ("cpu>=0", &[3999, 4000, 4002][..]),
        ("!cpu>100", &[3999, 4000]),
        ("!user:ann", &[4001, 4002]),
        ("!mem>4GiB", &[4000]),
        ("!idle>10m", &[4001, 4003]),
        ("-is:mine", &[3999, 4000, 4002]),
        ("!kind:graphics", &[4000, 4001, 4003]),
        // Of these it is known that they are in none.
        ("!container:bert", &[4000, 4001]),
        ("!finding:any", &[3999, 4001, 4002, 4003]),
    ] {
        assert_eq!(fitting(text), pids, "{text}");
    }
}

#[test]
fn an_error_says_what_would_be_right() {
    for (text, message) in [
        ("user:", "user: needs a value; write user:ann,bob"),
        ("!", "! needs a value; write !user:ann"),
        ("gpu:,", "gpu:, needs a value; write gpu:0"),
        (
            "idle>10",
            "idle: \"10\" is not a duration; write 30s, 10m, 2h or 1h30m",
        ),
        (
            "mem>x",
            "mem: \"x\" is not a size or a share from 0% to 100%; write 8GiB, 512MiB or 90%",
        ),
        (
            "mem>20",
            "mem: \"20\" has no unit; write 20GiB, 20MiB or 20%",
        ),
        ("rss>1", "rss: \"1\" has no unit; write 1GiB or 1MiB"),
        ("sm<few", "sm: \"few\" is not a number; write sm<5"),
        ("sm<inf", "sm: \"inf\" is not a number; write sm<5"),
        ("pid:-1", "pid: \"-1\" is not a number; write pid:4242"),
        ("user>ann", "user cannot be compared; write user:ann,bob"),
        (
            "is:yours",
            "no is begins with \"yours\"; there are mine unlisted",
        ),
    ] {
        assert_eq!(error(text), message);
    }
    assert!(error("usr:ann").starts_with("no term is called \"usr\""));
    assert!(error("finding:bored").contains("there are dead stuck"));
    assert!(error("state:bored").contains("there are running"));
}

#[test]
fn what_only_looks_like_a_term_is_text() {
    for text in [
        "10:04",
        "--lr=3",
        "key=value",
        "\"user:\"",
        "/a:b",
        "日本:x",
    ] {
        assert!(
            matches!(
                filter(text).terms[..],
                [Term {
                    test: Test::Word(_),
                    ..
                }]
            ),
            "{text}"
        );
    }
    for text in ["", "  ", "\"\"", "\u{3000}"] {
        assert_eq!(Filter::parse(text), Ok(None), "{text:?}");
    }
}

#[test]
fn every_example_of_the_table_is_a_filter() {
    for spec in TERMS {
        let example = filter(spec.example);
        assert_eq!(example.to_string(), spec.example);
        for name in spec.names {
            assert!(is_begun(name) && is_begun(&name[..1]), "{name}");
        }
    }
    for text in ["", "us ", "user:", "\"us\"", "nothing"] {
        assert!(!is_begun(text), "{text}");
    }
    assert!(is_begun("gpu:0 !us"));
    for (text, finished) in [
        ("gpu:0 us", "gpu:0 "),
        ("us", ""),
        ("gpu:0 ", ""),
        ("a \"b c", "a "),
        ("", ""),
    ] {
        assert_eq!(without_last(text), finished, "{text}");
    }
}

/// A small generator with a seed (xorshift), so that a failure can be repeated.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }
}

#[test]
fn any_text_is_a_filter_or_an_error_and_a_filter_is_its_text() {
    const PIECES: [&str; 38] = [
        "user", "gpu", "pid", "mem", "idle", "sm", "is", "finding", "state", "kind", ":", ":", "<",
        ">", "=", "!", "-", ",", "\"", "\\", " ", " ", "\t", "0", "17", "4GiB", "50%", "10m",
        "mine", "any", "T", "日本", "e\u{301}", "\u{202e}", "\x1b", "\0", "x", "\u{3000}",
    ];
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let mut filters = 0;
    for _ in 0..50_000 {
        let count = dice.roll(10);
        let text: String = (0..count)
            .map(|_| PIECES[dice.roll(PIECES.len())])
            .collect();
        is_begun(&text);
        if let Ok(Some(filter)) = Filter::parse(&text) {
            filters += 1;
            let shown = filter.to_string();
            assert_eq!(
                Filter::parse(&shown),
                Ok(Some(filter)),
                "{text:?}: {shown:?}"
            );
        }
    }
    assert!(filters > 10_000, "{filters}");
}
