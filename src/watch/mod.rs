//! The terminal screen.
