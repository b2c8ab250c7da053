//! TOML and defaults to one checked value.
