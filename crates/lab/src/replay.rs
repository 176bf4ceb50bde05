//! Replays a trace against a policy and counts.
//!
//! A page that is written becomes dirty, whether it was held or not, and stays dirty until it is
//! evicted: that eviction is a write-back. Pages that are dirty at the end are written back too.
//! I/O is what a disk would have to do: a read for each read that misses (a write replaces the
//! whole page and needs none), and the write-backs.

use crate::policy::{Page, Policy};
use crate::trace::{Trace, unpack};

/// Requests between two reports of progress.
const REPORT_EVERY: usize = 1 << 20;

/// How many requests lie between prefetching what is known of a page and the request for it.
const AHEAD: usize = 8;

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Requests.
    pub requests: u64,
    /// Requests for pages that were held.
    pub hits: u64,
    /// Reads of pages that were not held.
    pub read_misses: u64,
    /// Pages that were evicted, including those that were not admitted.
    pub evictions: u64,
    /// Dirty pages that were evicted, and those that were dirty at the end.
    pub writebacks: u64,
    /// Requests and hits of each tenant, if the trace has several.
    pub tenants: Vec<TenantOutcome>,
}

/// The result of a replay for one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantOutcome {
    /// Its requests.
    pub requests: u64,
    /// Its requests for pages that were held.
    pub hits: u64,
}

impl Outcome {
    /// The tenants that made requests, with their numbers.
    pub fn asking_tenants(&self) -> impl Iterator<Item = (usize, &TenantOutcome)> {
        self.tenants.iter().enumerate().filter(|(_, own)| own.requests > 0)
    }

    /// Hits by requests; 0 if there was no request.
    pub fn hit_ratio(&self) -> f64 {
        ratio(self.hits, self.requests)
    }

    /// Reads and writes of a disk below: read misses and write-backs.
    pub fn io(&self) -> u64 {
        self.read_misses + self.writebacks
    }
}

impl TenantOutcome {
    /// Hits by requests; 0 if there was no request.
    pub fn hit_ratio(&self) -> f64 {
        ratio(self.hits, self.requests)
    }
}

fn ratio(hits: u64, requests: u64) -> f64 {
    if requests == 0 { 0.0 } else { hits as f64 / requests as f64 }
}

/// Replays a trace against a policy that was built for it.
pub fn replay<P: Policy>(trace: &Trace, policy: &mut P) -> Outcome {
    replay_with(trace, policy, &mut |_| {})
}

/// Replays a trace, telling from time to time how many requests are done.
pub fn replay_with<P: Policy>(
    trace: &Trace,
    policy: &mut P,
    progress: &mut dyn FnMut(usize),
) -> Outcome {
    let mut run = Run {
        policy,
        outcome: Outcome::default(),
        dirty: vec![false; if trace.writes() > 0 { trace.pages() } else { 0 }],
        evicted: Vec::new(),
    };
    let mut done = 0;
    for (index, requests) in trace.packed().chunks(REPORT_EVERY).enumerate() {
        // The loop is compiled once for each kind of trace: most traces have one tenant and no
        // writes.
        match (trace.writes() > 0, trace.tenants()) {
            (false, None) => run.requests::<false>(requests),
            (true, None) => run.requests::<true>(requests),
            (_, Some(tenants)) => {
                run.requests_of_tenants(requests, &tenants[index * REPORT_EVERY..]);
            }
        }
        done += requests.len();
        progress(done);
    }
    run.end(trace)
}

/// A replay under way.
struct Run<'a, P> {
    policy: &'a mut P,
    outcome: Outcome,
    /// Which pages are dirty; empty for a trace without writes.
    dirty: Vec<bool>,
    /// What the request evicted; empty between requests.
    evicted: Vec<Page>,
}

impl<P: Policy> Run<'_, P> {
    fn requests<const WRITES: bool>(&mut self, requests: &[u32]) {
        let mut hits = 0;
        for (index, &packed) in requests.iter().enumerate() {
            if let Some(&later) = requests.get(index + AHEAD) {
                self.policy.prefetch(unpack(later, 0).page);
            }
            hits += u64::from(self.one::<WRITES>(packed, 0));
        }
        self.outcome.hits += hits;
    }

    fn requests_of_tenants(&mut self, requests: &[u32], tenants: &[u16]) {
        for (&packed, &tenant) in requests.iter().zip(tenants) {
            let hit = if self.dirty.is_empty() {
                self.one::<false>(packed, tenant)
            } else {
                self.one::<true>(packed, tenant)
            };
            self.outcome.hits += u64::from(hit);
            let index = usize::from(tenant);
            if index >= self.outcome.tenants.len() {
                self.outcome.tenants.resize(index + 1, TenantOutcome::default());
            }
            let own = &mut self.outcome.tenants[index];
            own.requests += 1;
            own.hits += u64::from(hit);
        }
    }

    #[inline]
    fn one<const WRITES: bool>(&mut self, packed: u32, tenant: u16) -> bool {
        let request = unpack(packed, tenant);
        let hit = self.policy.request(request, &mut self.evicted);
        if WRITES {
            if request.write {
                self.dirty[request.page as usize] = true;
            } else {
                self.outcome.read_misses += u64::from(!hit);
            }
            for page in self.evicted.drain(..) {
                let dirty = std::mem::take(&mut self.dirty[page as usize]);
                self.outcome.writebacks += u64::from(dirty);
                self.outcome.evictions += 1;
            }
        } else if !self.evicted.is_empty() {
            self.outcome.evictions += self.evicted.len() as u64;
            self.evicted.clear();
        }
        hit
    }

    fn end(mut self, trace: &Trace) -> Outcome {
        self.outcome.requests = trace.len() as u64;
        if trace.writes() == 0 {
            self.outcome.read_misses = self.outcome.requests - self.outcome.hits;
        }
        self.outcome.writebacks += self.dirty.iter().filter(|dirty| **dirty).count() as u64;
        self.outcome
    }
}
