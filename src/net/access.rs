//! Who may ask: `Host` and `Origin` of every request, device tokens, pairing codes.
//!
//! Guarantees: nothing is served under a name that a stranger could point at this device (DNS rebinding), no
//! page from elsewhere gets an answer, and no request beyond the public ones is served without a token.
//!
//! Tokens are 256 random bits. Only their SHA-256 is stored, and a token is looked up by that hash: how long
//! the lookup takes tells at most something about hashes, from which no token follows. So no comparison of
//! secrets takes a time that depends on them. Codes are short, so they are few, short-lived, and guesses are
//! counted; they are compared whole.

use super::head::Head;
use super::respond::Fault;
use crate::chunk::DeviceNo;
use crate::config::Config;
use crate::store::Store;
use rustix::time::{ClockId, clock_gettime};
use sha2::{Digest, Sha256};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How long a code lives, in milliseconds.
const CODE_MS: u64 = 10 * 60_000;
/// Codes that live at once; the next displaces the oldest.
const CODES_MAX: usize = 8;
/// Wrong guesses that one code endures.
const GUESSES_PER_CODE: u32 = 20;
/// Wrong guesses of one address within a minute.
const GUESSES_PER_ADDRESS: u32 = 5;
const MINUTE_MS: u64 = 60_000;
/// Addresses whose guesses are remembered; the oldest is forgotten. The limit per code holds without them.
const ADDRESSES_MAX: usize = 64;
/// Letters and digits that are not taken for one another: without I, L, O, 0 and 1.
const ALPHABET: &[u8; 31] = b"ABCDEFGHJKMNPQRSTUVWXYZ23456789";

/// An address as it is counted: IPv4 whole, IPv6 by its /64, which one peer commonly owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(u128);

impl From<IpAddr> for Peer {
    fn from(address: IpAddr) -> Peer {
        match address.to_canonical() {
            IpAddr::V4(v4) => Peer(v4.to_ipv6_mapped().to_bits()),
            IpAddr::V6(v6) => Peer(v6.to_bits() & !u128::from(u64::MAX)),
        }
    }
}

/// A pairing code that can be used once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// `ABCD-EFGH`
    pub text: String,
    /// Unix milliseconds, by this device's wall clock
    pub expires_at: i64,
}

#[derive(Debug)]
struct Pending {
    code: String,
    born_ms: u64,
    wrong: u32,
}

#[derive(Debug)]
struct Guesses {
    peer: Peer,
    since_ms: u64,
    wrong: u32,
}

#[derive(Debug, Default)]
struct Pairing {
    codes: heapless::Vec<Pending, CODES_MAX>,
    guesses: heapless::Vec<Guesses, ADDRESSES_MAX>,
}

/// What became of a guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guess {
    /// this code, by its place
    Right(usize),
    /// no such code, or expired
    Wrong,
    /// too many wrong ones: milliseconds until the next makes sense
    TooMany(u64),
}

/// The rules and the codes; see the module's text.
#[derive(Debug)]
pub struct Access {
    hosts: Vec<String>,
    origins: Vec<String>,
    proxies: Vec<IpAddr>,
    own_name: String,
    pairing: Mutex<Pairing>,
}

impl Access {
    /// The rules of a config.
    pub fn new(config: &Config) -> Access {
        let own_name = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
        Access {
            hosts: config.hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
            origins: config.origins.iter().map(|origin| normal_origin(origin)).collect(),
            proxies: config.trusted_proxies.clone(),
            own_name,
            pairing: Mutex::default(),
        }
    }

    /// Checks `Host` and `Origin`; gives the host as the client wrote it.
    pub fn check<'a>(&self, head: &Head<'a>) -> Result<&'a str, Fault> {
        let host = head.host.unwrap_or("");
        if !self.host_is_ours(host) {
            return Err(Fault::new(
                421,
                "host",
                "this name is not accepted: use the device's IP address, or add the name to hosts in the \
                 config",
            ));
        }
        let mut origins = head.all("origin");
        let origin = origins.next().map(|origin| std::str::from_utf8(origin).unwrap_or("?"));
        let ours = origin.is_none_or(|origin| self.origin_is_ours(origin, host)) && origins.next().is_none();
        if !ours {
            return Err(Fault::new(
                403,
                "origin",
                "this request comes from a page of another origin; add it to origins in the config if it is \
                 yours",
            ));
        }
        Ok(host)
    }

    fn host_is_ours(&self, host: &str) -> bool {
        let Some((name, _)) = split_host(host) else { return false };
        if name.starts_with('[') || name.parse::<Ipv4Addr>().is_ok() {
            return true;
        }
        const SUFFIXES: [&str; 6] =
            [".local", ".lan", ".home.arpa", ".internal", ".localdomain", ".fritz.box"];
        let name = name.to_ascii_lowercase();
        // A single label cannot be registered by a stranger.
        !name.contains('.')
            || SUFFIXES.iter().any(|suffix| name.strip_suffix(suffix).is_some_and(|rest| !rest.is_empty()))
            || name == self.own_name
            || self.hosts.iter().any(|ours| *ours == name || *ours == host.to_ascii_lowercase())
    }

    fn origin_is_ours(&self, origin: &str, host: &str) -> bool {
        let origin = normal_origin(origin);
        origin == normal_origin(&format!("http://{host}")) || self.origins.contains(&origin)
    }

    /// The address that asks: the socket's, or what a trusted proxy says.
    pub fn peer(&self, socket: IpAddr, head: &Head<'_>) -> Peer {
        let trusted = |address: &IpAddr| self.proxies.iter().any(|proxy| proxy.to_canonical() == *address);
        let mut peer = socket.to_canonical();
        let forwarded: Vec<&str> = head
            .all("x-forwarded-for")
            .filter_map(|value| std::str::from_utf8(value).ok())
            .flat_map(|value| value.split(','))
            .collect();
        // From the right: each trusted proxy vouches for the one before it.
        for address in forwarded.iter().rev() {
            if !trusted(&peer) {
                break;
            }
            let Ok(address) = address.trim().parse::<IpAddr>() else { break };
            peer = address.to_canonical();
        }
        peer.into()
    }

    /// The device of a request's `Authorization`, or 401.
    pub fn device(&self, head: &Head<'_>, store: &Store) -> Result<DeviceNo, Fault> {
        let token = head.field("authorization").and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        let unknown = || {
            Fault::new(
                401,
                "unauthorized",
                "this needs the token of a paired device; pair with a code from siskin pair",
            )
        };
        match token {
            Some(token) => device_of(token, store)?.ok_or_else(unknown),
            None => Err(unknown()),
        }
    }

    /// A new code. Also for the control socket, and for the start of a server without devices. `None` if the
    /// system gives no random numbers.
    pub fn new_code(&self) -> Option<Code> {
        let code = random_code().inspect_err(|e| log::error!("no pairing code: {e}")).ok()?;
        let now = boot_ms();
        let mut pairing = self.lock();
        pairing.forget(now);
        push_over(&mut pairing.codes, Pending { code: code.clone(), born_ms: now, wrong: 0 });
        Some(Code { text: code, expires_at: crate::store::now() + CODE_MS as i64 })
    }

    /// Uses a code up for a new device: its token and number.
    pub fn pair(
        &self,
        peer: Peer,
        code: &str,
        name: &str,
        store: &Store,
    ) -> Result<(String, DeviceNo), Fault> {
        // The lock is held until the device is stored, so that no code is ever used twice.
        let mut pairing = self.lock();
        let at = match pairing.guess(peer, code, boot_ms()) {
            Guess::Right(at) => at,
            Guess::Wrong => {
                return Err(Fault::new(
                    401,
                    "wrong_code",
                    "this code is wrong, used or expired; siskin pair makes a new one",
                ));
            }
            Guess::TooMany(ms) => {
                let seconds = ms.div_ceil(1000);
                let message = format!(
                    "too many wrong codes; try again in {seconds} s, or make a new code with siskin pair"
                );
                return Err(Fault::new(429, "too_many", message).retry_after(seconds));
            }
        };
        let token = random_token().map_err(|e| Fault::new(500, "internal", e))?;
        let device = store.add_device(name, &hash(&token)).map_err(super::routes::store_fault)?;
        pairing.codes.remove(at);
        Ok((token, device))
    }

    fn lock(&self) -> MutexGuard<'_, Pairing> {
        // A panic under this lock leaves at worst a code that is used but not removed, whose device was not
        // answered.
        self.pairing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pairing {
    fn forget(&mut self, now: u64) {
        self.codes.retain(|code| now - code.born_ms < CODE_MS);
        self.guesses.retain(|guesses| now - guesses.since_ms < MINUTE_MS);
    }

    fn guess(&mut self, peer: Peer, code: &str, now: u64) -> Guess {
        self.forget(now);
        let known = self.guesses.iter().position(|guesses| guesses.peer == peer);
        if let Some(guesses) = known.and_then(|at| self.guesses.get(at))
            && guesses.wrong >= GUESSES_PER_ADDRESS
        {
            return Guess::TooMany(guesses.since_ms + MINUTE_MS - now);
        }
        // A code that endured too much is locked for the rest of its life, for the right guess as well.
        let locked = |code: &&Pending| code.wrong >= GUESSES_PER_CODE;
        if !self.codes.is_empty() && self.codes.iter().all(|code| locked(&code)) {
            let last = self.codes.iter().map(|code| code.born_ms + CODE_MS - now).min();
            return Guess::TooMany(last.unwrap_or(CODE_MS));
        }
        let plain = normal_code(code);
        if let Some(at) =
            self.codes.iter().position(|code| !locked(&code) && normal_code(&code.code) == plain)
        {
            return Guess::Right(at);
        }
        for code in &mut self.codes {
            code.wrong += 1;
        }
        match known.and_then(|at| self.guesses.get_mut(at)) {
            Some(guesses) => guesses.wrong += 1,
            None => push_over(&mut self.guesses, Guesses { peer, since_ms: now, wrong: 1 }),
        }
        Guess::Wrong
    }
}

/// Adds to a table; in a full one the oldest makes room.
fn push_over<T, const N: usize>(table: &mut heapless::Vec<T, N>, item: T) {
    if let Err(item) = table.push(item) {
        table.remove(0);
        let pushed = table.push(item);
        debug_assert!(pushed.is_ok(), "one place is free");
    }
}

/// The device of a token, if it is known.
pub fn device_of(token: &str, store: &Store) -> Result<Option<DeviceNo>, Fault> {
    if token.len() > 128 {
        return Ok(None);
    }
    store.device_of(&hash(token)).map_err(super::routes::store_fault)
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| format!("the system gives no random numbers: {e}"))?;
    Ok(bytes)
}

/// 256 random bits in hex.
fn random_token() -> Result<String, String> {
    Ok(hex(&random::<32>()?))
}

/// 64 random bits in hex: an id that is not a secret, such as the epoch.
pub fn random_id() -> Result<String, String> {
    Ok(hex(&random::<8>()?))
}

/// 256 random bits, for what only its holder may know.
pub fn random_secret() -> Result<String, String> {
    Ok(hex(&random::<32>()?))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn random_code() -> Result<String, String> {
    let mut code = String::with_capacity(9);
    for (at, bytes) in random::<32>()?.as_chunks::<4>().0.iter().enumerate() {
        if at == 4 {
            code.push('-');
        }
        // 32 bits a letter: the remainder favours none by more than one in a hundred million.
        code.push(char::from(ALPHABET[u32::from_ne_bytes(*bytes) as usize % ALPHABET.len()]));
    }
    Ok(code)
}

/// A code as it is compared: people leave the dash out and write in lower case.
fn normal_code(code: &str) -> String {
    code.chars().filter(char::is_ascii_alphanumeric).take(16).map(|c| c.to_ascii_uppercase()).collect()
}

/// Milliseconds since the device started, sleep included: a clock that nobody sets.
fn boot_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Name and port of a `Host`, if it is well formed. An IPv6 literal keeps its brackets.
fn split_host(host: &str) -> Option<(&str, Option<u16>)> {
    let (name, port) = match host.strip_prefix('[') {
        Some(_) => {
            let end = host.find(']')? + 1;
            let (literal, port) = host.split_at(end);
            literal.trim_matches(['[', ']']).parse::<Ipv6Addr>().ok()?;
            (literal, port)
        }
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let port = match port.strip_prefix(':') {
        Some(digits) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(digits.parse().ok()?)
        }
        Some(_) => return None,
        None if port.is_empty() => None,
        None => return None,
    };
    let label = |label: &str| {
        !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    (name.starts_with('[') || name.split('.').all(label)).then_some((name, port))
}

/// An origin in lower case, without its scheme's default port.
fn normal_origin(origin: &str) -> String {
    let origin = origin.trim().to_ascii_lowercase();
    let default = if origin.starts_with("https://") { ":443" } else { ":80" };
    let bare = origin.strip_suffix(default).filter(|bare| bare.contains("://"));
    bare.unwrap_or(&origin).trim_end_matches('/').to_owned()
}

#[cfg(test)]
mod tests;
