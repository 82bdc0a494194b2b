use super::*;
use crate::config::file::{base_url, listen_address};
use crate::testing::Dir;
use proptest::prelude::*;

fn load(text: &str) -> Result<Config, String> {
    load_with(text, &Options::default(), &[])
}

fn load_with(text: &str, options: &Options, variables: &[(&str, &str)]) -> Result<Config, String> {
    let dir = Dir::new();
    let file = dir.path().join("siskin.toml");
    std::fs::write(&file, text).unwrap();
    let found = |name: &str| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
    };
    let around = Surroundings { variable: &found, root: false, default_file: &file };
    let loaded = Config::load(options, &around);
    loaded.map_err(|fault| fault.replace(&*file.to_string_lossy(), "FILE"))
}

#[track_caller]
fn refused(text: &str, wanted: &[&str]) {
    let fault = load(text).expect_err(text);
    assert!(!fault.contains('\n'), "{fault}");
    for part in wanted {
        assert!(fault.contains(part), "{fault:?} lacks {part:?}");
    }
}

const WHOLE: &str = r##"
listen = ["192.168.1.1:8787", "[fd00::1]:8787"]
hosts = ["Siskin.example.net"]
origins = ["https://siskin.example.net"]
trusted_proxies = ["10.0.0.1"]
data = "/srv/siskin"
profile = "sbc"
default_model = "home/gemma"
system_prompt = "short"
workdir = "/srv/files"
send_time = false
sandbox = "accept-degraded"
device_shell = true
http_allow = ["192.168.1.0/24", "fd00::5"]
tokens_per_day = 1_000
notify = "https://ntfy.example.net/topic"
log = "debug"

[[provider]]
name = "home"
kind = "openai"
base_url = "http://127.0.0.1:8080/v1/"
models = ["gemma"]
max_tokens = 512
context_tokens = 4096
first_event_s = 900
idle_s = 60
replay_reasoning = true
proxy = "http://user:pass@proxy:3128"
ca_file = ""

[[permission]]
tool = "shell"
match = "uci show *"
do = "allow"

[budget]
connections = 48
"##;

#[test]
fn every_key_of_the_contract_is_read() {
    let config = load(WHOLE).unwrap();
    assert_eq!(config.listen.len(), 2);
    assert_eq!(config.hosts, ["siskin.example.net"]);
    assert_eq!(config.origins, ["https://siskin.example.net"]);
    assert_eq!(config.trusted_proxies, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
    assert_eq!((config.data.as_path(), config.profile), (Path::new("/srv/siskin"), "sbc"));
    assert_eq!(config.default_model, "home/gemma");
    assert_eq!(config.system_prompt.as_deref(), Some("short"));
    assert_eq!(config.default_workdir(), Path::new("/srv/files"));
    assert!(!config.send_time && config.device_shell);
    assert_eq!(config.sandbox, Sandbox::AcceptDegraded);
    assert_eq!(config.http_allow.iter().map(|net| net.bits).collect::<Vec<_>>(), [24, 128]);
    assert_eq!((config.tokens_per_day, config.log), (1000, log::LevelFilter::Debug));
    assert_eq!(config.notify, "https://ntfy.example.net/topic");
    assert_eq!(config.permissions[0].decision, Decision::Allow);
    assert_eq!(config.budget, &Budget { connections: 48, ..Budget::SBC });
    let provider = &config.providers[0];
    assert_eq!(provider.base_url, "http://127.0.0.1:8080/v1");
    assert_eq!((provider.max_tokens, provider.context_tokens), (512, 4096));
    assert_eq!((provider.first_event_s, provider.idle_s, provider.replay_reasoning), (900, 60, true));
    assert_eq!((provider.models.len(), provider.proxy.as_str()), (1, "http://user:pass@proxy:3128"));
    assert_eq!(provider.ca_file, None);
}

#[test]
fn an_empty_file_is_all_defaults() {
    let config = load("").unwrap();
    assert_eq!(config.listen, ["127.0.0.1:8787".parse().unwrap()]);
    assert_eq!(config.profile, "router");
    assert!(config.providers.is_empty() && config.send_time && !config.demo);
    assert_eq!(config.budget, &Budget::ROUTER);
}

#[test]
fn a_wrong_line_is_told_with_file_line_and_key() {
    refused("\nlisen = 1", &["FILE: line 2", "lisen", "listen"]);
    refused("log = \"info\"\nlog = \"warn\"", &["FILE: line 2"]);
    refused("listen = [", &["FILE: line 1"]);
    refused("listen = 5", &["line 1", "listen", "string"]);
    refused("listen = []", &["listen", "at least one"]);
    refused("listen = [\"1.2.3.4:1\",\n\"here\"]", &["line 2", "listen", "here"]);
    refused("send_time = \"yes\"", &["send_time", "true or false"]);
    refused("tokens_per_day = -1", &["tokens_per_day", "-1"]);
    refused("profile = \"big\"", &["profile", "router", "sbc", "big"]);
    refused("log = \"loud\"", &["log", "loud"]);
    refused("data = \"here\"", &["data", "absolute"]);
    refused("default_model = \"gemma\"", &["default_model", "provider/model"]);
    refused("default_model = \"x/gemma\"", &["default_model", "\"x\"", "none"]);
    refused("http_allow = [\"10.0.0.0/33\"]", &["http_allow", "CIDR"]);
    refused("origins = [\"https://a/b\"]", &["origins", "origin"]);
    refused("hosts = [\"a b\"]", &["hosts", "a b"]);
    refused("provider = 1", &["provider", "[[provider]]"]);
    refused("system_prompt = \"a\\u0000b\"", &["system_prompt", "zero byte"]);
    refused(&format!("system_prompt = \"{}\"", "a".repeat(40_000)), &["system_prompt_bytes"]);
}

#[test]
fn a_wrong_provider_is_told_with_its_line() {
    let provider = |lines: &str| format!("[[provider]]\nname = \"a\"\nkind = \"openai\"\n{lines}");
    refused("[[provider]]\nkind = \"openai\"", &["line 1", "provider name", "missing"]);
    refused("[[provider]]\nname = \"a\"", &["line 1", "kind", "missing"]);
    refused("[[provider]]\nname = \"a/b\"\nkind = \"openai\"", &["line 2", "name", "a/b"]);
    refused("[[provider]]\nname = \"a\"\nkind = \"gemini\"", &["line 3", "kind", "gemini"]);
    refused(&(provider("") + &provider("")), &["line 5", "twice"]);
    refused(&provider("base_ulr = \"http://a\""), &["line 4", "base_ulr", "base_url"]);
    refused(&provider("base_url = \"ftp://a\""), &["line 4", "base_url", "http"]);
    refused(&provider("max_tokens = 0"), &["line 4", "max_tokens", "1 to"]);
    refused(&provider("ca_file = \"/nowhere/ca.pem\""), &["line 4", "ca_file", "/nowhere/ca.pem"]);
    refused(&provider("proxy = \"socks5://secret@h\""), &["line 4", "proxy"]);
    let fault = load(&provider("proxy = \"socks5://u:secret@h\"")).unwrap_err();
    assert!(!fault.contains("secret"));
    refused("[[permission]]\ntool = \"shell\"\ndo = \"ask\"", &["permission match", "missing"]);
    refused("[[permission]]\ntool = \"shell\"\nmatch = \"x\"\ndo = \"maybe\"", &["line 4", "do", "maybe"]);
}

#[test]
fn a_budget_is_changed_by_name_and_its_sum_checked() {
    refused("[budget]\nconections = 1", &["line 2", "conections", "connections"]);
    refused("[budget]\nevent_bytes = 100_000_000", &["[budget]", "total_bytes"]);
    refused("[budget]\nsockets = 65536", &["sockets", "65535"]);
    refused("[budget]\nsockets = 65535\nconnections = 65535\nmailbox_bytes = 0x7fff_ffff", &["total_bytes"]);
    refused("[budget]\nturns = \"3\"", &["turns", "whole number"]);
    assert_eq!(load("[budget]\nconnections = 0x1e").unwrap().budget.connections, 30);
}

#[test]
fn options_win_over_the_file_and_the_file_over_the_environment() {
    let listen = vec!["127.0.0.1:9".parse().unwrap()];
    let options = Options {
        listen: listen.clone(),
        data: Some("/option".into()),
        profile: Some("router"),
        ..Options::default()
    };
    let environment = [("STATE_DIRECTORY", "/state:/other"), ("HOME", "/home/me")];
    let config =
        load_with(&WHOLE.replace("connections = 48", "connections = 24"), &options, &environment).unwrap();
    assert_eq!(
        (config.listen, config.data.as_path(), config.profile),
        (listen, Path::new("/option"), "router")
    );
    let data = |text: &str, variables: &[(&str, &str)]| {
        load_with(text, &Options::default(), variables).unwrap().data.to_string_lossy().into_owned()
    };
    assert_eq!(data("data = \"/file\"", &environment), "/file");
    assert_eq!(data("", &environment), "/state");
    assert_eq!(data("", &[("XDG_DATA_HOME", "/xdg"), ("HOME", "/home/me")]), "/xdg/siskin");
    assert_eq!(
        data("", &[("XDG_DATA_HOME", "relative"), ("HOME", "/home/me")]),
        "/home/me/.local/share/siskin"
    );
}

#[test]
fn the_demo_has_its_own_model_and_temporary_data() {
    let options = Options { demo: true, ..Options::default() };
    let config = load_with(WHOLE, &options, &[]).unwrap();
    assert_eq!(config.default_model, "demo/finch");
    assert!(config.demo && config.temporary && config.data.starts_with(std::env::temp_dir()));
    assert_eq!(config.providers.last().map(|last| last.kind), Some(ApiKind::Demo));
    let kept = Options { data: Some("/kept".into()), ..options };
    let config = load_with("", &kept, &[]).unwrap();
    assert!(!config.temporary && config.data == Path::new("/kept"));
}

#[test]
fn a_key_of_the_environment_makes_a_provider_when_there_is_none() {
    let keys = [("ANTHROPIC_API_KEY", "sk-a"), ("OPENAI_API_KEY", " sk-o\n")];
    let config = load_with("", &Options::default(), &keys).unwrap();
    let made: Vec<_> =
        config.providers.iter().map(|made| (made.name.as_str(), made.api_key.as_deref())).collect();
    assert_eq!(made, [("claude", Some("sk-a")), ("openai", Some("sk-o"))]);
    assert!(load_with("", &Options::default(), &[("OPENAI_API_KEY", "")]).unwrap().providers.is_empty());
    let fault = load_with("", &Options::default(), &[("OPENAI_API_KEY", "se\u{7}cret")]).unwrap_err();
    assert!(fault.contains("OPENAI_API_KEY") && !fault.contains("cret"), "{fault}");
}

#[test]
fn a_key_of_the_environment_is_not_sent_to_strangers() {
    let keys = [("OPENAI_API_KEY", "sk-o")];
    let key_of = |urls: &[&str]| {
        let text: String = urls
            .iter()
            .enumerate()
            .map(|(at, url)| {
                format!("[[provider]]\nname = \"p{at}\"\nkind = \"openai\"\nbase_url = \"{url}\"\n")
            })
            .collect();
        let config = load_with(&text, &Options::default(), &keys).unwrap();
        config.providers.iter().map(|made| made.api_key.is_some()).collect::<Vec<_>>()
    };
    assert_eq!(key_of(&["https://api.openai.com/v1"]), [true]);
    assert_eq!(key_of(&["https://openrouter.example/api"]), [true]);
    assert_eq!(key_of(&["http://127.0.0.1:11434"]), [true]);
    assert_eq!(key_of(&["http://192.168.1.5:11434"]), [false]);
    assert_eq!(key_of(&["http://api.openai.com"]), [false]);
    assert_eq!(key_of(&["https://api.openai.com", "http://127.0.0.1:1"]), [true, false]);
    assert_eq!(key_of(&["https://api.openai.com.evil.example", "http://127.0.0.1:1"]), [false, false]);
}

#[test]
fn a_key_file_wins_and_a_bad_one_is_told_without_its_text() {
    let dir = Dir::new();
    let path = dir.path().join("a.key");
    let text =
        format!("[[provider]]\nname = \"a\"\nkind = \"anthropic\"\napi_key_file = \"{}\"\n", path.display());
    let load = || load_with(&text, &Options::default(), &[("ANTHROPIC_API_KEY", "sk-env")]);
    let fault = load().unwrap_err();
    assert!(fault.contains("FILE: line 4") && fault.contains("does not exist"), "{fault}");
    for (content, wanted) in [
        ("", "is empty"),
        (" \n", "is empty"),
        ("sk-\u{1}x", "control"),
        ("one two", "spaces"),
        ("one\ntwo", "alone"),
        ("schlüssel", "alone"),
    ] {
        std::fs::write(&path, content).unwrap();
        let fault = load().unwrap_err();
        assert!(fault.contains(wanted) && fault.contains("a.key"), "{fault}");
        assert!(content.trim().is_empty() || !fault.contains(content), "{fault}");
    }
    std::fs::write(&path, "\u{feff}sk-file\r\n").unwrap();
    let config = load().unwrap();
    assert_eq!(config.providers[0].api_key.as_deref(), Some("sk-file"));
    assert!(!format!("{config:?}").contains("sk-file"), "a key must never be shown");
    assert_eq!(config.secrets, std::slice::from_ref(&path));
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(load().unwrap_err().contains("not a regular file"));
}

#[test]
fn systemds_credentials_are_read_by_provider_name() {
    let dir = Dir::new();
    std::fs::write(dir.path().join("a.key"), "sk-cred").unwrap();
    let text = "[[provider]]\nname = \"a\"\nkind = \"anthropic\"\n";
    let variables =
        [("CREDENTIALS_DIRECTORY", dir.path().to_str().unwrap()), ("ANTHROPIC_API_KEY", "sk-env")];
    let config = load_with(text, &Options::default(), &variables).unwrap();
    assert_eq!(config.providers[0].api_key.as_deref(), Some("sk-cred"));
}

#[test]
fn a_base_url_is_http_with_a_host_and_no_password() {
    for good in ["http://a", "https://a.b:443/v1", "http://[::1]:8080", "http://192.168.1.5:11434"] {
        assert_eq!(base_url(good).as_deref(), Ok(good));
    }
    assert_eq!(base_url("https://a/v1///").as_deref(), Ok("https://a/v1"));
    for bad in [
        "",
        "a",
        "a:80",
        "ftp://a",
        "http://",
        "http:///x",
        "http://:80",
        "http://u:p@a",
        "http://a?x",
        "http://a#x",
        "http://a b",
        "http://a:0",
        "http://a:x",
        "http://a:70000",
        "HTTP//a",
        "http://[]",
    ] {
        assert!(base_url(bad).is_err(), "{bad}");
    }
    assert!(!base_url("http://u:secret@a").unwrap_err().contains("secret"));
}

#[test]
fn listen_takes_an_address_with_a_port() {
    for (text, address) in
        [("127.0.0.1:0", "127.0.0.1:0"), ("[::]:8787", "[::]:8787"), ("localhost:80", "127.0.0.1:80")]
    {
        assert_eq!(listen_address(text).unwrap().to_string(), address);
    }
    for bad in ["", "8787", ":8787", "127.0.0.1", "::1:80", "127.0.0.1:99999", "example.net:80"] {
        assert!(listen_address(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_workdir_must_not_hold_or_lie_in_what_no_tool_may_see() {
    let dir = Dir::new();
    let at = |name: &str| dir.path().join(name);
    for name in ["state/data/work/mine", "etc", "keys", "creds/deep", "free"] {
        std::fs::create_dir_all(at(name)).unwrap();
    }
    std::os::unix::fs::symlink(at("state"), at("link")).unwrap();
    let config = Config {
        data: at("state/data"),
        file: Some(at("etc/siskin.toml")),
        secrets: vec![at("keys/a.key"), at("creds")],
        ..Config::defaults()
    };
    for good in ["free", "free/new", "state/data/work", "state/data/work/mine"] {
        assert_eq!(config.check_workdir(&at(good)), Ok(()), "{good}");
    }
    for bad in [
        "",
        "state",
        "state/data",
        "state/data/x",
        "etc",
        "keys",
        "creds",
        "creds/deep",
        "link",
        "link/data",
        "free/../etc",
        "free/x/../../etc",
    ] {
        assert!(config.check_workdir(&at(bad)).is_err(), "{bad}");
    }
    for bad in ["/", "/proc/self", "/dev", "/sys", "relative"] {
        assert!(config.check_workdir(Path::new(bad)).is_err(), "{bad}");
    }
}

#[test]
fn a_missing_or_odd_config_file_is_told_with_its_mend() {
    let options = Options { config: Some("/nowhere/siskin.toml".into()), ..Options::default() };
    let fault = load_with("", &options, &[]).unwrap_err();
    assert!(fault.contains("/nowhere/siskin.toml") && fault.contains("--config"), "{fault}");
    let options = Options { config: Some("/".into()), ..Options::default() };
    assert!(load_with("", &options, &[]).unwrap_err().contains("regular file"));
    let dir = Dir::new();
    let file = dir.path().join("c.toml");
    std::fs::write(&file, b"log = \"info\"\n# \xff\n").unwrap();
    let options = Options { config: Some(file), ..Options::default() };
    assert!(load_with("", &options, &[]).unwrap_err().contains("line 2: is not UTF-8"));
}

#[test]
fn a_static_dir_must_hold_the_client() {
    let dir = Dir::new();
    let options = Options { static_dir: Some(dir.path().to_owned()), ..Options::default() };
    let fault = load_with("", &options, &[]).unwrap_err();
    assert!(fault.contains("--static-dir") && fault.contains("index.html"), "{fault}");
    std::fs::write(dir.path().join("index.html"), "").unwrap();
    assert_eq!(load_with("", &options, &[]).unwrap().static_dir.as_deref(), Some(dir.path()));
}

#[test]
fn a_deep_or_large_file_is_an_error_and_not_a_crash() {
    for open in ["[", "{ a = ", "a = ["] {
        assert!(load(&format!("listen = {}", open.repeat(20_000))).is_err());
    }
    assert!(load(&format!("a{} = 1", ".a".repeat(50_000))).is_err());
    refused(&"#".repeat(300_000), &["larger than"]);
}

/// Lines that are nearly right, in any order.
fn nearly() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        any::<String>(),
        proptest::sample::select(WHOLE.lines().map(str::to_owned).collect::<Vec<_>>()),
        "[a-z_]{1,12} = (true|-?[0-9]{1,30}|\"[a-z:/.]{0,20}\"|\\[\\]|\\{\\}|1979-05-27|inf)",
        Just("[[provider]]\nname = \"é\"".to_owned()),
    ];
    proptest::collection::vec(line, 0..12).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #[test]
    fn any_text_is_a_config_or_one_line_that_names_the_file(text in nearly()) {
        let mut config = Config::defaults();
        let done = file::apply(Path::new("FILE"), &text, &mut config, &mut Vec::new());
        if let Err(fault) = done {
            prop_assert!(fault.starts_with("FILE: line ") && !fault.contains('\n'), "{}", fault);
        }
    }
}
