//! The demo: a provider without network or key, clearly named as one.
//!
//! It thinks, calls the real tools and streams Markdown, so that a newcomer, a test and a benchmark can drive all the
//! rest for real. Its answer is a pure function of the owner's last message and of what the turn has done since:
//!
//! | the message holds | the demo does |
//! |---|---|
//! | `N chunks` | streams N blocks; `B bytes` sets the size of each |
//! | `N calls` | makes N tool calls, one a step |
//! | `M ms` | sets the time between two deltas |
//! | `markdown` | shows what Markdown looks like |
//! | anything else | looks at the device and tells what it saw |

use super::{Answer, Delta, Fault, Finish, Sink};
use crate::agent::stop::Stop;
use crate::chunk::*;
use crate::store::{Store, StoreError};
use std::time::Duration;

/// The one model.
pub const MODEL: &str = "finch";

/// Bytes of one delta.
const DELTA_BYTES: usize = 16;
/// Time between two deltas, unless the message says otherwise.
const PACE: Duration = Duration::from_millis(24);
/// Rows looked through for the owner's message and what came after it.
const LOOK_BACK: Seq = 32;

const THOUGHT: &str = "The owner wants to see what this device is. I can ask it myself: system_info reads the model, \
memory and uptime, and list_files shows the working directory. Both only read.";

const SHOWCASE: &str = "## What a reply can hold\n\n\
Text with *emphasis*, `code` and [a link](https://www.sqlite.org/wal.html).\n\n\
| figure | goal |\n|---|---:|\n| idle memory | 4 MiB |\n| syncs a turn | 1 |\n\n\
```sh\n# a block of code, which scrolls inside itself when it is wide\nuci show network | grep -E 'lan|wan'\n```\n\n\
1. Lists, in order\n2. and nested\n   - like this\n\n> And a quotation.\n";

/// What a message asks the demo for.
#[derive(Debug, PartialEq, Eq)]
struct Wish {
    chunks: Option<u64>,
    bytes: usize,
    calls: Option<u64>,
    pace: Duration,
    markdown: bool,
}

impl Wish {
    fn of(text: &str) -> Wish {
        let mut wish = Wish { chunks: None, bytes: 240, calls: None, pace: PACE, markdown: false };
        let clean = |word: &str| word.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_ascii_lowercase();
        let words: Vec<String> = text.split_whitespace().take(64).map(clean).collect();
        for pair in words.windows(2) {
            let Ok(n) = pair[0].parse::<u64>() else { continue };
            match pair[1].as_str() {
                "chunks" | "chunk" => wish.chunks = Some(n.min(10_000_000)),
                "calls" | "call" => wish.calls = Some(n.min(1000)),
                "bytes" | "byte" => wish.bytes = n.clamp(1, 1_000_000) as usize,
                "ms" => wish.pace = Duration::from_millis(n.min(60_000)),
                _ => {}
            }
        }
        wish.markdown = words.iter().any(|word| word == "markdown");
        wish
    }
}

/// What happened since the owner's last message.
struct Since {
    message: String,
    results: u64,
}

/// Answers the log up to `upto`.
pub fn answer(
    store: &Store,
    tab: TabNo,
    upto: Seq,
    stop: &Stop,
    sink: &mut dyn Sink,
) -> Result<Answer, Fault> {
    let since = look_back(store, tab, upto)?;
    let wish = Wish::of(&since.message);
    let mut voice = Voice { stop, sink, pace: wish.pace, output: 0 };
    let finish = match (&wish, since.results) {
        (Wish { calls: Some(n), .. }, done) if done < *n => {
            voice.call(upto, "list_files", r#"{"path":"."}"#)?
        }
        (Wish { calls: Some(n), .. }, _) => voice.say(&format!("Made {n} calls."))?,
        (Wish { chunks: Some(n), bytes, .. }, _) => voice.chunks(*n, *bytes)?,
        (Wish { markdown: true, .. }, _) => voice.say(SHOWCASE)?,
        (_, 0) => {
            voice.think(THOUGHT)?;
            voice.say("Let me look at this device.")?;
            voice.sink.delta(Delta::BlockEnd)?;
            voice.call(upto, "system_info", "{}")?
        }
        (_, 1) => voice.call(upto, "list_files", r#"{"path":"."}"#)?,
        _ => voice.say(REPORT)?,
    };
    let usage = Usage { input: upto, cache_read: 0, cache_write: 0, output: voice.output };
    Ok(Answer { finish, usage })
}

const REPORT: &str = "I am Siskin\u{2019}s **demo**: no model is behind this answer, but all else is real. I just read \
this device\u{2019}s facts and its working directory, through the same tools that a model gets; open the calls above to \
see them.\n\n\
Try one of these:\n\n\
- `Show me some markdown`\n\
- `Stream 300 chunks`, and scroll up while it runs\n\
- `Make 20 calls`\n\n\
To talk to a real model, put a provider into `siskin.toml`:\n\n\
```toml\n[[provider]]\nname = \"home\"\nkind = \"openai\"\nbase_url = \"http://192.168.1.20:11434/v1\"\n```\n";

/// Finds the owner's last message and counts the results after it.
fn look_back(store: &Store, tab: TabNo, upto: Seq) -> Result<Since, StoreError> {
    let mut since = Since { message: String::new(), results: 0 };
    let mut end = upto;
    while end > 0 {
        let after = end.saturating_sub(LOOK_BACK);
        let mut rows = Vec::new();
        let mut next = after;
        while next < end {
            let some = store.rows(tab, next, end, 64 * 1024)?;
            let Some(last) = some.last() else { break };
            next = last.seq;
            rows.extend(some);
        }
        for row in rows.iter().rev() {
            if row.kind == Kind::ToolResult && row.data.contains(r#""isError":"#) {
                since.results += 1;
            }
            if row.role == Role::User {
                since.message = serde_json::from_str::<UserText>(&row.data).map_or(String::new(), |u| u.text);
                return Ok(since);
            }
        }
        end = after;
    }
    Ok(since)
}

/// Speaks in deltas, at a pace, until stopped.
struct Voice<'a> {
    stop: &'a Stop,
    sink: &'a mut dyn Sink,
    pace: Duration,
    output: u64,
}

impl Voice<'_> {
    fn pause(&self) -> Result<(), Fault> {
        let raised = if self.pace.is_zero() { self.stop.is_raised() } else { self.stop.wait(self.pace) };
        if raised { Err(Fault::Stopped) } else { Ok(()) }
    }

    fn pieces(&mut self, text: &str, delta: fn(&str) -> Delta<'_>) -> Result<(), Fault> {
        let mut rest = text;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(floor_boundary(rest, DELTA_BYTES).max(1));
            self.sink.delta(delta(now))?;
            self.output += 1 + now.len() as u64 / 4;
            self.pause()?;
            rest = later;
        }
        Ok(())
    }

    fn think(&mut self, text: &str) -> Result<(), Fault> {
        self.pieces(text, |t| Delta::Thinking(t))?;
        self.sink.delta(Delta::BlockEnd)
    }

    fn say(&mut self, text: &str) -> Result<Finish, Fault> {
        self.pieces(text, |t| Delta::Text(t))?;
        Ok(Finish::End)
    }

    fn call(&mut self, upto: Seq, name: &str, arguments: &str) -> Result<Finish, Fault> {
        let id = format!("demo_{upto}");
        self.sink.delta(Delta::Call { id: &id, name })?;
        self.pieces(arguments, |t| Delta::Arguments(t))?;
        self.sink.delta(Delta::BlockEnd)?;
        Ok(Finish::Calls)
    }

    fn chunks(&mut self, count: u64, bytes: usize) -> Result<Finish, Fault> {
        const FILL: &str =
            " The small bird sits in the alder and eats its seeds, one by one, in no hurry at all.";
        for n in 1..=count {
            let mut text = format!("Chunk {n} of {count}.");
            while text.len() < bytes {
                text.push_str(shorten(FILL, bytes - text.len()));
            }
            self.say(&text)?;
            self.sink.delta(Delta::BlockEnd)?;
        }
        Ok(Finish::End)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_read_from_plain_words() {
        let wish = Wish::of("Please stream 300 chunks of 20 bytes, 0 ms apart!");
        assert_eq!((wish.chunks, wish.bytes, wish.pace), (Some(300), 20, Duration::ZERO));
        assert_eq!(Wish::of("make 20 calls").calls, Some(20));
        assert_eq!(Wish::of("hello").chunks, None);
        assert!(Wish::of("Show me some Markdown").markdown);
    }
}
