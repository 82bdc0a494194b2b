//! What the host says of itself: its addresses, read from `/proc` and never from the network, and its clock.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;

/// More addresses than this are not listed.
const ADDRESSES_MAX: usize = 64;
/// These files are read up to this many bytes; a router with thousands of routes is cut short.
const PROC_BYTES_MAX: u64 = 128 * 1024;

/// Seconds of 2026-11-01: no Siskin is older, so an earlier clock is wrong.
pub const CLOCK_LEAST_S: i64 = 1_793_491_200;

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// the interface, if it could be told
    pub interface: Option<String>,
    /// the address
    pub ip: IpAddr,
}

/// A small file's text, lossy and cut at `bytes`; empty if it cannot be read.
pub fn read_text(path: impl AsRef<Path>, bytes: u64) -> String {
    use std::io::Read;
    let mut raw = Vec::new();
    let Ok(file) = std::fs::File::open(path) else { return String::new() };
    // What was read before an error is still worth showing.
    let _ = file.take(bytes).read_to_end(&mut raw);
    String::from_utf8_lossy(&raw).into_owned()
}

/// The host's own addresses without loopback, IPv4 first.
pub fn addresses() -> Vec<Address> {
    let routes = routes(&read_text("/proc/net/route", PROC_BYTES_MAX));
    let mut found: Vec<Address> = local_v4(&read_text("/proc/net/fib_trie", PROC_BYTES_MAX))
        .into_iter()
        .map(|ip| Address { interface: interface_of(&routes, ip), ip: IpAddr::V4(ip) })
        .collect();
    found.extend(local_v6(&read_text("/proc/net/if_inet6", PROC_BYTES_MAX)));
    found.truncate(ADDRESSES_MAX);
    found
}

/// The address at which others on the LAN reach this host, if it has one. Sends nothing.
pub fn lan_address() -> Option<IpAddr> {
    let toward = |own: SocketAddr, there: SocketAddr| {
        let socket = UdpSocket::bind(own).ok()?;
        // Connecting a datagram socket only asks the routing table.
        socket.connect(there).ok()?;
        let ip = socket.local_addr().ok()?.ip();
        (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
    };
    // A router's way outward is its WAN; the private address is the one that the LAN uses.
    let all = addresses();
    let private = all.iter().find(|own| matches!(own.ip, IpAddr::V4(ip) if ip.is_private()));
    let outward = || toward((Ipv4Addr::UNSPECIFIED, 0).into(), (Ipv4Addr::new(192, 0, 2, 1), 9).into());
    match outward() {
        Some(IpAddr::V4(ip)) if ip.is_private() => Some(IpAddr::V4(ip)),
        out => private.map(|own| own.ip).or(out).or_else(|| all.first().map(|own| own.ip)),
    }
}

/// Entries `|-- ADDRESS` that are followed by `/32 host LOCAL`.
fn local_v4(trie: &str) -> Vec<Ipv4Addr> {
    let mut found = Vec::new();
    let mut last = None;
    for line in trie.lines() {
        let line = line.trim();
        if let Some(text) = line.strip_prefix("|-- ") {
            last = text.parse::<Ipv4Addr>().ok();
        } else if line.starts_with("/32 host LOCAL")
            && let Some(ip) = last.filter(|ip| !ip.is_loopback())
            && !found.contains(&ip)
            && found.len() < ADDRESSES_MAX
        {
            found.push(ip);
        }
    }
    found
}

struct Route {
    interface: String,
    network: u32,
    mask: u32,
}

/// `/proc/net/route`: numbers in hex, in the machine's byte order as it would lie in memory.
fn routes(text: &str) -> Vec<Route> {
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().take(8).collect();
        let number = |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok().map(u32::from_be);
        Some(Route { interface: (*fields.first()?).to_owned(), network: number(1)?, mask: number(7)? })
    };
    text.lines().skip(1).filter_map(parse).filter(|route| route.mask != 0).take(1024).collect()
}

fn interface_of(routes: &[Route], ip: Ipv4Addr) -> Option<String> {
    let within = routes.iter().filter(|route| u32::from(ip) & route.mask == route.network);
    within.max_by_key(|route| route.mask).map(|route| route.interface.clone())
}

fn local_v6(text: &str) -> Vec<Address> {
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let digits = fields.first().filter(|digits| digits.len() == 32)?;
        let ip = Ipv6Addr::from(u128::from_str_radix(digits, 16).ok()?);
        let interface = fields.get(5).map(|name| (*name).to_owned());
        (!ip.is_loopback()).then_some(Address { interface, ip: IpAddr::V6(ip) })
    };
    text.lines().filter_map(parse).take(ADDRESSES_MAX).collect()
}

/// Unix seconds as `2026-11-30T19:15:00Z`.
pub fn utc(seconds: i64) -> String {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Howard Hinnant's civil_from_days: years that begin in March put the leap day last.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIE: &str = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     \
        +-- 192.168.1.0/24 2 0 1\n        |-- 192.168.1.0\n           /24 link UNICAST\n        \
        |-- 192.168.1.7\n           /32 host LOCAL\n        \
        |-- 192.168.1.255\n           /32 link BROADCAST\n     \
        |-- 127.0.0.1\n        /32 host LOCAL\nLocal:\n        |-- 192.168.1.7\n           /32 host LOCAL\n";

    #[test]
    fn own_addresses_are_the_local_hosts_of_the_trie_once_each() {
        assert_eq!(local_v4(TRIE), [Ipv4Addr::new(192, 168, 1, 7)]);
        assert!(local_v4("").is_empty());
    }

    #[test]
    fn the_longest_route_names_the_interface() {
        let network = |ip: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(ip));
        let text = format!(
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\neth0\t{}\t0\t1\t0\t0\t0\t{}\n\
             br-lan\t{}\t0\t1\t0\t0\t0\t{}\nwan\t00000000\t0\t3\t0\t0\t0\t00000000\nshort\n",
            network([192, 168, 0, 0]),
            network([255, 255, 0, 0]),
            network([192, 168, 1, 0]),
            network([255, 255, 255, 0]),
        );
        let routes = routes(&text);
        assert_eq!(interface_of(&routes, Ipv4Addr::new(192, 168, 1, 7)).as_deref(), Some("br-lan"));
        assert_eq!(interface_of(&routes, Ipv4Addr::new(192, 168, 2, 7)).as_deref(), Some("eth0"));
        assert_eq!(interface_of(&routes, Ipv4Addr::new(10, 0, 0, 1)), None);
    }

    #[test]
    fn ipv6_addresses_come_with_their_interface() {
        let text = "fe80000000000000021122fffe334455 02 40 20 80     eth0\n\
                    00000000000000000000000000000001 01 80 10 80       lo\nbad line\n";
        let found = local_v6(text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].interface.as_deref(), Some("eth0"));
        assert_eq!(found[0].ip.to_string(), "fe80::211:22ff:fe33:4455");
    }

    #[test]
    fn utc_reads_like_a_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_796_069_759, "2026-11-30T20:15:59Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }
}
