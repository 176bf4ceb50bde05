//! What happened between two samples, as people and programs are told it.

use std::time::UNIX_EPOCH;

use serde::Serialize;

use super::exports::Export;
use super::sample::Sample;

/// See the module. `None` is for what is not known: there was no sample before, or the program has
/// been started anew.
#[derive(Debug, Default, Serialize)]
pub(super) struct Rates {
    /// Seconds since 1970.
    pub(super) timestamp: f64,
    /// Seconds between the samples.
    pub(super) seconds: Option<f64>,
    /// CPUs' worth of CPU time of the whole process.
    pub(super) process_cpus: Option<f64>,
    pub(super) cpus: Vec<Cpu>,
    pub(super) exports: Vec<Export>,
    pub(super) workqueues: Vec<Workqueue>,
    pub(super) durability: Option<Durability>,
    pub(super) cache: Option<Cache>,
    pub(super) object_caches: Vec<ObjectCache>,
    /// Queues that the watchdog found stalled, since the start.
    pub(super) stalls: Option<u64>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Cpu {
    pub(super) cpu: String,
    /// The share of its time that it ran items, from 0 to 1.
    pub(super) busy: Option<f64>,
    /// The share of its time that it was awake without work.
    pub(super) searching: Option<f64>,
    pub(super) items_per_s: Option<f64>,
    pub(super) sleeps_per_s: Option<f64>,
    /// The workqueue whose item it runs at this moment.
    pub(super) workqueue: Option<String>,
    /// For how long already, in nanoseconds.
    pub(super) running_ns: Option<u64>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Workqueue {
    pub(super) name: String,
    pub(super) affinity_scope: Option<String>,
    pub(super) in_flight: Option<u64>,
    pub(super) items_per_s: Option<f64>,
    /// CPUs' worth of CPU time.
    pub(super) cpus: Option<f64>,
    pub(super) woken_per_s: Option<f64>,
    /// Items a second by how far they were pulled: home, llc, node, remote.
    pub(super) pulled_per_s: [Option<f64>; 4],
    /// Since the start.
    pub(super) queue_age_p99_ns: Option<u64>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Durability {
    /// None, like the strategy, if only files with descriptions of their own are synced, as by a
    /// server: neither applies to those.
    pub(super) backend: Option<String>,
    pub(super) strategy: Option<String>,
    pub(super) sharing: Option<String>,
    pub(super) asked_per_s: Option<f64>,
    pub(super) shared_per_s: Option<f64>,
    pub(super) files_per_s: Option<f64>,
    pub(super) commits_per_s: Option<f64>,
    pub(super) flushes_saved_per_s: Option<f64>,
    /// How many callers a sync or a commit answered, on average; none if there were no syncs.
    pub(super) callers_per_sync: Option<f64>,
    /// Since the start, like the two after it.
    pub(super) failed: Option<u64>,
    pub(super) latency_p50_ns: Option<u64>,
    pub(super) latency_p99_ns: Option<u64>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Cache {
    /// Bytes.
    pub(super) size: Option<u64>,
    /// Bytes, whether they hold pages or not.
    pub(super) memory: Option<u64>,
    /// Bytes of pages.
    pub(super) used: Option<u64>,
    pub(super) groups: Vec<Group>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Group {
    pub(super) name: String,
    /// Bytes.
    pub(super) usage: Option<u64>,
    /// Bytes.
    pub(super) dirty: Option<u64>,
    /// The share of hits in the pages that were asked for, from 0 to 1; none if there were no such
    /// pages.
    pub(super) hit_ratio: Option<f64>,
    pub(super) asked_per_s: Option<f64>,
    pub(super) refaults_per_s: Option<f64>,
    pub(super) evictions_per_s: Option<f64>,
    pub(super) write_backs_per_s: Option<f64>,
    /// Since the start.
    pub(super) write_back_errors: Option<u64>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct ObjectCache {
    pub(super) name: String,
    /// What its entries may weigh, and what they weigh: 1 each, unless the program says otherwise.
    pub(super) capacity: Option<u64>,
    pub(super) weight: Option<u64>,
    pub(super) entries: Option<u64>,
    /// The share of reads that found a value, from 0 to 1; none if there were no reads.
    pub(super) hit_ratio: Option<f64>,
    pub(super) asked_per_s: Option<f64>,
    pub(super) insertions_per_s: Option<f64>,
    pub(super) evictions_per_s: Option<f64>,
    pub(super) declined_per_s: Option<f64>,
}

impl Rates {
    pub(super) fn between(before: Option<&Sample>, now: &Sample) -> Self {
        let seconds = before.map(|before| (now.at - before.at).as_secs_f64());
        let change = Change { before, now, seconds: seconds.unwrap_or_default() };
        let named = |kind, attribute| now.names(kind, attribute).into_iter();
        let durable = now.value("durable/counters").is_some();
        let cached = now.value("cache/size").is_some();
        Self {
            timestamp: now.wall.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            seconds,
            process_cpus: change.process_cpus(),
            cpus: named("cpu", "").map(|cpu| change.cpu(cpu)).collect(),
            exports: named("export", "/stat").map(|name| Export::of(&change, name)).collect(),
            workqueues: named("workqueue", "/counters")
                .map(|name| change.workqueue(name))
                .collect(),
            durability: durable.then(|| change.durability()),
            cache: cached.then(|| change.cache()),
            object_caches: named("object_cache", "/capacity")
                .map(|name| change.object_cache(name))
                .collect(),
            stalls: now.value("module/stalls").and_then(|stalls| stalls.parse().ok()),
        }
    }
}

pub(super) struct Change<'a> {
    pub(super) before: Option<&'a Sample>,
    pub(super) now: &'a Sample,
    seconds: f64,
}

impl Change<'_> {
    /// By how much a counter has grown.
    fn grown(&self, path: &str, key: &str) -> Option<u64> {
        let before = self.before?.counter(path, key)?;
        self.now.counter(path, key)?.checked_sub(before)
    }

    fn process_cpus(&self) -> Option<f64> {
        let of = |sample: &Sample| sample.value("module/cpu_time_ns")?.parse::<u64>().ok();
        let grown = of(self.now)?.checked_sub(of(self.before?)?)?;
        (self.seconds > 0.0).then(|| grown as f64 / 1e9 / self.seconds)
    }

    pub(super) fn per_s(&self, path: &str, key: &str) -> Option<f64> {
        let grown = self.grown(path, key)?;
        (self.seconds > 0.0).then(|| grown as f64 / self.seconds)
    }

    /// The share of the time, from a counter of nanoseconds.
    fn share(&self, path: &str, key: &str) -> Option<f64> {
        Some(self.per_s(path, key)? / 1e9)
    }

    fn cpu(&self, cpu: String) -> Cpu {
        let path = format!("cpu/{cpu}");
        let threads = self.now.names("thread", "").into_iter().map(|id| format!("thread/{id}"));
        let mut there = threads.filter(|thread| self.now.word(thread, "cpu") == Some(&cpu));
        let runs =
            there.find(|thread| self.now.word(thread, "workqueue").is_some_and(|of| of != "-"));
        let runs = runs.as_deref();
        Cpu {
            // Counted when an item ends: a long item counts for the second in which it ends.
            busy: self.share(&path, "busy_ns").map(|busy| busy.min(1.0)),
            searching: self.share(&path, "searched_ns").map(|searching| searching.min(1.0)),
            items_per_s: self.per_s(&path, "items"),
            sleeps_per_s: self.per_s(&path, "parks"),
            workqueue: runs.and_then(|thread| Some(self.now.word(thread, "workqueue")?.to_owned())),
            running_ns: runs.and_then(|thread| self.now.counter(thread, "running_ns")),
            cpu,
        }
    }

    fn workqueue(&self, name: String) -> Workqueue {
        let path = format!("workqueue/{name}/counters");
        let scope = self.now.value(&format!("workqueue/{name}/affinity_scope"));
        Workqueue {
            affinity_scope: scope.map(str::to_owned),
            in_flight: self.now.counter(&path, "infl"),
            items_per_s: self.per_s(&path, "started"),
            cpus: self.share(&path, "cpu_time_ns"),
            woken_per_s: self.per_s(&path, "woken"),
            pulled_per_s: PULLED.map(|key| self.per_s(&path, key)),
            queue_age_p99_ns: self.now.counter(&path, "queue_age_p99_ns"),
            name,
        }
    }

    fn durability(&self) -> Durability {
        let per_s = |key| self.per_s("durable/counters", key);
        let total = |key| self.now.counter("durable/counters", key);
        let word = |path| self.now.value(path).map(str::to_owned);
        let grown = |key| self.grown("durable/counters", key);
        let callers = grown("asked").zip(grown("batches").filter(|batches| *batches > 0));
        let filesystems = self.now.value("durable/filesystems").unwrap_or_default();
        let applying = |path| word(path).filter(|_| !filesystems.is_empty());
        Durability {
            backend: applying("durable/backend"),
            strategy: applying("durable/strategy"),
            sharing: word("durable/sharing"),
            asked_per_s: per_s("asked"),
            shared_per_s: per_s("shared"),
            files_per_s: per_s("files"),
            commits_per_s: per_s("commits"),
            flushes_saved_per_s: per_s("flushes_saved"),
            callers_per_sync: callers.map(|(asked, batches)| asked as f64 / batches as f64),
            failed: total("failed"),
            latency_p50_ns: total("latency_p50_ns"),
            latency_p99_ns: total("latency_p99_ns"),
        }
    }

    fn cache(&self) -> Cache {
        let number = |path| self.now.value(path).and_then(|number| number.parse().ok());
        let groups = self.now.names("cache/group", "/stat").into_iter();
        Cache {
            size: number("cache/size"),
            memory: number("cache/memory"),
            used: number("cache/used"),
            groups: groups.map(|name| self.group(name)).collect(),
        }
    }

    /// The share of hits, and how much was asked for a second.
    fn asked(&self, stat: &str) -> (Option<f64>, Option<f64>) {
        let (hits, misses) = (self.grown(stat, "hits"), self.grown(stat, "misses"));
        let asked = hits.zip(misses).map(|(hits, misses)| hits + misses);
        let ratio = hits.zip(asked).filter(|(_, asked)| *asked > 0);
        let per_s = asked.filter(|_| self.seconds > 0.0);
        (
            ratio.map(|(hits, asked)| hits as f64 / asked as f64),
            per_s.map(|asked| asked as f64 / self.seconds),
        )
    }

    fn object_cache(&self, name: String) -> ObjectCache {
        let path = format!("object_cache/{name}/stat");
        let capacity = self.now.value(&format!("object_cache/{name}/capacity"));
        let (hit_ratio, asked_per_s) = self.asked(&path);
        ObjectCache {
            capacity: capacity.and_then(|capacity| capacity.parse().ok()),
            weight: self.now.counter(&path, "weight"),
            entries: self.now.counter(&path, "entries"),
            hit_ratio,
            asked_per_s,
            insertions_per_s: self.per_s(&path, "insertions"),
            evictions_per_s: self.per_s(&path, "evictions"),
            declined_per_s: self.per_s(&path, "declined"),
            name,
        }
    }

    fn group(&self, name: String) -> Group {
        let path = format!("cache/group/{name}/stat");
        let (hit_ratio, asked_per_s) = self.asked(&path);
        Group {
            usage: self.now.counter(&path, "usage"),
            dirty: self.now.counter(&path, "dirty"),
            hit_ratio,
            asked_per_s,
            refaults_per_s: self.per_s(&path, "refaults"),
            evictions_per_s: self.per_s(&path, "evictions"),
            write_backs_per_s: self.per_s(&path, "write_backs"),
            write_back_errors: self.now.counter(&path, "write_back_errors"),
            name,
        }
    }
}

const PULLED: [&str; 4] = ["pulled_home", "pulled_llc", "pulled_node", "pulled_remote"];
