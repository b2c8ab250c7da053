//! `gpumem schema`: the published formats, as JSON Schema.

use super::args::{SchemaArgs, SchemaName};
use super::exit::Exit;
use super::print;
use super::reap::json::{self, ReapHistory};
use crate::model::Snapshot;
use crate::report::{check, doctor, explain, schema};
use crate::rules::evidence;

pub(super) fn run(args: &SchemaArgs) -> anyhow::Result<Exit> {
    print(committed(args.name)).map(|()| Exit::Clean)
}

/// A format's schema, as it is built in.
pub fn committed(name: SchemaName) -> &'static str {
    match name {
        SchemaName::Check => schema::CHECK,
        SchemaName::Doctor => schema::DOCTOR,
        SchemaName::Explain => schema::EXPLAIN,
        SchemaName::History => schema::HISTORY,
        SchemaName::Reap => schema::REAP,
        SchemaName::Snapshot => schema::SNAPSHOT,
    }
}

/// A format's schema, as the type says that is written.
pub fn derived(name: SchemaName) -> String {
    match name {
        SchemaName::Check => schema::written::<check::CheckReport>(evidence),
        SchemaName::Doctor => schema::written::<doctor::DoctorReport>(evidence),
        SchemaName::Explain => schema::written::<explain::ExplainReport>(evidence),
        SchemaName::History => schema::written::<ReapHistory>(evidence),
        SchemaName::Reap => schema::written::<json::ReapReport>(evidence),
        SchemaName::Snapshot => schema::read::<Snapshot>(evidence),
    }
}
