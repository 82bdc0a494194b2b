//! The store as a whole: life, journals, durability, limits.

use super::testing::*;
use super::*;
use crate::chunk::*;
use proptest::prelude::*;

fn file(dir: &Dir) -> PathBuf {
    dir.path().join(FILE)
}

/// The database file seen from outside, as another program would.
fn sql(dir: &Dir, batch: &str) {
    Connection::open(file(dir)).unwrap().execute_batch(batch).unwrap();
}

fn all_rows(store: &Store, tab: TabNo) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    loop {
        let more = store.rows(tab, rows.last().map_or(0, |row| row.seq), Seq::MAX, 4096).unwrap();
        if more.is_empty() {
            return rows;
        }
        rows.extend(more);
    }
}

#[test]
fn a_turn_is_read_back_after_close() {
    let (dir, store, tab) = store();
    let turn = begin(&store, tab, 1);
    store.append(tab, &[text_row(turn, 2, 1, "héllo 👍")]).unwrap();
    let sealed = seal(&store, tab, turn);
    assert_eq!((sealed.first_seq, sealed.last_seq), (1, 2));
    let rows = all_rows(&store, tab);
    store.close();
    assert!(!with_suffix(&file(&dir), "-wal").exists(), "a clean close leaves no write-ahead log");
    let store = Store::open(dir.path(), &Budget::ROUTER).unwrap();
    assert_eq!(all_rows(&store, tab), rows);
    assert_eq!(store.tab(tab).unwrap().unwrap().total, 2);
    assert_eq!(store.tab(tab).unwrap().unwrap().last_stop, Some(StopReason::End));
}

#[test]
fn after_close_every_operation_is_an_error() {
    let (_dir, store, tab) = store();
    store.close();
    store.close();
    store.housekeep();
    assert!(matches!(store.append(tab, &[]), Err(StoreError::Broken(_))));
    assert!(matches!(store.tabs(true), Err(StoreError::Broken(_))));
}

#[test]
fn what_was_committed_survives_a_kill() {
    let (dir, store, tab) = store();
    let turn = begin(&store, tab, 1);
    for seq in 2..50 {
        store.append(tab, &[text_row(turn, seq, 1, &"x".repeat(seq as usize * 100))]).unwrap();
        if seq == 25 {
            store.checkpoint_if_long();
            store.try_checkpoint().unwrap();
        }
    }
    let rows = all_rows(&store, tab);
    let copy = killed(&dir);
    let store = Store::open(copy.path(), &Budget::ROUTER).unwrap();
    assert_eq!(all_rows(&store, tab)[..49], rows[..]);
}

#[test]
fn every_journal_keeps_a_turn_and_can_become_another() {
    let dir = Dir::new();
    let mut kept: Vec<Row> = Vec::new();
    for rung in [Rung::Wal, Rung::WalExclusive, Rung::Truncate, Rung::WalExclusive, Rung::Wal, Rung::Truncate]
    {
        let store = Store::open_from(dir.path(), &Budget::ROUTER, rung).unwrap();
        assert_eq!(store.status().journal, rung.word());
        if kept.is_empty() {
            store.create_tab(&NewTab::default()).unwrap();
        }
        let tab = TabNo(1);
        assert_eq!(all_rows(&store, tab), kept);
        let turn = begin(&store, tab, kept.len() as Seq + 1);
        seal(&store, tab, turn);
        store.try_checkpoint().unwrap();
        kept = all_rows(&store, tab);
        let status = store.status();
        assert_eq!(status.turn_syncs > 1, rung == Rung::Truncate, "{rung:?}: {status:?}");
        if rung == Rung::WalExclusive {
            assert!(!with_suffix(&file(&dir), "-shm").exists());
        }
        store.close();
    }
}

#[test]
fn a_disk_that_refuses_shared_memory_gets_the_next_journal() {
    let dir = Dir::new();
    std::fs::create_dir(with_suffix(&file(&dir), "-shm")).unwrap();
    let store = Store::open(dir.path(), &Budget::ROUTER).unwrap();
    assert_eq!(store.status().journal, "wal-exclusive");
    let tab = store.create_tab(&NewTab::default()).unwrap().no;
    let turn = begin(&store, tab, 1);
    seal(&store, tab, turn);
    assert_eq!(store.status().turn_syncs, 1);
    drop(store);
    let store = Store::open(dir.path(), &Budget::ROUTER).unwrap();
    assert_eq!(all_rows(&store, tab).len(), 1);
}

#[test]
fn a_killed_exclusive_journal_is_read_back_by_every_other() {
    for rung in [Rung::Wal, Rung::WalExclusive, Rung::Truncate] {
        let dir = Dir::new();
        let store = Store::open_from(dir.path(), &Budget::ROUTER, Rung::WalExclusive).unwrap();
        let tab = store.create_tab(&NewTab::default()).unwrap().no;
        let turn = begin(&store, tab, 1);
        seal(&store, tab, turn);
        let copy = killed(&dir);
        let store = Store::open_from(copy.path(), &Budget::ROUTER, rung).unwrap();
        assert_eq!(all_rows(&store, tab).len(), 1, "{rung:?}");
    }
}

/// Seen from outside by `strace -f -e trace=fsync,fdatasync`.
#[test]
fn a_hundred_turns_are_a_hundred_syncs() {
    let (_dir, store, tab) = store();
    let before = store.status();
    let mut seq = 1;
    for _ in 0..100 {
        let turn = begin(&store, tab, seq);
        for _ in 0..5 {
            seq += 1;
            store.append(tab, &[text_row(turn, seq, 1, "some text")]).unwrap();
        }
        seal(&store, tab, turn);
        seq += 1;
    }
    let after = store.status();
    assert_eq!(after.turn_syncs - before.turn_syncs, 100);
    assert_eq!(after.sealed_turns - before.sealed_turns, 100);
    assert_eq!(after.checkpoint_syncs, before.checkpoint_syncs);
    assert_eq!(after.other_syncs, before.other_syncs);
    store.try_checkpoint().unwrap();
    assert_eq!(store.status().checkpoint_syncs, before.checkpoint_syncs + 4, "log, folder, database, header");
    assert!(store.status().wal_bytes < 3 * 4096 + 1024);
    let turn = begin(&store, tab, seq);
    seal(&store, tab, turn);
    assert_eq!(store.status().turn_syncs - after.turn_syncs, 1);
}

#[test]
fn a_long_log_is_checkpointed_and_an_idle_one_only_once() {
    let dir = Dir::new();
    let store = Store::open(dir.path(), budget(|budget| budget.wal_bytes = 64 * 1024)).unwrap();
    let tab = store.create_tab(&NewTab::default()).unwrap().no;
    let turn = begin(&store, tab, 1);
    for seq in 2..40 {
        store.append(tab, &[text_row(turn, seq, 1, &"x".repeat(8000))]).unwrap();
    }
    assert!(store.status().wal_bytes > 64 * 1024);
    store.housekeep();
    assert!(store.status().wal_bytes < 64 * 1024);
    let syncs = store.status().checkpoint_syncs;
    store.housekeep();
    assert_eq!(store.status().checkpoint_syncs, syncs, "nothing was written meanwhile");
}

#[test]
fn a_newer_schema_is_refused_by_both_versions_and_left_alone() {
    let (dir, store, _) = store();
    store.close();
    sql(&dir, "UPDATE meta SET value = '7' WHERE key = 'schema'");
    let before = std::fs::read(file(&dir)).unwrap();
    let refused = Store::open(dir.path(), &Budget::ROUTER).map(drop).unwrap_err();
    assert!(refused.contains("schema 7") && refused.contains("up to 2"), "{refused}");
    assert!(std::fs::read(file(&dir)).unwrap() == before, "the file was written to");
}

#[test]
fn a_database_of_another_program_is_refused() {
    let dir = Dir::new();
    sql(&dir, "CREATE TABLE notes (text)");
    let refused = Store::open(dir.path(), &Budget::ROUTER).map(drop).unwrap_err();
    assert!(refused.contains("another program"), "{refused}");
}

#[test]
fn a_held_directory_and_one_that_cannot_be_are_refused_in_one_line() {
    let (dir, _store, _) = store();
    let refused = Store::open(dir.path(), &Budget::ROUTER).map(drop).unwrap_err();
    assert!(refused.contains(&format!("in use by process {}", std::process::id())), "{refused}");
    let refused = Store::open(&file(&dir).join("sub"), &Budget::ROUTER).map(drop).unwrap_err();
    assert!(refused.contains("cannot make the data directory") && !refused.contains('\n'), "{refused}");
}

#[test]
fn a_file_that_is_no_database_is_moved_aside_and_kept() {
    let dir = Dir::new();
    let junk = b"this was a database before the power went ".repeat(200);
    std::fs::write(file(&dir), &junk).unwrap();
    let store = Store::open(dir.path(), &Budget::ROUTER).unwrap();
    store.create_tab(&NewTab::default()).unwrap();
    let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let aside = names.into_iter().find(|path| path.to_string_lossy().contains(".damaged-")).unwrap();
    assert_eq!(std::fs::read(aside).unwrap(), junk);
}

#[test]
fn damage_found_while_running_is_shown_and_moved_aside_at_the_next_start() {
    let (dir, store, tab) = store();
    let turn = begin(&store, tab, 1);
    for seq in 2..200 {
        store.append(tab, &[text_row(turn, seq, 1, &"x".repeat(2000))]).unwrap();
    }
    seal(&store, tab, turn);
    store.close();
    // The middle of the log, where a start does not look.
    let mut bytes = std::fs::read(file(&dir)).unwrap();
    let middle = bytes.len() / 2 / 4096 * 4096;
    bytes[middle..middle + 20 * 4096].fill(0xa5);
    std::fs::write(file(&dir), bytes).unwrap();

    let store = Store::open(dir.path(), &Budget::ROUTER).unwrap();
    let mut found = None;
    for seq in 1..200 {
        if let Err(error) = store.row(tab, seq) {
            found = Some(error);
        }
    }
    assert!(matches!(found, Some(StoreError::Broken(text)) if text.contains("damaged")));
    assert!(store.status().error.is_some_and(|text| text.contains("damaged")));
    assert!(store.row(tab, 1).unwrap().is_some(), "what is whole can be read");
    store.close();
    let store = Store::open(dir.path(), &Budget::ROUTER).unwrap();
    assert_eq!(store.tabs(true).unwrap(), []);
    store.close();
    let store = Store::open(dir.path(), &Budget::ROUTER).unwrap();
    store.create_tab(&NewTab::default()).unwrap();
}

fn says_the_way_out(error: &StoreError) -> bool {
    match error {
        StoreError::NoSpace(text) => text.contains("export") && text.contains("purge"),
        _ => false,
    }
}

#[test]
fn at_its_limit_the_store_refuses_what_begins_and_lets_a_turn_end() {
    let dir = Dir::new();
    let store = Store::open(dir.path(), budget(|budget| budget.store_bytes = 512 * 1024)).unwrap();
    let tab = store.create_tab(&NewTab::default()).unwrap().no;
    let turn = begin(&store, tab, 1);
    let seq = 100;
    for seq in 2..=seq {
        store.append(tab, &[text_row(turn, seq, 1, &"x".repeat(8000))]).unwrap();
    }
    seal(&store, tab, turn);
    let rows = &mut [user_row(seq + 1, "more")];
    let begun =
        store.begin_turn(BeginTurn { tab, rows, consumed: &[], sent: None, status: TurnStatus::Running });
    assert!(says_the_way_out(&begun.unwrap_err()));
    assert!(says_the_way_out(&store.enqueue(tab, "c", "more").unwrap_err()));
    assert!(says_the_way_out(&store.create_tab(&NewTab::default()).unwrap_err()));
    assert_eq!(store.status().error, None, "a limit is not a fault of the database");
    store.purge_tab(tab).unwrap();
    store.erase_purged(tab).unwrap();
    store.create_tab(&NewTab::default()).unwrap();
}

/// A stream that went on past the limit left a turn that could never be sealed: its tab neither answered nor
/// could be purged. Now its end has room of its own.
#[test]
fn a_turn_that_filled_the_database_can_still_be_ended() {
    let dir = Dir::new();
    let store = Store::open(dir.path(), budget(|budget| budget.store_bytes = 512 * 1024)).unwrap();
    let tab = store.create_tab(&NewTab::default()).unwrap().no;
    let turn = begin(&store, tab, 1);
    let row = |seq| text_row(turn, seq, 1, &"x".repeat(8000));
    let end = (2..1000).find(|seq| store.append(tab, &[row(*seq)]).is_err()).unwrap();
    let rest = [row(end), row(end + 1)];
    assert!(matches!(store.append(tab, &rest), Err(StoreError::NoSpace(_))));
    store.with_last_room(|| {
        store.append(tab, &rest).unwrap();
        seal(&store, tab, turn);
    });
    assert!(matches!(store.append(tab, &[row(end + 2), row(end + 3)]), Err(StoreError::NoSpace(_))));
    store.purge_tab(tab).unwrap();
    store.erase_purged(tab).unwrap();
    store.create_tab(&NewTab::default()).unwrap();
}

/// A flood of 50 MB left a log of 85 MB, because the housekeeper came only now and then.
#[test]
fn the_write_ahead_log_is_bounded_without_the_housekeeper() {
    let dir = Dir::new();
    let limits = budget(|budget| budget.wal_bytes = 64 * 1024);
    let store = Store::open(dir.path(), limits).unwrap();
    let tab = store.create_tab(&NewTab::default()).unwrap().no;
    let turn = begin(&store, tab, 1);
    for seq in 2..300 {
        store.append(tab, &[text_row(turn, seq, 1, &"x".repeat(8000))]).unwrap();
        assert!(store.status().wal_bytes <= 5 * 64 * 1024, "{:?}", store.status());
    }
}

#[test]
fn a_disk_without_space_is_an_error_until_a_write_succeeds_again() {
    let (_dir, store, tab) = store();
    let turn = begin(&store, tab, 1);
    let limit = |pages: u32| {
        let guard = store.writer();
        guard.as_ref().unwrap().conn.execute_batch(&format!("PRAGMA max_page_count={pages}")).unwrap();
    };
    limit(1);
    let rows: Vec<Row> = (2..20).map(|seq| text_row(turn, seq, 1, &"x".repeat(8000))).collect();
    assert!(matches!(store.append(tab, &rows), Err(StoreError::NoSpace(_))));
    assert!(store.status().error.is_some_and(|text| text.contains("no space")));
    assert_eq!(all_rows(&store, tab).len(), 1, "reading goes on, and nothing was half written");
    limit(100_000);
    store.append(tab, &rows).unwrap();
    assert_eq!(store.status().error, None);
}

#[test]
fn a_read_only_database_is_named_with_its_mend() {
    let (_dir, store, tab) = store();
    store.writer().as_ref().unwrap().conn.execute_batch("PRAGMA query_only=ON").unwrap();
    let error = store.append(tab, &[user_row(1, "a")]).unwrap_err();
    assert!(
        matches!(&error, StoreError::Broken(text) if text.contains("read-only") && text.contains("remount")),
        "{error}"
    );
    assert!(store.tab(tab).unwrap().is_some());
}

#[test]
fn readers_and_writers_on_several_threads_see_whole_commits() {
    let (_dir, store, tab) = store();
    let turn = begin(&store, tab, 1);
    std::thread::scope(|scope| {
        let spawn = |name: &str| std::thread::Builder::new().name(name.into()).stack_size(256 * 1024);
        spawn("writer")
            .spawn_scoped(scope, || {
                for seq in (2..400).step_by(2) {
                    let rows = [text_row(turn, seq, 1, "a"), text_row(turn, seq + 1, 1, "b")];
                    store.append(tab, &rows).unwrap();
                }
            })
            .unwrap();
        for name in ["reader-1", "reader-2"] {
            spawn(name)
                .spawn_scoped(scope, || {
                    for _ in 0..300 {
                        let page = store.page(tab, Edge::Tail, 50, 1 << 20).unwrap();
                        assert_eq!(page.last().unwrap().seq % 2, 1, "half of a commit was seen");
                    }
                })
                .unwrap();
        }
        spawn("housekeeper")
            .spawn_scoped(scope, || (0..20).for_each(|_| store.try_checkpoint().unwrap()))
            .unwrap();
    });
}

#[test]
fn local_time_has_an_offset() {
    let (_dir, store, _) = store();
    let time = store.local_time().unwrap();
    assert_eq!(time.len(), "2026-11-30T20:15+01:00".len(), "{time}");
    assert!(time.starts_with("20") && matches!(time.as_bytes()[16], b'+' | b'-'), "{time}");
}

#[test]
fn reading_does_not_wait_for_who_writes() {
    let (_dir, store, tab) = store();
    store.append(tab, &[user_row(1, "a")]).unwrap();
    let writing = store.writer();
    assert_eq!(store.page(tab, Edge::Tail, 1, 1000).unwrap().len(), 1);
    assert_eq!(store.tabs(false).unwrap().len(), 1);
    drop(writing);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Of what was written after the last sync a power cut may leave any part, and junk in the place of any
    /// part.
    #[test]
    fn a_sealed_turn_survives_whatever_a_power_cut_leaves(
        sealed in 1u64..5,
        later in 1u64..20,
        cut in 0.0f64..1.0,
        junk in prop::option::of((0.0f64..1.0, any::<[u8; 32]>())),
        checkpoint in any::<bool>(),
    ) {
        let (dir, store, tab) = store();
        let mut seq = 0;
        for _ in 0..sealed {
            let turn = begin(&store, tab, seq + 1);
            let long = "x".repeat(9000);
            let rows = [text_row(turn, seq + 2, 1, "some text"), text_row(turn, seq + 3, 1, &long)];
            store.append(tab, &rows).unwrap();
            seal(&store, tab, turn);
            seq += 3;
            if checkpoint {
                store.try_checkpoint().unwrap();
                let turn = begin(&store, tab, seq + 1);
                seal(&store, tab, turn);
                seq += 1;
            }
        }
        let wal = with_suffix(&file(&dir), "-wal");
        let synced = std::fs::metadata(&wal).unwrap().len() as usize;
        let kept = all_rows(&store, tab);
        let turn = begin(&store, tab, seq + 1);
        for at in 0..later {
            store.append(tab, &[text_row(turn, seq + 2 + at, 1, &"y".repeat(700 * at as usize))]).unwrap();
        }

        let copy = killed(&dir);
        let wal = with_suffix(&file(&copy), "-wal");
        let mut bytes = std::fs::read(&wal).unwrap();
        bytes.truncate(synced + ((bytes.len() - synced) as f64 * cut) as usize);
        if let Some((at, junk)) = junk {
            let at = synced + ((bytes.len() - synced) as f64 * at) as usize;
            bytes.iter_mut().skip(at).zip(junk).for_each(|(byte, junk)| *byte = junk);
        }
        std::fs::write(&wal, bytes).unwrap();
        let store = Store::open(copy.path(), &Budget::ROUTER).unwrap();
        let rows = all_rows(&store, tab);
        prop_assert_eq!(&rows[..kept.len()], &kept[..]);
        prop_assert!(rows.iter().zip(1..).all(|(row, seq)| row.seq == seq));
        let turn = begin(&store, tab, rows.len() as Seq + 1);
        seal(&store, tab, turn);
    }
}
