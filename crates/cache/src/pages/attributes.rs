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

use homing_control::{Attribute, AttributeError, AttributeTree, ByteSize, Switch, flat_keyed};
use homing_mglru::density::Swappiness;
use homing_mglru::kernel::Enabled;

use super::command::Refused;
use super::{Group, GroupStats, PageCache};
use crate::limits::Limits;
use crate::sync::atomic::Ordering::Relaxed;

/// What all paths begin with.
const ROOT: &str = "cache/";
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

/// The live attributes of a page cache, read and written as text by path:
/// [`PageCache::attributes`].
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
}

/// What a path means.
enum Place<'a> {
    OfCache(&'a str),
    Limit(Group, usize),
    Swappiness(Group),
    StatOf(Group),
}

fn stat(stats: GroupStats) -> String {
    let bytes = [("usage", stats.usage), ("dirty", stats.dirty)];
    flat_keyed(bytes.into_iter().chain(stats.counters()))
}

impl PageCacheAttributes {
    fn place<'a>(&self, path: &'a str) -> Result<Place<'a>, AttributeError> {
        let known = || {
            let rest = path.strip_prefix(ROOT)?;
            let Some((group, name)) = Limits::of_group(rest) else {
                let is_known = OF_CACHE.iter().any(|(name, _)| *name == rest);
                return is_known.then_some(Place::OfCache(rest));
            };
            // A group whose name was taken before is not in the tree.
            let group = self.0.core().group_named(group).map(Group)?;
            Some(match name {
                "stat" => Place::StatOf(group),
                "swappiness" => Place::Swappiness(group),
                _ => {
                    let limit = Limits::NAMES.iter().position(|limit| *limit == name)?;
                    Place::Limit(group, limit)
                }
            })
        };
        known().ok_or_else(|| AttributeError::not_found(path))
    }

    /// The error says what is accepted.
    fn set_limit(&self, group: &Group, at: usize, value: &str) -> Result<(), String> {
        let bytes = Limits::from_text(value);
        let bytes = bytes.ok_or_else(|| format!("{}, or max", ByteSize::FORM))?;
        let page = self.0.core().page_size() as u64;
        match Limits::NAMES[at] {
            "min" => group.set_min(bytes),
            "low" => group.set_low(bytes),
            "high" => group.set_high(bytes),
            // It would count as 0. Whoever means that can say so. All else may be right once
            // another limit, or the size, is set.
            _ if (1..page).contains(&bytes) => {
                return Err(format!("0, max, or at least a page ({page})"));
            }
            _ => group.set_max(bytes),
        }
        Ok(())
    }

    fn set_of_cache(&self, name: &str, value: &str, path: &str) -> Result<(), AttributeError> {
        let refused = |accepted: String| Err(AttributeError::refused(path, value, accepted));
        let (cache, core) = (&self.0, self.0.core());
        let percent = || value.parse().ok().filter(|percent| *percent <= 100).unwrap_or(usize::MAX);
        match name {
            "size" => {
                let bytes = value.parse().ok().map(|ByteSize(bytes)| usize::try_from(bytes));
                let Some(Ok(bytes)) = bytes else { return refused(ByteSize::FORM.to_owned()) };
                let set = cache.set_size(bytes);
                set.map_err(|error| AttributeError::failed(path, error.to_string()))?;
            }
            "dirty_background_ratio" => {
                let wanted = percent();
                let set = |(_, trigger)| (wanted <= trigger).then_some((wanted, trigger));
                core.set_dirty_shares(set)
                    .or_else(|(_, trigger)| refused(format!("0 to {trigger}, the dirty_ratio")))?;
            }
            "dirty_ratio" => {
                let wanted = percent();
                let set =
                    |(target, _)| (target..=100).contains(&wanted).then_some((target, wanted));
                core.set_dirty_shares(set).or_else(|(target, _)| {
                    refused(format!("{target}, the dirty_background_ratio, to 100"))
                })?;
            }
            "lru_gen/enabled" => match value.parse::<Enabled>() {
                // This policy does not need the sweeps that the other bits are for.
                Ok(enabled) => cache.set_learning(enabled.has(Enabled::MAIN)),
                Err(_) => return refused("y, n or a number from 0 to 7".to_owned()),
            },
            "lru_gen/min_ttl_ms" => match value.parse() {
                Ok(ms) => cache.set_min_ttl_ms(ms),
                Err(_) => return refused("a number of milliseconds".to_owned()),
            },
            "readahead/enabled" => match value.parse() {
                Ok(Switch(on)) => cache.set_readahead(on),
                Err(_) => return refused(Switch::FORM.to_owned()),
            },
            "readahead/max_kb" => match value.parse() {
                Ok(kib @ 0..=AHEAD_KIB_MAX) => cache.set_readahead_max(kib << 10),
                _ => return refused(format!("a number of KiB from 0 to {AHEAD_KIB_MAX}")),
            },
            "debug/lru_gen" => match core.run_commands(value) {
                Ok(()) => {}
                Err(error @ Refused::Not(_)) => {
                    return Err(AttributeError::failed(path, error.to_string()));
                }
                Err(error) => return refused(format!("commands that there are ({error})")),
            },
            _ => return Err(AttributeError::read_only(path)),
        }
        Ok(())
    }
}

impl AttributeTree for PageCacheAttributes {
    fn list(&self) -> Vec<Attribute> {
        let attribute = |path: String, writable| Attribute { path, writable };
        let of_cache =
            OF_CACHE.iter().map(|(name, writable)| attribute(format!("{ROOT}{name}"), *writable));
        let mut all: Vec<Attribute> = of_cache.collect();
        for group in self.0.core().groups() {
            let path = |name: &str| format!("{ROOT}group/{}/{name}", group.name);
            all.extend(Limits::NAMES.iter().map(|limit| attribute(path(limit), true)));
            all.push(attribute(path("stat"), false));
            all.push(attribute(path("swappiness"), true));
        }
        all.sort_by(|one, other| one.path.cmp(&other.path));
        all.dedup();
        all
    }

    fn get(&self, path: &str) -> Result<String, AttributeError> {
        let core = self.0.core();
        let name = match self.place(path)? {
            Place::OfCache(name) => name,
            Place::Limit(group, at) => {
                return Ok(Limits::to_text(group.0.limits()[at]));
            }
            Place::Swappiness(group) => return Ok(group.swappiness().to_string()),
            Place::StatOf(group) => return Ok(stat(self.0.group_stats(&group))),
        };
        Ok(match name {
            "size" => core.size().to_string(),
            "memory" => self.0.stats().memory.to_string(),
            "frames" => self.0.stats().frames.to_string(),
            "used" => self.0.stats().used.to_string(),
            "dirty_background_ratio" => core.dirty_shares().0.to_string(),
            "dirty_ratio" => core.dirty_shares().1.to_string(),
            "lru_gen/enabled" => format!("{:#06x}", u32::from(core.habits.is_learning())),
            "lru_gen/min_ttl_ms" => core.habits.min_ttl.get().to_string(),
            "readahead/enabled" => Switch(core.reads_ahead.load(Relaxed)).to_string(),
            "readahead/max_kb" => (core.ahead_max.load(Relaxed) >> 10).to_string(),
            "debug/lru_gen" => core.lru_gen(false),
            "debug/lru_gen_full" => core.lru_gen(true),
            _ => return Err(AttributeError::not_found(path)),
        })
    }

    fn set(&self, path: &str, value: &str) -> Result<(), AttributeError> {
        let value = value.trim();
        let refused = |accepted: String| AttributeError::refused(path, value, accepted);
        match self.place(path)? {
            Place::OfCache(name) => self.set_of_cache(name, value, path),
            Place::Limit(group, at) => self.set_limit(&group, at, value).map_err(refused),
            Place::Swappiness(group) => match value.parse() {
                Ok(number @ 0..=Swappiness::MAX) => {
                    group.set_swappiness(number);
                    Ok(())
                }
                _ => Err(refused(format!("a number from 0 to {}", Swappiness::MAX))),
            },
            Place::StatOf(_) => Err(AttributeError::read_only(path)),
        }
    }
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
