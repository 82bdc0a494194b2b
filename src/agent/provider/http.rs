//! One HTTP request to a provider, and what went wrong with it in words that say what to do.
//!
//! The body is streamed from a reader with a known length; the answer is read through a small buffer.
//! Connections are not kept: between two steps of a turn a tool runs for who knows how long, and an idle TLS
//! session costs 50 KiB. Read first: [`super::dial`] for how every wait ends with a stop.

use super::Fault;
use super::dial::{self, Halt, Patience, Times};
use super::tls;
use crate::agent::stop::Stop;
use crate::budget::{PROVIDER_IN_BYTES, PROVIDER_OUT_BYTES};
use crate::chunk::{Usage, shorten};
use crate::config::{ApiKind, Provider};
use serde::Deserialize;
use std::borrow::Cow;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use ureq::SendBody;
use ureq::http::{HeaderMap, Response, StatusCode};
use ureq::tls::TlsConfig;

/// Of an answer that is an error at most so much is read.
pub const ERROR_BYTES_MAX: usize = 8 * 1024;
/// Of an error that is no JSON at most so much is shown.
const SHOWN_BYTES_MAX: usize = 500;
const CONNECT_TIME: Duration = Duration::from_secs(15);
const SEND_TIME: Duration = Duration::from_secs(30);

/// A request that is about to be made.
pub struct Request<'a> {
    /// whole URL
    pub url: String,
    /// the body and its length; without one it is a GET
    pub body: Option<(&'a mut dyn Read, u64)>,
    /// longest wait for the first event and between events
    pub times: Times,
}

/// An answer whose body is still to be read.
pub struct Reply {
    /// status and head
    pub status: StatusCode,
    /// head
    pub headers: HeaderMap,
    /// body; an error of it is to be shown by [`broken`]
    pub body: ureq::BodyReader<'static>,
    /// the deadlines of its reads
    pub patience: Arc<Patience>,
}

/// The times that a provider's config gives.
pub fn times(provider: &Provider) -> Times {
    Times {
        connect: CONNECT_TIME,
        send: SEND_TIME,
        first_event: Duration::from_secs(provider.first_event_s.max(1)),
        idle: Duration::from_secs(provider.idle_s.max(1)),
        until: None,
    }
}

/// Makes a request and waits for the answer's head.
pub fn open(provider: &Provider, request: Request<'_>, stop: &Stop) -> Result<Reply, Fault> {
    if stop.is_raised() {
        return Err(Fault::Stopped);
    }
    let patience = Patience::new(stop, request.times);
    let agent = dial::agent(config(provider)?, &patience);
    let result = match request.body {
        Some((body, length)) => {
            let call = keyed(agent.post(&request.url), provider)
                .header("content-type", "application/json")
                .header("content-length", length.to_string());
            call.send(SendBody::from_reader(body))
        }
        None => keyed(agent.get(&request.url), provider).call(),
    };
    let response: Response<ureq::Body> = match result {
        Ok(response) => response,
        Err(error) => return Err(unreachable(provider, &error, patience.halt())),
    };
    let (head, body) = response.into_parts();
    if let Some(id) = request_id(&head.headers) {
        log::debug!("{}: request id {id}", provider.name);
    }
    if let Some(coding) = head.headers.get("content-encoding").filter(|coding| *coding != "identity") {
        let message = format!(
            "provider {} packs its answer ({coding:?}) though that was not asked for: turn compression off \
             there, or in the proxy before it",
            provider.name
        );
        return Err(refusal(None, message, false, None));
    }
    Ok(Reply { status: head.status, headers: head.headers, body: body.into_reader(), patience })
}

fn keyed<Any>(call: ureq::RequestBuilder<Any>, provider: &Provider) -> ureq::RequestBuilder<Any> {
    let key = provider.api_key.as_deref();
    match provider.kind {
        ApiKind::Anthropic => {
            let call = call.header("anthropic-version", "2023-06-01");
            match key {
                Some(key) => call.header("x-api-key", key),
                None => call,
            }
        }
        _ => match key {
            Some(key) => call.header("authorization", format!("Bearer {key}")),
            None => call,
        },
    }
}

fn config(provider: &Provider) -> Result<ureq::config::Config, Fault> {
    let refused = |message: String| refusal(None, message, false, None);
    let roots = tls::roots(provider).map_err(refused)?;
    let proxy = match provider.proxy.as_str() {
        "" => None,
        url => match ureq::Proxy::new(url) {
            Ok(proxy) if !url.starts_with("socks") => Some(proxy),
            _ => {
                return Err(refused(format!(
                    "proxy of provider {} must be an http:// or https:// URL",
                    provider.name
                )));
            }
        },
    };
    Ok(ureq::Agent::config_builder()
        .http_status_as_error(false)
        .proxy(proxy)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(concat!("siskin/", env!("CARGO_PKG_VERSION")))
        .accept("text/event-stream, application/json")
        .accept_encoding("identity")
        .max_idle_connections(0)
        .max_idle_connections_per_host(0)
        .input_buffer_size(PROVIDER_IN_BYTES)
        .output_buffer_size(PROVIDER_OUT_BYTES)
        .tls_config(TlsConfig::builder().root_certs(roots).build())
        .build())
}

/// A [`Fault::Refusal`].
pub fn refusal(status: Option<u16>, message: String, retryable: bool, retry_after_ms: Option<u64>) -> Fault {
    Fault::Refusal { status, message, retryable, retry_after_ms }
}

/// Why there is no answer at all: one sentence with the cause and the mend.
fn unreachable(provider: &Provider, error: &ureq::Error, halt: Option<Halt>) -> Fault {
    let name = &provider.name;
    let url = &provider.base_url;
    if let Some(halt) = halt {
        return halted(provider, halt, None);
    }
    let (message, retryable) = match error {
        ureq::Error::HostNotFound => (
            format!(
                "the name of provider {name} was not found ({url}): check base_url and this device's DNS"
            ),
            true,
        ),
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => (
            format!("provider {name} refused the connection at {url}: is it running, and is the port right?"),
            true,
        ),
        ureq::Error::Io(error)
            if matches!(error.kind(), io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable) =>
        {
            (format!("no route to provider {name} at {url}: check this device's network"), true)
        }
        error if let Some(text) = tls::fault(provider, error) => (text, false),
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            let hint = if url.starts_with("https:") {
                "does it speak TLS at that port?"
            } else {
                "is the port right? One that speaks TLS needs https:// in base_url"
            };
            (format!("provider {name} at {url} closed the connection without an answer: {hint}"), true)
        }
        ureq::Error::Io(error) => {
            (format!("the connection to provider {name} at {url} broke off: {error}"), true)
        }
        ureq::Error::BadUri(text) => (format!("base_url of provider {name} is not usable: {text}"), false),
        ureq::Error::ConnectProxyFailed(text) => {
            (format!("the proxy of provider {name} did not connect: {text}"), true)
        }
        ureq::Error::LargeResponseHeader(..) => (
            format!("the head of provider {name}'s answer is longer than {} bytes", PROVIDER_IN_BYTES),
            false,
        ),
        ureq::Error::Protocol(_) | ureq::Error::Http(_) => {
            let text = format!("provider {name} at {url} did not answer as HTTP: check base_url");
            let secure = url.starts_with("https:");
            (if secure { text } else { format!("{text} (if it speaks TLS, write https://)") }, false)
        }
        error => (format!("the request to provider {name} at {url} failed: {error}"), true),
    };
    refusal(None, message, retryable, None)
}

/// A peer that takes the connection and then says nothing that TLS, or a proxy, would have to say.
fn unheard(provider: &Provider) -> String {
    let (name, url, seconds) = (&provider.name, &provider.base_url, CONNECT_TIME.as_secs());
    if !provider.proxy.is_empty() {
        return format!(
            "the proxy of provider {name} took the connection, but made none to {url} within {seconds} s: \
             check proxy and base_url"
        );
    }
    format!(
        "provider {name} at {url} took the connection, but did not complete the TLS handshake within \
         {seconds} s: check the port, and whether TLS is spoken there"
    )
}

/// A wait that was given up, as a fault: of the whole request, or of a stream that had begun (`usage` is told
/// then).
fn halted(provider: &Provider, halt: Halt, usage: Option<Usage>) -> Fault {
    let name = &provider.name;
    let message = match halt {
        Halt::Stopped => return Fault::Stopped,
        Halt::Connect => format!(
            "no connection to provider {name} at {} within {} s: check the address, the network and the \
             firewall",
            provider.base_url,
            CONNECT_TIME.as_secs()
        ),
        Halt::Handshake => unheard(provider),
        Halt::Send => {
            format!("provider {name} took nothing of the request for {} s", SEND_TIME.as_secs())
        }
        Halt::FirstEvent => format!(
            "provider {name} sent nothing for {} s: a slow model may need a larger first_event_s",
            provider.first_event_s
        ),
        Halt::Idle => format!(
            "provider {name} fell silent in the middle of its answer (idle_s is {} s)",
            provider.idle_s
        ),
        Halt::Lookups => "too many name lookups hang: check this device's DNS".to_owned(),
        Halt::Lookup => format!(
            "the name of provider {name} ({}) was not looked up within {} s: check this device's DNS",
            provider.base_url,
            CONNECT_TIME.as_secs()
        ),
    };
    match usage {
        Some(usage) => Fault::Cut { message, usage },
        // To wait the whole first_event_s again and again helps nobody.
        None => refusal(None, message, halt != Halt::FirstEvent, None),
    }
}

/// A body that broke off, before anything of it was shown (`None`) or after.
pub fn broken(provider: &Provider, error: &io::Error, halt: Option<Halt>, usage: Option<Usage>) -> Fault {
    if let Some(halt) = halt {
        return halted(provider, halt, usage);
    }
    let message = format!("the connection to provider {} broke off: {error}", provider.name);
    match usage {
        Some(usage) => Fault::Cut { message, usage },
        None => refusal(None, message, true, None),
    }
}

/// An answer with another status than 200, as a fault.
pub fn failed(provider: &Provider, mut reply: Reply) -> Fault {
    let mut text = Vec::new();
    // What can be read of an error is enough; that the rest failed adds nothing.
    let read = (&mut reply.body).take(ERROR_BYTES_MAX as u64).read_to_end(&mut text);
    if reply.patience.halt() == Some(Halt::Stopped) {
        return Fault::Stopped;
    }
    if let Err(error) = read {
        log::debug!("{}: the error's text broke off: {error}", provider.name);
    }
    let error = ErrorText::read(&String::from_utf8_lossy(&text));
    let id = request_id(&reply.headers).unwrap_or("not told");
    log::info!("{}: status {}, request id {id}", provider.name, reply.status.as_u16());
    explain(provider, reply.status.as_u16(), &reply.headers, &error)
}

/// What an error status means for the owner, and whether to try again.
pub fn explain(provider: &Provider, status: u16, headers: &HeaderMap, error: &ErrorText) -> Fault {
    let name = &provider.name;
    let said = if error.message.is_empty() { String::new() } else { format!(": {}", error.message) };
    let spent = error.quota_is_spent() || status == 402;
    // Some servers say it with a status of their own faults.
    let too_long = !spent
        && !matches!(status, 401..=404 | 429)
        && super::cause::is_too_long(&format!("{} {}", error.message, error.kind));
    let message = match status {
        401 | 403 => {
            format!("provider {name} refused the key ({status}){said}; check {}", key_place(provider))
        }
        404 => format!(
            "provider {name} does not know this model or URL (404){said}; check the model's name and base_url"
        ),
        _ if spent => format!("the quota or credit of provider {name} is spent ({status}){said}"),
        _ if too_long => {
            format!(
                "the conversation is longer than the context of provider {name}'s model ({status}){said}; \
             go on in a new tab, or choose a model with a larger context"
            )
        }
        400 if said.contains("reasoning_content") && said.contains("passed back") => {
            format!("provider {name} answered {status}{said}; set replay_reasoning = true for this provider")
        }
        413 => format!("the request is too large for provider {name} (413){said}"),
        429 => format!("provider {name} asks to slow down (429){said}"),
        300..=399 => {
            let to = headers.get("location").map(|to| String::from_utf8_lossy(to.as_bytes()).into_owned());
            format!(
                "provider {name} redirects ({status}) to {}; set base_url to where it really is",
                shorten(&to.unwrap_or_default(), 200)
            )
        }
        _ => format!("provider {name} answered {status}{said}"),
    };
    let told = headers.get("x-should-retry").map(|told| told.as_bytes() == b"true");
    let retryable =
        !spent && !too_long && told.unwrap_or(matches!(status, 408 | 409 | 425 | 429 | 500..=599));
    refusal(Some(status), message, retryable, retry_after_ms(headers))
}

fn key_place(provider: &Provider) -> String {
    let variable = match provider.kind {
        ApiKind::Anthropic => "ANTHROPIC_API_KEY",
        _ => "OPENAI_API_KEY",
    };
    let missing = if provider.api_key.is_none() { " (no key is configured)" } else { "" };
    format!("the file in api_key_file of provider {} or the variable {variable}{missing}", provider.name)
}

/// What the provider's support asks for.
fn request_id(headers: &HeaderMap) -> Option<&str> {
    let names = ["request-id", "x-request-id"];
    let mut found = names.iter().filter_map(|name| headers.get(*name)?.to_str().ok());
    found.find(|id| !id.is_empty()).map(|id| shorten(id, 128))
}

fn retry_after_ms(headers: &HeaderMap) -> Option<u64> {
    let text = |name| headers.get(name).and_then(|value: &ureq::http::HeaderValue| value.to_str().ok());
    if let Some(ms) = text("retry-after-ms").and_then(|ms| ms.trim().parse::<f64>().ok()) {
        return wait_ms(ms);
    }
    let after = text("retry-after")?.trim();
    if let Ok(seconds) = after.parse::<f64>() {
        return wait_ms(seconds * 1000.0);
    }
    // The provider's own clock, if it tells it: this device's may be wrong.
    let own = || SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|now| now.as_secs());
    let now = text("date").and_then(http_date).or_else(own)?;
    Some(http_date(after)?.saturating_sub(now).saturating_mul(1000))
}

/// A wait in milliseconds; a number that is none, or negative, asks for nothing.
fn wait_ms(ms: f64) -> Option<u64> {
    (ms.is_finite() && ms >= 0.0).then_some(ms as u64)
}

/// Unix seconds of `Sun, 06 Nov 1994 08:49:37 GMT`; the two obsolete forms are not read.
fn http_date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut words = text.split_once(", ")?.1.split(' ');
    let day: i64 = words.next()?.parse().ok().filter(|day| (1..=31).contains(day))?;
    let name = words.next()?;
    let month = MONTHS.iter().position(|month| *month == name)? as i64 + 1;
    let year: i64 = words.next()?.parse().ok().filter(|year| (1970..10_000).contains(year))?;
    let mut clock = words.next()?.split(':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    // Days from civil, counted from March so that the leap day is a year's last.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = y * 365 + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    Some(u64::try_from(days).ok()? * 86_400 + hour * 3600 + minute * 60 + second)
}

/// What a provider's error says, whichever way it says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorText {
    /// for the owner; at most 500 bytes
    pub message: String,
    /// `type` and `code`, joined by a space
    pub kind: String,
    /// a numeric code between 400 and 599
    pub status: Option<u16>,
}

impl ErrorText {
    /// From a body, or from the value of `error` in a stream: `{"error":{…}}`, `{"error":"…"}`,
    /// `{"detail":…}`, `{"message":…}`, a plain string, HTML, anything.
    pub fn read(text: &str) -> ErrorText {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Shape<'a> {
            #[serde(borrow)]
            error: Option<&'a serde_json::value::RawValue>,
            #[serde(borrow)]
            message: Option<&'a serde_json::value::RawValue>,
            #[serde(borrow)]
            detail: Option<&'a serde_json::value::RawValue>,
            #[serde(borrow)]
            details: Option<&'a serde_json::value::RawValue>,
            #[serde(borrow, rename = "type")]
            kind: Option<&'a serde_json::value::RawValue>,
            #[serde(borrow)]
            code: Option<&'a serde_json::value::RawValue>,
            #[serde(borrow)]
            param: Option<&'a serde_json::value::RawValue>,
            #[serde(borrow)]
            error_code: Option<&'a serde_json::value::RawValue>,
            #[serde(borrow)]
            n_ctx: Option<&'a serde_json::value::RawValue>,
        }
        let text = text.trim();
        if let Ok(plain) = serde_json::from_str::<Cow<'_, str>>(text) {
            return ErrorText { message: clean(&plain), ..ErrorText::default() };
        }
        let Ok(shape) = serde_json::from_str::<Shape<'_>>(text) else {
            return ErrorText { message: clean(text), ..ErrorText::default() };
        };
        if let Some(inner) = shape.error.filter(|inner| inner.get() != "null") {
            let mut error = ErrorText::read(inner.get());
            if error.message.is_empty() {
                error.message = clean(inner.get());
            }
            return error;
        }
        let word = |raw: Option<&serde_json::value::RawValue>| {
            let raw = raw.map_or("", |raw| raw.get());
            let text = serde_json::from_str::<String>(raw).unwrap_or_else(|_| raw.to_owned());
            if text == "null" { String::new() } else { text }
        };
        let message = [shape.message, shape.detail].map(word);
        let [said, detail] = message;
        let code = word(shape.code);
        let kind = [word(shape.kind), code.clone(), word(shape.error_code), {
            let details = word(shape.details);
            if details.is_empty() { details } else { ErrorText::read(&details).kind }
        }];
        let mut message = clean(if said.is_empty() { &detail } else { &said });
        // Some name the field at fault only here.
        let param = word(shape.param);
        if !param.is_empty() && !message.contains(&param) {
            message = format!("{message} ({})", shorten(&param, 100));
        }
        // llama.cpp tells its context beside the message.
        if let Ok(tokens) = word(shape.n_ctx).parse::<u64>() {
            message.push_str(&format!(" (n_ctx: {tokens})"));
        }
        ErrorText {
            message,
            kind: shorten(&kind.join(" "), 200).trim().to_owned(),
            status: code.parse().ok().filter(|code| (400..600).contains(code)),
        }
    }

    /// Trying again would cost money or time and change nothing.
    pub fn quota_is_spent(&self) -> bool {
        const KINDS: [&str; 4] =
            ["insufficient_quota", "enforced_spend_limit_reached", "billing_error", "billing_hard_limit"];
        const TEXTS: [&str; 3] = ["credit balance", "exceeded your current quota", "insufficient credits"];
        let text = self.message.to_ascii_lowercase();
        KINDS.iter().any(|kind| self.kind.contains(kind)) || TEXTS.iter().any(|part| text.contains(part))
    }

    /// Whether an error inside a stream is worth another try.
    pub fn passes(&self) -> bool {
        const KINDS: [&str; 7] =
            ["overloaded", "rate_limit", "api_error", "server_error", "timeout", "unavailable", "internal"];
        let by_status = self.status.is_some_and(|status| matches!(status, 408 | 429 | 500..=599));
        !self.quota_is_spent()
            && self.status != Some(402)
            && (by_status || KINDS.iter().any(|kind| self.kind.contains(kind)))
    }
}

/// One line without control characters, cut at a character.
fn clean(text: &str) -> String {
    let text = shorten(text.trim(), SHOWN_BYTES_MAX);
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    line.trim().trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests;
