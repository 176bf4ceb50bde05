//! Several traces mixed into one, as if their programs ran at once on one cache.
//!
//! Each trace is spread evenly over the whole: request `t` of `n` stands at the share
//! (2t + 1) / 2n, and requests are taken in the order of their shares, those of the first trace
//! first where these are equal. The mix is therefore always the same, and all traces end together.

use super::builder::Builder;
use super::{Trace, TraceError};

/// Ranges of keys begin at multiples of this, so that neighbours within an aligned region are also
/// neighbours in the mix.
const ALIGNMENT: u64 = 1 << 20;

impl Trace {
    /// Mixes traces in proportion to their lengths. Each becomes a tenant, numbered as it stands in
    /// the slice, with a range of keys of its own; tenants that it had are forgotten.
    pub fn interleave(traces: &[Trace]) -> Result<Self, TraceError> {
        if traces.len() > usize::from(u16::MAX) + 1 {
            return Err(TraceError::TooManyTenants { count: traces.len() });
        }
        let keys = keys_of(traces);
        let names: Vec<&str> = traces.iter().map(Trace::name).collect();
        let mut builder = Builder::new(names.join(" + "));
        let mut taken = vec![0_usize; traces.len()];
        let total: usize = traces.iter().map(Trace::len).sum();
        for _ in 0..total {
            let waiting = (0..traces.len()).filter(|&index| taken[index] < traces[index].len());
            let next = waiting.reduce(|best, other| {
                let share = |index: usize, of: usize| {
                    (2 * taken[index] as u128 + 1) * traces[of].len() as u128
                };
                if share(other, best) < share(best, other) { other } else { best }
            });
            let index = next.expect("as many requests as the traces have together");
            let request = traces[index].request(taken[index]);
            taken[index] += 1;
            let key = match keys[index] {
                Keys::From(base) => base + u64::from(request.page),
                Keys::Moved(by) => traces[index].keys[request.page as usize].wrapping_add(by),
            };
            if !builder.push(key, request.write, index as u16) {
                return Err(TraceError::TooManyPages { file: names.join(" + ").into() });
            }
        }
        Ok(builder.build())
    }
}

/// The keys of a trace in a mix.
enum Keys {
    /// Its own keys plus this, modulo 2^64: neighbours stay neighbours.
    Moved(u64),
    /// Keys from here on, in the order in which its pages came. Such a trace, for example one of
    /// words, has keys strewn over a range that leaves no room for others.
    From(u64),
}

/// Keys for each trace that no other trace has.
fn keys_of(traces: &[Trace]) -> Vec<Keys> {
    let share = u64::MAX / traces.len().max(1) as u64 - 2 * ALIGNMENT;
    let mut base = 0_u64;
    let keys = |trace: &Trace| {
        let lowest = trace.keys.iter().min().copied().unwrap_or_default();
        let lowest = lowest - lowest % ALIGNMENT;
        let span = trace.keys.iter().max().copied().unwrap_or_default() - lowest;
        let begin = base;
        let (span, keys) = if span <= share {
            (span, Keys::Moved(begin.wrapping_sub(lowest)))
        } else {
            (trace.keys.len() as u64, Keys::From(begin))
        };
        base += span - span % ALIGNMENT + ALIGNMENT;
        keys
    };
    traces.iter().map(keys).collect()
}
