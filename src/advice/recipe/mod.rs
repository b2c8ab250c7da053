//! Python code that frees cached GPU memory from inside a process, and the report about the result.
//!
//! The process runs [`source`] with `exec` in a new dictionary, which then contains `out`; [`parse`] reads `out` as
//! JSON. [`expression`] wraps the source for a notebook kernel, which answers with the JSON in hexadecimal digits
//! ([`parse_value`]). `recipe.py` imports only modules that are loaded or built in, creates no CUDA context, reports
//! no values of variables, and does nothing after the deadline.
//!
//! The process controls the report. This module limits its size, and code that prints the report must escape its
//! strings.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::Time;

const RECIPE: &str = include_str!("recipe.py");

/// Maximum length of a text in a report. Longer texts are truncated.
const TEXT_CHARACTERS: usize = 500;
/// Maximum number of references in a report. The rest are dropped.
const REFERENCES: usize = 20;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecipeOptions {
    /// Whether to collect garbage first, which runs finalizers of the user's objects.
    pub collects: bool,
    /// Whether to report the variables that still hold memory.
    pub references: bool,
    pub deadline: Time,
    /// PCI bus IDs of the process's GPUs in NVML's format. The recipe touches no other GPU.
    pub pci_bus_ids: Vec<Arc<str>>,
}

/// Report of a process after a request to release memory. The process can forge the figures, so they prove nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default, JsonSchema, Serialize, Deserialize)]
pub struct ReleaseReport {
    /// Bytes in use by live objects.
    pub live_bytes: Option<u64>,
    /// Bytes still cached by allocators.
    pub cached_bytes_left: Option<u64>,
    /// Why no more memory was released. Contains text from the process: escape it for a terminal.
    pub why: Option<Arc<str>>,
    /// Command or event that makes the process load its data again, such as the next request.
    pub wake: Option<Arc<str>>,
    /// Objects that hold memory, largest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub references: Vec<Reference>,
    /// Start and end of the request to a kernel, because the kernel's server counts the request as activity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<(Time, Time)>,
}

/// An object that keeps memory in use.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize, Deserialize)]
pub struct Reference {
    /// Name of the object in the notebook: `Out[7]`, or `last traceback`. Chosen by the user: escape it for a terminal.
    pub name: Arc<str>,
    /// Memory that the object keeps in use, in bytes.
    pub bytes: u64,
}

/// Returns Python 3.8 source that sets `out` to a dictionary that JSON can represent.
pub fn source(options: &RecipeOptions) -> String {
    let python_bool = |is_true: bool| if is_true { "True" } else { "False" };
    let bus_ids: Vec<String> = options.pci_bus_ids.iter().map(|bus_id| literal(bus_id)).collect();
    format!(
        "T = {:.3}\nCOLLECTS = {}\nREFERENCES = {}\nBUS_IDS = [{}]\n{RECIPE}",
        options.deadline.unix_milliseconds() as f64 / 1000.0,
        python_bool(options.collects),
        python_bool(options.references),
        bus_ids.join(", "),
    )
}

/// Wraps the source in an expression whose value is `out` as JSON in hexadecimal digits.
///
/// A user may have redefined `exec`, so the expression takes it from `__builtins__`, which is a
/// module or a dictionary. Nothing in the user's namespace changes.
pub fn expression(source: &str) -> String {
    format!(
        "(lambda n, b: (b['exec']({}, n), b['__import__']('json').dumps(n['out']).encode().hex(), n.clear())[1])\
         ({{}}, __builtins__ if __builtins__.__class__ is {{}}.__class__ else __builtins__.__dict__)",
        literal(source)
    )
}

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

/// Parses a kernel's answer: the `repr` of a string of hexadecimal digits.
pub fn parse_value(value: &str) -> Result<ReleaseReport, String> {
    let digits = value.trim().strip_prefix('\'').and_then(|quoted| quoted.strip_suffix('\''));
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let out = digits
        .and_then(|digits| digits.as_bytes().chunks(2).map(byte).collect::<Option<Vec<u8>>>());
    parse(&out.ok_or_else(unexpected_answer)?)
}

/// Parses `out` from JSON.
///
/// # Errors
///
/// Returns an error if `out` is not a report, or if the recipe started after its deadline.
pub fn parse(out: &[u8]) -> Result<ReleaseReport, String> {
    #[derive(Deserialize)]
    struct Raw {
        late: bool,
        live_bytes: Option<u64>,
        cached_bytes_left: Option<u64>,
        why: Option<String>,
        references: Vec<(String, u64)>,
    }
    // serde would also accept an array for the struct.
    if !out.trim_ascii_start().starts_with(b"{") {
        return Err(unexpected_answer());
    }
    let raw: Raw = serde_json::from_slice(out).map_err(|_| unexpected_answer())?;
    if raw.late {
        return Err("the recipe started too late and did nothing".to_owned());
    }
    let references = raw.references.into_iter().take(REFERENCES);
    Ok(ReleaseReport {
        live_bytes: raw.live_bytes,
        cached_bytes_left: raw.cached_bytes_left,
        why: raw.why.map(|why| truncate(&why)),
        wake: None,
        references: references
            .map(|(name, bytes)| Reference { name: truncate(&name), bytes })
            .collect(),
        asked: None,
    })
}

fn unexpected_answer() -> String {
    "its answer is not a report of the recipe".to_owned()
}

fn truncate(text: &str) -> Arc<str> {
    text.chars().take(TEXT_CHARACTERS).collect::<String>().into()
}

#[cfg(test)]
mod tests;
