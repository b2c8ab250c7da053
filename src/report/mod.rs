//! Writers: tables, JSON, escaping for terminals.

pub mod escape;
