//! Several traces mixed into one, as if their programs ran at once on one cache.
//!
//! Each trace is spread evenly over the whole: request `t` of `n` stands at the share
//! (2t + 1) / 2n, and requests are taken in the order of their shares, those of the first trace
//! first where these are equal. The mix is therefore always the same, and all traces end together.

use super::builder::Builder;
use super::{Trace, TraceError};

/// Ranges of keys begin at multiples of this, so that pages that are neighbours in an aligned region
/// are so in the mix.
const ALIGNMENT: u64 = 1 << 20;

impl Trace {
    /// Mixes traces in proportion to their lengths. Each becomes a tenant, numbered as it stands in
    /// the slice, with a range of keys of its own; tenants that it had are forgotten.
    pub fn interleave(traces: &[Trace]) -> Result<Self, TraceError> {
        if traces.len() > usize::from(u16::MAX) + 1 {
            return Err(TraceError::TooManyTenants { count: traces.len() });
        }
        let offsets = key_offsets(traces)?;
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
            let key = traces[index].keys[request.page as usize].wrapping_add(offsets[index]);
            if !builder.push(key, request.write, index as u16) {
                return Err(TraceError::TooManyPages { file: names.join(" + ").into() });
            }
        }
        Ok(builder.build())
    }
}

/// What to add to the keys of each trace, modulo 2^64, so that none has a key of another.
fn key_offsets(traces: &[Trace]) -> Result<Vec<u64>, TraceError> {
    let mut base = 0_u64;
    let mut full = false;
    let mut offsets = Vec::with_capacity(traces.len());
    for trace in traces {
        let (Some(lowest), Some(highest)) = (trace.keys.iter().min(), trace.keys.iter().max())
        else {
            offsets.push(0);
            continue;
        };
        let too_far = || TraceError::KeysTooFarApart { name: trace.name.clone() };
        if full {
            return Err(too_far());
        }
        let lowest = lowest - lowest % ALIGNMENT;
        let last = base.checked_add(highest - lowest).ok_or_else(too_far)?;
        offsets.push(base.wrapping_sub(lowest));
        match (last - last % ALIGNMENT).checked_add(ALIGNMENT) {
            Some(next) => base = next,
            None => full = true,
        }
    }
    Ok(offsets)
}
