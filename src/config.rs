//! The configuration: command-line options over the TOML file over the environment's and built-in defaults.
//!
//! [`Config::load`] reads and checks all of it before anything else happens, so that a wrong line is told
//! with file, line and key and nothing was started yet. Every error here is one line, and the program ends
//! with 2. Keys of providers come from files, systemd's credentials or the environment ([`keys`]), and are
//! shown nowhere.

pub mod ca;
pub mod file;
pub mod keys;
mod table;

use crate::budget::Budget;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

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
    /// a PEM file of certificate authorities, in place of the public ones: with it only these count
    pub ca_file: Option<PathBuf>,
}

impl Provider {
    /// An endpoint of this kind at its vendor's address (empty for the demo), with default limits and no key.
    pub fn new(name: &str, kind: ApiKind) -> Provider {
        let base_url = match kind {
            ApiKind::Anthropic => "https://api.anthropic.com",
            ApiKind::OpenAi => "https://api.openai.com",
            ApiKind::Demo => "",
        };
        Provider {
            name: name.to_owned(),
            kind,
            base_url: base_url.to_owned(),
            api_key: None,
            models: Vec::new(),
            max_tokens: 16_000,
            context_tokens: 0,
            first_event_s: 300,
            idle_s: 90,
            replay_reasoning: false,
            proxy: String::new(),
            ca_file: None,
        }
    }
}

impl std::fmt::Debug for Provider {
    /// Without the key, so that no log can hold it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Provider({} {:?} {})", self.name, self.kind, self.base_url)
    }
}

/// What to do where a layer of the sandbox cannot be enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sandbox {
    /// every command asks
    Required,
    /// rules hold as if the sandbox were whole
    AcceptDegraded,
}

/// What a permission rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// run it
    Allow,
    /// ask the owner
    Ask,
    /// refuse it
    Deny,
}

/// One rule; the last that matches wins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// a tool's name
    pub tool: String,
    /// pattern for what the tool is asked to do; `*` matches anything
    pub pattern: String,
    /// what then
    pub decision: Decision,
}

/// A range of addresses that `http_get` may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// its first address, or any within
    pub address: IpAddr,
    /// how many leading bits count
    pub bits: u8,
}

/// Everything that is configured.
#[derive(Clone, Debug)]
pub struct Config {
    /// addresses to listen on
    pub listen: Vec<SocketAddr>,
    /// further names accepted in `Host`
    pub hosts: Vec<String>,
    /// further origins
    pub origins: Vec<String>,
    /// addresses whose X-Forwarded-For is believed
    pub trusted_proxies: Vec<IpAddr>,
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
    /// what to do where the sandbox is not whole
    pub sandbox: Sandbox,
    /// allow the shell's unsandboxed mode
    pub device_shell: bool,
    /// what `http_get` may reach on the LAN
    pub http_allow: Vec<Network>,
    /// most tokens of a day; 0: no cap
    pub tokens_per_day: u64,
    /// URL that is told of what happens, or empty
    pub notify: String,
    /// rules, in the file's order
    pub permissions: Vec<Permission>,
    /// endpoints, in the file's order
    pub providers: Vec<Provider>,
    /// the limits that hold
    pub budget: &'static Budget,
    /// least severe level that is logged
    pub log: log::LevelFilter,
    /// the demo: temporary data, the built-in provider
    pub demo: bool,
    /// `data` is a temporary folder of the demo, made at start and removed at a clean end
    pub temporary: bool,
    /// serve the client from this directory instead of the binary
    pub static_dir: Option<PathBuf>,
    /// the file that was read, if any
    pub file: Option<PathBuf>,
    /// files and directories that hold keys; no tool may see them
    pub secrets: Vec<PathBuf>,
}

/// What the command line says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `--config`
    pub config: Option<PathBuf>,
    /// `--listen`, which may be given several times
    pub listen: Vec<SocketAddr>,
    /// `--data`
    pub data: Option<PathBuf>,
    /// `--demo`
    pub demo: bool,
    /// `--profile`
    pub profile: Option<&'static str>,
    /// `--static-dir`
    pub static_dir: Option<PathBuf>,
}

/// What is asked of the outside: environment variables and whether this is root. Tests give their own.
pub struct Surroundings<'a> {
    /// the environment
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// the effective user is root
    pub root: bool,
    /// read if it exists and no `--config` is given
    pub default_file: &'a Path,
}

impl Surroundings<'_> {
    /// A variable's text, if it is set, not empty, and UTF-8.
    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name).and_then(|value| value.into_string().ok()).filter(|text| !text.is_empty())
    }

    /// A variable that must be an absolute path to count.
    fn path(&self, name: &str) -> Option<PathBuf> {
        (self.variable)(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }
}

impl Config {
    /// Reads options, file, environment and keys. The error is one line that names file, key and line.
    pub fn load(options: &Options, around: &Surroundings<'_>) -> Result<Config, String> {
        let (mut config, budget) = Config::draft(options, around)?;
        // Once per process: the budget is a constant of the whole run.
        config.budget = Box::leak(Box::new(budget));
        Ok(config)
    }

    /// The same from this process's own environment.
    pub fn from_process(options: &Options) -> Result<Config, String> {
        Config::load(options, &process())
    }

    /// Reads everything again for a reload; its budget is the profile's own, since a budget never changes in
    /// a run.
    pub fn read_again(options: &Options) -> Result<Config, String> {
        Config::draft(options, &process()).map(|(config, _)| config)
    }

    fn draft(options: &Options, around: &Surroundings<'_>) -> Result<(Config, Budget), String> {
        let mut config = Config::defaults();
        let mut changes = Vec::new();
        let mut key_files = Vec::new();
        if let Some(path) = chosen_file(options, around)? {
            let text = file::read(&path)?;
            changes = file::apply(&path, &text, &mut config, &mut key_files)?;
            config.file = Some(path);
        }
        keys::find(&mut config, &key_files, around)?;
        take_options(&mut config, options, around);
        let budget = budget_of(&config, changes)?;
        config.check(&budget)?;
        Ok((config, budget))
    }

    /// What holds without a file.
    pub fn defaults() -> Config {
        Config {
            listen: vec![SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8787)],
            hosts: Vec::new(),
            origins: Vec::new(),
            trusted_proxies: Vec::new(),
            data: PathBuf::new(),
            profile: "router",
            default_model: String::new(),
            system_prompt: None,
            workdir: None,
            send_time: true,
            sandbox: Sandbox::Required,
            device_shell: false,
            http_allow: Vec::new(),
            tokens_per_day: 0,
            notify: String::new(),
            permissions: Vec::new(),
            providers: Vec::new(),
            budget: &Budget::ROUTER,
            log: log::LevelFilter::Info,
            demo: false,
            temporary: false,
            static_dir: None,
            file: None,
            secrets: Vec::new(),
        }
    }

    /// Where tools of new tabs work.
    pub fn default_workdir(&self) -> PathBuf {
        self.workdir.clone().unwrap_or_else(|| self.data.join("work"))
    }

    /// Refuses a working directory that is not an absolute path, or that contains, or lies within, what no
    /// tool may see. For whenever a tab is made or changed; symbolic links are resolved as far as the path
    /// exists.
    pub fn check_workdir(&self, dir: &Path) -> Result<(), String> {
        let fault = |what: String| Err(format!("workdir {}: {what}", dir.display()));
        if !dir.is_absolute() {
            return fault("must be an absolute path".to_owned());
        }
        let real = real_path(dir);
        let data = real_path(&self.data);
        if real.starts_with(&data) && !real.starts_with(data.join("work")) {
            let work = self.data.join("work");
            return fault(format!(
                "lies in the data directory; use {} or a folder elsewhere",
                work.display()
            ));
        }
        if let Some(kernel) = ["/proc", "/sys", "/dev"].iter().find(|kernel| real.starts_with(kernel)) {
            return fault(format!("{kernel} holds no files of the owner's; choose another folder"));
        }
        let shut = [&self.data].into_iter().chain(&self.file).chain(&self.secrets);
        match shut.map(|path| real_path(path)).find(|path| path.starts_with(&real) || real.starts_with(path))
        {
            // `DATA/work` lies in the data directory, and is the one exception.
            Some(path) if path == data && real.starts_with(&data) => Ok(()),
            Some(path) => {
                fault(format!("holds {}, which no tool may see; choose a folder beside it", path.display()))
            }
            None => Ok(()),
        }
    }

    fn check(&self, budget: &Budget) -> Result<(), String> {
        let place = || self.file.as_ref().map_or(String::new(), |file| format!("{}: ", file.display()));
        if let Some(prompt) = &self.system_prompt
            && prompt.len() > budget.system_prompt_bytes
        {
            return Err(format!(
                "{}system_prompt: {} bytes, more than system_prompt_bytes ({})",
                place(),
                prompt.len(),
                budget.system_prompt_bytes
            ));
        }
        if self.permissions.len() > budget.rules {
            return Err(format!("{}[[permission]]: more than {} rules", place(), budget.rules));
        }
        let listed: usize = self.providers.iter().map(|provider| provider.models.len()).sum();
        if listed > budget.models {
            return Err(format!("{}models: {listed} in all, more than {}", place(), budget.models));
        }
        let (provider, _) = self.default_model.split_once('/').unwrap_or_default();
        if !self.default_model.is_empty() && !self.providers.iter().any(|known| known.name == provider) {
            return Err(format!(
                "{}default_model {:?}: no provider is named {provider:?}; there are: {}",
                place(),
                self.default_model,
                self.provider_names()
            ));
        }
        if let Some(dir) = self.static_dir.as_ref().filter(|dir| !dir.join("index.html").is_file()) {
            return Err(format!("--static-dir {}: holds no index.html", dir.display()));
        }
        match &self.workdir {
            Some(dir) => self.check_workdir(dir).map_err(|fault| format!("{}{fault}", place())),
            None => Ok(()),
        }
    }

    fn provider_names(&self) -> String {
        if self.providers.is_empty() {
            return "none".to_owned();
        }
        self.providers.iter().map(|provider| provider.name.as_str()).collect::<Vec<_>>().join(", ")
    }
}

fn process() -> Surroundings<'static> {
    Surroundings {
        variable: &|name| std::env::var_os(name),
        root: rustix::process::geteuid().is_root(),
        default_file: Path::new("/etc/siskin/siskin.toml"),
    }
}

/// `--config`, else the default file if there is one. A file that cannot be looked at counts as there.
fn chosen_file(options: &Options, around: &Surroundings<'_>) -> Result<Option<PathBuf>, String> {
    if let Some(path) = &options.config {
        return absolute(path).map(Some);
    }
    match std::fs::metadata(around.default_file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        _ => Ok(Some(around.default_file.to_owned())),
    }
}

fn take_options(config: &mut Config, options: &Options, around: &Surroundings<'_>) {
    if !options.listen.is_empty() {
        config.listen.clone_from(&options.listen);
    }
    if let Some(profile) = options.profile {
        config.profile = profile;
    }
    if let Some(data) = &options.data {
        config.data = std::path::absolute(data).unwrap_or_else(|_| data.clone());
    } else if options.demo {
        config.temporary = true;
        config.data = std::env::temp_dir().join(format!("siskin-demo-{}", random_name()));
        // A workdir of the file belongs to real data.
        config.workdir = None;
    } else if config.data.as_os_str().is_empty() {
        config.data = default_data(around);
    }
    config.static_dir = options.static_dir.as_deref().map(|dir| real_path(&absolute_or_same(dir)));
    if options.demo {
        config.demo = true;
        config.providers.retain(|provider| provider.name != "demo");
        config.providers.push(Provider::new("demo", ApiKind::Demo));
        config.default_model = "demo/finch".to_owned();
    }
}

fn default_data(around: &Surroundings<'_>) -> PathBuf {
    // systemd may list several directories, separated by colons; the first is the one of the unit's first
    // line.
    if let Some(state) = around.text("STATE_DIRECTORY")
        && let Some(first) = state.split(':').next().filter(|first| first.starts_with('/'))
    {
        return PathBuf::from(first);
    }
    if around.root {
        return PathBuf::from("/var/lib/siskin");
    }
    around
        .path("XDG_DATA_HOME")
        .or_else(|| around.path("HOME").map(|home| home.join(".local/share")))
        .unwrap_or_else(|| PathBuf::from("/var/lib"))
        .join("siskin")
}

fn budget_of(config: &Config, changes: Vec<file::BudgetLine>) -> Result<Budget, String> {
    let mut budget = if config.profile == "sbc" { Budget::SBC } else { Budget::ROUTER };
    for line in &changes {
        assert!(budget.set(line.name, line.value), "names were checked when the file was read");
    }
    match (budget.fault(), &config.file) {
        (Some(fault), Some(file)) => Err(format!("{}: [budget]: {fault}", file.display())),
        (Some(fault), None) => Err(format!("budget: {fault}")),
        (None, _) => Ok(budget),
    }
}

fn random_name() -> String {
    let mut bytes = [0u8; 6];
    // Without randomness the process number still keeps two demos apart.
    if getrandom::fill(&mut bytes).is_err() {
        return std::process::id().to_string();
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn absolute_or_same(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// `path` with symbolic links resolved as far as it exists, and `..` taken out of the rest.
fn real_path(path: &Path) -> PathBuf {
    let mut rest = Vec::new();
    let mut at = path;
    loop {
        if let Ok(real) = at.canonicalize() {
            let mut whole = real;
            for part in rest.iter().rev() {
                match part {
                    std::path::Component::ParentDir => {
                        whole.pop();
                    }
                    other => whole.push(other),
                }
            }
            return whole;
        }
        match (at.components().next_back(), at.parent()) {
            (Some(part), Some(parent)) => {
                rest.push(part);
                at = parent;
            }
            _ => return path.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
