//! Tools: what the model may do on this device.
//!
//! Schemas are static and in a fixed order, since they are part of the frozen prefix. Arguments are checked before a
//! tool runs; a tool answers with text for the model and never panics on what it reads.

use crate::agent::stop::Stop;
use crate::budget::Budget;
use std::path::Path;

/// What a tool's run gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// text for the model, cleaned, at most `tool_output_bytes`
    pub text: String,
    /// the tool could not do it; `text` says why
    pub is_error: bool,
    /// of a command
    pub exit_code: Option<i32>,
    /// bytes of the whole output, if `text` is not all of it
    pub truncated: Option<u64>,
}

/// Where a tool works.
pub struct Place<'a> {
    /// the tab's working directory
    pub workdir: &'a Path,
    /// the limits
    pub budget: &'static Budget,
    /// raised when the owner stops the turn
    pub stop: &'a Stop,
}

/// JSON array of `{"name","description","parameters"}` of all tools, in a fixed order.
pub fn schemas() -> &'static str {
    todo!()
}

/// Runs a tool. `arguments` is JSON text of an object, not yet checked against the tool's schema.
#[allow(unused_variables)]
pub fn run(name: &str, arguments: &str, place: &Place<'_>) -> Output {
    todo!()
}

#[cfg(test)]
pub mod scratch;
