//! Small traces, written as words: each letter is a page, a capital is a write to it.

use homing_lab::{AnyPolicy, Outcome, Setup, Trace, policies};

/// The trace of such a text; spaces mean nothing.
pub(crate) fn trace(text: &str) -> Trace {
    let letters = text.chars().filter(|letter| !letter.is_whitespace());
    let keys = letters.map(|l| (u64::from(u32::from(l.to_ascii_lowercase())), l.is_uppercase()));
    Trace::from_keys("small", keys).unwrap()
}

/// What a policy does: for each request `+` or `-` for a hit or a miss, and the pages that it
/// evicts.
pub(crate) fn history(policy: &str, capacity: usize, text: &str) -> String {
    let trace = trace(text);
    let mut policy = build(policy, capacity, &trace);
    let mut evicted = Vec::new();
    let steps = trace.requests().map(|request| {
        let mut step = if policy.request(request, &mut evicted) { "+" } else { "-" }.to_owned();
        let names = evicted.drain(..).map(|page| trace.keys()[page as usize]);
        step.extend(names.map(|key| char::from_u32(key as u32).unwrap()));
        step
    });
    steps.collect::<Vec<_>>().join(" ")
}

/// The outcome of a policy on a trace.
pub(crate) fn outcome(policy: &str, capacity: usize, trace: &Trace) -> Outcome {
    build(policy, capacity, trace).replay(trace)
}

fn build<'a>(policy: &str, capacity: usize, trace: &'a Trace) -> Box<dyn AnyPolicy + 'a> {
    policies::build(policy, &Setup::new(trace, capacity)).unwrap()
}
