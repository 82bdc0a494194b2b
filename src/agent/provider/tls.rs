//! What is wrong with a TLS connection, in words that say what to do.
//!
//! Certificates are checked against this device's clock, so a clock that is wrong looks like a certificate
//! that is: every message about time tells the clock's. Nothing here is tried again by itself, since it is
//! the same the next time. Read first: [`crate::config::ca`] for the authorities that count.

use crate::config::{Provider, ca};
use crate::host::{CLOCK_LEAST_S, utc};
use rustls::pki_types::UnixTime;
use rustls::{CertificateError, InvalidMessage};
use ureq::tls::{Certificate, RootCerts};

/// The authorities that count: those of `ca_file` if there is one, and else the public ones.
pub fn roots(provider: &Provider) -> Result<RootCerts, String> {
    let Some(path) = &provider.ca_file else { return Ok(RootCerts::WebPki) };
    let found = ca::read(path).map_err(|what| format!("ca_file of provider {}: {what}", provider.name))?;
    let found: Vec<_> = found.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    Ok(RootCerts::new_with_certs(&found))
}

/// What TLS says of a failed connection, if it is TLS that failed.
pub fn fault(provider: &Provider, error: &ureq::Error) -> Option<String> {
    let why = match error {
        ureq::Error::Rustls(error) => why(provider, error, crate::store::now() / 1000),
        ureq::Error::Tls(text) => (*text).to_owned(),
        ureq::Error::Io(error) => {
            let inner = error.get_ref()?.downcast_ref::<rustls::Error>()?;
            why(provider, inner, crate::store::now() / 1000)
        }
        _ => return None,
    };
    Some(format!("no secure connection to provider {} at {}: {why}", provider.name, provider.base_url))
}

fn why(provider: &Provider, error: &rustls::Error, now_s: i64) -> String {
    use CertificateError as Bad;
    let certificate = match error {
        rustls::Error::InvalidCertificate(certificate) => certificate,
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            return "what answers there does not speak TLS; if it speaks plain http, write http:// in base_url"
                .to_owned();
        }
        rustls::Error::AlertReceived(alert) => {
            return format!(
                "the server refused it ({alert:?}); check base_url, and the server's TLS settings"
            );
        }
        other => return format!("{other}; check base_url, and the server's TLS settings"),
    };
    match certificate {
        Bad::Expired => format!("its certificate has expired; {}", clock(now_s, "renew the certificate")),
        Bad::ExpiredContext { not_after, .. } => format!(
            "its certificate expired on {}; {}",
            day(*not_after),
            clock(now_s, "renew the certificate")
        ),
        Bad::NotValidYet => format!("its certificate is not valid yet; {}", clock(now_s, "wait until then")),
        Bad::NotValidYetContext { not_before, .. } => format!(
            "its certificate is valid only from {} on; {}",
            day(*not_before),
            clock(now_s, "wait until then")
        ),
        Bad::NotValidForName => "its certificate is for another name than base_url has".to_owned(),
        Bad::NotValidForNameContext { expected, presented } => {
            let names: Vec<&str> = presented.iter().take(NAMES_MAX).map(|name| bare(name)).collect();
            let names = if names.is_empty() { "no name at all".to_owned() } else { names.join(", ") };
            format!(
                "its certificate is for {names} and not for {}; write a name of the certificate in base_url, \
                 or give the server a certificate for this one",
                expected.to_str()
            )
        }
        Bad::UnknownIssuer => unknown(provider),
        Bad::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "its certificate is itself an authority (CA:TRUE), which no server's may be; make a new one with \
             CA:FALSE, or one that the authority signs"
                .to_owned()
        }
        other => format!("its certificate is refused ({other}); make a new one for the server"),
    }
}

/// Names of a certificate that are told.
const NAMES_MAX: usize = 5;

/// `a.example` of `DnsName("a.example")`, as rustls gives names.
fn bare(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    inner.trim_matches('"')
}

fn unknown(provider: &Provider) -> String {
    match &provider.ca_file {
        None => format!(
            "its certificate is not signed by a public authority; if it is your own, put the PEM file of \
             its authority into ca_file of provider {}",
            provider.name
        ),
        Some(file) => format!(
            "its certificate is not signed by an authority of ca_file {}, and with ca_file no other counts",
            file.display()
        ),
    }
}

/// What this device's clock has to do with it. `else_mend` is what helps if the clock is right.
fn clock(now_s: i64, else_mend: &str) -> String {
    let now = utc(now_s);
    if now_s < CLOCK_LEAST_S {
        return format!(
            "this device's clock says {now}, which is before this program was made and so the likely cause: \
             set the clock"
        );
    }
    format!("this device's clock says {now}: {else_mend}, or set the clock if it is wrong")
}

fn day(time: UnixTime) -> String {
    utc(i64::try_from(time.as_secs()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ApiKind;
    use rustls::pki_types::ServerName;
    use std::time::Duration;

    const NOW_S: i64 = 1_796_069_759;

    fn time(seconds: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(seconds))
    }

    fn check(error: impl Into<rustls::Error>, now_s: i64, parts: &[&str]) {
        let text = why(&Provider::new("home", ApiKind::OpenAi), &error.into(), now_s);
        for part in parts {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
    }

    #[test]
    fn a_certificate_out_of_its_time_is_told_with_the_clock() {
        let expired = || CertificateError::ExpiredContext { time: time(0), not_after: time(951_782_400) };
        check(expired(), NOW_S, &["expired on 2000-02-29", "clock says 2026-11-30T20:15:59Z", "renew"]);
        check(expired(), 86_400, &["1970-01-02", "before this program was made", "set the clock"]);
        let early =
            || CertificateError::NotValidYetContext { time: time(0), not_before: time(1_893_456_000) };
        check(early(), NOW_S, &["only from 2030-01-01", "clock says 2026-11-30", "set the clock"]);
        check(early(), 0, &["clock says 1970-01-01T00:00:00Z", "likely cause"]);
    }

    #[test]
    fn other_faults_are_told_with_their_mend() {
        let names = CertificateError::NotValidForNameContext {
            expected: ServerName::try_from("a.example").unwrap(),
            presented: vec!["DnsName(\"b.example\")".into(), "IpAddress(10.0.0.1)".into()],
        };
        check(names, NOW_S, &["is for b.example, 10.0.0.1 and not for a.example", "base_url"]);
        check(CertificateError::UnknownIssuer, NOW_S, &["ca_file of provider home"]);
        check(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType), NOW_S, &["write http://"]);
        check(CertificateError::BadSignature, NOW_S, &["BadSignature", "make a new one"]);
    }
}
