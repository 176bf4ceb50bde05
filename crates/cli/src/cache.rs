//! The page cache of `homing serve`: its size, and what each export may have of it.

use std::str::FromStr;

use anyhow::{Context, bail};
use clap::Args;
use homing::Runtime;
use homing::pages::{BuildError, Group, PageCache};
use homing_control::ByteSize;
use homing_server::OnWorkqueue;
use homing_volume::WritePolicy;

use crate::memory;

/// With less an export has no use of the cache.
const MAX_MIN: ByteSize = ByteSize(1 << 20);

#[derive(Args)]
pub(crate) struct CacheArgs {
    /// Memory for cached pages of all exports, bookkeeping included; pages are in plaintext
    #[arg(long = "cache", value_name = "SIZE", help_heading = "Cache")]
    cache_size: Option<ByteSize>,

    /// When writes reach the file
    #[arg(
        long = "cache-mode",
        value_enum,
        default_value_t = Mode::WriteBack,
        requires = "cache_size",
        help_heading = "Cache"
    )]
    mode: Mode,

    /// Memory that is never taken from an export for others: of each export, or of the named one
    #[arg(
        long = "cache-min",
        value_name = "[EXPORT=]SIZE",
        requires = "cache_size",
        help_heading = "Cache"
    )]
    min: Vec<Limit>,

    /// Most memory that an export may have: each export, or the named one
    #[arg(
        long = "cache-max",
        value_name = "[EXPORT=]SIZE",
        requires = "cache_size",
        help_heading = "Cache"
    )]
    max: Vec<Limit>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Mode {
    /// When they are flushed or their memory is needed, as with a disk that has a cache. Data for
    /// which the file's disk has no space stays in memory, and flushes fail until there is space or
    /// the data is trimmed
    WriteBack,
    /// Before they are answered
    WriteThrough,
}

/// A limit of one export, or of each.
#[derive(Clone, Debug)]
struct Limit {
    export: Option<String>,
    size: ByteSize,
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Names may have an = in them, sizes do not.
        let (export, size) = match text.rsplit_once('=') {
            Some((export, size)) => (Some(export.to_owned()), size),
            None => (None, text),
        };
        Ok(Self { export, size: size.parse()? })
    }
}

/// The first limit that comes after another of the same export: only one of them could count.
fn given_twice(limits: &[Limit]) -> Option<&Limit> {
    let mut others = limits.iter().enumerate();
    others
        .find(|(at, limit)| limits[..*at].iter().any(|other| other.export == limit.export))
        .map(|(_, limit)| limit)
}

/// A cache, and how exports use it.
pub(crate) struct Cache {
    pub(crate) pages: PageCache,
    pub(crate) policy: WritePolicy,
}

impl CacheArgs {
    /// How much memory it is to have, if there is to be one.
    pub(crate) fn size(&self) -> Option<ByteSize> {
        self.cache_size
    }

    /// Makes the cache, if there is to be one for exports of these names.
    pub(crate) fn build(
        &self,
        runtime: &Runtime,
        exports: &[String],
    ) -> anyhow::Result<Option<Cache>> {
        let Some(size) = self.cache_size else { return Ok(None) };
        for limit in self.min.iter().chain(&self.max) {
            if let Some(name) = limit.export.as_ref().filter(|name| !exports.contains(name)) {
                bail!("no export is named {name:?}: there are {}", exports.join(", "));
            }
        }
        for (option, limits) in [("--cache-min", &self.min), ("--cache-max", &self.max)] {
            if let Some(limit) = given_twice(limits) {
                let whose = limit.export.as_ref().map_or("all exports", String::as_str);
                bail!("{option} is given twice for {whose}: give it once");
            }
        }
        if let Some(limit) = self.max.iter().find(|limit| limit.size.0 < MAX_MIN.0) {
            bail!("--cache-max {} is too little to work with: use at least {MAX_MIN}", limit.size);
        }
        // Check the limits before any image is made.
        for export in exports {
            self.limits(export)?;
        }
        let promised = exports.iter().filter_map(|export| limit_of(&self.min, export));
        let promised = ByteSize(promised.map(|size| size.0).fold(0, u64::saturating_add));
        if promised.0 > size.0 {
            bail!("exports cannot have {promised} (--cache-min) of a cache of {size} (--cache)");
        }
        let bytes = usize::try_from(size.0).context("the cache is larger than memory can be")?;
        let memory = memory::read()?;
        if let Some(warning) = memory::check_cache(size, &memory)? {
            tracing::warn!("{warning}");
        }
        let background = OnWorkqueue::new(runtime).context("cannot make the cache's workqueue")?;
        let most = memory.available().and_then(|bytes| usize::try_from(bytes).ok());
        let pages = PageCache::builder(bytes).size_max(most.unwrap_or(usize::MAX));
        let pages = match pages.background(background).build() {
            Err(BuildError::TooSmall { least, .. }) => {
                // Rounded: nobody wants to know it to the byte.
                let least = ByteSize((least as u64).next_multiple_of(1 << 20));
                bail!(
                    "a cache of {size} (--cache) is too small: leave --cache out to have none, or give it at least {least}"
                );
            }
            made => made.context("cannot make the cache (--cache)")?,
        };
        let policy = match self.mode {
            Mode::WriteBack => WritePolicy::Back,
            Mode::WriteThrough => WritePolicy::Through,
        };
        Ok(Some(Cache { pages, policy }))
    }

    /// The least and the most memory of an export.
    fn limits(&self, export: &str) -> anyhow::Result<(Option<ByteSize>, Option<ByteSize>)> {
        let limits = (limit_of(&self.min, export), limit_of(&self.max, export));
        if let (Some(min), Some(max)) = limits
            && min.0 > max.0
        {
            bail!(
                "{export} cannot have at least {min} (--cache-min) and at most {max} (--cache-max)"
            );
        }
        Ok(limits)
    }

    /// The group of an export, with its limits.
    pub(crate) fn group(&self, cache: &Cache, export: &str) -> anyhow::Result<Group> {
        let (min, max) = self.limits(export)?;
        // The group goes with the export.
        let mut group = cache.pages.group(export).until_closed();
        if let Some(min) = min {
            group = group.min(min.0);
        }
        if let Some(max) = max {
            group = group.max(max.0);
        }
        Ok(group.build())
    }
}

/// The limit of an export: the last one that applies counts, and one with the export's name before
/// one without a name.
fn limit_of(limits: &[Limit], export: &str) -> Option<ByteSize> {
    let named = limits.iter().rfind(|limit| limit.export.as_deref() == Some(export));
    let any = || limits.iter().rfind(|limit| limit.export.is_none());
    named.or_else(any).map(|limit| limit.size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_of_one_export_or_of_each() {
        let limit = |text: &str| text.parse::<Limit>().map(|limit| (limit.export, limit.size.0));
        assert_eq!(limit("4K"), Ok((None, 4096)));
        assert_eq!(limit("disk=4K"), Ok((Some("disk".to_owned()), 4096)));
        assert_eq!(limit("a=b=4K"), Ok((Some("a=b".to_owned()), 4096)));
        assert!(limit("disk").unwrap_err().contains("\"disk\" is not a size"));
        let twice = |texts: &[&str]| {
            let limits: Vec<Limit> = texts.iter().map(|text| text.parse().unwrap()).collect();
            given_twice(&limits).map(|limit| limit.export.clone())
        };
        assert_eq!(twice(&["1G", "a=1G", "b=1G"]), None);
        assert_eq!(twice(&["a=1G", "1G", "a=2G"]), Some(Some("a".to_owned())));
        assert_eq!(twice(&["1G", "a=1G", "2G"]), Some(None));
    }
}
