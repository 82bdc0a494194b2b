//! Tools: what the model may do on this device.
//!
//! Schemas are static and in a fixed order, since they are part of the frozen prefix. Arguments are checked
//! before a tool runs; a tool answers with text for the model and never panics on what it reads. Files are
//! reached only through [`files::Root`], beneath the tab's working directory.

pub mod files;
pub mod output;
pub mod search;
pub mod system_info;

use crate::agent::stop::Stop;
use crate::budget::Budget;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::path::Path;
use std::time::{Duration, Instant};

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

impl Output {
    /// All that there is to say.
    pub fn whole(text: impl Into<String>) -> Output {
        Output { text: text.into(), ..Output::default() }
    }

    /// The tool could not do it.
    pub fn error(text: impl Into<String>) -> Output {
        Output { text: text.into(), is_error: true, ..Output::default() }
    }
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

/// The longest that a read-only tool may take.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Looked at between two pieces of a tool's work.
pub struct Patience<'a> {
    stop: &'a Stop,
    end: Instant,
}

impl<'a> Patience<'a> {
    /// Ten seconds, or until the owner stops the turn.
    pub fn new(place: &Place<'a>) -> Patience<'a> {
        Patience { stop: place.stop, end: Instant::now() + TIME_MAX }
    }

    /// Why the work must end now, if so.
    pub fn over(&self) -> Option<&'static str> {
        if self.stop.is_raised() {
            return Some("stopped by the owner");
        }
        (Instant::now() >= self.end).then_some("ended after 10 s")
    }
}

/// The names that [`run`] knows, in the schemas' order.
pub const NAMES: [&str; 4] = ["list_files", "read_file", "search", "system_info"];

const SCHEMAS: &str = concat!(
    r#"[{"name":"list_files","description":"List a directory below the working directory, "#,
    r#"with sizes in bytes.","#,
    r#""parameters":{"type":"object","properties":{"path":{"type":"string","#,
    r#""description":"\".\" is the working directory"}},"required":["path"],"additionalProperties":false}},"#,
    r#"{"name":"read_file","description":"Read a text file below the working directory.","#,
    r#""parameters":{"type":"object","properties":{"path":{"type":"string"},"#,
    r#""offset":{"type":"integer","description":"first line, from 1"},"#,
    r#""limit":{"type":"integer","description":"most lines"}},"#,
    r#""required":["path"],"additionalProperties":false}},"#,
    r#"{"name":"search","description":"Find a plain text, ignoring case, in the files below a path; "#,
    r#"gives path:line: text.","#,
    r#""parameters":{"type":"object","properties":{"query":{"type":"string"},"#,
    r#""path":{"type":"string","description":"file or directory; default \".\""}},"#,
    r#""required":["query"],"additionalProperties":false}},"#,
    r#"{"name":"system_info","description":"This device: model, kernel, memory, load, uptime, disks, "#,
    r#"network interfaces, clock, temperatures.","#,
    r#""parameters":{"type":"object","properties":{},"additionalProperties":false}}]"#,
);

/// JSON array of `{"name","description","parameters"}` of all tools, in a fixed order.
pub fn schemas() -> &'static str {
    SCHEMAS
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListFiles {
    path: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadFile {
    path: String,
    offset: Option<u64>,
    limit: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Search {
    query: String,
    path: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// Runs a tool. `arguments` is JSON text of an object, not yet checked against the tool's schema.
pub fn run(name: &str, arguments: &str, place: &Place<'_>) -> Output {
    let done = match name {
        "list_files" => checked(name, arguments).map(|got: ListFiles| files::list(&got.path, place)),
        "read_file" => {
            let read = |got: ReadFile| files::read(&got.path, got.offset, got.limit, place);
            checked(name, arguments).map(read)
        }
        "search" => {
            let find = |got: Search| search::run(&got.query, got.path.as_deref().unwrap_or("."), place);
            checked(name, arguments).map(find)
        }
        "system_info" => checked(name, arguments).map(|Nothing {}| system_info::run()),
        _ => {
            let name = output::clean_line(crate::chunk::shorten(name, 64).as_bytes());
            Err(format!("there is no tool {name:?}; there are: {}", NAMES.join(", ")))
        }
    };
    let mut output = done.unwrap_or_else(Output::error);
    if output.text.len() > place.budget.tool_output_bytes {
        debug_assert!(false, "{name} keeps to tool_output_bytes itself");
        output.text = output::cut(&output.text, place.budget.tool_output_bytes);
    }
    output
}

/// The arguments as their type; the error tells the model what to send instead.
fn checked<T: DeserializeOwned>(name: &str, arguments: &str) -> Result<T, String> {
    let text = arguments.trim();
    // Some providers send nothing for a call without arguments.
    let text = if text.is_empty() { "{}" } else { text };
    if !text.starts_with('{') {
        // serde would also take a list, field by field.
        return Err(format!("{name}: the arguments must be a JSON object"));
    }
    serde_json::from_str(text).map_err(|error| {
        // An error may quote what was sent, of any length.
        format!(
            "{name}: wrong arguments: {}",
            output::cut(&output::clean_line(error.to_string().as_bytes()), 300)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Dir;

    fn call(name: &str, arguments: &str) -> Output {
        let dir = Dir::new();
        std::fs::write(dir.path().join("a.txt"), "hello\n").unwrap();
        let stop = Stop::new().unwrap();
        run(name, arguments, &Place { workdir: dir.path(), budget: &Budget::ROUTER, stop: &stop })
    }

    #[test]
    fn schemas_are_small_valid_and_name_what_runs() {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Schema {
            name: String,
            description: String,
            parameters: serde_json::Value,
        }
        let all: Vec<Schema> = serde_json::from_str(schemas()).unwrap();
        assert_eq!(all.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), NAMES);
        for one in &all {
            assert!(!one.description.is_empty());
            assert_eq!(one.parameters["type"], "object");
            assert_eq!(one.parameters["additionalProperties"], false);
            assert!(!call(&one.name, "{\"unknown\":1}").text.contains("no tool"));
        }
        assert!(schemas().len() + crate::agent::prompt::BUILT_IN.len() < 3000);
    }

    #[test]
    fn wrong_arguments_are_refused_with_a_reason() {
        for (name, arguments, reason) in [
            ("read_file", "{}", "missing field `path`"),
            ("read_file", "", "missing field `path`"),
            ("read_file", "[\"a.txt\"]", "must be a JSON object"),
            ("read_file", "{\"path\":1}", "string"),
            ("read_file", "{\"path\":\"a\",\"ofset\":1}", "unknown field `ofset`"),
            ("read_file", "{\"path\":\"a\",\"offset\":-1}", "-1"),
            ("read_file", "{\"path\":\"a\"", "EOF"),
            ("list_files", "null", "must be a JSON object"),
            ("search", "{\"path\":\".\"}", "missing field `query`"),
            ("system_info", "{\"x\":1}", "unknown field"),
            ("rm", "{}", "there is no tool \"rm\""),
        ] {
            let output = call(name, arguments);
            assert!(output.is_error && output.text.contains(reason), "{name} {arguments}: {}", output.text);
        }
        let long = format!("{{\"{}\":1}}", "x\\u001b".repeat(20_000));
        assert!(call("read_file", &long).text.len() < 400);
        let deep = format!("{{\"path\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(call("read_file", &deep).is_error);
    }

    #[test]
    fn a_call_without_arguments_runs() {
        assert!(!call("system_info", "").is_error);
        assert!(!call("system_info", " {} ").is_error);
        assert_eq!(call("read_file", "{\"path\":\"a.txt\"}"), Output::whole("hello\n"));
    }
}
