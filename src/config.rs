//! The configuration: command-line options over the TOML file over defaults.

use crate::budget::Budget;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Which API a provider speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiKind {
    /// the Messages API
    Anthropic,
    /// chat completions
    OpenAi,
    /// built in; needs no network and no key
    Demo,
}

/// One named endpoint.
#[derive(Clone, PartialEq, Eq)]
pub struct Provider {
    /// its name, the part of a model id before the slash
    pub name: String,
    /// which API it speaks
    pub kind: ApiKind,
    /// without a trailing slash; may or may not end in `/v1`
    pub base_url: String,
    /// the key, read from its file, the environment or systemd's credentials; never shown
    pub api_key: Option<String>,
    /// models by name; empty: asked from the provider
    pub models: Vec<String>,
    /// most tokens of one answer
    pub max_tokens: u64,
    /// tokens of the context; 0: from the provider
    pub context_tokens: u64,
    /// longest wait for the first event, in seconds
    pub first_event_s: u64,
    /// longest silence between events, in seconds
    pub idle_s: u64,
    /// send reasoning back with calls
    pub replay_reasoning: bool,
    /// URL of a proxy, or empty
    pub proxy: String,
    /// a PEM file of further certificate authorities
    pub ca_file: Option<PathBuf>,
}

/// Everything that is configured.
#[derive(Clone)]
pub struct Config {
    /// addresses to listen on
    pub listen: Vec<SocketAddr>,
    /// further names accepted in `Host`
    pub hosts: Vec<String>,
    /// further origins
    pub origins: Vec<String>,
    /// addresses whose X-Forwarded-For is believed
    pub trusted_proxies: Vec<std::net::IpAddr>,
    /// the data directory
    pub data: PathBuf,
    /// `router` or `sbc`
    pub profile: &'static str,
    /// `provider/model`, or empty: the first there is
    pub default_model: String,
    /// replaces the built-in prompt
    pub system_prompt: Option<String>,
    /// of new tabs; absent: `DATA/work`
    pub workdir: Option<PathBuf>,
    /// give the model the local time with each message
    pub send_time: bool,
    /// endpoints, in the file's order
    pub providers: Vec<Provider>,
    /// the limits that hold
    pub budget: &'static Budget,
    /// least severe level that is logged
    pub log: log::LevelFilter,
    /// the demo: temporary data, the built-in provider
    pub demo: bool,
    /// serve the client from this directory instead of the binary
    pub static_dir: Option<PathBuf>,
}
