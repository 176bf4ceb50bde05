//! What the names in the tables mean, for those who did not read the published messages.

use homing_sim::HostModel;

const WORDS: [(&str, &str); 6] = [
    (
        "SYSTEM, CACHE",
        "the kernel's workqueue with that affinity scope: one pool of workers for all CPUs, or one \
         for each last-level cache",
    ),
    ("+STRICT", "affinity_strict=1: workers may not leave their scope's CPUs"),
    ("+LOCAL", "the kernel's workqueue with a published patch: items go to the issuing CPU"),
    (
        "homing",
        "homing's own decisions, with its defaults; \"homing auto\" chooses scope and thresholds",
    ),
    ("HIGH, MED, LOW", "issuers with many requests in flight on each CPU, fewer, and few"),
    (
        "bracket",
        "the least and the most change over the models of the host: they do not agree, so what is \
         predicted lies between them",
    ),
];

/// Each word with its meaning: names of policies, loads and columns, and the models of the host's
/// scheduler.
pub fn words() -> impl Iterator<Item = (&'static str, &'static str)> {
    WORDS.into_iter().chain(HostModel::ALL.map(|host| (host.name(), host.about())))
}
