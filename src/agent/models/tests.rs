//! The lists that are kept: who asks, who waits, and for how long an answer holds.

use super::*;
use crate::agent::provider::facts::Efforts;
use std::sync::atomic::{AtomicUsize, Ordering};

const HOUR: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_secs(5);

fn listed(names: &[&str]) -> Vec<Listed> {
    names.iter().map(|name| Listed { name: (*name).into(), facts: Facts::default() }).collect()
}

fn names(list: &List) -> Vec<&str> {
    list.iter().map(|listed| &*listed.name).collect()
}

fn stop() -> Stop {
    Stop::new().unwrap()
}

fn never(_: usize) -> Result<Vec<Listed>, String> {
    panic!("nobody was to be asked")
}

#[test]
fn a_list_is_asked_for_once_and_holds_for_its_age() {
    let cache = Cache::default();
    let (list, error) = cache.list("p", (HOUR, SOON), 9, &stop(), |_| Ok(listed(&["a"])));
    assert_eq!((names(&list), error), (vec!["a"], None));
    assert_eq!(names(&cache.list("p", (HOUR, SOON), 9, &stop(), never).0), ["a"]);
    // Who wants it fresher asks anew.
    let (list, _) = cache.list("p", (Duration::ZERO, SOON), 9, &stop(), |_| Ok(listed(&["b"])));
    assert_eq!(names(&list), ["b"]);
}

#[test]
fn a_failure_is_remembered_and_keeps_the_list_before_it() {
    let cache = Cache::default();
    cache.list("p", (HOUR, SOON), 9, &stop(), |_| Ok(listed(&["a"])));
    let fails = |_| Err("down".to_owned());
    for ask in [&fails as &dyn Fn(usize) -> _, &never] {
        let (list, error) = cache.list("p", (Duration::ZERO, SOON), 9, &stop(), ask);
        assert_eq!((names(&list), error.as_deref()), (vec!["a"], Some("down")));
    }
    // It says nothing to one who would wait longer.
    let (_, error) = cache.list("p", (Duration::ZERO, 2 * SOON), 9, &stop(), |_| Ok(listed(&["b"])));
    assert_eq!(error, None);
}

#[test]
fn a_stop_is_no_failure_of_the_list() {
    let cache = Cache::default();
    let stopped = stop();
    stopped.raise();
    cache.list("p", (HOUR, SOON), 9, &stopped, |_| Err("stopped".to_owned()));
    assert_eq!(names(&cache.list("p", (HOUR, SOON), 9, &stop(), |_| Ok(listed(&["a"]))).0), ["a"]);
}

#[test]
fn all_lists_together_keep_within_the_budget() {
    let cache = Cache::default();
    let most = |provider: &str, budget: usize, found: &[&str]| {
        let mut room = 0;
        cache.list(provider, (Duration::ZERO, SOON), budget, &stop(), |most| {
            room = most;
            Ok(listed(found))
        });
        room
    };
    assert_eq!(most("p", 3, &["a", "b"]), 3);
    assert_eq!(most("q", 3, &["c"]), 1);
    assert_eq!(most("p", 3, &[]), 2);
    assert_eq!(most("r", 0, &[]), 0);
}

#[test]
fn of_several_callers_one_asks_and_the_others_wait_as_long_as_they_like() {
    let (cache, asked) = (Cache::default(), AtomicUsize::new(0));
    let slow = |_| {
        asked.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(600));
        Ok(listed(&["a"]))
    };
    std::thread::scope(|scope| {
        scope.spawn(|| cache.list("p", (HOUR, SOON), 9, &stop(), slow));
        while asked.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let waiting = scope.spawn(|| cache.list("p", (HOUR, SOON), 9, &stop(), never).0);
        let stopped = stop();
        stopped.raise();
        for (wait, stop) in [(Duration::from_millis(50), stop()), (SOON, stopped)] {
            assert_eq!(names(&cache.list("p", (HOUR, wait), 9, &stop, never).0), [] as [&str; 0]);
        }
        assert_eq!(names(&cache.list("q", (HOUR, SOON), 9, &stop(), |_| Ok(listed(&["b"]))).0), ["b"]);
        assert_eq!(names(&waiting.join().unwrap()), ["a"]);
    });
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[test]
fn a_panic_while_asking_lets_the_next_one_ask() {
    let cache = Cache::default();
    let broken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        cache.list("p", (HOUR, SOON), 9, &stop(), never)
    }));
    assert!(broken.is_err());
    assert_eq!(names(&cache.list("p", (HOUR, SOON), 9, &stop(), |_| Ok(listed(&["a"]))).0), ["a"]);
}

#[test]
fn the_list_goes_before_the_name_and_the_config_before_the_list() {
    let mut provider = Provider::new("p", ApiKind::Anthropic);
    provider.base_url = "http://facts.invalid".to_owned();
    let told = Facts { context_tokens: Some(9000), efforts: Some(Efforts::NONE), ..Facts::default() };
    let list = [Listed { name: "claude-x".into(), facts: told }];
    let found = facts(&provider, "claude-x", &list);
    assert_eq!((found.context_tokens, found.efforts), (Some(9000), Some(Efforts::NONE)));
    assert!(found.thinking.is_some_and(|ways| ways.adaptive), "by its name");
    provider.context_tokens = 5000;
    assert_eq!(facts(&provider, "claude-x", &list).context_tokens, Some(5000));
    provider::quirks::learn_context(&provider, "claude-x", 4000);
    assert_eq!(facts(&provider, "claude-x", &list).context_tokens, Some(4000));
    assert_eq!(facts(&Provider::new("demo", ApiKind::Demo), "claude-x", &list), Facts::default());
}
