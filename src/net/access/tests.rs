use super::*;
use crate::net::head::parse;

fn access() -> Access {
    Access {
        hosts: vec!["box.example.net".into()],
        origins: vec![normal_origin("https://siskin.example.net:443")],
        proxies: vec![IpAddr::from([10, 0, 0, 1])],
        own_name: "pi.dyn.example.org".into(),
        pairing: Mutex::default(),
    }
}

fn status(host: &str, origin: Option<&str>) -> u16 {
    let origin = origin.map_or(String::new(), |origin| format!("Origin: {origin}\r\n"));
    let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n{origin}\r\n");
    access().check(&parse(text.as_bytes()).unwrap()).map_or_else(|fault| fault.status, |_| 200)
}

#[test]
fn hosts_that_a_stranger_could_own_are_refused() {
    let check = |host: &str, expected: u16| assert_eq!(status(host, None), expected, "{host}");
    for ours in [
        "127.0.0.1:8787",
        "192.168.1.1",
        "[::1]:8787",
        "[fd00::1]",
        "localhost:8787",
        "router",
        "pi.local",
        "PI.LAN:80",
        "a.b.home.arpa",
        "x.internal",
        "x.localdomain",
        "nas.fritz.box",
        "box.example.net:8787",
        "pi.dyn.example.org",
    ] {
        check(ours, 200);
    }
    for theirs in [
        "evil.example",
        "evil.example:8787",
        "local.evil.example",
        "evillocal.example",
        ".local",
        "127.0.0.1.evil.example",
        "localhost.",
        "a..local",
        "[::1",
        "[evil]",
        "::1",
        "a:b",
        "a:99999",
        "a:",
        "",
        "a b",
        "evil.example/.local",
        "user@pi.local",
    ] {
        check(theirs, 421);
    }
}

#[test]
fn only_the_same_origin_or_a_configured_one_passes() {
    let check = |host, origin, expected| assert_eq!(status(host, Some(origin)), expected, "{host} {origin}");
    check("pi.local:8787", "http://pi.local:8787", 200);
    check("pi.local:8787", "HTTP://PI.local:8787", 200);
    check("pi.local", "http://pi.local:80", 200);
    check("pi.local:80", "http://pi.local", 200);
    check("pi.local:8787", "https://siskin.example.net", 200);
    check("pi.local:8787", "https://evil.example", 403);
    check("pi.local:8787", "null", 403);
    check("pi.local:8787", "", 403);
    check("pi.local:8787", "http://pi.local:8788", 403);
    check("pi.local:8787", "http://pi.local", 403);
    check("pi.local:8787", "https://pi.local:8787", 403);
    check("127.0.0.1:8787", "http://localhost:8787", 403);
}

#[test]
fn two_origins_are_refused() {
    let text = "GET / HTTP/1.1\r\nHost: a\r\nOrigin: http://a\r\nOrigin: http://a\r\n\r\n";
    assert_eq!(access().check(&parse(text.as_bytes()).unwrap()).unwrap_err().status, 403);
}

#[test]
fn only_a_trusted_proxy_is_believed() {
    let text = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.1.1.1, 2.2.2.2\r\n\r\n";
    let head = parse(text.as_bytes()).unwrap();
    let peer = |socket: [u8; 4]| access().peer(IpAddr::from(socket), &head);
    assert_eq!(peer([10, 0, 0, 1]), IpAddr::from([2, 2, 2, 2]).into());
    assert_eq!(peer([10, 0, 0, 2]), IpAddr::from([10, 0, 0, 2]).into());
}

#[test]
fn an_ipv6_peer_is_its_prefix() {
    let peer = |text: &str| Peer::from(text.parse::<IpAddr>().unwrap());
    assert_eq!(peer("fd00::1"), peer("fd00::ffff:1"));
    assert_ne!(peer("fd00::1"), peer("fd00:0:0:1::1"));
    assert_eq!(peer("::ffff:1.2.3.4"), peer("1.2.3.4"));
    assert_ne!(peer("1.2.3.5"), peer("1.2.3.4"));
}

fn some_peer(n: u8) -> Peer {
    IpAddr::from([127, 0, 0, n]).into()
}

fn pairing(codes: &[&str]) -> Pairing {
    let codes = codes.iter().map(|code| Pending { code: (*code).into(), born_ms: 0, wrong: 0 }).collect();
    Pairing { codes, ..Pairing::default() }
}

#[test]
fn a_code_is_found_however_it_is_typed_until_it_expires() {
    let mut pairing = pairing(&["ABCD-EFGH"]);
    for typed in ["ABCD-EFGH", "abcdefgh", " abcd efgh "] {
        assert_eq!(pairing.guess(some_peer(1), typed, 1), Guess::Right(0));
    }
    assert_eq!(pairing.guess(some_peer(1), "", 1), Guess::Wrong);
    assert_eq!(pairing.guess(some_peer(1), "ABCD-EFGH", CODE_MS), Guess::Wrong);
}

#[test]
fn an_address_has_five_guesses_a_minute_and_other_addresses_have_theirs() {
    let mut pairing = pairing(&["ABCD-EFGH"]);
    for _ in 0..5 {
        assert_eq!(pairing.guess(some_peer(1), "x", 10), Guess::Wrong);
    }
    assert_eq!(pairing.guess(some_peer(1), "ABCD-EFGH", 20), Guess::TooMany(MINUTE_MS - 10));
    assert_eq!(pairing.guess(some_peer(2), "ABCD-EFGH", 20), Guess::Right(0));
    assert_eq!(pairing.guess(some_peer(1), "ABCD-EFGH", MINUTE_MS + 10), Guess::Right(0));
}

#[test]
fn a_code_endures_twenty_guesses_and_a_new_one_is_not_hurt() {
    let mut pairing = pairing(&["ABCD-EFGH"]);
    for n in 0..20 {
        assert_eq!(pairing.guess(some_peer(n), "x", 10), Guess::Wrong);
    }
    assert_eq!(pairing.guess(some_peer(99), "ABCD-EFGH", 10), Guess::TooMany(CODE_MS - 10));
    push_over(&mut pairing.codes, Pending { code: "JKLM-NPQR".into(), born_ms: 20, wrong: 0 });
    assert_eq!(pairing.guess(some_peer(99), "JKLM-NPQR", 30), Guess::Right(1));
    assert_eq!(pairing.guess(some_peer(99), "ABCD-EFGH", 30), Guess::Wrong);
}

#[test]
fn the_table_of_guesses_is_bounded() {
    let mut pairing = pairing(&[]);
    for n in 0..200 {
        pairing.guess(IpAddr::from([10, 0, 0, n]).into(), "x", 1);
    }
    assert_eq!(pairing.guesses.len(), ADDRESSES_MAX);
}

#[test]
fn codes_and_tokens_are_random_and_well_formed() {
    let access = access();
    let codes: Vec<String> = (0..10).map(|_| access.new_code().unwrap().text).collect();
    assert!(codes.iter().all(|code| code.len() == 9 && code.split('-').all(|half| half.len() == 4)));
    assert!(codes.windows(2).all(|pair| pair[0] != pair[1]));
    assert_eq!(access.lock().codes.len(), CODES_MAX);
    assert_eq!(random_token().unwrap().len(), 64);
}
