//! Two tenants over one memory.

use homing_sim::{Flags, MemoryModel, Tenants};

use super::{Cell, Key, Plan, named};

/// What is compared: the kernel before and with the patch, as posted and as merged; homing as its
/// caches are, and with a knowledge of costs that they do not have.
const MODELS: [(&str, MemoryModel); 5] = [
    ("patch 1-7", MemoryModel::Kernel(Flags::Off)),
    ("patch 1-8", MemoryModel::Kernel(Flags::V8)),
    ("as merged", MemoryModel::Kernel(Flags::V14)),
    ("homing", MemoryModel::HitDensity),
    ("homing, told the costs", MemoryModel::HitDensityToldCosts),
];

/// Memory, as a share of memcached's heap in per cent. The first is fitted, the others show what
/// depends on it.
const MEMORIES: [(&str, u32); 3] =
    [("memcached just fits", 100), ("a seventh more memory", 115), ("a tenth less memory", 90)];

pub(super) fn cells(plan: &Plan) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (scenario, percent) in MEMORIES {
        for (policy, model) in MODELS {
            for seed in 0..plan.seeds {
                let setup = Tenants::published(model).with_memory(percent);
                let measured_ns = plan.measured_ns / 4;
                cells.push(Cell::new(key(scenario, policy, seed), move |stop| {
                    let report = setup.run(measured_ns, seed, stop)?;
                    Some(named([
                        ("uses_per_s", report.uses_per_s),
                        ("reads_per_s", report.reads_per_s),
                        ("use_hits_pct", report.use_hits_pct),
                        ("read_hits_pct", report.read_hits_pct),
                        ("written_per_s", report.written_per_s),
                    ]))
                }));
            }
        }
    }
    cells
}

fn key(scenario: &str, policy: &str, seed: u64) -> Key {
    Key {
        experiment: "mglru-mixed".to_owned(),
        machine: "36 CPUs, RAM disks".to_owned(),
        scenario: scenario.to_owned(),
        policy: policy.to_owned(),
        host: "simulated".to_owned(),
        seed,
    }
}
