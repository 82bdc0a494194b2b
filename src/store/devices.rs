//! Paired devices. Their tokens are known by hash only. Commits are synced: a revoked phone stays revoked.

use super::*;
use crate::budget::METERS;
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

    /// The device of a token, unless it was unused for 90 days; notes the use at most once an hour, without a sync.
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

/// Whether a device was unused for too long. A clock that is wrong, now or when the device was last seen, ends nothing.
fn is_over(seen: Millis, at: Millis) -> bool {
    seen >= CLOCK_MIN && at - seen > UNUSED_MAX
}

pub(super) fn count_in(conn: &Connection) -> rusqlite::Result<usize> {
    let count: u32 = conn.prepare_cached("SELECT count(*) FROM devices")?.query_row([], |row| row.get(0))?;
    Ok(count as usize)
}
