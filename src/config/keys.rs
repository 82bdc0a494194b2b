//! Keys of providers: from the file that the config names, from systemd's credentials, or from the
//! environment.
//!
//! A key from the environment (`ANTHROPIC_API_KEY`, `OPENAI_API_KEY`) belongs to the vendor: it goes to the
//! vendor's own address, or to the only provider of its kind, and never in plain text to another machine.

use super::file::KeyFile;
use super::{ApiKind, Config, Provider, Surroundings};
use std::io::Read;
use std::path::Path;

/// No vendor's key is longer.
const KEY_BYTES_MAX: u64 = 8 * 1024;

/// Gives every provider its key; without any provider, makes those that the environment has keys for.
pub fn find(config: &mut Config, files: &[KeyFile], around: &Surroundings<'_>) -> Result<(), String> {
    if config.providers.is_empty() {
        for (kind, name, variable) in VENDORS {
            if around.text(variable).is_some() {
                config.providers.push(Provider::new(name, kind));
            }
        }
    }
    let credentials = around.path("CREDENTIALS_DIRECTORY");
    for at in 0..config.providers.len() {
        let name = config.providers[at].name.clone();
        let named = files.iter().find(|file| file.provider == name);
        let credential = credentials.as_ref().map(|dir| dir.join(format!("{name}.key")));
        let key = match (named, credential.filter(|path| path.exists())) {
            (Some(file), _) => Some(read(&file.path, &file.place)?),
            (None, Some(path)) => Some(read(&path, &format!("key of provider {name:?}"))?),
            (None, None) => from_environment(config, at, around)?,
        };
        config.providers[at].api_key = key;
    }
    config.secrets = files.iter().map(|file| file.path.clone()).chain(credentials).collect();
    Ok(())
}

const VENDORS: [(ApiKind, &str, &str); 2] =
    [(ApiKind::Anthropic, "claude", "ANTHROPIC_API_KEY"), (ApiKind::OpenAi, "openai", "OPENAI_API_KEY")];

fn from_environment(config: &Config, at: usize, around: &Surroundings<'_>) -> Result<Option<String>, String> {
    let provider = &config.providers[at];
    let Some((kind, _, variable)) = VENDORS.into_iter().find(|(kind, _, _)| *kind == provider.kind) else {
        return Ok(None);
    };
    let url = provider.base_url.parse::<ureq::http::Uri>();
    let (host, secure) = match &url {
        Ok(uri) => (uri.host().unwrap_or_default(), uri.scheme_str() == Some("https")),
        Err(_) => return Ok(None),
    };
    let vendor = Provider::new("", kind).base_url;
    let own = secure && vendor.strip_prefix("https://") == Some(host);
    let only = config.providers.iter().filter(|other| other.kind == kind).count() == 1;
    let near = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
    if !own && !(only && (secure || near)) {
        return Ok(None);
    }
    match around.text(variable) {
        Some(text) => checked(&text, &format!("the environment's {variable}")).map(Some),
        None => Ok(None),
    }
}

fn read(path: &Path, place: &str) -> Result<String, String> {
    let what = format!("{place}: key file {}", path.display());
    // Looked at before it is opened: opening a pipe would wait for its writer.
    if std::fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return Err(format!("{what} is not a regular file"));
    }
    let file = std::fs::File::open(path).map_err(|error| {
        let mend = match error.kind() {
            std::io::ErrorKind::NotFound => "does not exist; write the key into it, alone on one line",
            std::io::ErrorKind::PermissionDenied => "is not readable for the user that Siskin runs as",
            _ => return format!("{what}: {error}"),
        };
        format!("{what} {mend}")
    })?;
    let mut bytes = Vec::new();
    file.take(KEY_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| format!("{what}: {error}"))?;
    if bytes.len() as u64 > KEY_BYTES_MAX {
        return Err(format!("{what} is larger than {KEY_BYTES_MAX} bytes; it must hold the key alone"));
    }
    let text =
        String::from_utf8(bytes).map_err(|_| format!("{what} is not text; it must hold the key alone"))?;
    checked(&text, &what)
}

/// A key goes into a header, so it must be one printable word. Its text is never part of the error.
fn checked(text: &str, what: &str) -> Result<String, String> {
    let key = text.trim_start_matches('\u{feff}').trim();
    if key.is_empty() {
        return Err(format!("{what} is empty; write the key into it, alone on one line"));
    }
    if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "{what} holds spaces, line ends or control characters; it must hold the key alone"
        ));
    }
    Ok(key.to_owned())
}
