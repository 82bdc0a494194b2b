//! The server's life: bind, open, start, announce, wait for a signal, end.
//!
//! Addresses are bound first, so that the commonest mistakes are told before anything is touched. What is
//! started here is ended here, in the opposite order, within five seconds.

use crate::agent::stop::Stop;
use crate::agent::{Agent, frames};
use crate::budget::{DEADLINE_STACK_BYTES, HOUSEKEEPER_STACK_BYTES, METERS};
use crate::chunk::TabNo;
use crate::cli::Failure;
use crate::config::{Config, Options};
use crate::control::{self, Control, Pairing};
use crate::net::export::{self, Format};
use crate::store::Store;
use crate::{check, host, logger, net, sys};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 128;
/// A clean end takes at most this long; then the process ends as it is, which the store survives.
const END: Duration = Duration::from_millis(4_700);

/// Serves until SIGTERM or SIGINT.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<(), Failure> {
    let config = Arc::new(Config::from_process(options).map_err(Failure::usage)?);
    logger::start(config.log);
    sys::tune_allocator();
    // Before any thread, so that a signal during the start is not lost.
    let mut signals =
        Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(|error| Failure::run(format!("signals: {error}")))?;
    let listeners = bind_all(&config.listen).map_err(Failure::run)?;
    let url = base_url(&listeners).map_err(Failure::run)?;
    let _data = Data::make(&config).map_err(Failure::run)?;
    let store = Arc::new(Store::open(&config.data, config.budget).map_err(Failure::run)?);
    let agent = Agent::start(store.clone(), config.clone()).map_err(Failure::run)?;
    let addresses = addresses(&listeners);
    let edge = Edge::start(listeners, &config, &store, &agent).map_err(Failure::run)?;
    let control = Control::listen(&config.data, edge.desk(url.clone())).map_err(Failure::run)?;
    let housekeeper = Housekeeper::start(store.clone()).map_err(Failure::run)?;

    announce(out, &addresses, &url, &store, &edge);
    if config.providers.is_empty() {
        log::warn!("no model yet: {}", check::NO_PROVIDER);
    }
    let idle = check::without_effect(&config);
    if !idle.is_empty() {
        log::warn!("config: {}: no effect yet", idle.join(", "));
    }
    // What only the start needed.
    sys::give_back_code();
    wait_for_end(&mut signals, options, &agent);
    watch_the_end(signals);
    agent.shut_down();
    edge.stop();
    drop(control);
    drop(housekeeper);
    store.close();
    Ok(())
}

/// A reader of standard output that went away ends no server, so errors of writing are nobody's.
fn announce(out: &mut dyn Write, addresses: &[SocketAddr], url: &str, store: &Store, edge: &Edge) {
    let more = addresses.iter().skip(1).map(|address| format!(" and http://{}/", reachable(*address)));
    let _ = writeln!(out, "listening on {url}{}", more.collect::<String>());
    let paired = store.devices().map(|devices| devices.len());
    if matches!(paired, Ok(0))
        && let Some(made) = edge.pair(url)
    {
        let _ = writeln!(out, "open {} to pair this browser (once, within 10 minutes)", made.url);
    } else if let Ok(paired) = paired {
        log::info!("paired browsers: {paired}; `siskin pair` or the page's Device adds another");
    }
    let _ = out.flush();
}

/// Returns at the first signal that ends the server; SIGHUP reads the config again.
fn wait_for_end(signals: &mut Signals, options: &Options, agent: &Agent) {
    for signal in signals.forever() {
        if signal != SIGHUP {
            log::info!("ending on {}", if signal == SIGTERM { "SIGTERM" } else { "SIGINT" });
            return;
        }
        let text = match Config::read_again(options) {
            Ok(config) => {
                log::set_max_level(config.log);
                let level = config.log.as_str().to_ascii_lowercase();
                format!("config read again: log level {level}; other changes need a restart")
            }
            Err(fault) => format!("config not reloaded: {fault}"),
        };
        log::warn!("{text}");
        agent.tell(frames::config_reload(&text));
    }
}

/// Ends the process if a clean end takes too long, or at a second signal.
fn watch_the_end(mut signals: Signals) {
    let deadline = std::thread::Builder::new().name("deadline".to_owned()).stack_size(DEADLINE_STACK_BYTES);
    let spawned = deadline.spawn(move || {
        let end = std::time::Instant::now() + END;
        while std::time::Instant::now() < end {
            if signals.pending().any(|signal| signal != SIGHUP) {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        log::warn!("not everything ended in time; the next start repairs what was running");
        std::process::exit(0);
    });
    if let Err(error) = spawned {
        log::warn!("no thread to watch the end: {error}");
    }
}

/// The data directory with `work` in it; a temporary one goes when this is dropped.
struct Data {
    temporary: Option<PathBuf>,
}

impl Data {
    fn make(config: &Config) -> Result<Data, String> {
        let data = Data { temporary: config.temporary.then(|| config.data.clone()) };
        for dir in [&config.data, &config.data.join("work")] {
            make_dir(dir)?;
        }
        Ok(data)
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        if let Some(dir) = &self.temporary
            && let Err(error) = std::fs::remove_dir_all(dir)
            && error.kind() != io::ErrorKind::NotFound
        {
            log::warn!("{}: not removed: {error}", dir.display());
        }
    }
}

fn make_dir(dir: &Path) -> Result<(), String> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| {
        let mend = match error.kind() {
            io::ErrorKind::PermissionDenied => "; give it to this user, or choose another with --data",
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
                "; something that is not a directory is in the way, choose another with --data"
            }
            _ => "; choose another with --data",
        };
        format!("data directory {}: {error}{mend}", dir.display())
    })
}

/// After so many seconds at rest free heap, and the pages of code that only the start, a page's loading or
/// turns need, are given back; the second time is after the checkpoint that follows the last write.
const REST_S: [u32; 2] = [2, 12];

/// How long nothing has happened, told by what differs from one second to the next: a turn may begin and end
/// in between.
#[derive(Default)]
struct Rest {
    seconds: u32,
    sealed_turns: u64,
    connections: usize,
}

impl Rest {
    fn round(&mut self, sealed_turns: u64, connections: usize, turns: usize) {
        let same = turns == 0 && (sealed_turns, connections) == (self.sealed_turns, self.connections);
        let seconds = if same { self.seconds.saturating_add(1) } else { 0 };
        *self = Rest { seconds, sealed_turns, connections };
    }
}

/// What is done every second; ends when dropped.
struct Housekeeper {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Housekeeper {
    fn start(store: Arc<Store>) -> Result<Housekeeper, String> {
        let stop = Arc::new(Stop::new().map_err(|error| format!("housekeeper: {error}"))?);
        let seen = stop.clone();
        let thread = std::thread::Builder::new().name("housekeeper".to_owned());
        let thread = thread.stack_size(HOUSEKEEPER_STACK_BYTES).spawn(move || {
            let mut rest = Rest::default();
            while !seen.wait(Duration::from_secs(1)) {
                let round = std::panic::AssertUnwindSafe(|| keep_house(&store, &mut rest));
                if std::panic::catch_unwind(round).is_err() {
                    METERS.panics.count();
                }
            }
        });
        let thread = thread.map_err(|error| format!("housekeeper: {error}"))?;
        Ok(Housekeeper { stop, thread: Some(thread) })
    }
}

fn keep_house(store: &Store, rest: &mut Rest) {
    store.housekeep();
    let (used, peak) = sys::sqlite_heap();
    METERS.sqlite_bytes.set(peak);
    METERS.sqlite_bytes.set(used);
    rest.round(store.status().sealed_turns, METERS.connections.used(), METERS.turns.used());
    if REST_S.contains(&rest.seconds) {
        sys::give_back_heap();
        sys::give_back_code();
    }
}

impl Drop for Housekeeper {
    fn drop(&mut self) {
        self.stop.raise();
        if let Some(thread) = self.thread.take() {
            // Its panics are caught within.
            let _ = thread.join();
        }
    }
}

fn bind_all(wanted: &[SocketAddr]) -> Result<Vec<TcpListener>, String> {
    wanted
        .iter()
        .map(|address| bind(*address, wanted).map_err(|error| bind_fault(*address, &error)))
        .collect()
}

/// Binds one address. An IPv6 one leaves the port's IPv4 side alone if that is wanted by itself.
fn bind(address: SocketAddr, wanted: &[SocketAddr]) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // A restart must not wait for old connections to be forgotten.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        let shared = wanted.iter().any(|other| other.is_ipv4() && other.port() == address.port());
        sockopt::set_ipv6_v6only(&socket, shared)?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

fn bind_fault(address: SocketAddr, error: &io::Error) -> String {
    let what = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "the port is in use, perhaps by another siskin; end that one, or choose another with --listen"
        }
        io::ErrorKind::AddrNotAvailable => {
            "this host has no such address; choose one that it has with --listen, or 0.0.0.0 for all"
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need root; choose a higher one with --listen, such as 8787"
        }
        _ => return format!("cannot listen on {address}: {error}; choose another address with --listen"),
    };
    format!("cannot listen on {address}: {what}")
}

fn addresses(listeners: &[TcpListener]) -> Vec<SocketAddr> {
    listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
}

fn base_url(listeners: &[TcpListener]) -> Result<String, String> {
    let first = addresses(listeners).first().copied().ok_or("no address to listen on; see --listen")?;
    Ok(format!("http://{}/", reachable(first)))
}

/// The address that others can use: an unspecified one is replaced by the host's own on the LAN.
fn reachable(address: SocketAddr) -> SocketAddr {
    if !address.ip().is_unspecified() {
        return address;
    }
    let lan = host::lan_address();
    let ip = match (address.ip(), lan) {
        (IpAddr::V4(_), Some(IpAddr::V4(ip))) => IpAddr::V4(ip),
        (IpAddr::V4(_), _) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        (IpAddr::V6(_), Some(ip)) => ip,
        (IpAddr::V6(_), None) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    SocketAddr::new(ip, address.port())
}

fn pairing(url: &str, code: String) -> Pairing {
    Pairing { url: format!("{url}#pair={code}"), code }
}

/// The connections: everything of `net` that this module uses.
struct Edge {
    shared: Arc<net::Shared>,
    server: net::Server,
}

impl Edge {
    fn start(
        listeners: Vec<TcpListener>,
        config: &Arc<Config>,
        store: &Arc<Store>,
        agent: &Arc<Agent>,
    ) -> Result<Edge, String> {
        let shared = net::Shared::new(config.clone(), store.clone(), agent.clone())?;
        let server =
            net::serve(listeners, shared.clone()).map_err(|error| format!("connections: {error}"))?;
        Ok(Edge { shared, server })
    }

    fn pair(&self, url: &str) -> Option<Pairing> {
        self.shared.access.new_code().map(|code| pairing(url, code.text))
    }

    /// What the control socket is for.
    fn desk(&self, url: String) -> Box<dyn control::Server> {
        Box::new(Desk { shared: self.shared.clone(), url })
    }

    fn stop(self) {
        self.server.stop();
    }
}

/// Serves the command line's verbs.
struct Desk {
    shared: Arc<net::Shared>,
    url: String,
}

impl control::Server for Desk {
    fn pair(&self) -> Result<Pairing, String> {
        let code = self.shared.access.new_code().ok_or("no code can be made; see the server's log")?;
        Ok(pairing(&self.url, code.text))
    }

    fn backup(&self, to: &Path) -> Result<u64, String> {
        self.shared.store.backup(to)
    }

    fn export(&self, tab: &str, format: &str) -> Result<Box<dyn io::Read>, String> {
        let store = &self.shared.store;
        let format = Format::from_word(format).ok_or("format must be md or jsonl")?;
        let no: Option<TabNo> = tab.parse().ok();
        let found = no.map(|no| store.tab(no)).transpose().map_err(|error| error.to_string())?.flatten();
        let found = found.ok_or_else(|| format!("there is no tab {tab}"))?;
        Ok(Box::new(export::open(store.clone(), &found, format)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_between_two_looks_ends_the_rest() {
        let mut rest = Rest::default();
        let mut check = |sealed, connections, turns, seconds| {
            rest.round(sealed, connections, turns);
            assert_eq!(rest.seconds, seconds, "{sealed} sealed, {connections} connections, {turns} turns");
        };
        check(0, 0, 0, 1);
        check(0, 0, 0, 2);
        check(1, 0, 0, 0);
        check(1, 0, 0, 1);
        check(1, 3, 0, 0);
        check(1, 3, 1, 0);
        check(1, 3, 0, 1);
    }

    #[test]
    fn a_taken_port_is_told_with_address_and_option() {
        let held = bind_all(&["127.0.0.1:0".parse().unwrap()]).unwrap();
        let address = addresses(&held)[0];
        assert_ne!(address.port(), 0);
        let fault = bind_all(&[address]).unwrap_err();
        assert!(fault.contains(&address.to_string()) && fault.contains("--listen"), "{fault}");
        let fault = bind_all(&["203.0.113.9:0".parse().unwrap()]).unwrap_err();
        assert!(fault.contains("no such address"), "{fault}");
    }

    #[test]
    fn both_families_of_one_port_can_be_listened_on() {
        let first = bind_all(&["0.0.0.0:0".parse().unwrap()]).unwrap();
        let port = addresses(&first)[0].port();
        drop(first);
        let both = [SocketAddr::from(([0, 0, 0, 0], port)), SocketAddr::from(([0u16; 8], port))];
        match bind_all(&both) {
            Ok(listeners) => assert_eq!(listeners.len(), 2),
            // A host without IPv6 cannot be asked for it.
            Err(fault) => assert!(fault.contains("[::]") && !fault.contains("in use"), "{fault}"),
        }
    }

    #[test]
    fn links_name_an_address_that_others_can_use() {
        let address = reachable("0.0.0.0:8787".parse().unwrap());
        assert!(!address.ip().is_unspecified());
        assert_eq!(address.port(), 8787);
        assert_eq!(reachable("[::1]:9".parse().unwrap()).to_string(), "[::1]:9");
    }
}
