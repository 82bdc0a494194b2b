//! A tab's whole log as a file: Markdown to read, or one row's JSON a line.
//!
//! Rendered a batch of rows at a time while it is read, so a log of any length needs no memory. One-time
//! links let a browser download it without a token in the address: 256 random bits, good for a minute and
//! one use.

use super::access::random_secret;
use super::json::Pieces;
use crate::chunk::*;
use crate::host;
use crate::store::{Store, StoreError, Tab};
use serde::de::DeserializeOwned;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of rows that are read at once; a longer row is read alone. What is read and what is rendered of it
/// have the room of one row being written (`row_buffer_bytes`).
const BATCH_BYTES: usize = 4 * 1024;
/// Links that wait; the oldest makes room for a newer one.
const LINKS_MAX: usize = 16;
const LINK_TIME: Duration = Duration::from_secs(60);

/// How a log is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Markdown
    Md,
    /// one `ChunkRow` a line
    Jsonl,
}

impl Format {
    /// By the name that the command line and the routes use.
    pub fn from_word(word: &str) -> Option<Format> {
        match word {
            "md" => Some(Format::Md),
            "jsonl" => Some(Format::Jsonl),
            _ => None,
        }
    }

    /// That name, and a file's ending.
    pub fn word(self) -> &'static str {
        match self {
            Format::Md => "md",
            Format::Jsonl => "jsonl",
        }
    }

    /// For `Content-Type`.
    pub fn media_type(self) -> &'static str {
        match self {
            Format::Md => "text/markdown; charset=utf-8",
            Format::Jsonl => "application/x-ndjson",
        }
    }
}

/// A tab's log up to its newest row now, rendered while it is read.
pub fn open(store: Arc<Store>, tab: &Tab, format: Format) -> impl Read + Send + use<> {
    let (no, upto) = (tab.no, tab.total);
    let mut start = match format {
        Format::Md => head(tab),
        Format::Jsonl => String::new(),
    };
    let mut page = Page::default();
    let mut at = 0;
    Pieces::new(move |out| {
        out.push_str(&std::mem::take(&mut start));
        if at >= upto {
            page.end(out);
            return Ok(false);
        }
        let rows = store.rows(no, at, upto, BATCH_BYTES).map_err(broken)?;
        for row in &rows {
            at = row.seq;
            match format {
                Format::Md => page.row(row, out),
                Format::Jsonl => {
                    row.write_json(out);
                    out.push('\n');
                }
            }
        }
        if rows.is_empty() { Err(io::Error::other("the tab was erased meanwhile")) } else { Ok(true) }
    })
}

fn broken(error: StoreError) -> io::Error {
    io::Error::other(format!("the log cannot be read: {error}"))
}

/// The name of the file, safe in a header and on every file system.
pub fn file_name(tab: &Tab, format: Format) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = shorten(&tab.title, 60).chars().map(safe).collect();
    let words: Vec<&str> = name.split('-').filter(|word| !word.is_empty()).collect();
    let name = if words.is_empty() { tab.no.to_string() } else { words.join("-") };
    format!("{name}.{}", format.word())
}

fn head(tab: &Tab) -> String {
    let title = if tab.title.is_empty() { "Conversation" } else { &tab.title };
    format!("# {title}\n\n{}, begun {}\n", tab.model, host::utc(tab.created_at / 1000))
}

/// What the last row left open.
#[derive(Default, PartialEq, Eq)]
enum Open {
    #[default]
    Nothing,
    /// text that further parts continue
    Text,
    /// an indented block; whether a line has begun
    Block { line: bool },
}

/// Markdown out of rows. Thinking, arguments and results are indented, which no content can break out of.
#[derive(Default)]
struct Page {
    open: Open,
    speaker: Option<Role>,
}

fn read<T: DeserializeOwned + Default>(row: &Row) -> T {
    serde_json::from_str(&row.data).unwrap_or_default()
}

impl Page {
    fn row(&mut self, row: &Row, out: &mut String) {
        match (row.role, row.kind) {
            (Role::User, _) => {
                let user: UserText = read(row);
                if user.part == 0 {
                    self.heading(Role::User, &format!("## You, {}", host::utc(row.created_at / 1000)), out);
                }
                self.text(&user.text, user.part, out);
            }
            (_, Kind::Text) => {
                let said: AssistantText = read(row);
                self.assistant(out);
                self.text(&said.text, said.part, out);
            }
            (_, Kind::Thinking) => {
                let thought: Thinking = read(row);
                self.assistant(out);
                if !thought.text.is_empty() {
                    self.block("Thinking:", &thought.text, thought.part, out);
                }
            }
            (_, Kind::ToolCall) => {
                let call: ToolCall = read(row);
                self.assistant(out);
                self.block(&format!("Call of `{}`:", call.name), &call.arguments, call.part, out);
            }
            (_, Kind::ToolResult) => {
                let result: ToolResult = read(row);
                self.block(&format!("Result of `{}`:", result.name), &result.result, result.part, out);
            }
            (_, Kind::Error) => {
                let error: ErrorData = read(row);
                self.note(&format!("**Error:** {}", error.message), out);
            }
            (_, Kind::System) => {
                let system: SystemData = read(row);
                self.note(&format!("*{}:* {}", system.kind, system.text), out);
            }
        }
    }

    fn heading(&mut self, role: Role, text: &str, out: &mut String) {
        self.end(out);
        self.speaker = Some(role);
        out.push('\n');
        out.push_str(text);
        out.push('\n');
    }

    fn assistant(&mut self, out: &mut String) {
        if self.speaker != Some(Role::Assistant) {
            self.heading(Role::Assistant, "## Siskin", out);
        }
    }

    fn text(&mut self, text: &str, part: u32, out: &mut String) {
        if part == 0 || self.open != Open::Text {
            self.end(out);
            out.push('\n');
        }
        out.push_str(text);
        self.open = Open::Text;
    }

    fn block(&mut self, label: &str, text: &str, part: u32, out: &mut String) {
        let mut line = match self.open {
            Open::Block { line } if part > 0 => line,
            _ => {
                self.end(out);
                out.push('\n');
                out.push_str(label);
                out.push_str("\n\n");
                false
            }
        };
        for piece in text.split_inclusive('\n') {
            // An empty line ends no block.
            if !line && piece != "\n" {
                out.push_str("    ");
            }
            out.push_str(piece);
            line = !piece.ends_with('\n');
        }
        self.open = Open::Block { line };
    }

    fn note(&mut self, text: &str, out: &mut String) {
        self.end(out);
        out.push('\n');
        out.push_str(text);
        out.push('\n');
    }

    /// Ends the line that is open.
    fn end(&mut self, out: &mut String) {
        match std::mem::take(&mut self.open) {
            Open::Text | Open::Block { line: true } => out.push('\n'),
            Open::Block { line: false } | Open::Nothing => {}
        }
    }
}

struct Link {
    secret: String,
    tab: TabNo,
    format: Format,
    until: Instant,
}

/// Links that were made and not used yet.
#[derive(Default)]
pub struct Links {
    links: Mutex<Vec<Link>>,
}

impl Links {
    /// A new link's secret.
    pub fn make(&self, tab: TabNo, format: Format) -> Result<String, String> {
        let secret = random_secret()?;
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|link| link.until > Instant::now());
        if links.len() >= LINKS_MAX {
            links.remove(0);
        }
        links.push(Link { secret: secret.clone(), tab, format, until: Instant::now() + LINK_TIME });
        Ok(secret)
    }

    /// Uses a link up. Secrets are too long to be found by the time that the comparison takes.
    pub fn take(&self, secret: &str) -> Option<(TabNo, Format)> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let at = links.iter().position(|link| link.secret == secret)?;
        let link = links.remove(at);
        (link.until > Instant::now()).then_some((link.tab, link.format))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::store::NewTab;
    use crate::testing::Dir;

    #[test]
    fn a_log_becomes_markdown_that_no_content_breaks_out_of() {
        let dir = Dir::new();
        let store = Arc::new(Store::open(dir.path(), &Budget::ROUTER).unwrap());
        let new =
            NewTab { title: "Birds & bees/..".into(), model: "demo/finch".into(), ..Default::default() };
        let tab = store.create_tab(&new).unwrap();
        let rows = [
            (Role::User, Kind::Text, json(&UserText { text: "count ".into(), ..Default::default() })),
            (Role::User, Kind::Text, json(&UserText { text: "them".into(), part: 1, ..Default::default() })),
            (Role::Assistant, Kind::Thinking, json(&Thinking { text: "hm\n".into(), ..Default::default() })),
            (
                Role::Assistant,
                Kind::ToolCall,
                json(&ToolCall { name: "shell".into(), arguments: "{}".into(), ..Default::default() }),
            ),
            (
                Role::Tool,
                Kind::ToolResult,
                json(&ToolResult {
                    name: "shell".into(),
                    result: "```\n# four".into(),
                    ..Default::default()
                }),
            ),
            (
                Role::Tool,
                Kind::ToolResult,
                json(&ToolResult {
                    name: "shell".into(),
                    result: "ty\none".into(),
                    part: 1,
                    is_error: Some(false),
                    ..Default::default()
                }),
            ),
            (
                Role::Assistant,
                Kind::Text,
                json(&AssistantText { text: "41 **birds**".into(), ..Default::default() }),
            ),
            (
                Role::System,
                Kind::System,
                json(&SystemData { kind: "cancelled".into(), text: "Stopped.".into(), ..Default::default() }),
            ),
        ];
        let row = |(at, (role, kind, data)): (usize, (Role, Kind, String))| Row {
            seq: at as Seq + 1,
            turn: TurnNo(1),
            step: 1,
            role,
            kind,
            data,
            opaque: None,
            created_at: 0,
        };
        let rows: Vec<Row> = rows.into_iter().enumerate().map(row).collect();
        store.append(tab.no, &rows).unwrap();
        let tab = store.tab(tab.no).unwrap().unwrap();
        let mut text = String::new();
        open(store.clone(), &tab, Format::Md).read_to_string(&mut text).unwrap();
        let (_, body) = text.split_once("Z\n").unwrap();
        assert_eq!(
            body,
            "\n## You, 1970-01-01T00:00:00Z\n\ncount them\n\n## Siskin\n\nThinking:\n\n    hm\n\n\
             Call of `shell`:\n\n    {}\n\nResult of `shell`:\n\n    ```\n    # fourty\n    one\n\n\
             41 **birds**\n\n*cancelled:* Stopped.\n"
        );
        assert_eq!(file_name(&tab, Format::Md), "birds-bees.md");
        let mut lines = String::new();
        open(store, &tab, Format::Jsonl).read_to_string(&mut lines).unwrap();
        assert_eq!(lines.lines().count(), 8);
        assert!(lines.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
    }

    /// Bug: a batch was larger than a row. Effect: each download took twice the memory that the budget counts
    /// for a connection. Mend: long rows one by one.
    #[test]
    fn an_export_holds_no_more_than_a_row() {
        let dir = Dir::new();
        let store = Arc::new(Store::open(dir.path(), &Budget::ROUTER).unwrap());
        let tab = store.create_tab(&NewTab::default()).unwrap();
        let row = |seq| Row {
            seq,
            turn: TurnNo(1),
            step: 1,
            role: Role::Tool,
            kind: Kind::ToolResult,
            data: json(&ToolResult {
                result: "x\n".repeat(2600),
                part: seq as u32 - 1,
                ..Default::default()
            }),
            opaque: None,
            created_at: 0,
        };
        store.append(tab.no, &(1..=9).map(row).collect::<Vec<_>>()).unwrap();
        let tab = store.tab(tab.no).unwrap().unwrap();
        for format in [Format::Md, Format::Jsonl] {
            let (mut log, mut all) = (open(store.clone(), &tab, format), vec![0; 1 << 20]);
            while let amount @ 1.. = log.read(&mut all).unwrap() {
                assert!(amount <= Budget::ROUTER.row_buffer_bytes, "{amount}");
            }
        }
    }

    #[test]
    fn a_link_works_once_and_for_its_tab() {
        let links = Links::default();
        let secret = links.make(TabNo(3), Format::Jsonl).unwrap();
        assert_eq!(links.take("another"), None);
        assert_eq!(links.take(&secret), Some((TabNo(3), Format::Jsonl)));
        assert_eq!(links.take(&secret), None);
        let first = links.make(TabNo(1), Format::Md).unwrap();
        (0..LINKS_MAX).for_each(|_| drop(links.make(TabNo(2), Format::Md)));
        assert_eq!(links.take(&first), None, "the oldest made room");
    }
}
