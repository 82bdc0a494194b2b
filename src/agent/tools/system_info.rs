//! `system_info`: what an owner asks a router. Read from `/proc` and `/sys`, without a command and without a
//! wait: mounts over the network are named but not asked, since a dead server would never answer.

use super::Output;
use super::output::{clean_line, cut};
use crate::host::{addresses, read_text, utc};
use std::fmt::Write;

const SMALL: u64 = 4 * 1024;
const LARGE: u64 = 64 * 1024;
const DISKS_MAX: usize = 16;
const INTERFACES_MAX: usize = 32;
const SENSORS_MAX: usize = 16;
/// Longest line of the answer.
const LINE_BYTES_MAX: usize = 240;

/// Tells about this device.
pub fn run() -> Output {
    let mut lines = Vec::new();
    lines.extend(machine());
    lines.push(memory(&read_text("/proc/meminfo", LARGE)));
    lines.push(load(&read_text("/proc/loadavg", SMALL), &read_text("/proc/uptime", SMALL)));
    lines.push(clock());
    lines.extend(disks(&read_text("/proc/self/mounts", LARGE)));
    lines.extend(interfaces(&read_text("/proc/net/dev", LARGE)));
    lines.extend(temperatures());
    let lines = lines.iter().filter(|line| !line.is_empty());
    let text: String = lines.map(|line| cut(&clean_line(line.as_bytes()), LINE_BYTES_MAX) + "\n").collect();
    Output::whole(text)
}

fn machine() -> Vec<String> {
    let cpu = read_text("/proc/cpuinfo", LARGE);
    let named = |keys: &[&str]| keys.iter().find_map(|key| field(&cpu, key));
    let tree = read_text("/proc/device-tree/model", SMALL);
    let tree = tree.trim_matches(['\0', '\n', ' ']).to_owned();
    let product = read_text("/sys/class/dmi/id/product_name", SMALL).trim().to_owned();
    let board =
        Some(tree).filter(|model| !model.is_empty()).or(Some(product).filter(|model| !model.is_empty()));
    let model = board.or_else(|| named(&["machine", "Hardware"]).map(str::to_owned));
    let processor =
        named(&["model name", "cpu model", "system type", "Processor"]).unwrap_or("unknown processor");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let name = rustix::system::uname();
    let release = read_text("/etc/os-release", SMALL);
    let system = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    vec![
        format!("model: {}; {processor}, {cores} cores", model.as_deref().unwrap_or("unknown")),
        format!(
            "system: {}; {} {} {}; host name {}",
            system.unwrap_or("unknown").trim_matches('"'),
            name.sysname().to_string_lossy(),
            name.release().to_string_lossy(),
            name.machine().to_string_lossy(),
            name.nodename().to_string_lossy()
        ),
    ]
}

/// The value behind `key:` on a line of its own.
fn field<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let value = |line: &'t str| Some(line.strip_prefix(key)?.trim_start().strip_prefix(':')?.trim());
    text.lines().find_map(value).filter(|value| !value.is_empty())
}

fn memory(text: &str) -> String {
    let mib = |key: &str| {
        let number = field(text, key)?.split_whitespace().next()?.parse::<u64>().ok()?;
        Some(number / 1024)
    };
    let Some(total) = mib("MemTotal") else { return String::new() };
    let mut line = format!("memory: {total} MiB");
    if let Some(free) = mib("MemAvailable").or_else(|| mib("MemFree")) {
        // Writing to a string does not fail, here and below.
        let _ = write!(line, ", {free} MiB available");
    }
    match (mib("SwapTotal"), mib("SwapFree")) {
        (Some(swap), Some(free)) if swap > 0 => {
            let _ = write!(line, "; swap {swap} MiB, {free} MiB free");
        }
        _ => {}
    }
    line
}

fn load(load: &str, uptime: &str) -> String {
    let averages = load.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
    let seconds = uptime.split(['.', ' ']).next().and_then(|text| text.parse::<u64>().ok());
    match seconds {
        Some(s) => {
            format!("load: {averages}; up {} d {} h {} min", s / 86_400, s / 3600 % 24, s / 60 % 60)
        }
        None => format!("load: {averages}"),
    }
}

fn clock() -> String {
    let link = std::fs::read_link("/etc/localtime").unwrap_or_default();
    let link = link.to_string_lossy();
    let zone = link.split_once("zoneinfo/").map(|(_, zone)| zone.to_owned());
    let written = || Some(read_text("/etc/timezone", SMALL).trim().to_owned());
    // OpenWrt keeps the zone's rule here.
    let rule = || Some(read_text("/etc/TZ", SMALL).trim().to_owned());
    let full = |zone: &String| !zone.is_empty();
    let zone = zone.filter(full).or_else(|| written().filter(full)).or_else(|| rule().filter(full));
    format!("clock: {}; time zone {}", utc(crate::store::now() / 1000), zone.as_deref().unwrap_or("UTC"))
}

/// File systems that hold files on this device.
const LOCAL: [&str; 15] = [
    "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jffs2", "ntfs3", "overlay", "squashfs",
    "ubifs", "vfat", "xfs", "zfs",
];
const REMOTE: [&str; 5] = ["9p", "cifs", "nfs", "nfs4", "smb3"];

fn disks(mounts: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut seen = Vec::new();
    for line in mounts.lines() {
        let mut words = line.split(' ');
        let (Some(device), Some(place), Some(kind)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let place = unescape(place);
        if REMOTE.contains(&kind) {
            lines.push(format!("disk: {place} ({kind}): over the network, not asked"));
        } else if LOCAL.contains(&kind) || (kind == "tmpfs" && place == "/tmp") {
            // One device may be mounted many times, in containers for single files.
            if device.starts_with('/') && seen.contains(&device) {
                continue;
            }
            seen.push(device);
            if let Ok(stat) = rustix::fs::statvfs(&place)
                && stat.f_blocks > 0
            {
                let mib = |blocks: u64| blocks.saturating_mul(stat.f_frsize) >> 20;
                let (all, free) = (mib(stat.f_blocks), mib(stat.f_bavail));
                lines.push(format!("disk: {place} ({kind}): {all} MiB, {free} MiB free"));
            }
        }
        if lines.len() >= DISKS_MAX {
            break;
        }
    }
    lines
}

/// `/proc/mounts` writes blanks as `\040` and the like.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (escaped, plain)| text.replace(escaped, plain))
}

fn interfaces(dev: &str) -> Vec<String> {
    let addresses = addresses();
    let mut lines = Vec::new();
    for line in dev.lines().skip(2).take(INTERFACES_MAX) {
        let Some((name, counters)) = line.split_once(':') else { continue };
        let name = name.trim();
        let own = addresses.iter().filter(|own| own.interface.as_deref() == Some(name));
        let own = own.map(|own| own.ip.to_string()).collect::<Vec<_>>().join(" ");
        let counters: Vec<u64> = counters.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let state = if name.contains('/') {
            String::new()
        } else {
            read_text(format!("/sys/class/net/{name}/operstate"), SMALL)
        };
        let (received, sent) = (counters.first().unwrap_or(&0) >> 20, counters.get(8).unwrap_or(&0) >> 20);
        let mut told = vec![name, state.trim(), &own];
        told.retain(|word| !word.is_empty());
        let told = told.join(" ");
        lines.push(format!("interface: {told}; {received} MiB received, {sent} MiB sent"));
    }
    let others = addresses.iter().filter(|own| own.interface.is_none());
    lines.extend(others.map(|own| format!("address: {}", own.ip)));
    lines
}

fn temperatures() -> Vec<String> {
    let mut lines = Vec::new();
    for zone in 0..SENSORS_MAX {
        let dir = format!("/sys/class/thermal/thermal_zone{zone}");
        let Ok(millis) = read_text(format!("{dir}/temp"), SMALL).trim().parse::<i64>() else { continue };
        let kind = read_text(format!("{dir}/type"), SMALL);
        lines.push(format!("temperature: {} {:.1} °C", kind.trim(), millis as f64 / 1000.0));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_tells_the_main_things_briefly() {
        let text = run().text;
        for word in ["model: ", "system: ", "memory: ", "load: ", "clock: ", "interface: lo"] {
            assert!(text.contains(word), "{word} in {text}");
        }
        assert!(!text.contains(" ; "), "no gap where nothing is known: {text}");
        assert!(text.len() < 16 * 1024 && text.lines().all(|line| line.len() <= LINE_BYTES_MAX));
    }

    #[test]
    fn lines_say_what_proc_says() {
        assert_eq!(
            memory(
                "MemTotal:  62000 kB\nMemFree: 1 kB\nMemAvailable:   2048 kB\n\
                 SwapTotal: 0 kB\nSwapFree: 0 kB\n"
            ),
            "memory: 60 MiB, 2 MiB available"
        );
        assert_eq!(memory(""), "");
        assert_eq!(
            load("0.10 0.20 0.30 1/2 3\n", "93784.12 1.0\n"),
            "load: 0.10 0.20 0.30; up 1 d 2 h 3 min"
        );
        assert_eq!(field("machine\t\t: Router X\n", "machine"), Some("Router X"));
        assert_eq!(unescape("/mnt/a\\040b"), "/mnt/a b");
    }

    #[test]
    fn only_real_disks_are_listed_and_remote_ones_not_asked() {
        let lines = disks(
            "proc /proc proc rw 0 0\n/dev/root / ext4 rw 0 0\n/dev/root /again ext4 rw 0 0\n\
            nas:/x /mnt/nas nfs4 rw 0 0\nshort\n",
        );
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("disk: / (ext4): ") && lines[1].contains("not asked"));
    }
}
