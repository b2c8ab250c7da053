//! Tests of reclaimable and suspected memory in the header, bars and rows.

use super::*;

/// Shows two GPUs for `seconds`. The first process has done almost no work; all others are active.
fn watched(seconds: u32, columns: u16, rows: u16) -> App {
    let mut app = app(columns, rows);
    for second in (0..=seconds).step_by(2) {
        let mut snapshot = sample::later(2, 3, f64::from(second));
        // In an unknown PID namespace, plans include no process.
        snapshot.host.pid_namespace = Some(crate::model::snapshot::PidNamespace::Host);
        for row in snapshot.gpus.iter_mut().flat_map(|gpu| gpu.processes.as_mut().unwrap()) {
            row.sm_percent = Some(80);
        }
        sample::entry(&mut snapshot, 0, 0).sm_percent = Some(0);
        let start = snapshot.time.plus_seconds(-86_400.0 - f64::from(second));
        for process in &mut snapshot.processes {
            process.uid = Some(1000);
            process.state = Some('S');
            process.listening = Some(false);
            process.start_time = Some(start);
            process.cpu_percent = Some(0.0);
            process.cpu_seconds = Some(100.0);
        }
        show_sample(&mut app, u64::from(second), snapshot);
    }
    app
}

#[test]
fn a_suspect_is_marked_but_is_not_a_finding() {
    let app = watched(12, 120, 40);
    check("suspects-120x40", &app);
    let screenful = app.screenful.as_ref().unwrap();
    assert_eq!(screenful.suspects.len(), 1);
    assert_eq!(screenful.findings, []);
}

#[test]
fn a_finding_replaces_the_suspicion() {
    let app = watched(700, 120, 40);
    let screenful = app.screenful.as_ref().unwrap();
    let process_findings = screenful.findings.iter();
    let process_findings: Vec<_> =
        process_findings.filter(|finding| finding.process.is_some()).collect();
    assert_eq!(process_findings.len(), 1, "{process_findings:?}");
    assert!(screenful.suspects.is_empty());
    let shown = text(&render(&app));
    let first = shown.lines().next().unwrap();
    let headline = "  3.0 GiB reclaimable: 1 process of 1 user · free ";
    assert!(first.contains(headline), "{first}");
    assert!(shown.contains('■') && !shown.contains('▒'), "{shown}");
}
