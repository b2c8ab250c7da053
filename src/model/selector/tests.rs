//! Tests which rows a typed selector matches.

use super::*;
use crate::model::dice::Dice;
use crate::model::row::places;
use crate::model::snapshot::{Jupyter, ProcessType, Slurm};
use crate::watch::sample;

fn selector(text: &str) -> Selector {
    Selector::parse(text).unwrap().unwrap()
}

fn error(text: &str) -> String {
    Selector::parse(text).unwrap_err().to_string()
}

/// Returns a snapshot of five processes: 4000 of ann (idle, in a Slurm job), 4001 of bob, 4002 of hana (in a
/// container), 4003 of ann (unresolved), and 3999 of ann (unlisted, with the files of GPUs 0 and 1 open).
fn machine() -> (Snapshot, Vec<Finding>) {
    let mut snapshot = sample::snapshot(2, 4);
    snapshot.gpus[1].processes = Some(Vec::new());
    snapshot.processes.truncate(4);
    snapshot.processes[0].uid = Some(1000);
    sample::hide(&mut snapshot);
    snapshot.processes[0].slurm =
        Some(Slurm { job_id: Some("812".into()), ..Slurm::default() }.into());
    snapshot.processes[1].cpu_percent = None;
    snapshot.processes[1].jupyter = Some(
        Jupyter { notebook_path: Some("reports/Q3 Überblick.ipynb".into()), ..Jupyter::default() }
            .into(),
    );
    snapshot.processes[2].container = snapshot.processes[4].container.clone();
    snapshot.processes[3].unresolved = Some("of another namespace".into());
    sample::entry(&mut snapshot, 0, 2).kind = ProcessType::ComputeGraphics;
    let findings = vec![sample::finding(&snapshot, 0, 0)];
    (snapshot, findings)
}

/// Returns the rows, sorted by pid. Process 4000 has been idle for 1790 s.
fn rows<'a>((snapshot, findings): &'a (Snapshot, Vec<Finding>)) -> Vec<ProcessRow<'a>> {
    let row_places = places(snapshot, findings).into_iter();
    let mut rows: Vec<ProcessRow<'_>> = row_places
        .map(|place| {
            ProcessRow::new(snapshot, findings, place).idle(|identity, _| {
                (identity.pid == 4000).then(|| snapshot.time.plus_seconds(-1790.0))
            })
        })
        .collect();
    rows.sort_by_key(ProcessRow::pid);
    rows
}

fn me() -> CurrentUser {
    CurrentUser { uid: None, name: Some("bob".into()) }
}

fn fitting_in(machine: &(Snapshot, Vec<Finding>), text: &str) -> Vec<u32> {
    let selector = selector(text);
    let rows = rows(machine).into_iter();
    rows.filter(|row| selector.fits(row, &me())).filter_map(|row| row.pid()).collect()
}

fn fitting(text: &str) -> Vec<u32> {
    fitting_in(&machine(), text)
}

#[test]
fn words_match_anywhere_in_the_row() {
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
fn terms_match_one_field() {
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
        // Users can be selected by uid. Prefixes of UUIDs are compared case-insensitively.
        ("user:1000", &[4000]),
        ("user=ann,1000", &[3999, 4000]),
        ("user=ANN", &[]),
        ("user:ANN", &[3999, 4000]),
        ("gpu:gpu-0000", &[3999, 4000, 4001, 4002, 4003]),
        ("gpu:GPU-0001", &[3999]),
        ("gpu:gpu-000", &[3999, 4000, 4001, 4002, 4003]),
        ("gpu:GPU-9", &[]),
        ("gpu=gpu-000", &[]),
        ("gpu:7,h100", &[3999, 4000, 4001, 4002, 4003]),
        ("gpu:1,nothing", &[3999]),
        // After `:`, a pattern can match anywhere in the text.
        ("cmd:ipy*ch*", &[4001]),
        ("name=py*n3*", &[3999, 4000, 4001, 4002]),
        ("name=py?on", &[]),
        ("user=a*,1000", &[3999, 4000]),
        ("user=A*", &[]),
        ("!user=a*", &[4001, 4002]),
        ("gpu=gpu-0001*", &[3999]),
        ("gpu:h?00", &[3999, 4000, 4001, 4002, 4003]),
        ("state:sl*g", &[3999, 4000]),
        ("ipy*ch*", &[4001]),
        ("cmd:\"ipy*ch*\"", &[]),
        ("cmd:\"[a]\"", &[]),
        ("\"ipy*ch*\"", &[]),
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
fn an_unknown_value_matches_neither_a_term_nor_its_negation() {
    // Unknown values are the CPU use of 4001, all data about 4003 from /proc, and the memory and GPU use of 3999.
    for (text, pids) in [
        ("cpu>=0", &[3999, 4000, 4002][..]),
        ("!cpu>100", &[3999, 4000]),
        ("!user:ann", &[4001, 4002]),
        ("!mem>4GiB", &[4000]),
        ("!idle>10m", &[4001, 4003]),
        ("-is:mine", &[3999, 4000, 4002]),
        ("!kind:graphics", &[4000, 4001, 4003]),
        // Processes 4000 and 4001 are known to be in no container.
        ("!container:bert", &[4000, 4001]),
        ("!finding:any", &[3999, 4001, 4002, 4003]),
    ] {
        assert_eq!(fitting(text), pids, "{text}");
    }
}

#[test]
fn an_error_names_valid_input() {
    for (text, message) in [
        ("user:", "user: needs a value; write user:ann,bob"),
        ("!", "! needs a value; write !user:ann"),
        ("gpu:,", "gpu:, needs a value; write gpu:0"),
        ("idle>10", "idle: \"10\" is not a duration; write 30s, 10m, 2h or 1h30m"),
        ("mem>x", "mem: \"x\" is not a size or a share from 0% to 100%; write 8GiB, 512MiB or 90%"),
        ("rss>1", "rss: \"1\" is not a size; write 8GiB, 512MiB or 4096B"),
        ("sm<few", "sm: \"few\" is not a number; write sm<5"),
        ("sm<inf", "sm: \"inf\" is not a number; write sm<5"),
        ("pid:-1", "pid: \"-1\" is not a number; write pid:4242"),
        ("user>ann", "user cannot be compared; write user:ann,bob"),
        (
            "command:train[0-9]",
            "command: '[' is not a wildcard; use * for any text and ? for one character, or put \"quotes\" around plain text",
        ),
        ("is:yours", "is: no value begins with \"yours\"; use one of: mine, unlisted"),
    ] {
        assert_eq!(error(text), message);
    }
    assert!(error("usr:ann").starts_with("unknown field \"usr\"; did you mean user?; put"));
    assert!(error("memroy>1GiB").contains("; did you mean memory?;"));
    assert!(error("zzz:1").starts_with("unknown field \"zzz\"; put"));
    assert!(error("finding:bored").contains("use one of: dead, stuck"));
    assert!(error("state:bored").contains("use one of: running"));
}

#[test]
fn text_that_resembles_a_term_is_a_word() {
    for text in ["10:04", "--lr=3", "key=value", "\"user:\"", "/a:b", "日本:x"] {
        assert!(matches!(selector(text).terms[..], [Term { test: Test::Word(_), .. }]), "{text}");
    }
    for text in ["", "  ", "\"\"", "\u{3000}"] {
        assert_eq!(Selector::parse(text), Ok(None), "{text:?}");
    }
}

#[test]
fn every_example_of_the_table_is_a_selector() {
    for spec in selectable() {
        selector(spec.example);
        for &name in spec.names {
            assert!(is_begun(name) && is_begun(&name[..1]), "{name}");
        }
    }
    for text in ["", "us ", "user:", "\"us\"", "nothing"] {
        assert!(!is_begun(text), "{text}");
    }
    assert!(is_begun("gpu:0 !us"));
    for (text, finished) in
        [("gpu:0 us", "gpu:0 "), ("us", ""), ("gpu:0 ", ""), ("a \"b c", "a "), ("", "")]
    {
        assert_eq!(without_last(text), finished, "{text}");
    }
}

#[test]
fn any_text_is_a_selector_or_an_error() {
    const PIECES: [&str; 38] = [
        "user", "gpu", "pid", "mem", "idle", "sm", "is", "finding", "state", "kind", ":", ":", "<",
        ">", "=", "!", "-", ",", "\"", "\\", " ", " ", "\t", "0", "17", "4GiB", "50%", "10m",
        "mine", "any", "T", "日本", "e\u{301}", "\u{202e}", "\x1b", "\0", "x", "\u{3000}",
    ];
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let mut selectors = 0u64;
    for _ in 0..20_000 {
        let count = dice.roll(10);
        let text: String = (0..count).map(|_| PIECES[dice.place(PIECES.len())]).collect();
        is_begun(&text);
        selectors += u64::from(matches!(Selector::parse(&text), Ok(Some(_))));
    }
    assert!(selectors > 4_000, "{selectors}");
}

#[test]
fn a_negated_term_excludes_all_rows_of_a_process() {
    let mut machine = (sample::snapshot(2, 1), Vec::new());
    sample::entry(&mut machine.0, 1, 0).pid = 4000;
    let rows = rows(&machine);
    for (text, row, process) in [
        ("gpu:0", true, true),
        ("gpu:1", true, true),
        ("!gpu:0", true, false),
        ("!gpu:7", true, true),
        ("!mem>1GiB !user:bob", false, false),
        ("user:ann !gpu:1", true, false),
    ] {
        let selector = selector(text);
        let any = rows.iter().any(|row| selector.fits(row, &me()));
        assert_eq!(any, row, "{text}");
        assert_eq!(selector.selects(&rows, |_| true, &me()), process, "{text}");
    }
}

#[test]
fn a_gpu_is_selected_by_any_of_its_names() {
    let mut snapshot = sample::snapshot(3, 1);
    sample::divide(&mut snapshot, 2);
    for (text, gpus) in [
        ("gpu:0", &[0][..]),
        ("gpu:0,1 user:ann", &[0, 1]),
        ("!gpu:0", &[1, 2]),
        ("gpu>0", &[1, 2]),
        ("gpu:gpu-0001", &[1]),
        ("gpu:2:0", &[2]),
        // A term that excludes a MIG device does not exclude the whole GPU.
        ("!gpu:2:0", &[0, 1, 2]),
        ("user:ann", &[0, 1, 2]),
        ("gpu:h100", &[0, 1, 2]),
    ] {
        let mut left = snapshot.clone();
        selector(text).retain_gpus(&mut left);
        let left: Vec<u32> = left.gpus.iter().map(|gpu| gpu.index).collect();
        assert_eq!(left, gpus, "{text}");
    }
    let named = selector("gpu:1,9,gpu-000 !gpu:7");
    let named = named.named_gpus(&snapshot.gpus);
    let named: Vec<_> =
        named.iter().map(|name| (name.typed, name.is_uuid, name.gpus.len())).collect();
    assert_eq!(named, [("1", false, 1), ("9", false, 0), ("gpu-000", true, 3)]);
}

#[test]
fn a_device_file_selects_the_gpu_with_its_minor_number() {
    let mut machine = machine();
    // The minor numbers are unknown. Process 3999 is on both GPUs, and each other process is on one GPU.
    for text in ["gpu:/dev/nvidia0", "gpu=/dev/nvidia0", "!gpu:/dev/nvidia0"] {
        assert_eq!(fitting_in(&machine, text), [0; 0], "{text}");
    }
    machine.0.gpus[0].minor_number = Some(1);
    machine.0.gpus[1].minor_number = Some(0);
    for (text, pids, allowed) in [
        ("gpu:/dev/nvidia1", &[3999, 4000, 4001, 4002, 4003][..], &[0][..]),
        ("gpu:/dev/nvidia0", &[3999], &[1]),
        ("!gpu:/dev/nvidia1", &[], &[1]),
        ("!gpu:/dev/nvidia0", &[4000, 4001, 4002, 4003], &[0]),
        ("gpu:/dev/nvidia7", &[], &[]),
        ("gpu:nvidia0", &[], &[]),
        ("gpu:/dev/nvidiactl", &[], &[]),
    ] {
        assert_eq!(fitting_in(&machine, text), pids, "{text}");
        let gpus = machine.0.gpus.iter().filter(|gpu| selector(text).allows_gpu(gpu));
        assert!(gpus.map(|gpu| gpu.index).eq(allowed.iter().copied()), "{text}");
    }
}

#[test]
fn a_whole_gpu_matches_no_process_term() {
    let snapshot = sample::snapshot(2, 1);
    let finding = sample::finding(&snapshot, 1, 0);
    let row = ProcessRow::of_gpu(&snapshot, &snapshot.gpus[1], Some(&finding));
    for (text, fits) in [
        ("gpu:1", true),
        ("gpu:0", false),
        ("!gpu:0", true),
        ("finding:idle", true),
        ("user:ann", false),
        ("!user:ann", false),
        ("is:unlisted", false),
        ("!is:unlisted", false),
        ("pid>0", false),
        ("mem>0%", false),
        ("!mem>99%", false),
    ] {
        assert_eq!(selector(text).fits(&row, &me()), fits, "{text}");
    }
}

#[test]
fn a_partly_known_process_does_not_match_unknown_fields() {
    let mut machine = machine();
    let process = &mut machine.0.processes[0];
    (process.user, process.uid) = (None, Some(1000));
    process.framework = None;
    process.gpu_files = None;
    for (text, is_in) in [
        ("user:1000", true),
        ("user:1001", false),
        ("!user:1001", true),
        ("user:ann", false),
        ("!user:bob", false),
        ("!user:bob,1001", false),
        ("!framework:jax", false),
    ] {
        assert_eq!(fitting_in(&machine, text).contains(&4000), is_in, "{text}");
    }
    machine.0.processes[0].gpu_files = Some([].into());
    assert!(fitting_in(&machine, "!framework:jax").contains(&4000));
}

#[test]
fn a_selector_can_be_built_from_flags() {
    let gpus = Selector::of_field(Field::Gpu, false, &["0".to_owned(), "GPU-3f".to_owned()]);
    let users = Selector::of_field(Field::User, true, &["a,b c".to_owned()]);
    let none = Selector::of_field(Field::User, true, &[]);
    let all = Selector::all([gpus, users, none, Selector::parse("mem>1GiB").unwrap()]).unwrap();
    assert_eq!(all.to_string(), r#"gpu:0,GPU-3f user="a,b c" mem>1GiB"#);
    assert!(!all.is_of_gpus() && !all.needs_history());
    assert!(selector("gpu:0 gpu>1").is_of_gpus());
    assert!(selector("idle>1m").needs_history() && selector("python").needs_history());
    assert_eq!(Selector::all([None, None]), None);
}
