//! What holds for every machine, wherever it is read from; for the tests of this crate and for
//! `fuzz`.

use homing_topology::{CPU_COUNT_MAX, CpuSet, Machine, Scope};

/// Checks, among other things, that each scope cuts the machine's CPUs into pods.
pub(crate) fn check(machine: &Machine) {
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
