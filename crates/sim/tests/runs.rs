//! Whole runs: the same bytes for the same seed, homing's promises, and that mistakes are found.

use std::sync::atomic::AtomicBool;

use homing_sched::Affinity;
use homing_sim::{
    Broken, Costs, CryptLoad, DmCrypt, HomingSettings, Host, HostModel, IssuerPlaces,
    KernelSettings, Kind, Model, Policy, Preset, Report, Rules, Step, ThreadId, Trial,
};
use homing_topology::{Machine, Scope};

fn run(machine: &Machine, model: HostModel, policy: Policy, load: CryptLoad, seed: u64) -> Report {
    let rules = Rules::new(model, machine.cpus().len());
    let (warm_up_ns, measured_ns) = (50_000_000, 200_000_000);
    let run = DmCrypt { load, policy, warm_up_ns, measured_ns };
    let (costs, stop) = (&Costs::default(), &AtomicBool::new(false));
    run.run(&Trial { machine, costs, rules: &rules, seed, stop }).unwrap()
}

fn ryzen() -> Machine {
    Preset::find("ryzen-9-3900x").unwrap().machine()
}

fn homing(settings: HomingSettings) -> Policy {
    Policy::Homing(settings)
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for model in HostModel::ALL {
        for policy in [
            homing(HomingSettings::default()),
            homing(HomingSettings { auto: true, stale_ns: 20_000, ..HomingSettings::default() }),
            Policy::Kernel(KernelSettings::new(Scope::Cache, false, true)),
        ] {
            let once = |seed| run(&ryzen(), model, policy.clone(), CryptLoad::published(8), seed);
            let first = once(1);
            assert_eq!(first, once(1), "{} {policy}", model.name());
            assert_ne!(first, once(2), "the seed matters");
        }
    }
}

#[test]
fn a_run_that_is_stopped_tells_nothing() {
    let rules = Rules::new(HostModel::Cfs, 24);
    let policy = homing(HomingSettings::default());
    // Longer than anybody waits.
    let (warm_up_ns, measured_ns) = (1_000_000_000_000, 1);
    let run = DmCrypt { load: CryptLoad::published(8), policy, warm_up_ns, measured_ns };
    let (machine, costs, stop) = (&ryzen(), &Costs::default(), &AtomicBool::new(true));
    assert_eq!(run.run(&Trial { machine, costs, rules: &rules, seed: 1, stop }), None);
}

/// Interrupts each 7 us, each of which wakes a thread that runs for 2.
struct Interrupted {
    thread: Option<ThreadId>,
    wakes: bool,
}

impl Model for Interrupted {
    fn step(&mut self, _: &mut Host, _: ThreadId) -> Step {
        if std::mem::take(&mut self.wakes) { Step::Run(2_000) } else { Step::Sleep }
    }

    fn event(&mut self, host: &mut Host, _: u64) {
        host.interrupt(0);
        self.wakes = true;
        host.wake_from(self.thread.unwrap(), 0, None);
        host.after(7_000, 0);
    }
}

/// A CPU that was idle is not free while an interrupt uses it.
#[test]
fn no_cpu_is_busy_for_longer_than_time_passes() {
    let machine = Machine::from_grid("1x1x1").unwrap();
    let costs = Costs::default();
    let (interrupt_ns, switch_ns) = (costs.interrupt_ns.value, costs.switch_ns.value);
    assert!(interrupt_ns + switch_ns + 2_000 < 14_000, "it keeps up with every second one");
    let mut host = Host::new(&machine, costs, Rules::new(HostModel::Cfs, 1), 1);
    let thread = host.spawn(Kind::Worker, 0, *machine.online());
    let mut model = Interrupted { thread: Some(thread), wakes: false };
    host.after(0, 0);
    let until_ns = 10_000_000;
    for step in 1..=100 {
        host.run(&mut model, until_ns * step / 100, &AtomicBool::new(false)).unwrap();
        let (busy_ns, now_ns) = (host.busy_ns()[0], host.now_ns());
        assert!(busy_ns <= now_ns + interrupt_ns, "{busy_ns} of {now_ns} ns");
    }
    let interrupts = until_ns.div_ceil(7_000);
    let least = host.ran_ns(thread).max(interrupts * (interrupt_ns + 2_000));
    assert!(host.busy_ns()[0] >= least * 9 / 10, "what it did counts");
}

/// Work conservation: what waits beside an idle CPU is fetched soon, and nobody sleeps on.
#[test]
fn nothing_waits_for_long_beside_an_idle_cpu() {
    for grid in ["1x1x1", "2x1x1", "4x3x2", "2x8x2", "2x1x4x4x2", "1x20x2"] {
        let machine = Machine::from_grid_siblings_last(grid).unwrap();
        for model in [HostModel::Cfs, HostModel::Pinned] {
            for jobs in [1, 3, 8] {
                for stale_ns in [0, 50_000] {
                    let settings = HomingSettings {
                        stale_ns,
                        hand_off: false, // where issuers do it all, nothing waits
                        ..HomingSettings::default()
                    };
                    let load = CryptLoad::published(jobs);
                    let report = run(&machine, model, homing(settings), load, 3);
                    let crew = report.crew;
                    assert_eq!(crew.lost_wakes, 0, "{grid} {jobs}");
                    assert!(
                        crew.exposed_max_ns.is_some_and(|longest| longest <= 700_000),
                        "{grid} {} {jobs}: {crew:?}",
                        model.name()
                    );
                    assert!(crew.done > 0, "{grid} {jobs}");
                }
            }
        }
    }
}

/// The checks above can fail.
#[test]
fn broken_policies_are_found() {
    let broken = |broken| {
        let settings = HomingSettings { broken: Some(broken), ..HomingSettings::default() };
        let report = run(&ryzen(), HostModel::Pinned, homing(settings), CryptLoad::published(2), 3);
        report.crew
    };
    let lost = broken(Broken::LostWake(100));
    assert!(lost.lost_wakes > 0 && lost.exposed_max_ns > Some(700_000), "{lost:?}");
    assert!(broken(Broken::NoFarPull).exposed_max_ns > Some(700_000));
}

/// Issuers that are pinned to a few CPUs do not keep their items from the others.
#[test]
fn pinned_issuers_leave_other_cpus_to_items() {
    let machine = Machine::from_grid_siblings_last("1x1x2x2").unwrap();
    let rate = |hand_off, seed| {
        let policy = homing(HomingSettings { hand_off, ..HomingSettings::default() });
        let load = CryptLoad { places: IssuerPlaces::Random, ..CryptLoad::published(6) };
        run(&machine, HostModel::Pinned, policy, load, seed).rate
    };
    for seed in 1..=6 {
        let (chosen, queued) = (rate(true, seed), rate(false, seed));
        println!("{seed}: {chosen:.0} and {queued:.0} a second");
        assert!(chosen >= 0.95 * queued, "{chosen} a second, {queued} if all is queued");
    }
}

/// The published variant loses where the issuers' CPUs are busy and others idle: pulling mends it.
#[test]
fn localized_work_loses_nothing_where_others_pull() {
    for model in HostModel::ALL {
        for jobs in [8, 4, 1] {
            let rate = |localize: bool| {
                let affinity = localize.then_some(Affinity { scope: Scope::Cache, strict: false });
                let settings = HomingSettings { localize, affinity, ..HomingSettings::default() };
                let seeds = (1..=4).map(|seed| {
                    run(&ryzen(), model, homing(settings.clone()), CryptLoad::published(jobs), seed)
                        .rate
                });
                seeds.sum::<f64>() / 4.0
            };
            let (localized, plain) = (rate(true), rate(false));
            println!("{} {jobs}: {localized:.0} and {plain:.0} a second", model.name());
            assert!(localized >= 0.96 * plain, "{localized} a second, {plain} if not localized");
        }
    }
}

#[test]
fn strict_work_never_leaves_its_pod_and_the_rest_does_where_it_pays() {
    let pulled = |strict| {
        let affinity = Affinity { scope: Scope::Cache, strict };
        let settings = HomingSettings { affinity: Some(affinity), ..HomingSettings::default() };
        let report = run(&ryzen(), HostModel::Pinned, homing(settings), CryptLoad::published(2), 3);
        assert!(report.crew.done > 1_000);
        report.crew.pulled
    };
    assert_eq!(pulled(true), 0);
    assert!(pulled(false) > 100);
}

/// A machine of one CPU can do no more than its one CPU.
#[test]
fn throughput_is_bounded_by_the_work_there_is() {
    let machine = Machine::from_grid("1x1x1").unwrap();
    let load = CryptLoad { spread_pct: 0, ..CryptLoad::published(1) };
    // Half of them are writes.
    let issuer_ns = load.fill_ns.midpoint(load.use_ns);
    let most = 1e9 / (issuer_ns + load.crypt_ns) as f64;
    for policy in [
        homing(HomingSettings::default()),
        Policy::Kernel(KernelSettings::new(Scope::System, false, false)),
    ] {
        let report = run(&machine, HostModel::Cfs, policy.clone(), load.clone(), 1);
        assert!(report.rate <= most * 1.02, "{policy}: {} of {most}", report.rate);
        assert!(report.rate >= most * 0.9, "{policy}: {} of {most}", report.rate);
        assert!(report.util_pct > 99.0 && report.util_pct <= 100.0, "{policy}: {report:?}");
    }
}
