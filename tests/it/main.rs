//! The integration tests: one binary, a module per subject.

mod demo;
mod recordings;
