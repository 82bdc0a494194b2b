//! Paired devices. Their tokens are known by hash only. Commits are synced: a revoked phone stays revoked.

use super::*;
use crate::chunk::DeviceNo;
use rusqlite::{OptionalExtension, params};

const HOUR: Millis = 3_600_000;
/// A device that was not used for this long has to be paired again.
const UNUSED_MAX: Millis = 90 * 24 * HOUR;
/// When this was written. A clock that shows less is wrong, and no ground to end a pairing.
const CLOCK_MIN: Millis = 1_795_996_800_000;

impl Store {
    /// Adds a device. [`StoreError::Full`] names `devices` when there are too many.
    pub fn add_device(&self, name: &str, token_hash: &[u8; 32]) -> Stored<DeviceNo> {
        let at = now();
        self.write(Durable::Other, |tx| {
            if at >= CLOCK_MIN {
                let sql = "DELETE FROM devices WHERE max(last_seen_at, created_at) BETWEEN ?1 AND ?2";
                tx.execute(sql, [CLOCK_MIN, at - UNUSED_MAX - 1])?;
            }
            if count_in(tx)? >= self.budget.devices {
                return Err(StoreError::Full("devices").into());
            }
            let sql =
                "INSERT INTO devices (token_hash, name, created_at, last_seen_at) VALUES (?1, ?2, ?3, ?3)
                RETURNING no";
            let no = tx.prepare_cached(sql)?.query_row(params![token_hash, name, at], |row| row.get(0))?;
            METERS.devices.set(count_in(tx)?);
            Ok(DeviceNo(no))
        })
    }

    /// All paired devices, in the order of their pairing.
    pub fn devices(&self) -> Stored<Vec<Device>> {
        self.read(|conn| {
            let sql = "SELECT no, name, created_at, last_seen_at FROM devices ORDER BY no";
            let mut statement = conn.prepare_cached(sql)?;
            let found = statement.query_map([], |row| {
                Ok(Device {
                    no: DeviceNo(row.get(0)?),
                    name: row.get(1)?,
                    created_at: row.get(2)?,
                    last_seen_at: row.get(3)?,
                })
            })?;
            Ok(found.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// The device of a token, unless it was unused for 90 days; notes the use at most once an hour, without a
    /// sync.
    pub fn device_of(&self, token_hash: &[u8; 32]) -> Stored<Option<DeviceNo>> {
        self.device_at(token_hash, now())
    }

    fn device_at(&self, token_hash: &[u8; 32], at: Millis) -> Stored<Option<DeviceNo>> {
        let found = self.read(|conn| {
            let sql = "SELECT no, max(last_seen_at, created_at) FROM devices WHERE token_hash = ?1";
            let found =
                conn.prepare_cached(sql)?.query_row([token_hash], |row| Ok((row.get(0)?, row.get(1)?)));
            Ok(found.optional()?)
        })?;
        let Some((no, seen)) = found else { return Ok(None) };
        let device = DeviceNo(no);
        if is_over(seen, at) {
            if let Err(error) = self.remove_device(device) {
                ::log::warn!("cannot remove device {device}, unused for 90 days: {error}");
            }
            return Ok(None);
        }
        if at >= CLOCK_MIN && at - seen > HOUR {
            // Only the list shows it: a store that takes no write now is no reason to refuse the device.
            let noted = self.write(Durable::Later, |tx| {
                Ok(tx.execute("UPDATE devices SET last_seen_at = ?2 WHERE no = ?1", params![no, at])?)
            });
            if let Err(error) = noted {
                ::log::warn!("cannot note the use of device {device}: {error}");
            }
        }
        Ok(Some(device))
    }

    /// Removes a device, durably; `false` if there was none.
    pub fn remove_device(&self, device: DeviceNo) -> Stored<bool> {
        self.write(Durable::Other, |tx| {
            let removed = tx.execute("DELETE FROM devices WHERE no = ?1", [device.0])?;
            METERS.devices.set(count_in(tx)?);
            Ok(removed > 0)
        })
    }
}

/// Whether a device was unused for too long. A clock that is wrong, now or when the device was last seen,
/// ends nothing.
fn is_over(seen: Millis, at: Millis) -> bool {
    seen >= CLOCK_MIN && at - seen > UNUSED_MAX
}

pub(super) fn count_in(conn: &Connection) -> rusqlite::Result<usize> {
    let count: u32 = conn.prepare_cached("SELECT count(*) FROM devices")?.query_row([], |row| row.get(0))?;
    Ok(count as usize)
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    const DAY: Millis = 24 * HOUR;

    fn set_times(store: &Store, at: Millis) {
        let sql = "UPDATE devices SET created_at = ?1, last_seen_at = ?1";
        store.write(Durable::Later, |tx| Ok(tx.execute(sql, [at])?)).unwrap();
    }

    #[test]
    fn a_device_is_known_by_its_token_until_it_is_removed() {
        let (dir, store, _) = store();
        let before = store.status().other_syncs;
        let device = store.add_device("phone", &[7; 32]).unwrap();
        assert_eq!(store.device_of(&[7; 32]).unwrap(), Some(device));
        assert_eq!(store.device_of(&[8; 32]).unwrap(), None);
        let listed = store.devices().unwrap();
        assert_eq!((listed.len(), listed[0].no, listed[0].name.as_str()), (1, device, "phone"));
        assert!(store.remove_device(device).unwrap());
        assert!(!store.remove_device(device).unwrap());
        assert!(store.status().other_syncs - before >= 2);
        store.close();
        let store = Store::open(dir.path(), &Budget::ROUTER).unwrap();
        assert_eq!(store.device_of(&[7; 32]).unwrap(), None);
    }

    #[test]
    fn ninety_days_without_use_end_a_device() {
        let (_dir, store, _) = store();
        let device = store.add_device("phone", &[7; 32]).unwrap();
        let start = CLOCK_MIN + 1000 * DAY;
        set_times(&store, start);
        assert_eq!(store.device_at(&[7; 32], start + 89 * DAY).unwrap(), Some(device));
        assert_eq!(store.device_at(&[7; 32], start + 178 * DAY).unwrap(), Some(device), "a use counts");
        assert_eq!(store.device_at(&[7; 32], start + 269 * DAY).unwrap(), None);
        assert_eq!(store.devices().unwrap(), []);
    }

    #[test]
    fn a_use_is_noted_at_most_once_an_hour_and_not_synced() {
        let (_dir, store, _) = store();
        store.add_device("phone", &[7; 32]).unwrap();
        let start = CLOCK_MIN + 1000 * DAY;
        set_times(&store, start);
        let syncs = store.status().other_syncs;
        let seen = || store.devices().unwrap()[0].last_seen_at;
        store.device_at(&[7; 32], start + HOUR).unwrap();
        assert_eq!(seen(), start);
        store.device_at(&[7; 32], start + HOUR + 1).unwrap();
        assert_eq!(seen(), start + HOUR + 1);
        assert_eq!(store.status().other_syncs, syncs);
    }

    #[test]
    fn a_wrong_clock_ends_nothing() {
        let (_dir, store, _) = store();
        let device = store.add_device("phone", &[7; 32]).unwrap();
        // Paired while the clock stood at its beginning, and used once it is right.
        set_times(&store, 1000);
        let late = CLOCK_MIN + 1000 * DAY;
        assert_eq!(store.device_at(&[7; 32], late).unwrap(), Some(device));
        // Used again after the clock was lost.
        assert_eq!(store.device_at(&[7; 32], 5000).unwrap(), Some(device));
        assert_eq!(store.devices().unwrap()[0].last_seen_at, late);
    }

    #[test]
    fn too_many_devices_are_refused_by_the_name_of_the_limit() {
        let dir = Dir::new();
        let store = Store::open(dir.path(), budget(|budget| budget.devices = 1)).unwrap();
        let device = store.add_device("phone", &[7; 32]).unwrap();
        assert_eq!(store.add_device("tablet", &[8; 32]), Err(StoreError::Full("devices")));
        store.remove_device(device).unwrap();
        store.add_device("tablet", &[8; 32]).unwrap();
    }
}
