//! `gpumem schema`: the published formats, as JSON Schema.

use super::args::{Schema, SchemaName};
use super::exit::Exit;
use super::print;
use crate::report::schema;

pub(super) fn run(args: &Schema) -> anyhow::Result<Exit> {
    print(match args.name {
        SchemaName::Check => schema::CHECK,
        SchemaName::Doctor => schema::DOCTOR,
        SchemaName::Explain => schema::EXPLAIN,
        SchemaName::History => schema::HISTORY,
        SchemaName::Reap => schema::REAP,
        SchemaName::Snapshot => schema::SNAPSHOT,
    })
    .map(|()| Exit::Clean)
}
