//! The attribute tree of a page cache, with the kernel's names.
//!
//! ```text
//! cache/{size,memory,frames,used}                     sizes may be set as 64M or 1G, too
//! cache/dirty_background_ratio, cache/dirty_ratio     hundredths of the cache that a group may have dirty
//! cache/lru_gen/enabled                               whether the policy learns (the kernel's bit 1; others do nothing)
//! cache/lru_gen/min_ttl_ms                            what was used so short a time ago stays; 0: off
//! cache/readahead/{enabled,max_kb}                    for who reads in order; KiB at a time at most
//! cache/group/NAME/{min,low,high,max,stat}            bytes, or `max` for no limit; whole pages count
//! cache/group/NAME/swappiness                         0 to 200: whether dirty pages go first
//! cache/debug/lru_gen                                 pages by age; takes commands (`command`)
//! cache/debug/lru_gen_full                            also by tier, with what came of them (`debug`)
//! ```

use homing_control::{Attribute, AttributeError, AttributeTree, ByteSize};
use homing_mglru::density::Swappiness;
use homing_mglru::kernel::Enabled;

use super::command::Refused;
use super::{Group, GroupStats, PageCache};
use crate::limits::Limits;
use crate::sync::atomic::Ordering::Relaxed;

/// The first word of all paths.
const ROOT: &str = "cache";
const OF_CACHE: [(&str, bool); 12] = [
    ("debug/lru_gen", true),
    ("debug/lru_gen_full", false),
    ("dirty_background_ratio", true),
    ("dirty_ratio", true),
    ("frames", false),
    ("lru_gen/enabled", true),
    ("lru_gen/min_ttl_ms", true),
    ("memory", false),
    ("readahead/enabled", true),
    ("readahead/max_kb", true),
    ("size", true),
    ("used", false),
];
/// A larger maximum is taken for a mistake.
const AHEAD_KIB_MAX: usize = 1 << 20;

/// The live attributes of a page cache, read and written as text by path: [`PageCache::attributes`].
///
/// ```
/// use homing_cache::pages::{PageCache, PageCacheAttributes};
/// use homing_control::AttributeTree;
///
/// let attributes: PageCacheAttributes = PageCache::builder(4 << 20).build()?.attributes();
/// assert!(attributes.list().iter().any(|it| it.path == "cache/used" && !it.writable));
/// attributes.set("cache/readahead/max_kb", "256")?;
/// assert_eq!(attributes.get("cache/readahead/max_kb")?, "256");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PageCacheAttributes(PageCache);

impl PageCache {
    /// The attribute tree, for a [`ControlSocket`](homing_control::ControlSocket). If a program has
    /// two page caches, put one of the trees [`Below`](homing_control::Below) a name.
    ///
    /// ```
    /// use homing_cache::pages::PageCache;
    /// use homing_control::AttributeTree;
    ///
    /// let cache = PageCache::builder(64 << 20).build()?;
    /// let tenant = cache.group("tenant").build();
    /// let attributes = cache.attributes();
    /// attributes.set("cache/group/tenant/max", "16777216")?;
    /// assert_eq!(attributes.get("cache/group/tenant/max")?, "16777216");
    /// assert!(attributes.get("cache/group/tenant/stat")?.starts_with("usage 0\n"));
    /// attributes.set("cache/lru_gen/enabled", "n")?;
    /// assert_eq!(attributes.get("cache/lru_gen/enabled")?, "0x0000");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn attributes(&self) -> PageCacheAttributes {
        PageCacheAttributes(self.clone())
    }

    /// The group that has this name in the tree. A group whose name was taken before is not in the
    /// tree.
    fn named(&self, name: &str) -> Option<Group> {
        self.core().group_named(name).map(Group)
    }

    /// Whether there is such an attribute.
    fn has_attribute(&self, path: &str) -> bool {
        let Some(rest) = path.strip_prefix("cache/") else { return false };
        match of_group(rest) {
            Some((group, name)) => {
                let known = Limits::NAMES.contains(&name) || ["stat", "swappiness"].contains(&name);
                known && self.named(group).is_some()
            }
            None => OF_CACHE.iter().any(|(name, _)| *name == rest),
        }
    }
}

fn stat(stats: GroupStats) -> String {
    let bytes = [("usage", stats.usage), ("dirty", stats.dirty)];
    let all = bytes.into_iter().chain(stats.counters());
    all.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join("\n")
}

impl AttributeTree for PageCacheAttributes {
    fn list(&self) -> Vec<Attribute> {
        let attribute = |path: String, writable| Attribute { path, writable };
        let of_cache =
            OF_CACHE.iter().map(|(name, writable)| attribute(format!("{ROOT}/{name}"), *writable));
        let mut all: Vec<Attribute> = of_cache.collect();
        for group in self.0.core().groups() {
            let path = |name: &str| format!("{ROOT}/group/{}/{name}", group.name);
            all.extend(Limits::NAMES.iter().map(|limit| attribute(path(limit), true)));
            all.push(attribute(path("stat"), false));
            all.push(attribute(path("swappiness"), true));
        }
        all.sort_by(|one, other| one.path.cmp(&other.path));
        all.dedup();
        all
    }

    fn get(&self, path: &str) -> Result<String, AttributeError> {
        let missing = || AttributeError::NotFound { path: path.to_owned() };
        let rest = path.strip_prefix("cache/").ok_or_else(missing)?;
        let core = self.0.core();
        if let Some((group, name)) = of_group(rest) {
            let group = self.0.named(group).ok_or_else(missing)?;
            if name == "stat" {
                return Ok(stat(self.0.group_stats(&group)));
            }
            if name == "swappiness" {
                return Ok(group.swappiness().to_string());
            }
            let at = Limits::NAMES.iter().position(|limit| *limit == name).ok_or_else(missing)?;
            let limit = group.0.limits()[at];
            return Ok(limit.map_or_else(|| "max".to_owned(), |bytes| bytes.to_string()));
        }
        Ok(match rest {
            "size" => core.size().to_string(),
            "memory" => self.0.stats().memory.to_string(),
            "frames" => self.0.stats().frames.to_string(),
            "used" => self.0.stats().used.to_string(),
            "dirty_background_ratio" => core.dirty_shares().0.to_string(),
            "dirty_ratio" => core.dirty_shares().1.to_string(),
            "lru_gen/enabled" => format!("{:#06x}", u32::from(core.habits.is_learning())),
            "lru_gen/min_ttl_ms" => core.habits.min_ttl.get().to_string(),
            "readahead/enabled" => u8::from(core.reads_ahead.load(Relaxed)).to_string(),
            "readahead/max_kb" => (core.ahead_max.load(Relaxed) >> 10).to_string(),
            "debug/lru_gen" => core.lru_gen(false),
            "debug/lru_gen_full" => core.lru_gen(true),
            _ => return Err(missing()),
        })
    }

    fn set(&self, path: &str, value: &str) -> Result<(), AttributeError> {
        let (value, rest) = (value.trim(), path.strip_prefix("cache/").unwrap_or(path));
        let refused = |accepted: &str| AttributeError::Value {
            path: path.to_owned(),
            value: value.to_owned(),
            accepted: accepted.to_owned(),
        };
        let missing = || AttributeError::NotFound { path: path.to_owned() };
        if !self.0.has_attribute(path) {
            return Err(missing());
        }
        let failed = |reason: String| AttributeError::Failed { path: path.to_owned(), reason };
        let core = self.0.core();
        let percent = || value.parse().ok().filter(|percent| *percent <= 100);
        match (of_group(rest), rest) {
            (Some((group, "swappiness")), _) => {
                let number = value.parse().ok().filter(|number| *number <= Swappiness::MAX);
                let number = number.ok_or_else(|| refused("a number from 0 to 200"))?;
                self.0.named(group).ok_or_else(missing)?.set_swappiness(number);
            }
            (Some((group, name)), _) if name != "stat" => {
                let bytes = if value == "max" { Some(u64::MAX) } else { bytes(value) };
                let bytes = bytes.ok_or_else(|| refused(&format!("{}, or max", ByteSize::FORM)))?;
                let page = core.page_size() as u64;
                // It would count as 0. Whoever means that can say so. All else may be right once
                // another limit, or the size, is set.
                if name == "max" && (1..page).contains(&bytes) {
                    return Err(refused(&format!("0, max, or at least a page ({page})")));
                }
                let group = self.0.named(group).ok_or_else(missing)?;
                match name {
                    "min" => group.set_min(bytes),
                    "low" => group.set_low(bytes),
                    "high" => group.set_high(bytes),
                    _ => group.set_max(bytes),
                }
            }
            (_, "size") => {
                let bytes = bytes(value).and_then(|bytes| usize::try_from(bytes).ok());
                let bytes = bytes.ok_or_else(|| refused(ByteSize::FORM))?;
                self.0.set_size(bytes).map_err(|error| failed(error.to_string()))?;
            }
            (_, "dirty_background_ratio") => {
                let wanted = percent().unwrap_or(u8::MAX).into();
                let set = |(_, trigger)| (wanted <= trigger).then_some((wanted, trigger));
                core.set_dirty_shares(set)
                    .map_err(|(_, trigger)| refused(&format!("0 to {trigger}, the dirty_ratio")))?;
            }
            (_, "dirty_ratio") => {
                let wanted = percent().unwrap_or(u8::MAX).into();
                let set =
                    |(target, _)| (target..=100).contains(&wanted).then_some((target, wanted));
                core.set_dirty_shares(set).map_err(|(target, _)| {
                    refused(&format!("{target}, the dirty_background_ratio, to 100"))
                })?;
            }
            (_, "lru_gen/enabled") => {
                let enabled = value.parse::<Enabled>();
                let enabled = enabled.map_err(|_| refused("y, n or a number from 0 to 7"))?;
                // This policy does not need the sweeps that the other bits are for.
                self.0.set_learning(enabled.has(Enabled::MAIN));
            }
            (_, "readahead/enabled") => {
                self.0.set_readahead(switch(value).ok_or_else(|| refused("y or n"))?);
            }
            (_, "readahead/max_kb") => {
                let kib = value.parse().ok().filter(|kib: &usize| *kib <= AHEAD_KIB_MAX);
                let accepted = format!("a number of KiB from 0 to {AHEAD_KIB_MAX}");
                self.0.set_readahead_max(kib.ok_or_else(|| refused(&accepted))? << 10);
            }
            (_, "lru_gen/min_ttl_ms") => {
                let ms = value.parse().map_err(|_| refused("a number of milliseconds"))?;
                self.0.set_min_ttl_ms(ms);
            }
            (_, "debug/lru_gen") => {
                core.run_commands(value).map_err(|error| match error {
                    Refused::Not(_) => failed(error.to_string()),
                    _ => refused(&format!("commands that there are ({error})")),
                })?;
            }
            _ => return Err(AttributeError::ReadOnly { path: path.to_owned() }),
        }
        Ok(())
    }
}

fn bytes(value: &str) -> Option<u64> {
    value.parse().ok().map(|ByteSize(bytes)| bytes)
}

/// Whether the value says on or off; `None` if neither.
fn switch(value: &str) -> Option<bool> {
    match value {
        "y" | "Y" | "1" | "0x0001" => Some(true),
        "n" | "N" | "0" | "0x0000" => Some(false),
        _ => None,
    }
}

/// The group and the attribute of a path below `cache`. A group's name may contain slashes.
fn of_group(rest: &str) -> Option<(&str, &str)> {
    rest.strip_prefix("group/")?.rsplit_once('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_listed_can_be_read_and_what_is_writable_takes_back_its_value() {
        let cache = PageCache::builder(16 << 20).build().unwrap();
        let _ = (cache.group("a").max(1 << 20).build(), cache.group("b/c").build());
        let attributes = cache.attributes();
        let listed = attributes.list();
        assert_eq!(listed.len(), OF_CACHE.len() + 2 * (Limits::NAMES.len() + 2));
        assert!(listed.is_sorted_by(|one, other| one.path < other.path));
        for Attribute { path, writable } in listed {
            let value = attributes.get(&path).unwrap();
            // What is written there are commands.
            let value = if path == "cache/debug/lru_gen" { String::new() } else { value };
            match attributes.set(&path, &value) {
                Ok(()) => assert!(writable, "{path}"),
                Err(AttributeError::ReadOnly { .. }) => assert!(!writable, "{path}"),
                Err(error) => panic!("{error}"),
            }
            assert!(attributes.get(&path).unwrap() == value || value.is_empty(), "{path}");
        }
    }

    #[test]
    fn sizes_are_set_as_people_write_them_and_read_as_bytes() {
        let cache = PageCache::builder(16 << 20).size_max(64 << 20).build().unwrap();
        let _group = cache.group("a").build();
        let attributes = cache.attributes();
        for (path, value, read) in [
            ("cache/size", "32M", "33554432"),
            ("cache/size", "20971520", "20971520"),
            ("cache/group/a/max", "1g", "1073741824"),
            ("cache/group/a/high", "64MiB", "67108864"),
            ("cache/group/a/low", "512 K", "524288"),
            ("cache/group/a/min", "4096", "4096"),
            ("cache/group/a/max", "max", "max"),
        ] {
            attributes.set(path, value).unwrap();
            assert_eq!(attributes.get(path).unwrap(), read, "{path} {value}");
        }
        for (path, value) in [("cache/size", "1.5"), ("cache/group/a/low", "5X")] {
            let refused = attributes.set(path, value).unwrap_err().to_string();
            assert!(refused.contains(value) && refused.contains("as in 10G"), "{refused}");
        }
    }

    #[test]
    fn a_limit_that_can_do_nothing_is_refused_and_one_that_may_come_to_fit_is_not() {
        let cache = PageCache::builder(16 << 20).build().unwrap();
        let _group = cache.group("a").max(1 << 20).build();
        let attributes = cache.attributes();
        for value in ["1", "4095", "3K"] {
            let refused = attributes.set("cache/group/a/max", value).unwrap_err().to_string();
            assert!(
                refused.contains(value) && refused.contains("at least a page (4096)"),
                "{refused}"
            );
            assert_eq!(attributes.get("cache/group/a/max").unwrap(), "1048576");
        }
        // `min` above `max`, and above the size.
        for (name, value) in [("max", "4096"), ("max", "0"), ("min", "1G"), ("high", "1")] {
            attributes.set(&format!("cache/group/a/{name}"), value).unwrap();
        }
        assert_eq!(attributes.get("cache/group/a/max").unwrap(), "0");
        assert_eq!(attributes.get("cache/group/a/min").unwrap(), "1073741824");
    }

    #[test]
    fn what_is_wrong_is_said_and_changes_nothing() {
        let attributes = PageCache::builder(16 << 20).build().unwrap().attributes();
        let refused = |path, value| attributes.set(path, value).unwrap_err().to_string();
        assert!(
            refused("cache/dirty_ratio", "4").contains("5, the dirty_background_ratio, to 100")
        );
        assert!(refused("cache/dirty_background_ratio", "21").contains("0 to 20"));
        assert!(refused("cache/size", "1").contains("too small"));
        assert!(refused("cache/size", "large").contains("a number of bytes"));
        assert!(
            refused("cache/lru_gen/enabled", "perhaps").contains("y, n or a number from 0 to 7")
        );
        assert!(refused("cache/lru_gen/min_ttl_ms", "-1").contains("a number of milliseconds"));
        assert!(refused("cache/group/nobody/max", "1").contains("no attribute"));
        assert!(refused("cache/memory", "1").contains("can be read, not set"));
        assert_eq!(attributes.get("cache/dirty_ratio").unwrap(), "20");
    }
}
