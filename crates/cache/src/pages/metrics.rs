//! Hands the counters of a page cache to the recorder of the `metrics` ecosystem that is installed.

use std::collections::BTreeMap;

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

use super::{GroupStats, PageCache};

impl PageCache {
    /// Hands the counters of the cache and its groups, as they are now, to the recorder of the
    /// `metrics` ecosystem that is installed, under the label `cache` with this name. Call this
    /// before each scrape, or now and then. Groups of the same name are taken together. Counters
    /// only grow: a group that is made again under the name of a removed one goes on where that one
    /// ended once it has done as much, so give it another name.
    ///
    /// ```
    /// use homing_cache::pages::PageCache;
    /// use metrics_exporter_prometheus::PrometheusBuilder;
    ///
    /// let recorder = PrometheusBuilder::new().build_recorder();
    /// let text = recorder.handle();
    /// let cache = PageCache::builder(4 << 20).build()?;
    /// let tenant = cache.group("tenant").build();
    /// metrics::with_local_recorder(&recorder, || cache.record_metrics("volumes"));
    /// for line in [
    ///     r#"homing_page_cache_size_bytes{cache="volumes"} 4194304"#,
    ///     r#"homing_page_cache_hits_total{cache="volumes",group="tenant"} 0"#,
    /// ] {
    ///     assert!(text.render().lines().any(|known| known == line), "{}", text.render());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn record_metrics(&self, name: &str) {
        describe();
        let stats = self.stats();
        let gauges = [
            ("homing_page_cache_size_bytes", stats.size),
            ("homing_page_cache_memory_bytes", stats.memory),
            ("homing_page_cache_frames", stats.frames),
            ("homing_page_cache_frames_used", stats.used),
        ];
        for (metric, value) in gauges {
            gauge!(metric, "cache" => name.to_owned()).set(value as f64);
        }
        let mut groups: BTreeMap<String, GroupStats> = BTreeMap::new();
        for group in self.core().groups() {
            let stats = group.stats(self.core().hits(&group));
            groups.entry(group.name.clone()).or_default().add(stats);
        }
        for (group, stats) in groups {
            let labels = [("cache", name.to_owned()), ("group", group)];
            for (counter, total) in stats.counters() {
                counter!(format!("homing_page_cache_{counter}_total"), &labels).absolute(total);
            }
            gauge!("homing_page_cache_usage_bytes", &labels).set(stats.usage as f64);
            gauge!("homing_page_cache_dirty_bytes", &labels).set(stats.dirty as f64);
        }
    }
}

fn describe() {
    let counters = [
        ("homing_page_cache_hits_total", "requested pages that were in the cache"),
        ("homing_page_cache_misses_total", "requested pages that were not"),
        ("homing_page_cache_refaults_total", "pages remembered from before that were put in"),
        ("homing_page_cache_bypasses_total", "pages past the cache for want of a frame"),
        ("homing_page_cache_declined_total", "pages not worth the frames of others"),
        ("homing_page_cache_skimmed_total", "declined pages of which nothing was remembered"),
        ("homing_page_cache_evictions_total", "pages that had to leave"),
        ("homing_page_cache_write_backs_total", "pages that were written back"),
        ("homing_page_cache_write_back_errors_total", "failed write-backs of pages, which stayed"),
        ("homing_page_cache_throttled_total", "times that a writer had to write pages back"),
        ("homing_page_cache_read_ahead_total", "pages read before anybody asked for them"),
        ("homing_page_cache_read_ahead_wasted_total", "such pages that left unasked for"),
    ];
    for (name, what) in counters {
        describe_counter!(name, what);
    }
    let gauges = [
        ("homing_page_cache_size_bytes", "the size as set"),
        ("homing_page_cache_memory_bytes", "bytes that the cache takes, all frames in use"),
        ("homing_page_cache_usage_bytes", "bytes of the group's pages"),
        ("homing_page_cache_dirty_bytes", "bytes of these that are dirty or being written"),
    ];
    for (name, what) in gauges {
        describe_gauge!(name, Unit::Bytes, what);
    }
    describe_gauge!("homing_page_cache_frames", "frames for pages");
    describe_gauge!("homing_page_cache_frames_used", "frames that hold pages");
}
