//! How much of the memory that there is `homing serve` may take: what the machine has, or a cgroup
//! allows.

use std::path::Path;

use anyhow::{Context, bail};
use homing::Memory;
use homing_control::ByteSize;

/// What the program needs in any case: 20 MiB for itself, and 640 KiB for each of 32 busy clients.
const PROGRAM: u64 = 40 << 20;
/// For requests, unless there is less or something else was asked for.
const REQUESTS: u64 = 1 << 30;
/// The least for requests, unless something else was asked for.
const REQUESTS_MIN: u64 = 8 << 20;

/// What there is.
pub(crate) fn read() -> anyhow::Result<Memory> {
    Memory::read(Path::new("/")).context("cannot tell how much memory there is")
}

/// The memory, and who says that it is no more.
fn named(memory: &Memory) -> Option<(ByteSize, String)> {
    let available = memory.available().map(ByteSize)?;
    let of = match &memory.limit {
        Some((bytes, file)) if *bytes == available.0 => {
            format!("the {available} of memory that {} allows", file.display())
        }
        _ => format!("the {available} of memory that there is"),
    };
    Some((available, of))
}

/// Refuses a cache for which there can be no memory. Returns a warning if little is left for all
/// else.
pub(crate) fn check_cache(size: ByteSize, memory: &Memory) -> anyhow::Result<Option<String>> {
    let Some((available, of)) = named(memory) else { return Ok(None) };
    let beside = (PROGRAM + REQUESTS_MIN).max(available.0 / 10).min(available.0 / 4 * 3);
    let most = ByteSize(available.0 - beside);
    if size.0 > available.0 {
        bail!("a cache of {size} (--cache) is more than {of}: use at most {most}");
    }
    let warning = || {
        format!(
            "a cache of {size} (--cache) leaves less than {} of {of} for all else: it may be killed for want of memory; use at most {most}",
            ByteSize(beside)
        )
    };
    Ok((size.0 > most.0).then(warning))
}

/// What the requests of all clients may take. Warns if that and the cache are more than there is.
pub(crate) fn of_requests(given: Option<ByteSize>, cache: Option<ByteSize>) -> ByteSize {
    // Who may not look has no limit that is known.
    let memory = read().unwrap_or_default();
    let (size, warning) = check_requests(given, cache.unwrap_or(ByteSize(0)), &memory);
    if let Some(warning) = warning {
        tracing::warn!("{warning}");
    }
    size
}

fn check_requests(
    given: Option<ByteSize>,
    cache: ByteSize,
    memory: &Memory,
) -> (ByteSize, Option<String>) {
    let Some((available, of)) = named(memory) else {
        return (given.unwrap_or(ByteSize(REQUESTS)), None);
    };
    let left = available.0.saturating_sub(cache.0);
    let size = given.unwrap_or_else(|| ByteSize((left / 4).clamp(REQUESTS_MIN, REQUESTS)));
    let warning = || {
        format!(
            "{size} for requests (--request-memory) and the cache together leave less than {} of {of} for all else: it may be killed for want of memory",
            ByteSize(PROGRAM)
        )
    };
    let is_much = given.is_some() && size.0.saturating_add(PROGRAM) > left;
    (size, is_much.then(warning))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(size: &str) -> Memory {
        let size: ByteSize = size.parse().unwrap();
        let limit = Some((size.0, "/sys/fs/cgroup/a/memory.max".into()));
        Memory { installed: Some(24 << 30), limit }
    }

    #[test]
    fn a_cache_is_no_larger_than_memory() {
        let machine = Memory { installed: Some(24 << 30), limit: None };
        let check = |size: &str, memory: &Memory| check_cache(size.parse().unwrap(), memory);
        let refused = check("40G", &machine).unwrap_err().to_string();
        assert!(refused.contains("40 GiB") && refused.contains("24 GiB"), "{refused}");
        assert!(refused.contains("use at most 21.6 GiB"), "{refused}");
        assert!(check("21G", &machine).unwrap().is_none());
        let warned = check("22G", &machine).unwrap().unwrap();
        assert!(warned.contains("22 GiB") && warned.contains("24 GiB"), "{warned}");
        assert!(check("24G", &machine).is_ok());
        let refused = check("5G", &container("4G")).unwrap_err().to_string();
        assert!(refused.contains("4 GiB") && refused.contains("a/memory.max"), "{refused}");
        assert!(check("1P", &Memory::default()).unwrap().is_none());
    }

    #[test]
    fn in_a_small_container_there_is_room_for_the_program_and_its_clients() {
        for (limit, fits, is_much) in [("64M", "16M", "40M"), ("128M", "80M", "115M")] {
            let check = |size: &str| check_cache(size.parse().unwrap(), &container(limit)).unwrap();
            assert_eq!(check(fits), None);
            let warned = check(is_much).unwrap();
            assert!(warned.contains("it may be killed"), "{warned}");
        }
    }

    #[test]
    fn requests_take_a_fourth_of_what_is_left_and_at_most_a_gibibyte() {
        let size = |text: &str| text.parse::<ByteSize>().unwrap();
        let none = size("0");
        let default = |cache, limit| check_requests(None, cache, &container(limit));
        assert_eq!(default(none, "128M"), (size("32M"), None));
        assert_eq!(default(size("100M"), "128M"), (size("8M"), None));
        assert_eq!(default(none, "20G"), (size("1G"), None));
        assert_eq!(check_requests(None, none, &Memory::default()), (size("1G"), None));
        let given = |text, cache| check_requests(Some(size(text)), cache, &container("1G"));
        assert_eq!(given("256M", size("512M")), (size("256M"), None));
        let (kept, warning) = given("512M", size("512M"));
        assert_eq!(kept, size("512M"), "who asks for it gets it");
        assert!(warning.unwrap().contains("--request-memory"));
    }
}
