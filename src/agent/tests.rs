//! Turns with the demo provider, and what happens between a send, a stop, an archive and an end.

use super::*;
use crate::budget::Budget;
use crate::config::{ApiKind, Provider};
use crate::event::Note;
use crate::store::{NewTab, TabChange};
use crate::testing::Dir;
use std::sync::OnceLock;
use std::time::Instant;

struct Desk {
    agent: Arc<Agent>,
    tab: TabNo,
    dir: Dir,
}

fn desk() -> Desk {
    let dir = Dir::new();
    let store = Arc::new(Store::open(dir.path(), &Budget::ROUTER).unwrap());
    let config = Config {
        data: dir.path().to_owned(),
        providers: vec![Provider::new("demo", ApiKind::Demo)],
        ..Config::defaults()
    };
    let agent = Agent::start(store, Arc::new(config)).unwrap();
    let new = NewTab { workdir: dir.path().to_string_lossy().into_owned(), ..Default::default() };
    let tab = agent.store.create_tab(&new).unwrap();
    agent.lives.set(tab.no, Some(tabs::live(&tab)));
    Desk { agent, tab: tab.no, dir }
}

impl Desk {
    fn ends(&self) {
        let end = Instant::now() + Duration::from_secs(20);
        while self.agent.look(self.tab, |live| live.turn.is_some()) == Some(true) {
            assert!(Instant::now() < end, "the turn ends");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn last_stop(&self) -> Option<StopReason> {
        self.agent.store.tab(self.tab).unwrap().unwrap().last_stop
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.agent.shut_down();
        assert!(self.dir.path().exists(), "the folder goes after the store");
    }
}

/// Looks, at the moment when a turn is first told of, whether a stop would reach it.
#[derive(Default)]
struct Watch {
    agent: OnceLock<Arc<Agent>>,
    stoppable: OnceLock<bool>,
}

impl Listener for Watch {
    fn post(&self, note: &Note) {
        if let (Some(agent), Some(tab), true) = (self.agent.get(), note.tab, note.json.contains("turn-start"))
        {
            let _ = self.stoppable.set(agent.stops().contains_key(&tab));
        }
    }

    fn wake(&self, _tab: TabNo) {}
}

/// Bug: a turn was told of before its stop signal was known. Effect: a stop sent at once did nothing. Mend:
/// the signal first.
#[test]
fn a_turn_can_be_stopped_from_the_moment_that_it_is_told_of() {
    let desk = desk();
    let watch = Arc::new(Watch::default());
    let _ = watch.agent.set(desk.agent.clone());
    let _listening = desk.agent.subscribe(watch.clone());
    desk.agent.send(desk.tab, "a", "hello").unwrap();
    assert_eq!(watch.stoppable.get(), Some(&true));
    desk.agent.stop(desk.tab).unwrap();
    desk.ends();
    assert_eq!(desk.last_stop(), Some(StopReason::Cancelled));
}

/// Bug: what was queued began a turn in a tab that was archived meanwhile. Effect: a turn that nobody sees,
/// and that a purge erased under its feet. Mend: nothing begins in an archived tab.
#[test]
fn nothing_begins_in_an_archived_tab() {
    let desk = desk();
    desk.agent.send(desk.tab, "a", "hello").unwrap();
    desk.agent.send(desk.tab, "b", "and then").unwrap();
    let archived = |archived| TabChange { archived: Some(archived), ..Default::default() };
    desk.agent.change_tab(desk.tab, archived(true)).unwrap();
    desk.ends();
    assert!(matches!(desk.agent.send_queue(desk.tab), Err(Refusal::Conflict(_))));
    assert!(matches!(desk.agent.send(desk.tab, "c", "more"), Err(Refusal::Conflict(_))));
    assert_eq!(desk.agent.look(desk.tab, |live| live.turn), Some(None));
    desk.agent.change_tab(desk.tab, archived(false)).unwrap();
    desk.agent.send_queue(desk.tab).unwrap();
    assert!(desk.agent.look(desk.tab, |live| live.turn).flatten().is_some());
}

/// Bug: only a send looked whether the server is stopping. Effect: "send what was left" began a turn that
/// nothing stopped, and the end waited its full time. Mend: every beginning looks.
#[test]
fn nothing_begins_while_the_server_stops() {
    let desk = desk();
    desk.agent.send(desk.tab, "a", "hello").unwrap();
    desk.agent.send(desk.tab, "b", "and then").unwrap();
    desk.agent.shut_down();
    assert_eq!(desk.last_stop(), Some(StopReason::Interrupted));
    assert!(matches!(desk.agent.send_queue(desk.tab), Err(Refusal::Conflict(_))));
    assert!(matches!(desk.agent.send(desk.tab, "c", "more"), Err(Refusal::Conflict(_))));
}

/// Bug: a repeated send said `waiting` because a later turn of the tab waited. Mend: it speaks of its own
/// turn.
#[test]
fn a_repeated_send_speaks_of_its_own_turn() {
    let desk = desk();
    let first = desk.agent.send(desk.tab, "a", "hello").unwrap();
    desk.agent.stop(desk.tab).unwrap();
    desk.ends();
    desk.agent.lives.change(desk.tab, |live| {
        live.turn = Some(TurnNo(99));
        live.status = TabStatus::Waiting;
    });
    let again = desk.agent.send(desk.tab, "a", "hello").unwrap();
    assert_eq!(again, first);
    desk.agent.lives.change(desk.tab, |live| live.turn = None);
}

/// Bug: a purge held the lock that every send takes until the last row was gone. Mend: only the mark is made
/// under it.
#[test]
fn a_purged_tab_is_gone_for_everyone_and_its_rows_are_gone_too() {
    let desk = desk();
    desk.agent.send(desk.tab, "a", "hello").unwrap();
    desk.agent.remove_tab(desk.tab, true).unwrap();
    assert_eq!(desk.agent.look(desk.tab, |_| ()), None);
    assert!(matches!(desk.agent.send(desk.tab, "b", "more"), Err(Refusal::NotFound(_))));
    assert!(desk.agent.store.rows(desk.tab, 0, 10, 1024).unwrap().is_empty());
    assert!(matches!(desk.agent.remove_tab(desk.tab, true), Err(Refusal::NotFound(_))));
}

/// Bug: a summary by hand looked at its tab before it took the lock under which tabs are archived. Effect: a
/// turn began in a tab that was archived, or erased, in between. Mend: it looks under the lock, as a send
/// does; and what it reads of the log it reads before, so that no other tab waits for that.
#[test]
fn no_summary_begins_in_a_tab_that_was_archived_meanwhile() {
    let desk = desk();
    desk.agent.send(desk.tab, "a", "hello").unwrap();
    desk.ends();
    let deciding = desk.agent.decide();
    let refused = std::thread::scope(|scope| {
        let asking = scope.spawn(|| desk.agent.compact(desk.tab));
        std::thread::sleep(Duration::from_millis(200));
        let change = TabChange { archived: Some(true), ..Default::default() };
        desk.agent.store.change_tab(desk.tab, &change).unwrap();
        drop(deciding);
        asking.join().unwrap()
    });
    assert!(matches!(refused, Err(Refusal::Conflict(text)) if text.contains("archived")));
    assert_eq!(desk.agent.look(desk.tab, |live| live.turn), Some(None));
}
