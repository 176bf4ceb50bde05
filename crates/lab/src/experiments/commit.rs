//! The fsync table.

use homing_sim::GroupCommit;

use super::{Cell, Key, Plan, named};

pub(super) fn cells(plan: &Plan) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (policy, waits, issuers) in
        [("sync", true, &[1, 4][..]), ("async", false, &[1, 4, 8, 16, 32])]
    {
        for issuers in issuers {
            for seed in 0..plan.seeds {
                let setup = GroupCommit::published(*issuers, waits);
                let key = key(policy, *issuers, seed);
                let measured_ns = plan.measured_ns;
                cells.push(Cell::new(key, move |stop| {
                    let report = setup.run(measured_ns, seed, stop)?;
                    Some(named([
                        ("files_per_s", report.files_per_s),
                        ("aggregation", report.aggregation),
                    ]))
                }));
            }
        }
    }
    cells
}

/// The key of a run; it says which published figures belong to it.
pub(crate) fn key(policy: &str, issuers: usize, seed: u64) -> Key {
    let plural = if issuers == 1 { "" } else { "s" };
    Key {
        experiment: "aio-fsync".to_owned(),
        machine: "16 CPUs, SSD".to_owned(),
        scenario: format!("{issuers} issuer{plural}"),
        policy: policy.to_owned(),
        host: "group commit".to_owned(),
        seed,
    }
}
