//! Hands the counters of a cache to the recorder of the `metrics` ecosystem that is installed.

use std::hash::{BuildHasher, Hash};

use metrics::{counter, describe_counter, describe_gauge, gauge};

use super::cache::Cache;

impl<K: Hash + Eq, V: Clone, S: BuildHasher> Cache<K, V, S> {
    /// Hands the counters of the cache and its groups, as they are now, to the recorder of the
    /// `metrics` ecosystem that is installed, under the label `cache` with this name. Call this
    /// before each scrape, or now and then. The cache has groups only if the program has asked for
    /// one. Counters only grow: a group that is made again under the name of a removed one goes on
    /// where that one ended once it has done as much, so give it another name.
    ///
    /// ```
    /// use homing_cache::Cache;
    /// use metrics_exporter_prometheus::PrometheusBuilder;
    ///
    /// let recorder = PrometheusBuilder::new().build_recorder();
    /// let text = recorder.handle();
    /// let cache = Cache::new(100);
    /// cache.insert_in(&cache.group("web"), "key", 1);
    /// cache.get("key");
    /// metrics::with_local_recorder(&recorder, || cache.record_metrics("pages"));
    /// for line in [
    ///     r#"homing_cache_hits_total{cache="pages"} 1"#,
    ///     r#"homing_cache_group_weight{cache="pages",group="web"} 1"#,
    /// ] {
    ///     assert!(text.render().lines().any(|known| known == line), "{}", text.render());
    /// }
    /// ```
    pub fn record_metrics(&self, name: &str) {
        describe();
        let stats = self.stats();
        for (counter, total) in stats.counters() {
            counter!(format!("homing_cache_{counter}_total"), "cache" => name.to_owned())
                .absolute(total);
        }
        for (held, value) in stats.held().into_iter().chain([("capacity", self.capacity())]) {
            gauge!(format!("homing_cache_{held}"), "cache" => name.to_owned()).set(value as f64);
        }
        let groups = &self.inner.common.groups;
        if !groups.are_counted() {
            return;
        }
        for group in groups.known() {
            let labels = [("cache", name.to_owned()), ("group", group.name().to_owned())];
            let stats = group.stats();
            for (counter, total) in stats.counters() {
                counter!(format!("homing_cache_group_{counter}_total"), &labels).absolute(total);
            }
            gauge!("homing_cache_group_weight", &labels).set(stats.weight as f64);
        }
    }
}

fn describe() {
    let counters = [
        ("homing_cache_hits_total", "reads that found a value"),
        ("homing_cache_misses_total", "reads that found none"),
        ("homing_cache_insertions_total", "insertions of keys that were not in the cache"),
        ("homing_cache_evictions_total", "entries evicted for lack of room"),
        ("homing_cache_expirations_total", "entries whose lifetime was over"),
        ("homing_cache_refaults_total", "insertions of keys evicted not long ago"),
        ("homing_cache_rejections_total", "entries that found no room"),
        ("homing_cache_declined_total", "new entries not worth the place of another"),
        ("homing_cache_group_hits_total", "reads that found an entry of the group"),
        (
            "homing_cache_group_misses_total",
            "reads that loaded for the group what they did not find",
        ),
        ("homing_cache_group_insertions_total", "entries that the group got"),
        ("homing_cache_group_evictions_total", "entries of the group that were evicted"),
        ("homing_cache_group_declined_total", "new entries of the group that were not put in"),
    ];
    for (name, what) in counters {
        describe_counter!(name, what);
    }
    describe_gauge!("homing_cache_entries", "entries in the cache");
    describe_gauge!("homing_cache_weight", "the weight of these entries");
    describe_gauge!("homing_cache_capacity", "what they may weigh");
    describe_gauge!("homing_cache_ghost_bytes", "bytes used to remember evicted entries");
    describe_gauge!("homing_cache_group_weight", "the weight of the group's entries");
}
