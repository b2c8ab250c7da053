//! gpumem: see who is using GPU memory, whether they still need it, and reclaim it.
//!
//! Everything left of [`model::snapshot::Snapshot`] observes, everything right of it is a pure
//! function of snapshots.
//!
//! ```text
//! NVML ──► source::nvml ──┐
//! /proc ─► host ──────────┴► source::live ──┐
//! file, stdin, demo ───────► source::replay ┴─ Snapshot ─► history ─► rules ─► Finding ─┬► report   ps, check, explain
//!        ▲                                        │                                     ├► watch    the terminal
//!        │                                        │                                     └► reclaim  plan ─► act ─► verify
//!        └───────────── recording ◄───────────────┘
//! ```
//!
//! A recording holds what was observed, never what was concluded, so that an old day can be judged
//! by today's rules. Unknown is `None`, never 0. Time is data: nothing right of the snapshot asks a
//! clock, so every rule can be tested without a sleep.
//!
//! | room | what lives there |
//! |---|---|
//! | [`units`] | bytes, percentages, durations: how they are written and read |
//! | `deadline` | work that may hang: on a thread of its own, waited for so long and no longer |
//! | [`model`] | the nouns: snapshot, finding, identity, time |
//! | [`source`] | where snapshots come from: the live machine, a recording, the demo |
//! | [`host`] | what Linux knows of a process |
//! | [`recording`] | the snapshot file: writer, reader, and the store: a bounded ring of them |
//! | [`history`] | a bounded window of points per process and GPU |
//! | [`rules`] | a file per kind of finding, and the engine that runs them |
//! | [`advice`] | what gives memory back, by framework |
//! | [`explain`] | what there is to say of a process, a GPU or a framework, as a page |
//! | [`config`] | TOML and defaults to one checked value |
//! | [`reclaim`] | getting memory back: plan, act, verify; the only sender of signals |
//! | [`report`] | writers: tables, JSON, escaping for terminals |
//! | [`watch`] | the terminal screen: state, a pure `update`, a file per panel |
//! | [`cli`] | arguments, subcommands, exit codes |
//!
//! From outside only [`main`] is seen, and [`api`]: what the integration tests and benchmarks use.
//!
//! What [`explain`] puts together, `gpumem explain` prints and the screen opens on Enter: one page.
//!
//! The screen makes what it shows of a [`Screenful`](watch::view_model::Screenful), one snapshot with its
//! verdicts. Samples, keys and the passing of time are [`Event`](watch::state::Event)s, taken in by
//! [`update`](watch::update::update); what is to be done comes back as an [`Effect`](watch::state::Effect).
//! It stands still and goes back on a [`Timeline`](watch::state::timeline::Timeline). It ends no process itself: it asks its
//! [`ReclaimWorker`](watch::reclaim_worker::ReclaimWorker), which `cli` brings along and which plans and acts by [`reclaim`] as
//! `gpumem reap` does, on a thread of its own, so that nothing that hangs there stops the keyboard.

mod advice;
pub mod api;
mod cli;
mod config;
mod deadline;
mod explain;
mod history;
mod host;
mod model;
mod reclaim;
mod recording;
mod report;
mod rules;
mod source;
mod units;
mod watch;

pub use crate::cli::main;
