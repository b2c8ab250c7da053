//! `gpumem schema`: the published formats, as JSON Schema.

use super::args::{SchemaArgs, SchemaName};
use super::exit::Exit;
use super::print;
use crate::report::schema;

pub(super) fn run(args: &SchemaArgs) -> anyhow::Result<Exit> {
    print(committed(args.name)).map(|()| Exit::Clean)
}

/// A format's schema, as it is built in.
fn committed(name: SchemaName) -> &'static str {
    match name {
        SchemaName::Check => schema::CHECK,
        SchemaName::Doctor => schema::DOCTOR,
        SchemaName::Explain => schema::EXPLAIN,
        SchemaName::History => schema::HISTORY,
        SchemaName::Hosts => schema::HOSTS,
        SchemaName::Reap => schema::REAP,
        SchemaName::Release => schema::RELEASE,
        SchemaName::Run => schema::RUN,
        SchemaName::Snapshot => schema::SNAPSHOT,
        SchemaName::Totals => schema::TOTALS,
    }
}
