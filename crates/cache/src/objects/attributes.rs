//! The attribute tree of a cache of objects.
//!
//! ```text
//! object_cache/NAME/capacity                      entries, or what they may weigh
//! object_cache/NAME/lru_gen/enabled               whether the policy learns (the kernel's bit 1; others do nothing)
//! object_cache/NAME/stat                          what happened, and what the cache holds
//! object_cache/NAME/group/GROUP/{min,low,high,max}    in the unit of the capacity, or `max` for no limit
//! object_cache/NAME/group/GROUP/stat
//! ```

use std::hash::{BuildHasher, Hash};

use homing_control::{Attribute, AttributeError, AttributeTree, ByteSize, flat_keyed};
use homing_mglru::kernel::Enabled;

use super::cache::Cache;
use super::group::Group;
use super::hash::RandomState;
use crate::limits::Limits;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::Relaxed;

/// Those of the cache as a whole, and whether they can be set.
const OF_CACHE: [(&str, bool); 3] =
    [("capacity", true), ("lru_gen/enabled", true), ("stat", false)];

/// The live attributes of a cache of objects, read and written as text by path:
/// [`Cache::attributes`].
///
/// ```
/// use homing_cache::{Cache, CacheAttributes};
/// use homing_control::AttributeTree;
///
/// let attributes: CacheAttributes<String, u64> = Cache::new(1000).attributes("names");
/// attributes.set("object_cache/names/capacity", "500")?;
/// assert_eq!(attributes.get("object_cache/names/capacity")?, "500");
/// assert!(attributes.set("object_cache/names/stat", "0").is_err()); // can be read, not set
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CacheAttributes<K, V, S = RandomState> {
    cache: Cache<K, V, S>,
    /// With a slash at its end.
    root: String,
}

impl<K, V, S> Clone for CacheAttributes<K, V, S> {
    fn clone(&self) -> Self {
        Self { cache: self.cache.clone(), root: self.root.clone() }
    }
}

impl<K, V, S> std::fmt::Debug for CacheAttributes<K, V, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CacheAttributes").field("root", &self.root).finish_non_exhaustive()
    }
}

impl<K, V, S> Cache<K, V, S> {
    /// The attribute tree, for a [`ControlSocket`](homing_control::ControlSocket). Its paths begin
    /// with `object_cache/` and this name. Several trees can be [combined](homing_control::Trees);
    /// of two caches with the same name, only the first one is seen then.
    ///
    /// The cache has groups in the tree once the program has asked for one. Limits and capacity are
    /// in the same unit; where weights are bytes they may be set as `64M`, too.
    ///
    /// ```
    /// use homing_cache::Cache;
    /// use homing_control::AttributeTree;
    ///
    /// let cache = Cache::<u64, u64>::new(1000);
    /// let _web = cache.group("web");
    /// let attributes = cache.attributes("pages");
    /// attributes.set("object_cache/pages/group/web/max", "100")?;
    /// (0..1000).for_each(|key| _ = cache.insert_in(&cache.group("web"), key, key));
    /// let stat = attributes.get("object_cache/pages/group/web/stat")?;
    /// assert!(stat.starts_with("weight 100\n"), "{stat}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn attributes(&self, name: &str) -> CacheAttributes<K, V, S> {
        CacheAttributes { cache: self.clone(), root: format!("object_cache/{name}/") }
    }
}

/// What a path means.
enum Place<'a> {
    OfCache(&'a str),
    Limit(Arc<Group>, usize),
    StatOf(Arc<Group>),
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> CacheAttributes<K, V, S> {
    fn place<'a>(&self, path: &'a str) -> Result<Place<'a>, AttributeError> {
        let known = || {
            let rest = path.strip_prefix(&self.root)?;
            let Some((group, name)) = Limits::of_group(rest) else {
                let is_known = OF_CACHE.iter().any(|(name, _)| *name == rest);
                return is_known.then_some(Place::OfCache(rest));
            };
            let group = self.groups().into_iter().find(|it| it.name() == group)?;
            if name == "stat" {
                return Some(Place::StatOf(group));
            }
            let limit = Limits::NAMES.iter().position(|limit| *limit == name)?;
            Some(Place::Limit(group, limit))
        };
        known().ok_or_else(|| AttributeError::not_found(path))
    }

    fn groups(&self) -> Vec<Arc<Group>> {
        let groups = &self.cache.inner.common.groups;
        if groups.are_counted() { groups.known() } else { Vec::new() }
    }

    fn set_capacity(&self, value: &str) -> Result<(), String> {
        let least = self.cache.inner.common.shards as u64;
        let number = value.parse().ok().map(|ByteSize(number)| number);
        let wanted = number.filter(|&capacity| capacity >= least);
        let accepted = || format!("at least {least}, one for each shard, as in 100000 or 64M");
        self.cache.set_capacity(wanted.ok_or_else(accepted)?);
        Ok(())
    }
}

impl<K, V, S> AttributeTree for CacheAttributes<K, V, S>
where
    K: Hash + Eq + Send + Sync,
    V: Clone + Send + Sync,
    S: BuildHasher + Send + Sync,
{
    fn list(&self) -> Vec<Attribute> {
        let attribute = |path: String, writable| Attribute { path, writable };
        let path = |name: &str| format!("{}{name}", self.root);
        let of_cache = OF_CACHE.iter().map(|(name, writable)| attribute(path(name), *writable));
        let mut all: Vec<Attribute> = of_cache.collect();
        for group in self.groups() {
            let path = |name: &str| path(&format!("group/{}/{name}", group.name()));
            all.extend(Limits::NAMES.iter().map(|limit| attribute(path(limit), true)));
            all.push(attribute(path("stat"), false));
        }
        all.sort_by(|one, other| one.path.cmp(&other.path));
        all
    }

    fn get(&self, path: &str) -> Result<String, AttributeError> {
        Ok(match self.place(path)? {
            Place::OfCache("capacity") => self.cache.capacity().to_string(),
            Place::OfCache("stat") => {
                let stats = self.cache.stats();
                flat_keyed(stats.held().into_iter().chain(stats.counters()))
            }
            Place::OfCache(_) => {
                format!("{:#06x}", u32::from(self.cache.inner.common.habits.is_learning()))
            }
            Place::Limit(group, at) => Limits::to_text(group.limits().all()[at].load(Relaxed)),
            Place::StatOf(group) => {
                let stats = group.stats();
                flat_keyed([("weight", stats.weight)].into_iter().chain(stats.counters()))
            }
        })
    }

    fn set(&self, path: &str, value: &str) -> Result<(), AttributeError> {
        let value = value.trim();
        let refused = |accepted: String| AttributeError::refused(path, value, accepted);
        match self.place(path)? {
            Place::OfCache("capacity") => self.set_capacity(value).map_err(refused),
            Place::OfCache("lru_gen/enabled") => {
                let enabled = value.parse::<Enabled>();
                let enabled =
                    enabled.map_err(|_| refused("y, n or a number from 0 to 7".into()))?;
                // This policy does not need the sweeps that the other bits are for.
                self.cache.set_learning(enabled.has(Enabled::MAIN));
                Ok(())
            }
            Place::Limit(group, at) => {
                let limit = Limits::from_text(value);
                let limit = limit.ok_or_else(|| refused(format!("{FORM}, or max")))?;
                group.limits().all()[at].store(limit, Relaxed);
                Ok(())
            }
            Place::OfCache(_) | Place::StatOf(_) => Err(AttributeError::read_only(path)),
        }
    }
}

const FORM: &str = "a number, as in 100000 or 64M";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_listed_can_be_read_and_what_is_writable_takes_back_its_value() {
        let cache = Cache::<u32, u32>::new(100);
        let attributes = cache.attributes("a/b");
        assert_eq!(attributes.list().len(), OF_CACHE.len(), "no group was asked for");
        cache.group("c/d").set_max(10);
        let listed = attributes.list();
        assert_eq!(listed.len(), OF_CACHE.len() + 2 * (Limits::NAMES.len() + 1));
        assert!(listed.is_sorted_by(|one, other| one.path < other.path));
        for Attribute { path, writable } in listed {
            assert!(path.starts_with("object_cache/a/b/"), "{path}");
            let value = attributes.get(&path).unwrap();
            match attributes.set(&path, &value) {
                Ok(()) => assert!(writable, "{path}"),
                Err(AttributeError::ReadOnly { .. }) => assert!(!writable, "{path}"),
                Err(error) => panic!("{error}"),
            }
            assert_eq!(attributes.get(&path).unwrap(), value, "{path}");
        }
        assert_eq!(attributes.get("object_cache/a/b/group/c/d/max").unwrap(), "10");
    }

    #[test]
    fn what_is_set_is_in_force() {
        let cache = Cache::<u32, u32>::builder().capacity(100).shards(1).build().unwrap();
        let (group, attributes) = (cache.group("g"), cache.attributes("c"));
        attributes.set("object_cache/c/group/g/max", "5").unwrap();
        (0..50).for_each(|key| _ = cache.insert_in(&group, key, key));
        assert_eq!(group.stats().weight, 5);
        assert!(attributes.get("object_cache/c/group/g/stat").unwrap().starts_with("weight 5\n"));
        attributes.set("object_cache/c/capacity", " 3\n").unwrap();
        assert_eq!((cache.capacity(), cache.len()), (3, 3));
        attributes.set("object_cache/c/capacity", "1K").unwrap();
        assert_eq!(cache.capacity(), 1024);
        attributes.set("object_cache/c/lru_gen/enabled", "n").unwrap();
        assert!(!cache.inner.common.habits.is_learning());
        cache.get(&1000);
        let stat = attributes.get("object_cache/c/stat").unwrap();
        assert!(
            stat.starts_with("entries 3\nweight 3\n") && stat.contains("\nmisses 1\n"),
            "{stat}"
        );
    }

    #[test]
    fn what_is_wrong_is_said_and_changes_nothing() {
        let cache = Cache::<u32, u32>::builder().capacity(100).shards(4).build().unwrap();
        let attributes = cache.attributes("c");
        let _group = cache.group("g");
        let refused = |path: &str, value| {
            attributes.set(&format!("object_cache/c/{path}"), value).unwrap_err().to_string()
        };
        for value in ["3", "0", "-1", "many", ""] {
            let error = refused("capacity", value);
            assert!(
                error.contains("at least 4") && error.contains(&format!("{value:?}")),
                "{error}"
            );
        }
        assert!(refused("group/g/low", "x").contains("a number, as in 100000 or 64M, or max"));
        assert!(refused("lru_gen/enabled", "perhaps").contains("y, n or a number"));
        assert!(refused("stat", "1").contains("can be read, not set"));
        assert!(refused("group/g/stat", "1").contains("can be read, not set"));
        for path in ["group/nobody/max", "group/g/swap", "group/max", "size", ""] {
            assert!(refused(path, "1").contains("no attribute"), "{path}");
        }
        assert!(attributes.get("object_cache/d/capacity").is_err());
        assert_eq!(cache.capacity(), 100);
    }
}
