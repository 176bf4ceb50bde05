//! What several targets have in common.

use std::path::Path;

use homing_topology::{CPU_COUNT_MAX, CpuSet, Machine, Scope};

/// What every machine promises: each scope cuts its CPUs into pods.
pub fn check_machine(machine: &Machine) {
    assert!(!machine.cpus().is_empty() && machine.cpus().len() <= CPU_COUNT_MAX);
    for scope in Scope::ALL {
        let pods = machine.pods(scope);
        let union = pods.iter().fold(CpuSet::EMPTY, |all, pod| all.or(pod));
        assert_eq!(union, *machine.online(), "{scope}");
    }
    let (first, last) = (machine.cpus()[0].cpu, machine.cpus()[machine.cpus().len() - 1].cpu);
    let _ = machine.distance(first, last);
    assert!(machine.restricted(&CpuSet::of(last)).is_some());
}

/// A folder in memory, where there is one.
pub fn memory() -> &'static Path {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory } else { Path::new("/tmp") }
}
