//! The TOML file: every key is known, typed and checked, and what is wrong is told with file, line and key.

use super::table::{Section, Source};
use super::{ApiKind, Config, Decision, Network, Permission, Provider, Sandbox};
use crate::budget::Budget;
use std::io::Read;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use toml::de::DeTable;

/// A file larger than this is not a config.
const FILE_BYTES_MAX: u64 = 256 * 1024;
const LISTEN_MAX: usize = 8;
const NAMES_MAX: usize = 64;
const PROVIDERS_MAX: usize = 32;
const MODELS_MAX: usize = 512;
const PERMISSIONS_MAX: usize = 1024;

const KEYS: &[&str] = &[
    "listen",
    "hosts",
    "origins",
    "trusted_proxies",
    "data",
    "profile",
    "default_model",
    "system_prompt",
    "workdir",
    "send_time",
    "sandbox",
    "device_shell",
    "http_allow",
    "tokens_per_day",
    "notify",
    "log",
    "provider",
    "permission",
    "budget",
];

const PROVIDER_KEYS: &[&str] = &[
    "name",
    "kind",
    "base_url",
    "api_key_file",
    "models",
    "max_tokens",
    "context_tokens",
    "first_event_s",
    "idle_s",
    "replay_reasoning",
    "proxy",
    "ca_file",
];

/// One line of `[budget]`, whose name is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetLine {
    /// the limit
    pub name: &'static str,
    /// its value
    pub value: usize,
}

/// A provider's `api_key_file` and where it was named, for errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFile {
    /// the provider
    pub provider: String,
    /// the file
    pub path: PathBuf,
    /// file and line that name it
    pub place: String,
}

/// The file's text, if it is a readable file of a sensible size.
pub fn read(path: &Path) -> Result<String, String> {
    let fault = |what: String| format!("{}: {what}", path.display());
    // Looked at before it is opened: opening a pipe would wait for its writer.
    if std::fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return Err(fault("is not a regular file".to_owned()));
    }
    let found = std::fs::File::open(path).map_err(|error| {
        fault(match error.kind() {
            std::io::ErrorKind::NotFound => "there is no such file; name another with --config".to_owned(),
            std::io::ErrorKind::PermissionDenied => {
                "not readable for this user; change its owner or mode, or name another with --config"
                    .to_owned()
            }
            _ => error.to_string(),
        })
    })?;
    let mut bytes = Vec::new();
    found.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| fault(error.to_string()))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(fault(format!("is larger than {FILE_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes().iter().take(good).filter(|byte| **byte == b'\n').count();
        fault(format!("line {line}: is not UTF-8"))
    })
}

/// Puts the file's values into `config`; gives the changes of `[budget]`, and lists the key files.
pub fn apply(
    path: &Path,
    text: &str,
    config: &mut Config,
    key_files: &mut Vec<KeyFile>,
) -> Result<Vec<BudgetLine>, String> {
    let source = Source { path, text };
    let parsed = DeTable::parse(text).map_err(|error| {
        let what = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
        source.error(error.span().map_or(0, |span| span.start), what)
    })?;
    let top = Section::new(source, 0, "", parsed.get_ref(), KEYS)?;
    edge(&top, config)?;
    places(&top, config)?;
    rules(&top, config)?;
    for (at, table) in top.tables("provider", PROVIDERS_MAX)? {
        let section = Section::new(source, at, "provider ", table, PROVIDER_KEYS)?;
        provider(source, &section, config, key_files)?;
    }
    for (at, table) in top.tables("permission", PERMISSIONS_MAX)? {
        let section = Section::new(source, at, "permission ", table, &["tool", "match", "do"])?;
        config.permissions.push(permission(&section)?);
    }
    match top.table("budget")? {
        Some((at, table)) => budget(source, at, table),
        None => Ok(Vec::new()),
    }
}

fn edge(top: &Section<'_>, config: &mut Config) -> Result<(), String> {
    if let Some(listen) = top.list("listen", LISTEN_MAX, listen_address)? {
        if listen.is_empty() {
            return Err(top.error("listen", "must name at least one address, such as \"127.0.0.1:8787\""));
        }
        config.listen = listen;
    }
    if let Some(hosts) = top.list("hosts", NAMES_MAX, host_name)? {
        config.hosts = hosts;
    }
    if let Some(origins) = top.list("origins", NAMES_MAX, origin)? {
        config.origins = origins;
    }
    if let Some(proxies) = top.list("trusted_proxies", NAMES_MAX, |text| {
        text.parse::<IpAddr>().map_err(|_| format!("{text:?} is not an IP address"))
    })? {
        config.trusted_proxies = proxies;
    }
    if let Some(networks) = top.list("http_allow", NAMES_MAX, network)? {
        config.http_allow = networks;
    }
    if let Some(url) = top.string("notify")? {
        if !url.is_empty() {
            base_url(url).map_err(|what| top.error("notify", what))?;
        }
        config.notify = url.to_owned();
    }
    Ok(())
}

fn places(top: &Section<'_>, config: &mut Config) -> Result<(), String> {
    if let Some(data) = path_of(top, "data")? {
        config.data = data;
    }
    config.workdir = path_of(top, "workdir")?;
    let words = [("router", "router"), ("sbc", "sbc")];
    if let Some(profile) = top.word("profile", &words)? {
        config.profile = profile;
    }
    use log::LevelFilter::{Debug, Error, Info, Off, Trace, Warn};
    let words =
        [("error", Error), ("warn", Warn), ("info", Info), ("debug", Debug), ("trace", Trace), ("off", Off)];
    if let Some(level) = top.word("log", &words)? {
        config.log = level;
    }
    Ok(())
}

fn rules(top: &Section<'_>, config: &mut Config) -> Result<(), String> {
    if let Some(model) = top.string("default_model")? {
        let whole =
            model.split_once('/').is_some_and(|(provider, name)| !provider.is_empty() && !name.is_empty());
        if !model.is_empty() && !whole {
            return Err(top.error("default_model", format!("must be provider/model, not {model:?}")));
        }
        config.default_model = model.to_owned();
    }
    if let Some(prompt) = top.string("system_prompt")? {
        config.system_prompt = Some(prompt.to_owned()).filter(|prompt| !prompt.trim().is_empty());
    }
    if let Some(flag) = top.flag("send_time")? {
        config.send_time = flag;
    }
    let words = [("required", Sandbox::Required), ("accept-degraded", Sandbox::AcceptDegraded)];
    if let Some(sandbox) = top.word("sandbox", &words)? {
        config.sandbox = sandbox;
    }
    if let Some(flag) = top.flag("device_shell")? {
        config.device_shell = flag;
    }
    if let Some(tokens) = top.number("tokens_per_day", 0, 1 << 53)? {
        config.tokens_per_day = tokens;
    }
    Ok(())
}

fn provider(
    source: Source<'_>,
    section: &Section<'_>,
    config: &mut Config,
    key_files: &mut Vec<KeyFile>,
) -> Result<(), String> {
    let Some(name) = section.string("name")? else {
        return Err(section.error("name", "is missing"));
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if name.is_empty() || name.len() > 64 || !name.bytes().all(plain) {
        let what = format!("must be 1 to 64 letters, digits, - and _, not {name:?}");
        return Err(section.error("name", what));
    }
    if config.providers.iter().any(|known| known.name == name) {
        return Err(section.error("name", format!("{name:?} is used twice; each provider needs its own")));
    }
    let words = [("anthropic", ApiKind::Anthropic), ("openai", ApiKind::OpenAi)];
    let Some(kind) = section.word("kind", &words)? else {
        let what = format!("is missing for provider {name:?}: \"anthropic\" or \"openai\"");
        return Err(section.error("kind", what));
    };
    let mut made = Provider::new(name, kind);
    if let Some(url) = section.string("base_url")? {
        made.base_url = base_url(url).map_err(|what| section.error("base_url", what))?;
    }
    if let Some(url) = section.string("proxy")?.filter(|url| !url.is_empty()) {
        made.proxy = proxy_url(url).map_err(|what| section.error("proxy", what))?;
    }
    if let Some(models) = section.list("models", MODELS_MAX, model_name)? {
        made.models = models;
    }
    limits(section, &mut made)?;
    if let Some(path) = path_of(section, "ca_file")? {
        super::ca::read(&path).map_err(|what| section.error("ca_file", what))?;
        made.ca_file = Some(path);
    }
    if let Some(path) = path_of(section, "api_key_file")? {
        let place = section.error("api_key_file", "");
        let place = place.trim_end_matches(": ").to_owned();
        key_files.push(KeyFile { provider: name.to_owned(), path, place });
    }
    debug_assert!(section.at <= source.text.len(), "a section lies within its file");
    config.providers.push(made);
    Ok(())
}

fn limits(section: &Section<'_>, made: &mut Provider) -> Result<(), String> {
    const DAY_S: u64 = 86_400;
    if let Some(tokens) = section.number("max_tokens", 1, 10_000_000)? {
        made.max_tokens = tokens;
    }
    if let Some(tokens) = section.number("context_tokens", 0, 100_000_000)? {
        made.context_tokens = tokens;
    }
    if let Some(seconds) = section.number("first_event_s", 1, DAY_S)? {
        made.first_event_s = seconds;
    }
    if let Some(seconds) = section.number("idle_s", 1, DAY_S)? {
        made.idle_s = seconds;
    }
    if let Some(flag) = section.flag("replay_reasoning")? {
        made.replay_reasoning = flag;
    }
    Ok(())
}

fn permission(section: &Section<'_>) -> Result<Permission, String> {
    let text = |key: &str| {
        let text = section.string(key)?.filter(|text| !text.is_empty());
        text.map(str::to_owned).ok_or_else(|| section.error(key, "is missing"))
    };
    let words = [("allow", Decision::Allow), ("ask", Decision::Ask), ("deny", Decision::Deny)];
    let Some(decision) = section.word("do", &words)? else {
        return Err(section.error("do", "is missing: \"allow\", \"ask\" or \"deny\""));
    };
    Ok(Permission { tool: text("tool")?, pattern: text("match")?, decision })
}

fn budget(source: Source<'_>, at: usize, table: &DeTable<'_>) -> Result<Vec<BudgetLine>, String> {
    let rows = Budget::ROUTER.rows();
    let names: Vec<&'static str> = rows.iter().map(|row| row.name).collect();
    let section = Section::new(source, at, "budget ", table, &names)?;
    let mut changes = Vec::new();
    for row in rows {
        // The sum multiplies counts by bytes, which must not overflow before it is found too large.
        let most = if row.unit == "count" { u64::from(u16::MAX) } else { i32::MAX as u64 };
        if let Some(value) = section.number(row.name, 0, most)? {
            changes.push(BudgetLine { name: row.name, value: value as usize });
        }
    }
    Ok(changes)
}

/// A path, which must be absolute: the file is read by a service with a working directory of its own. Empty:
/// absent.
fn path_of(section: &Section<'_>, key: &str) -> Result<Option<PathBuf>, String> {
    let Some(text) = section.string(key)?.filter(|text| !text.is_empty()) else { return Ok(None) };
    if !text.starts_with('/') {
        return Err(section.error(key, format!("must be an absolute path, not {text:?}")));
    }
    Ok(Some(PathBuf::from(text)))
}

/// `ADDRESS:PORT`, for the file and for `--listen`.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let named = text.strip_prefix("localhost:").and_then(|_| text.to_socket_addrs().ok());
    let found = named.and_then(|mut all| all.find(SocketAddr::is_ipv4));
    found.ok_or_else(|| {
        format!("{text:?} is not ADDRESS:PORT, such as 127.0.0.1:8787, 0.0.0.0:8787 or [::1]:8787")
    })
}

fn host_name(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if text.is_empty() || text.len() > 253 || !text.bytes().all(plain) {
        return Err(format!("{text:?} is not a host name without port"));
    }
    Ok(text.to_ascii_lowercase())
}

fn origin(text: &str) -> Result<String, String> {
    let url = base_url(text)?;
    if url.split('/').count() != 3 || url.len() != text.len() {
        return Err(format!("{text:?} is not an origin: scheme://host[:port] and nothing more"));
    }
    Ok(url.to_ascii_lowercase())
}

fn model_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 200 || text.chars().any(char::is_control) {
        return Err(format!("{text:?} is not a model's name"));
    }
    Ok(text.to_owned())
}

fn network(text: &str) -> Result<Network, String> {
    let fault = || format!("{text:?} is not an address or CIDR, such as 192.168.1.20 or 192.168.1.0/24");
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| fault())?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| fault())?;
    let whole = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.unwrap_or(whole);
    if bits > whole { Err(fault()) } else { Ok(Network { address, bits }) }
}

/// Checks an http or https URL with a host, and takes trailing slashes off.
pub fn base_url(text: &str) -> Result<String, String> {
    let fault = |what: &str| format!("{text:?} {what}");
    let url = text.trim_end_matches('/');
    let uri: ureq::http::Uri = url.parse().map_err(|_| fault("is not a URL, such as https://host:port"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(fault("must begin with http:// or https://"));
    }
    let host = uri.host().unwrap_or_default();
    if host.is_empty() || host == "[]" {
        return Err(fault("names no host"));
    }
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    if authority.contains('@') {
        return Err("must not hold a user or password; keys go into api_key_file".to_owned());
    }
    if uri.query().is_some() || url.contains('#') {
        return Err(fault("must not have a query or fragment"));
    }
    let port = authority.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.ends_with(']'));
    if port.is_some_and(|port| port.parse::<u16>().map_or(true, |port| port == 0)) {
        return Err(fault("has a port that is not 1 to 65535"));
    }
    Ok(url.to_owned())
}

fn proxy_url(text: &str) -> Result<String, String> {
    // A proxy may need a user and password, unlike a base URL.
    let bare = match (text.split_once("://"), text.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => text.to_owned(),
    };
    base_url(&bare).map_err(|_| "is not the URL of an http proxy, such as http://host:3128".to_owned())?;
    Ok(text.to_owned())
}
