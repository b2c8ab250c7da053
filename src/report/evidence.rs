//! What a verdict rests on, in words.

use std::fmt::Write as _;

use super::escape::escape;
use crate::model::evidence::{
    DeadEvidence, Evidence, Holder, HungEvidence, IdleEvidence, LeakEvidence, OrphanEvidence,
    PlaceholderEvidence, ReservedEvidence, UnattributedEvidence,
};
use crate::units::{Bytes, Span};

/// The evidence in a line, escaped for a terminal.
pub fn words(evidence: &Evidence) -> String {
    match evidence {
        Evidence::Dead(dead) => of_dead(dead),
        Evidence::Stuck(stuck) => {
            format!("state {} in all of {}", stuck.state, samples(stuck.samples))
        }
        Evidence::Orphan(orphan) => of_orphan(orphan),
        Evidence::Stopped(stopped) => {
            let mut words = format!(
                "state {} in all of {}",
                stopped.state,
                samples(stopped.samples)
            );
            if let Some(terminal) = &stopped.terminal {
                let _ = write!(words, ", on {}", escape(terminal));
            }
            words
        }
        Evidence::Hung(hung) => of_hung(hung),
        Evidence::Placeholder(placeholder) => of_placeholder(placeholder),
        Evidence::Leak(leak) => of_leak(leak),
        Evidence::Idle(idle) => of_idle(idle),
        Evidence::StrayContext(stray) => {
            let works_on: Vec<String> = stray.works_on.iter().map(u32::to_string).collect();
            format!(
                "no use in {}, works on GPU {}",
                samples(stray.samples),
                works_on.join(", ")
            )
        }
        Evidence::Hoard(hoard) => {
            let mut words = format!(
                "{:.0}% of the GPU from its start ({})",
                hoard.share * 100.0,
                Bytes(hoard.first_bytes)
            );
            if let Some(sm) = hoard.sm_percent_mean {
                let _ = write!(words, ", SM {sm:.0}%");
            }
            if let Some(memory) = hoard.memory_percent_mean {
                let _ = write!(words, ", memory traffic {memory:.0}%");
            }
            let _ = write!(words, " in {}", samples(hoard.samples));
            words
        }
        Evidence::Reserved(reserved) => of_reserved(reserved),
        Evidence::Unattributed(unattributed) => of_unattributed(unattributed),
        Evidence::Pressure(pressure) => format!(
            "{} free of {} in {}",
            Bytes(pressure.free_bytes),
            Bytes(pressure.total_bytes),
            samples(pressure.samples)
        ),
    }
}

fn samples(count: u64) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} sample{s}")
}

fn of_dead(dead: &DeadEvidence) -> String {
    match dead.state {
        Some(state) => format!("state {state} in {}", samples(dead.samples)),
        None => format!("not in /proc in {}", samples(dead.samples)),
    }
}

fn of_orphan(orphan: &OrphanEvidence) -> String {
    let mut words = match orphan.process_group {
        _ if orphan.server_gone => "the server that started the kernel is gone".to_owned(),
        Some(group) => format!("the leader of its process group ({group}) is gone"),
        None => "the leader of its process group is gone".to_owned(),
    };
    if let Some(ppid) = orphan.ppid {
        let _ = write!(words, ", adopted by {ppid}");
    }
    let unused = Span::from_seconds(orphan.unused_seconds);
    let _ = write!(
        words,
        ", no use of a GPU for {unused} in {}",
        samples(orphan.samples)
    );
    if let Some(cpu) = orphan.cpu_percent_mean {
        let _ = write!(words, ", CPU {cpu:.1}%");
    }
    if !orphan.listed {
        words.push_str(", not listed by NVML");
    }
    if let Some(files) = orphan.gpu_files.as_ref().filter(|files| !files.is_empty()) {
        let files: Vec<String> = files.iter().map(|file| escape(file).to_string()).collect();
        let _ = write!(words, ", holds {}", files.join(" "));
    }
    words
}

fn of_hung(hung: &HungEvidence) -> String {
    let mut words = format!(
        "GPU {}% at least, {:.0} W against {:.0} W before",
        hung.gpu_percent_min, hung.power_watts_mean, hung.power_watts_before
    );
    if let (Some(now), Some(before)) = (hung.memory_percent_mean, hung.memory_percent_before) {
        let _ = write!(words, ", memory traffic {now:.0}% against {before:.0}%");
    }
    let _ = write!(words, " in {}", samples(hung.samples));
    words
}

fn of_placeholder(placeholder: &PlaceholderEvidence) -> String {
    let mut words = match &placeholder.program {
        Some(program) => format!("runs {}, which occupies GPUs", escape(program)),
        None => "no sockets, nothing read or written".to_owned(),
    };
    if let (Some(bursts), Some(period)) = (placeholder.bursts, placeholder.period_seconds) {
        let period = Span::from_seconds(period);
        let _ = write!(words, ", {bursts} short bursts of use, one every {period}");
    }
    if let Some(power) = placeholder.power_percent_max {
        let _ = write!(words, ", at most {power:.0}% of the power limit");
    }
    let _ = write!(words, " in {}", samples(placeholder.samples));
    words
}

fn of_leak(leak: &LeakEvidence) -> String {
    let a_minute = |rate: f64| Bytes((rate.max(0.0) * 60.0) as u64);
    let mut words = format!(
        "{} a minute ({} to {}), {} in {} and {}, growing {:.0}% of the time",
        a_minute(leak.bytes_per_second),
        a_minute(leak.bytes_per_second_low),
        a_minute(leak.bytes_per_second_high),
        Bytes(leak.grown_bytes),
        Span::from_seconds(leak.span_seconds),
        samples(leak.samples),
        leak.growing_share * 100.0
    );
    if let Some(stopped) = leak.stopped_seconds {
        let _ = write!(words, ", none for {}", Span::from_seconds(stopped));
    }
    if let Some(slowing) = &leak.slowing {
        let curve = match (slowing.curve, slowing.power) {
            (_, Some(power)) => format!("time to the power of {power:.2}"),
            ("logarithm", _) => "the logarithm of time".to_owned(),
            _ => "an approach to a level".to_owned(),
        };
        let percent = slowing.error_share * 100.0;
        let _ = write!(words, ", ever more slowly: {curve} fits to {percent:.1} %");
    }
    if let Some(free) = leak.free_bytes {
        let _ = write!(words, ", {} free", Bytes(free));
    }
    words
}

fn of_idle(idle: &IdleEvidence) -> String {
    let mut words = match (idle.sm_percent_max, idle.gpu_percent_max) {
        (Some(sm), _) => format!("SM {sm}% at most"),
        (None, Some(gpu)) => format!("the whole GPU {gpu}% at most"),
        (None, None) => "no use".to_owned(),
    };
    let _ = write!(words, " in {}", samples(idle.samples));
    if let Some(cpu) = idle.cpu_percent_mean {
        let _ = write!(words, ", CPU {cpu:.1}%");
    }
    if let Some(last) = idle.last_activity {
        let _ = write!(words, ", notebook last active {last}");
    }
    if let Some(busy) = idle.busy_seconds {
        let busy = Span::from_seconds(busy);
        let _ = write!(
            words,
            ", its cell has run for {busy} with no CPU and no GPU use"
        );
    }
    words
}

fn of_reserved(reserved: &ReservedEvidence) -> String {
    let devices: Vec<_> = reserved
        .devices
        .iter()
        .map(|device| escape(device))
        .collect();
    format!(
        "{}={} in process {}; nobody on it in {}",
        escape(&reserved.variable),
        devices.join(","),
        reserved.pid,
        samples(reserved.samples)
    )
}

fn of_unattributed(unattributed: &UnattributedEvidence) -> String {
    let mut words = format!(
        "{} used, {} by {} listed, in {}",
        Bytes(unattributed.used_bytes),
        Bytes(unattributed.attributed_bytes),
        unattributed.listed,
        samples(unattributed.samples)
    );
    if !unattributed.holders.is_empty() {
        let holder = |holder: &Holder| match &holder.user {
            Some(user) => format!("{} ({}, {user})", holder.name, holder.pid),
            None => format!("{} ({})", holder.name, holder.pid),
        };
        let holders: Vec<String> = unattributed
            .holders
            .iter()
            .map(|it| escape(&holder(it)).to_string())
            .collect();
        let _ = write!(words, "; its device file is open in {}", holders.join(", "));
    }
    words
}
