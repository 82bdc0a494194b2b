//! What heads and bodies of errors say.

use super::*;
use ureq::http::HeaderValue;

fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
    all.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_str(value).unwrap())).collect()
}

#[test]
fn a_wait_is_read_in_every_form_and_nothing_else_is() {
    let check = |all: &[(&'static str, &str)], wanted: Option<u64>| {
        assert_eq!(retry_after_ms(&headers(all)), wanted, "{all:?}");
    };
    check(&[], None);
    check(&[("retry-after", "7")], Some(7000));
    check(&[("retry-after", " 0.25 ")], Some(250));
    check(&[("retry-after", "0")], Some(0));
    check(&[("retry-after-ms", "250.9")], Some(250));
    check(&[("retry-after-ms", "250"), ("retry-after", "7")], Some(250));
    check(&[("retry-after-ms", "odd"), ("retry-after", "7")], Some(7000));
    for odd in ["", "soon", "-1", "inf", "NaN", "1e999", "7 s", "Sun, 99 Nov 1994 08:49:37 GMT"] {
        check(&[("retry-after", odd)], None);
    }
    // A number that is merely absurd is beyond what is waited for.
    check(&[("retry-after", "1e30")], Some(u64::MAX));
    let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
    check(&[date, ("retry-after", "Sun, 06 Nov 1994 08:50:37 GMT")], Some(60_000));
    check(&[date, ("retry-after", "Sun, 06 Nov 1994 08:49:00 GMT")], Some(0));
    check(&[("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")], Some(0));
}

#[test]
fn dates_are_read_as_the_calendar_has_them() {
    for (text, seconds) in [
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777),
        ("Tue, 29 Feb 2000 00:00:00 GMT", 951_782_400),
        ("Mon, 30 Nov 2026 20:15:59 GMT", 1_796_069_759),
    ] {
        assert_eq!(http_date(text), Some(seconds), "{text}");
    }
    assert_eq!(http_date("Sunday, 06-Nov-94 08:49:37 GMT"), None);
    assert_eq!(http_date("Sun, 06 Foo 1994 08:49:37 GMT"), None);
}

#[test]
fn an_error_is_read_in_every_form() {
    let check = |text: &str, message: &str, kind: &str, status: Option<u16>| {
        let error = ErrorText::read(text);
        assert_eq!(
            (error.message.as_str(), error.kind.as_str(), error.status),
            (message, kind, status),
            "{text}"
        );
    };
    check(r#"{"error":{"message":"boom","type":"t","code":500}}"#, "boom", "t 500", Some(500));
    check(
        r#"{"type":"error","error":{"type":"overloaded_error","message":"boom"}}"#,
        "boom",
        "overloaded_error",
        None,
    );
    check(r#"{"error":"boom"}"#, "boom", "", None);
    check(r#"{"object":"error","message":"boom","code":"429"}"#, "boom", "429", Some(429));
    check(r#"{"detail":"boom"}"#, "boom", "", None);
    check(r#"{"detail":[{"msg":"boom"}]}"#, r#"[{"msg":"boom"}]"#, "", None);
    check(r#"{"message":"boom"}"#, "boom", "", None);
    check(r#""boom""#, "boom", "", None);
    check("<html>boom</html>", "<html>boom</html>", "", None);
    check("", "", "", None);
    check(r#"{"error":{"message":"boom","param":"max_tokens"}}"#, "boom (max_tokens)", "", None);
    check(r#"{"error":{"message":"max_tokens: boom.","param":"max_tokens"}}"#, "max_tokens: boom", "", None);
    check(r#"{"error":{"message":"boom","param":null}}"#, "boom", "", None);
    check("bo\nom\u{0}", "bo om", "", None);
}

/// Bug elsewhere: text was cut at a byte, inside a character, also in error previews, and the program ended.
#[test]
fn a_long_error_is_cut_at_a_character() {
    for lead in 0..3 {
        let text = format!("{}{}", "x".repeat(lead), "字".repeat(2000));
        for body in [text.clone(), format!(r#"{{"error":{{"message":"{text}"}}}}"#)] {
            let shown = ErrorText::read(&body).message;
            assert!(shown.len() <= SHOWN_BYTES_MAX && shown.len() > SHOWN_BYTES_MAX - 3);
            assert!(text.starts_with(&shown));
        }
    }
    // The read itself ends inside a character, too.
    let cut = String::from_utf8_lossy("字".repeat(200).as_bytes().split_at(200).0).into_owned();
    assert!(ErrorText::read(&cut).message.starts_with("字字"));
}
