//! `siskin check`: what is right and wrong with this installation, one line each.

use crate::cli::Failure;
use crate::config::{ApiKind, Config, Options, Provider, Sandbox};
use crate::host::CLOCK_LEAST_S;
use std::io::Write;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Less free space than this is told as wrong.
const FREE_BYTES_MIN: u64 = 64 * 1024 * 1024;
const CONNECT: Duration = Duration::from_secs(5);

/// The mend where nothing can answer.
pub const NO_PROVIDER: &str =
    "add a [[provider]] to the config, set ANTHROPIC_API_KEY or OPENAI_API_KEY, or try --demo";

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// what was looked at
    pub name: String,
    /// it is as it should be
    pub ok: bool,
    /// what was found, and the mend
    pub text: String,
}

fn finding(name: impl Into<String>, found: Result<String, String>) -> Finding {
    let (ok, text) = match found {
        Ok(text) => (true, text),
        Err(text) => (false, text),
    };
    Finding { name: name.into(), ok, text }
}

/// Prints all findings; fails with 1 if one is wrong, and with 2 if the config is.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    let config = Config::from_process(options).map_err(Failure::usage)?;
    let mut wrong = 0;
    let mut tell = |finding: Finding| {
        wrong += usize::from(!finding.ok);
        let word = if finding.ok { "ok" } else { "WRONG" };
        writeln!(out, "{word:<5} {:<16} {}", finding.name, finding.text).and_then(|()| out.flush())
    };
    for finding in local(&config) {
        tell(finding)?;
    }
    for provider in &config.providers {
        tell(finding(format!("provider {}", provider.name), reach(provider)))?;
    }
    match wrong {
        0 => Ok(()),
        count => Err(Failure::run(format!("{count} of the above must be mended"))),
    }
}

/// Everything that needs no network.
pub fn local(config: &Config) -> Vec<Finding> {
    let file = config.file.as_ref().map_or("no file; defaults".to_owned(), |file| file.display().to_string());
    let mut all = vec![finding("config", Ok(file))];
    let idle = without_effect(config);
    if !idle.is_empty() {
        all.push(finding("config", Ok(format!("{}: read, and without effect yet", idle.join(", ")))));
    }
    if config.temporary {
        all.push(finding("data", Ok("a temporary folder, made at start".to_owned())));
    } else {
        all.push(finding("data", data_directory(&config.data)));
        all.push(finding("free space", free_space(&config.data)));
    }
    let now = crate::store::now() / 1000;
    all.push(finding("clock", clock(now)));
    let mut names = crate::host::addresses().into_iter().map(|own| own.ip.to_string()).collect::<Vec<_>>();
    names.push(rustix::system::uname().nodename().to_string_lossy().into_owned());
    names.extend(config.hosts.iter().cloned());
    all.push(finding("host names", Ok(names.join(", "))));
    if config.providers.is_empty() {
        let text =
            "none; add a [[provider]] to the config, set ANTHROPIC_API_KEY or OPENAI_API_KEY, or try --demo";
        all.push(finding("providers", Err(text.to_owned())));
    }
    all
}

/// The keys of the config that are set and read, but that nothing obeys yet.
pub fn without_effect(config: &Config) -> Vec<&'static str> {
    let keys = [
        ("sandbox", config.sandbox != Sandbox::Required),
        ("device_shell", config.device_shell),
        ("http_allow", !config.http_allow.is_empty()),
        ("notify", !config.notify.is_empty()),
        ("permission", !config.permissions.is_empty()),
    ];
    keys.into_iter().filter(|(_, set)| *set).map(|(key, _)| key).collect()
}

fn clock(now_s: i64) -> Result<String, String> {
    let text = crate::host::utc(now_s);
    if now_s < CLOCK_LEAST_S {
        return Err(format!("{text} is before this program was made; set the time, or TLS will fail"));
    }
    Ok(text)
}

fn data_directory(dir: &Path) -> Result<String, String> {
    let place = existing(dir);
    if place != dir {
        let writable = rustix::fs::access(&place, rustix::fs::Access::WRITE_OK).is_ok();
        return if writable {
            Ok(format!("{} will be made at the first start", dir.display()))
        } else {
            Err(format!("{}: {} is not writable; choose another with --data", dir.display(), place.display()))
        };
    }
    let probe = dir.join(format!(".check-{}", std::process::id()));
    let time = sync_time(&probe);
    // The probe may not exist if it could not be made.
    let _ = std::fs::remove_file(&probe);
    match time {
        Ok(time) => {
            Ok(format!("{} is writable; a sync takes {:.1} ms", dir.display(), time.as_secs_f64() * 1000.0))
        }
        Err(error) => {
            Err(format!("{}: {error}; make it writable for this user or choose --data", dir.display()))
        }
    }
}

fn sync_time(probe: &Path) -> std::io::Result<Duration> {
    let mut file = std::fs::File::create_new(probe)?;
    file.write_all(&[0u8; 4096])?;
    let start = Instant::now();
    file.sync_all()?;
    Ok(start.elapsed())
}

/// The nearest directory above that exists.
fn existing(dir: &Path) -> PathBuf {
    dir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/")).to_owned()
}

fn free_space(dir: &Path) -> Result<String, String> {
    let stat = rustix::fs::statvfs(existing(dir)).map_err(|error| error.to_string())?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let text = format!("{} MiB", free >> 20);
    if free < FREE_BYTES_MIN {
        Err(format!("{text}, less than {} MiB", FREE_BYTES_MIN >> 20))
    } else {
        Ok(text)
    }
}

fn reach(provider: &Provider) -> Result<String, String> {
    if provider.kind == ApiKind::Demo {
        return Ok("built in".to_owned());
    }
    let url = if provider.proxy.is_empty() { &provider.base_url } else { &provider.proxy };
    let uri: ureq::http::Uri = url.parse().map_err(|_| format!("{url:?} is not a URL"))?;
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
    let found = (host, port)
        .to_socket_addrs()
        .map_err(|error| format!("{host}: no address found ({error}); check base_url and DNS"))?;
    let mut last = format!("{host}: no address found; check base_url and DNS");
    for address in found.take(4) {
        let start = Instant::now();
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(_) => {
                let key = if provider.api_key.is_some() { "with a key" } else { "without a key" };
                let ms = start.elapsed().as_millis();
                return Ok(format!("{address} answers in {ms} ms; {key}"));
            }
            Err(error) => {
                last = format!("{host} at {address}: {error}; is it running, and is base_url right?");
            }
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Dir;

    #[test]
    fn an_old_clock_is_wrong_and_a_later_one_is_not() {
        assert!(clock(0).is_err());
        assert!(clock(CLOCK_LEAST_S).is_ok());
    }

    #[test]
    fn keys_that_nothing_obeys_are_said() {
        assert_eq!(without_effect(&Config::defaults()), [""; 0]);
        let config = Config { device_shell: true, ..Config::defaults() };
        assert_eq!(without_effect(&config), ["device_shell"]);
        assert!(local(&config).iter().any(|one| one.text.starts_with("device_shell: read, and without")));
    }

    #[test]
    fn a_data_directory_is_probed_without_a_trace() {
        let dir = Dir::new();
        assert!(data_directory(dir.path()).is_ok_and(|text| text.contains("writable")));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(data_directory(&dir.path().join("new/one")).is_ok_and(|text| text.contains("will be made")));
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(data_directory(&dir.path().join("file")).is_err());
    }

    #[test]
    fn a_provider_that_refuses_is_named_with_its_address() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut provider = Provider::new("home", ApiKind::OpenAi);
        provider.base_url = format!("http://{}", listener.local_addr().unwrap());
        assert!(reach(&provider).is_ok());
        drop(listener);
        assert!(reach(&provider).is_err_and(|text| text.contains("127.0.0.1")));
    }
}
