//! Embeds `static/`: each file as it is and, where that is smaller, as gzip, with its content type and ETag.

use flate2::{Compression, write::GzEncoder};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=static");
    println!("cargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    println!("cargo:rustc-env=SISKIN_BUILD_DATE={}", build_date());

    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("static");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let mut names = Vec::new();
    walk(&root, "", &mut names);
    names.sort();
    let mut table = String::from("static ASSETS: &[Asset] = &[\n");
    for (no, name) in names.iter().enumerate() {
        embed(&root, &out, no, name, &mut table);
    }
    table.push_str("];\n");
    fs::write(out.join("assets.rs"), table).expect("OUT_DIR is writable");
}

/// Seconds since 1970: a clock before it is wrong.
fn build_date() -> u64 {
    let given = env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

fn walk(dir: &Path, prefix: &str, names: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.starts_with('.') {
            continue;
        }
        let path = format!("{prefix}{name}");
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&entry.path(), &format!("{path}/"), names),
            Ok(kind) if kind.is_file() => names.push(path),
            _ => {}
        }
    }
}

/// In this order. A blank before a colon stays: in a selector it means "anywhere inside".
const CSS_SHORTER: [(&str, &str); 8] =
    [("\n", " "), (": ", ":"), ("; ", ";"), (", ", ","), (" {", "{"), ("{ ", "{"), ("} ", "}"), (";}", "}")];

/// The client's own scripts and styles without comments of whole lines, indentation and blank lines: a fifth
/// less to send to a browser on a slow link. Nothing else is touched, and `--static-dir` serves the files as they
/// are. (Its sources hold no string over several lines; a test of the client sees to that.) Styles, where a blank
/// beside a delimiter means nothing, become one line.
fn slim(name: &str, plain: Vec<u8>) -> Vec<u8> {
    if name.starts_with("vendor/") || !(name.ends_with(".js") || name.ends_with(".css")) {
        return plain;
    }
    let text = String::from_utf8(plain).expect("scripts and styles are UTF-8");
    let mut out = String::with_capacity(text.len());
    let mut comment = false;
    for line in text.lines().map(str::trim) {
        comment |= line.starts_with("/*");
        if !comment && !line.is_empty() && !line.starts_with("//") {
            out.push_str(line);
            out.push('\n');
        }
        comment &= !line.ends_with("*/");
    }
    if name.ends_with(".css") {
        for (from, to) in CSS_SHORTER {
            out = out.replace(from, to);
        }
    }
    out.into_bytes()
}

fn embed(root: &Path, out: &Path, no: usize, name: &str, table: &mut String) {
    let plain = slim(name, fs::read(root.join(name)).expect("a file of static/ is readable"));
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&plain).expect("writing to memory");
    let packed = encoder.finish().expect("writing to memory");
    let hash: String = Sha256::digest(&plain).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    fs::write(out.join(format!("{no}.plain")), &plain).expect("OUT_DIR is writable");
    let gzip = if packed.len() < plain.len() {
        fs::write(out.join(format!("{no}.gz")), &packed).expect("OUT_DIR is writable");
        format!("Some(include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{no}.gz\")))")
    } else {
        "None".to_owned()
    };
    writeln!(
        table,
        "Asset {{ name: {name:?}, hash: {hash:?}, \
         plain: include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{no}.plain\")), gzip: {gzip} }},"
    )
    .expect("writing to a string");
}
