//! The client's files: embedded in the program by `build.rs`, or read from a directory for development.
//!
//! They are public. Each has an ETag, is asked for anew each time (304 when unchanged), and is sent as gzip
//! to who takes it. A strict Content-Security-Policy goes with what a browser can show as a document: nothing inline,
//! nothing from another host. Elsewhere it has no meaning, and forty modules would carry it for nothing.

use super::head::Head;
use super::respond::{Body, Fault, Reply};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// A file of the client.
pub struct Asset {
    name: &'static str,
    hash: &'static str,
    plain: &'static [u8],
    gzip: Option<&'static [u8]>,
}

include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// Largest file that a development directory may hold.
const DISK_FILE_MAX: u64 = 1024 * 1024;

/// Where files come from.
#[derive(Clone, Debug)]
pub struct Assets {
    dir: Option<PathBuf>,
}

impl Assets {
    /// Embedded files, or those of a directory.
    pub fn new(dir: Option<PathBuf>) -> Assets {
        Assets { dir }
    }

    /// The file of a decoded path, or `None`.
    pub fn get(&self, path: &str, head: &Head<'_>, host: &str) -> Result<Option<Reply>, Fault> {
        let name = path.strip_prefix('/').unwrap_or(path);
        let name = if name.is_empty() { "index.html" } else { name };
        let found = match &self.dir {
            Some(dir) => from_disk(dir, name)?,
            None => ASSETS.iter().find(|asset| asset.name == name).map(|asset| embedded(asset, head)),
        };
        Ok(found.map(|found| reply(found, name, head, host)))
    }
}

struct Found {
    etag: String,
    body: Body,
    gzip: bool,
}

fn embedded(asset: &Asset, head: &Head<'_>) -> Found {
    match asset.gzip.filter(|_| takes_gzip(head)) {
        // Two representations need two tags.
        Some(gzip) => Found { etag: format!("\"{}-gz\"", asset.hash), body: Body::Static(gzip), gzip: true },
        None => Found { etag: format!("\"{}\"", asset.hash), body: Body::Static(asset.plain), gzip: false },
    }
}

fn reply(found: Found, name: &str, head: &Head<'_>, host: &str) -> Reply {
    let mut fields = vec![("Cache-Control", "no-cache".to_owned()), ("Vary", "Accept-Encoding".to_owned())];
    let kind = content_type(name);
    if kind.starts_with("text/html") || kind.starts_with("image/svg") {
        fields.push(("Content-Security-Policy", policy(host)));
    }
    let unchanged = knows(head, &found.etag);
    fields.push(("ETag", found.etag));
    if unchanged {
        return Reply { status: 304, fields, body: Body::Empty };
    }
    fields.push(("Content-Type", kind.to_owned()));
    if found.gzip {
        fields.push(("Content-Encoding", "gzip".to_owned()));
    }
    Reply { status: 200, fields, body: found.body }
}

fn policy(host: &str) -> String {
    format!(
        "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; \
         connect-src 'self' ws://{host} wss://{host}; object-src 'none'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'"
    )
}

fn knows(head: &Head<'_>, etag: &str) -> bool {
    head.all("if-none-match")
        .filter_map(|value| std::str::from_utf8(value).ok())
        .flat_map(|value| value.split(','))
        .map(|tag| tag.trim().trim_start_matches("W/"))
        .any(|tag| tag == "*" || tag == etag)
}

/// Whether `gzip` is accepted with a weight above 0.
fn takes_gzip(head: &Head<'_>) -> bool {
    let values = head.all("accept-encoding").filter_map(|value| std::str::from_utf8(value).ok());
    let mut star = false;
    for item in values.flat_map(|value| value.split(',')) {
        let (coding, weight) = item.split_once(';').unwrap_or((item, ""));
        let weight =
            weight.trim().strip_prefix("q=").and_then(|q| q.trim().parse::<f32>().ok()).unwrap_or(1.0);
        match coding.trim() {
            coding if coding.eq_ignore_ascii_case("gzip") => return weight > 0.0,
            "*" => star = weight > 0.0,
            _ => {}
        }
    }
    star
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "json" | "map" => "application/json",
        "webmanifest" => "application/manifest+json",
        "txt" | "md" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

fn from_disk(dir: &Path, name: &str) -> Result<Option<Found>, Fault> {
    let Some(path) = beneath(dir, name) else { return Ok(None) };
    let broken =
        |e: std::io::Error| Fault::new(500, "internal", format!("static file {name} cannot be read: {e}"));
    let file = File::open(path).map_err(broken)?;
    let mut bytes = Vec::new();
    file.take(DISK_FILE_MAX).read_to_end(&mut bytes).map_err(broken)?;
    let hash: String = Sha256::digest(&bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    Ok(Some(Found { etag: format!("\"{hash}\""), body: Body::Bytes(bytes), gzip: false }))
}

/// The file of this name below `dir`, found by walking: each part has to be the name of an entry, so neither
/// `..` nor a link leads out.
fn beneath(dir: &Path, name: &str) -> Option<PathBuf> {
    let mut path = dir.to_owned();
    let mut parts = name.split('/').peekable();
    while let Some(part) = parts.next() {
        let plain = !part.starts_with('.') && !part.contains(['\\', '\0']);
        let entry = fs::read_dir(&path).ok()?.flatten().find(|entry| plain && entry.file_name() == *part)?;
        let kind = entry.file_type().ok()?;
        let fits = if parts.peek().is_some() { kind.is_dir() } else { kind.is_file() };
        if !fits {
            return None;
        }
        path.push(part);
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::head::parse;

    fn with_head<R>(fields: &str, test: impl FnOnce(&Head<'_>) -> R) -> R {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        test(&parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn gzip_goes_only_to_who_takes_it() {
        let check = |value: &str, expected: bool| {
            let fields = format!("Accept-Encoding: {value}\r\n");
            assert_eq!(with_head(&fields, takes_gzip), expected, "{value}");
        };
        check("gzip, deflate", true);
        check("br;q=1, GZIP;q=0.5", true);
        check("gzip;q=0", false);
        check("gzip;q=0, *", false);
        check("*", true);
        check("br", false);
        assert!(!with_head("", takes_gzip));
    }

    #[test]
    fn an_embedded_file_is_sent_once_and_then_304() {
        static ASSET: Asset = Asset { name: "x.js", hash: "abcd", plain: b"plain", gzip: Some(b"gz") };
        with_head("Accept-Encoding: gzip\r\nIf-None-Match: \"abcd\", W/\"abcd-gz\"\r\n", |head| {
            let answer = reply(embedded(&ASSET, head), "x.js", head, "pi.local:1");
            assert_eq!(answer.status, 304);
        });
        with_head("If-None-Match: \"abcd-gz\"\r\n", |head| {
            let policy = |name| {
                let answer = reply(embedded(&ASSET, head), name, head, "pi.local:1");
                assert_eq!(answer.status, 200);
                let mut fields = answer.fields.into_iter();
                fields.find(|(name, _)| *name == "Content-Security-Policy").map(|(_, policy)| policy)
            };
            assert_eq!(policy("x.js"), None);
            let policy = policy("x.html").unwrap();
            assert!(policy.contains("connect-src 'self' ws://pi.local:1 wss://pi.local:1;"));
            assert!(!policy.contains("unsafe"));
        });
    }

    #[test]
    fn nothing_outside_the_directory_is_served() {
        let dir = std::env::temp_dir().join(format!("siskin-assets-{}", std::process::id()));
        fs::create_dir_all(dir.join("www/sub")).unwrap();
        fs::write(dir.join("secret"), "s").unwrap();
        fs::write(dir.join("www/sub/a.js"), "a").unwrap();
        std::os::unix::fs::symlink(dir.join("secret"), dir.join("www/link")).unwrap();
        let www = dir.join("www");
        assert!(beneath(&www, "sub/a.js").is_some());
        for bad in
            ["../secret", "sub/../../secret", "link", "sub", "", "sub/", "/etc/passwd", "sub//a.js", "."]
        {
            assert!(beneath(&www, bad).is_none(), "{bad}");
        }
        fs::remove_dir_all(dir).unwrap();
    }
}
