//! Queued messages, and the memory of what was sent.
//!
//! A send is remembered for as long as its tab is there: one small row a message, and so the same client id
//! never means two messages, however late it comes again.

use super::fault::Fault;
use super::log::{append_in, u32_of};
use super::*;
use crate::chunk::{MessageNo, Row, TabNo, TurnNo, shorten};
use rusqlite::{OptionalExtension, params};
use sha2::{Digest, Sha256};

/// What clients see of a queued message.
const HEAD_BYTES: usize = 1024;

const QUEUED: &str = "SELECT no, client_id, substr(text, 1, 1024), octet_length(text) FROM queue";

impl Store {
    /// What became of a message that was sent with this client id before.
    pub fn known(&self, tab: TabNo, client_id: &str, text: &str) -> Stored<Known> {
        let hash = hash_of(text);
        self.read(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT hash = ?3, turn, waited, message FROM sends WHERE tab = ?1 AND client_id = ?2",
            )?;
            let found = statement.query_row(params![tab.0, client_id, hash], known_from).optional()?;
            Ok(found.unwrap_or(Known::New))
        })
    }

    /// Queues a message and remembers its send. [`StoreError::Full`] names `queue` when the tab's queue is
    /// full.
    pub fn enqueue(&self, tab: TabNo, client_id: &str, text: &str) -> Stored<MessageNo> {
        self.write(Durable::Later, |tx| {
            self.room(tx)?;
            let waiting: usize = tx
                .prepare_cached("SELECT count(*) FROM queue WHERE tab = ?1")?
                .query_row([tab.0], |row| u32_of(row, 0))? as usize;
            if waiting >= self.budget.queue {
                return Err(StoreError::Full("queue").into());
            }
            if !tx.prepare_cached("SELECT 1 FROM tabs WHERE no = ?1 AND NOT purging")?.exists([tab.0])? {
                return Err(Fault::broken(format!("tab {tab} does not exist; the message is not kept")));
            }
            let no = tx
                .prepare_cached(
                    "INSERT INTO queue (tab, client_id, created_at, text)
                     VALUES (?1, ?2, ?3, ?4) RETURNING no",
                )?
                .query_row(params![tab.0, client_id, now(), text], |row| u32_of(row, 0))?;
            let message = MessageNo(no);
            remember(tx, tab, client_id, text, Sent::Queued(message))?;
            Ok(message)
        })
    }

    /// A tab's queue, oldest first.
    pub fn queue(&self, tab: TabNo) -> Stored<Vec<Queued>> {
        self.read(|conn| {
            let mut statement =
                conn.prepare_cached(&format!("{QUEUED} WHERE tab = ?1 ORDER BY no LIMIT ?2"))?;
            let found = statement.query_map(params![tab.0, int(self.budget.queue as u64)], queued_from)?;
            Ok(found.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// The whole text of a queued message.
    pub fn queued_text(&self, tab: TabNo, message: MessageNo) -> Stored<Option<String>> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached("SELECT text FROM queue WHERE no = ?1 AND tab = ?2")?;
            Ok(statement.query_row([message.0, tab.0], |row| row.get(0)).optional()?)
        })
    }

    /// Takes a message back; `None` if it is not in the queue.
    pub fn unqueue(&self, tab: TabNo, message: MessageNo) -> Stored<Option<Queued>> {
        self.write(Durable::Later, |tx| {
            let queued = tx
                .prepare_cached(&format!("{QUEUED} WHERE no = ?1 AND tab = ?2"))?
                .query_row([message.0, tab.0], queued_from)
                .optional()?;
            if queued.is_some() {
                consume(tx, tab, message)?;
            }
            Ok(queued)
        })
    }

    /// Appends rows that are a queued message and takes it out of the queue, in one commit.
    pub fn append_queued(&self, tab: TabNo, rows: &[Row], message: MessageNo) -> Stored<()> {
        self.write(Durable::Later, |tx| {
            append_in(tx, self.budget, tab, rows)?;
            consume(tx, tab, message)
        })
    }
}

/// Takes a message out of the queue; it must be there.
pub(super) fn consume(conn: &Connection, tab: TabNo, message: MessageNo) -> Result<(), Fault> {
    let mut statement = conn.prepare_cached("DELETE FROM queue WHERE no = ?1 AND tab = ?2")?;
    match statement.execute([message.0, tab.0])? {
        1 => Ok(()),
        _ => Err(Fault::broken(format!("message {message} is not in the queue of tab {tab}"))),
    }
}

/// Remembers a send. A client id that is known is an error: the caller looked before.
pub(super) fn remember(
    conn: &Connection,
    tab: TabNo,
    client_id: &str,
    text: &str,
    sent: Sent,
) -> rusqlite::Result<()> {
    let (turn, waited, message) = match sent {
        Sent::Started(turn) => (Some(turn.0), false, None),
        Sent::Waiting(turn) => (Some(turn.0), true, None),
        Sent::Queued(message) => (None, false, Some(message.0)),
    };
    conn.prepare_cached(
        "INSERT INTO sends (tab, client_id, hash, turn, waited, message) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![tab.0, client_id, hash_of(text), turn, waited, message])?;
    Ok(())
}

fn hash_of(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

fn known_from(row: &rusqlite::Row<'_>) -> rusqlite::Result<Known> {
    let (turn, message): (Option<u32>, Option<u32>) = (row.get(1)?, row.get(3)?);
    Ok(match (row.get(0)?, turn, message) {
        (false, _, _) => Known::Other,
        (true, Some(turn), _) if row.get(2)? => Known::Same(Sent::Waiting(TurnNo(turn))),
        (true, Some(turn), _) => Known::Same(Sent::Started(TurnNo(turn))),
        (true, None, message) => Known::Same(Sent::Queued(MessageNo(message.unwrap_or(0)))),
    })
}

fn queued_from(row: &rusqlite::Row<'_>) -> rusqlite::Result<Queued> {
    let head: String = row.get(2)?;
    Ok(Queued {
        no: MessageNo(row.get(0)?),
        client_id: row.get(1)?,
        head: shorten(&head, HEAD_BYTES).to_owned(),
        bytes: u32_of(row, 3)?.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crate::chunk::TurnStatus;

    #[test]
    fn a_send_is_known_by_its_id_and_text() {
        let (dir, store, tab) = store();
        assert_eq!(store.known(tab, "c1", "hello").unwrap(), Known::New);
        let rows = &mut [user_row(1, "hello")];
        let sent = Some(("c1", "hello"));
        let begin = BeginTurn { tab, rows, consumed: &[], sent, status: TurnStatus::Running };
        let turn = store.begin_turn(begin).unwrap();
        let message = store.enqueue(tab, "c2", "more").unwrap();
        store.unqueue(tab, message).unwrap();
        seal(&store, tab, turn);
        store.close();
        let store = Store::open(dir.path(), &Budget::ROUTER).unwrap();
        assert_eq!(store.known(tab, "c1", "hello").unwrap(), Known::Same(Sent::Started(turn)));
        assert_eq!(store.known(tab, "c1", "hello ").unwrap(), Known::Other);
        assert_eq!(store.known(tab, "c2", "more").unwrap(), Known::Same(Sent::Queued(message)));
        assert_eq!(store.known(tab, "c3", "hello").unwrap(), Known::New);
        let other = store.create_tab(&NewTab::default()).unwrap().no;
        assert_eq!(store.known(other, "c1", "hello").unwrap(), Known::New);
    }

    #[test]
    fn the_same_send_twice_is_kept_once() {
        let (_dir, store, tab) = store();
        store.enqueue(tab, "c1", "hello").unwrap();
        assert!(store.enqueue(tab, "c1", "hello").is_err());
        assert_eq!(store.queue(tab).unwrap().len(), 1);
    }

    #[test]
    fn queued_messages_are_shown_in_order_by_their_heads_and_read_whole() {
        let (_dir, store, tab) = store();
        let long = "é".repeat(2000);
        let first = store.enqueue(tab, "c1", &long).unwrap();
        let second = store.enqueue(tab, "c2", "short").unwrap();
        let queue = store.queue(tab).unwrap();
        assert_eq!(queue.iter().map(|queued| queued.no).collect::<Vec<_>>(), [first, second]);
        assert_eq!((queue[0].head.len(), queue[0].bytes), (1024, 4000));
        assert_eq!((queue[1].head.as_str(), queue[1].bytes), ("short", 5));
        assert_eq!(store.queued_text(tab, first).unwrap(), Some(long));
        assert_eq!(store.queued_text(TabNo(99), first).unwrap(), None);
        assert_eq!(store.unqueue(TabNo(99), first).unwrap(), None);
        assert_eq!(store.unqueue(tab, first).unwrap(), Some(queue[0].clone()));
        assert_eq!(store.unqueue(tab, first).unwrap(), None);
        assert_eq!(store.queue(tab).unwrap(), queue[1..]);
    }

    #[test]
    fn a_message_leaves_the_queue_in_the_commit_that_makes_it_a_row() {
        let (_dir, store, tab) = store();
        let turn = begin(&store, tab, 1);
        let steered = store.enqueue(tab, "c1", "left").unwrap();
        store.append_queued(tab, &[user_row(2, "left")], steered).unwrap();
        assert_eq!(store.queue(tab).unwrap(), []);
        assert!(
            store.append_queued(tab, &[user_row(3, "left")], steered).is_err(),
            "it was taken back meanwhile"
        );
        assert_eq!(store.tab(tab).unwrap().unwrap().total, 2, "and so it is no row");
        seal(&store, tab, turn);
        let left = [store.enqueue(tab, "c2", "a").unwrap(), store.enqueue(tab, "c3", "b").unwrap()];
        let rows = &mut [user_row(3, "a"), user_row(4, "b"), user_row(5, "new")];
        let sent = Some(("c4", "new"));
        let begin = BeginTurn { tab, rows, consumed: &left, sent, status: TurnStatus::Running };
        store.begin_turn(begin).unwrap();
        assert_eq!(store.queue(tab).unwrap(), []);
    }

    #[test]
    fn a_full_queue_refuses_and_names_its_limit() {
        let (_dir, store, tab) = store();
        for at in 0..Budget::ROUTER.queue {
            store.enqueue(tab, &format!("c{at}"), "text").unwrap();
        }
        assert_eq!(store.enqueue(tab, "more", "text"), Err(StoreError::Full("queue")));
        assert_eq!(store.known(tab, "more", "text").unwrap(), Known::New, "a refused send may come again");
        assert!(store.enqueue(TabNo(99), "c", "text").is_err());
    }
}
