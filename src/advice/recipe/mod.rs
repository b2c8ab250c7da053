//! Python code that frees cached GPU memory from inside a process, and the report of the result.
//!
//! [`source`] is run by `exec` in a dictionary of its own and sets `out` there; [`parse`] reads that as JSON.
//! [`expression`] wraps the source for a notebook kernel, which answers with that JSON in hexadecimal
//! ([`parse_value`]). `recipe.py` documents the steps for each library, and the limits: it imports nothing, creates
//! no CUDA context, shows no value, and does nothing after its deadline.
//!
//! Pure. The report comes from the process, so it is bounded here and escaped when shown.

use std::sync::Arc;

use serde::Deserialize;

use crate::model::Time;
use crate::model::release::{Reference, ReleaseReport};

const RECIPE: &str = include_str!("recipe.py");

/// Longer texts in a report are cut.
const TEXT_CHARACTERS: usize = 500;
/// How many references of a report are kept.
const REFERENCES: usize = 20;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecipeOptions {
    /// Collect garbage first, which runs finalizers of the user's objects.
    pub collects: bool,
    /// Name the variables that still hold memory.
    pub references: bool,
    pub deadline: Time,
    /// PCI bus ids of the process's GPUs, as NVML writes them. No other GPU is touched.
    pub pci_bus_ids: Vec<Arc<str>>,
}

/// Python source for 3.8 and later that sets `out` to a dictionary for JSON.
pub fn source(options: &RecipeOptions) -> String {
    let truth = |is_true: bool| if is_true { "True" } else { "False" };
    let bus_ids: Vec<String> = options.pci_bus_ids.iter().map(|it| literal(it)).collect();
    format!(
        "T = {:.3}\nCOLLECTS = {}\nREFERENCES = {}\nBUS_IDS = [{}]\n{RECIPE}",
        options.deadline.unix_milliseconds() as f64 / 1000.0,
        truth(options.collects),
        truth(options.references),
        bus_ids.join(", "),
    )
}

/// Wraps the source as one expression, whose value is `out` as JSON in hexadecimal. It reads only `__builtins__` (a
/// module or its dictionary) of the user's namespace, because users may reuse the name `exec`, and leaves nothing
/// there.
pub fn expression(source: &str) -> String {
    format!(
        "(lambda n, b: (b['exec']({}, n), b['__import__']('json').dumps(n['out']).encode().hex(), n.clear())[1])\
         ({{}}, __builtins__ if __builtins__.__class__ is {{}}.__class__ else __builtins__.__dict__)",
        literal(source)
    )
}

/// A text as a Python literal. Python understands all JSON escapes.
fn literal(text: &str) -> String {
    let mut written = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => written.extend(['\\', c]),
            '\n' => written.push_str("\\n"),
            c if c.is_ascii_graphic() || c == ' ' => written.push(c),
            c => written.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    written + "\""
}

/// Reads a kernel's answer: Python's `repr` of the hexadecimal digits of `out` as JSON.
pub fn parse_value(value: &str) -> Result<ReleaseReport, String> {
    let digits = value.trim().strip_prefix('\'').and_then(|it| it.strip_suffix('\''));
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let out = digits.and_then(|it| it.as_bytes().chunks(2).map(byte).collect::<Option<Vec<u8>>>());
    parse(&out.ok_or_else(not_its_own)?)
}

/// Reads `out` as JSON.
///
/// # Errors
///
/// A message, if this is not the recipe's report, or if the recipe started too late to do anything.
pub fn parse(out: &[u8]) -> Result<ReleaseReport, String> {
    #[derive(Deserialize)]
    struct Raw {
        late: bool,
        live_bytes: Option<u64>,
        cached_bytes_left: Option<u64>,
        why: Option<String>,
        references: Vec<(String, u64)>,
    }
    // serde would read an array in the order of the fields.
    if !out.trim_ascii_start().starts_with(b"{") {
        return Err(not_its_own());
    }
    let raw: Raw = serde_json::from_slice(out).map_err(|_| not_its_own())?;
    if raw.late {
        return Err("it came to it too late, and did nothing".to_owned());
    }
    let references = raw.references.into_iter().take(REFERENCES);
    Ok(ReleaseReport {
        live_bytes: raw.live_bytes,
        cached_bytes_left: raw.cached_bytes_left,
        why: raw.why.map(|why| bounded(&why)),
        wake: None,
        references: references
            .map(|(name, bytes)| Reference { name: bounded(&name), bytes })
            .collect(),
        asked: None,
    })
}

fn not_its_own() -> String {
    "its answer is not that of the recipe".to_owned()
}

fn bounded(text: &str) -> Arc<str> {
    text.chars().take(TEXT_CHARACTERS).collect::<String>().into()
}

#[cfg(test)]
mod tests;
