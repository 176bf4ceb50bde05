//! The published experiments as a whole: shards, the report, and the runtime's own decisions made
//! again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use homing::recorded::Record;
use homing::{Features, Runtime};
use homing_lab::experiments::{
    Cell, Comparison, EXPERIMENTS, Experiment, GivenCosts, HostModel, MachineSet, Measure,
    NamedMachine, PUBLISHED, Part, Plan, PolicyChoice, Row, Shard, Sweep, error, figures, merge,
    report, rows, run, standings,
};

fn plan(seeds: u64, milliseconds: u64) -> Plan {
    Plan {
        machine: None,
        hosts: vec![HostModel::Cfs, HostModel::Confined],
        seeds,
        measured_ns: milliseconds * 1_000_000,
        features: Vec::new(),
        stale_ns: 0,
        costs: GivenCosts::default(),
    }
}

fn cells(names: &[&str], plan: &Plan) -> Vec<Cell> {
    names.iter().flat_map(|name| Experiment::find(name).unwrap().cells(plan)).collect()
}

fn simulate(cells: &[Cell]) -> Vec<Measure> {
    run(cells, &AtomicBool::new(false), |_, _| {}).unwrap()
}

#[test]
fn parts_put_together_are_the_whole_whatever_their_number() {
    let plan = plan(2, 20);
    let all = || cells(&["wq-latency", "aio-fsync"], &plan);
    let whole = simulate(&all());
    for parts in [1, 3] {
        let folder = tempfile::tempdir().unwrap();
        for number in 1..=parts {
            let shard: Shard = format!("{number}/{parts}").parse().unwrap();
            write(folder.path(), shard, &sweep(2, 20), simulate(&shard.of(all())));
        }
        // A part that is not whole is not read.
        std::fs::write(folder.path().join("4-of-4.jsonl.part"), "{").unwrap();
        assert!(merge(folder.path()).unwrap().measures == whole, "{parts} parts");
    }
}

fn write(folder: &Path, shard: Shard, sweep: &Sweep, measures: Vec<Measure>) -> PathBuf {
    let part = Part::open(folder, shard, sweep.clone()).unwrap();
    let path = part.path().to_owned();
    part.finish(measures).unwrap();
    path
}

/// This holds however it was stopped, even in the middle of a line.
#[test]
fn a_part_that_was_stopped_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let shard: Shard = "1/1".parse().unwrap();
    let all = || cells(&["aio-fsync"], &plan(1, 10));
    let whole = simulate(&all());
    let open = || Part::open(folder.path(), shard, sweep(1, 10)).unwrap();
    let part = open();
    assert_eq!((part.known(), part.left(all()).len()), (0, all().len()));
    for measure in &whole[..3] {
        part.note(measure).unwrap();
    }
    assert_eq!(part.kept(), 3);
    let unfinished = part.unfinished().to_owned();
    drop(part);
    let error = merge(folder.path()).unwrap_err().to_string();
    assert!(error.contains("1-of-1.jsonl.part is not whole"), "{error}");
    let text = std::fs::read_to_string(&unfinished).unwrap();
    std::fs::write(&unfinished, &text[..text.len() - 9]).unwrap();
    let part = open();
    let left = part.left(all());
    assert_eq!((part.known(), left.len()), (2, all().len() - 2), "the third was cut off");
    let again = simulate(&left);
    for measure in &again {
        part.note(measure).unwrap();
    }
    assert_eq!(part.finish(again).unwrap(), all().len());
    assert!(merge(folder.path()).unwrap().measures == whole && !unfinished.exists());
    // If it is asked for once more, there is nothing left to do.
    assert!(open().left(all()).is_empty());
    let other = Part::open(folder.path(), shard, sweep(1, 11)).unwrap_err().to_string();
    assert!(other.contains("1-of-1.jsonl") && other.contains("remove it"), "{other}");
}

fn sweep(seeds: u64, milliseconds: u64) -> Sweep {
    Sweep::new(&["wq-latency".to_owned()], &plan(seeds, milliseconds))
}

#[test]
fn parts_of_different_sweeps_are_not_put_together() {
    let folder = tempfile::tempdir().unwrap();
    for (part, milliseconds) in [("1/2", 20), ("2/2", 30)] {
        let shard: Shard = part.parse().unwrap();
        write(folder.path(), shard, &sweep(2, milliseconds), Vec::new());
    }
    let error = merge(folder.path()).unwrap_err().to_string();
    let named = ["2-of-2.jsonl", "20000000", "30000000"].map(|what| error.contains(what));
    assert_eq!(named, [true; 3], "{error}");
}

#[test]
fn what_cannot_be_put_together_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = |text: &str| {
        std::fs::write(folder.path().join("1-of-1.jsonl"), text).unwrap();
        merge(folder.path()).unwrap_err().to_string()
    };
    assert!(merge(folder.path()).unwrap_err().to_string().contains("no files"));
    assert!(error("{}\n").contains("line 1"));
    assert!(error("no json").contains("1-of-1.jsonl"));
    let line = r#"{"experiment":"wq","machine":"m","scenario":"s","policy":"p","host":"h","seed":0,"values":{"rate":1.0}}"#;
    let other = line.replace("1.0", "2.0");
    let shard: Shard = "1/1".parse().unwrap();
    std::fs::remove_file(folder.path().join("1-of-1.jsonl")).unwrap();
    let path = write(folder.path(), shard, &sweep(1, 20), Vec::new());
    let head = std::fs::read_to_string(path).unwrap();
    assert!(error(&format!("{head}{line}\n{other}\n")).contains("differs"));
    assert!(error(&format!("{head}{line}\n")).contains("has been cut off or changed"));
    let begin = head.lines().next().unwrap();
    let measures = simulate(&cells(&["aio-fsync"], &plan(1, 10))[..2]);
    std::fs::remove_file(folder.path().join("1-of-1.jsonl")).unwrap();
    let path = write(folder.path(), shard, &sweep(1, 20), measures);
    let whole = std::fs::read_to_string(path).unwrap();
    assert_eq!(merge(folder.path()).unwrap().measures.len(), 2);
    let changes =
        [("files_per_s", "files_per_m"), ("\"seed\":0", "\"seed\":7"), ("600.0", "601.0")];
    for (was, is) in changes {
        let changed = error(&whole.replacen(was, is, 1));
        assert!(changed.contains("has been cut off or changed"), "{was}: {changed}");
    }
    let cut = error(&format!("{begin}\n{line}\n{}", &other[..40]));
    assert!(cut.contains("has been cut off or changed"), "in the middle of a line: {cut}");
    let none = r#"{"part":{"number":0,"of":0},"runs":0,"lines":""}"#;
    assert!(error(&format!("{begin}\n{none}\n")).contains("line 2"));
    std::fs::remove_file(folder.path().join("1-of-1.jsonl")).unwrap();
    let third = write(folder.path(), "3/3".parse().unwrap(), &sweep(1, 20), Vec::new());
    let missing = |what| {
        let error = merge(folder.path()).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    missing("part 1 of 3 is missing");
    // The name of the file does not matter.
    std::fs::rename(third, folder.path().join("1-of-1.jsonl")).unwrap();
    missing("part 1 of 3 is missing");
    for text in ["0/3", "4/3", "1", "a/b", "1/0"] {
        let error = text.parse::<Shard>().unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

/// If the baseline did nothing, there is no change to tell or to draw.
#[test]
fn a_report_of_nothing_ends() {
    let mut measures = simulate(&cells(&["aio-fsync"], &plan(1, 10)));
    let baseline = Experiment::find("aio-fsync").unwrap().baseline;
    for measure in measures.iter_mut().filter(|measure| measure.key.policy == baseline) {
        measure.values.values_mut().for_each(|value| *value = 0.0);
    }
    let page = report(&measures, true, &plan(1, 10).settings());
    assert!(page.ends_with("</html>\n") && !page.contains("+inf") && !page.contains("NaN"));
}

#[test]
fn stopping_keeps_what_has_ended() {
    let cells = cells(&["aio-fsync"], &plan(1, 10));
    let stop = AtomicBool::new(false);
    let measures = run(&cells, &stop, |_, progress| {
        assert!(progress.done <= progress.of);
        stop.store(true, Ordering::Relaxed);
    });
    let count = measures.unwrap().len();
    assert!((1..cells.len()).contains(&count), "{count}");
}

#[test]
fn stopping_does_not_wait_for_the_end_of_a_simulation() {
    let days = cells(&["wq"], &plan(1, 1_000_000_000));
    let stop = AtomicBool::new(false);
    let measures = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(100));
            stop.store(true, Ordering::Relaxed);
        });
        run(&days[..2], &stop, |_, _| {}).unwrap()
    });
    assert!(measures.is_empty(), "{measures:?}");
}

/// The figures that the lab's page claims, with less simulated time.
#[test]
fn the_workqueue_tables_come_out_as_far_as_is_claimed() {
    let measures = simulate(&cells(&["wq"], &plan(3, 1_500)));
    let wq = Experiment::find("wq").unwrap();
    let rows = rows(wq, &measures, &GivenCosts::default());
    // Runs are the same each time, so these leave no room but for a change of the model.
    for (host, claimed) in [
        ("cfs", [("HIGH", 0.36), ("MED", 2.0), ("LOW", 6.4)]),
        ("confined", [("HIGH", 0.45), ("MED", 2.8), ("LOW", 6.1)]),
    ] {
        for (scenario, most) in claimed {
            let of = |row: &&Row| row.key.scenario == scenario && row.key.host == host;
            let error = error(wq, rows.iter().filter(of)).unwrap();
            assert!(error < most, "{scenario} on {host}: {error} points");
        }
    }
    // The signs are the published ones, except of changes that are all but nothing.
    for row in rows.iter().filter(|row| row.key.host == "cfs") {
        let published = row.published_delta_pct.filter(|delta| delta.abs() >= 0.1);
        let same = published.is_none_or(|delta| delta * row.delta_pct.unwrap() > 0.0);
        assert!(same, "{row:?}");
    }
    // What `SYSTEM` does at medium load was not fitted.
    for row in rows.iter().filter(|row| row.key.scenario == "MED" && row.key.policy == "SYSTEM") {
        let off = row.value.mean / row.published.unwrap() - 1.0;
        assert!(off.abs() < 0.02, "{row:?}");
    }
    // For LOW, the published rows of LOCAL lie between those of the two hosts.
    for policy in ["SYSTEM+LOCAL", "CACHE+LOCAL"] {
        let delta = |host: &str| {
            let row = rows.iter().find(|row| {
                row.key.scenario == "LOW" && row.key.host == host && row.key.policy == policy
            });
            (row.unwrap().delta_pct.unwrap(), row.unwrap().published_delta_pct.unwrap())
        };
        let ((low, published), (high, _)) = (delta("cfs"), delta("confined"));
        assert!(low - 3.0 <= published && published <= high + 3.0, "{policy}: {low} {high}");
    }
    // No wake-up is lost, and homing is nowhere behind SYSTEM by more than noise.
    for measure in &measures {
        assert!(measure.values["lost_wakes"] == 0.0, "{measure:?}");
    }
    let ours: Vec<_> = rows.iter().filter(|row| row.key.policy.starts_with("homing ")).collect();
    assert_eq!(ours.len(), 3 * 3 * 2, "three settings, three loads, two hosts");
    for row in ours {
        assert!(row.delta_pct.unwrap() > -1.0, "{row:?}");
    }
}

#[test]
fn one_cpu_has_one_load_of_pairs() {
    let loads = |grid: &str| -> BTreeSet<String> {
        let machine = Some(NamedMachine::find(grid).unwrap());
        let cells = cells(&["udp-rr"], &Plan { machine, ..plan(1, 10) });
        cells.into_iter().map(|cell| cell.key.scenario).collect()
    };
    assert_eq!(loads("1x1x1"), ["1 pair".to_owned()].into());
    assert_eq!(loads("1x1x2"), ["1 pair", "2 pairs"].map(str::to_owned).into());
}

/// This is what Aaron Lu saw: one lock for 64 CPUs collapses, shards do not.
#[test]
fn one_lock_for_a_large_cache_collapses_and_shards_do_not() {
    let machine = NamedMachine::find("xeon-8358-2s").unwrap();
    let plan = Plan { machine: Some(machine), ..plan(1, 200) };
    let measures = simulate(&cells(&["udp-rr"], &plan));
    let rows = rows(Experiment::find("udp-rr").unwrap(), &measures, &GivenCosts::default());
    let change = |scenario: &str, policy: &str| {
        let row = rows.iter().find(|row| row.key.scenario == scenario && row.key.policy == policy);
        row.unwrap().delta_pct.unwrap()
    };
    assert!(change("128 pairs", "swqueue") < -30.0);
    assert!(change("128 pairs", "swqueue, shards") > -2.0);
    assert!(change("1 pair", "swqueue") < 0.0);
}

/// A run that is made twice under the same name would count as two seeds.
#[test]
fn no_run_is_there_twice() {
    let features = vec![Features::ALL, Features::SWQUEUE, Features::NONE];
    let plan = Plan { features, ..plan(2, 10) };
    let once = |cells: &[Cell], what: &str| {
        let keys: BTreeSet<_> = cells.iter().map(|cell| &cell.key).collect();
        assert_eq!(keys.len(), cells.len(), "{what}");
    };
    for experiment in &EXPERIMENTS {
        once(&experiment.cells(&plan), experiment.name);
    }
    let machines = MachineSet::named(vec![NamedMachine::find("2x2x1").unwrap()]);
    let scopes = PolicyChoice { scopes: true, ..PolicyChoice::default() };
    let compared: Vec<Cell> = machines.cells(&plan, &scopes).collect();
    once(&compared, "compare");
    let parts: BTreeSet<_> = compared.iter().map(|cell| cell.key.policy.as_str()).collect();
    assert_eq!(parts.iter().filter(|name| name.contains(" (")).count(), 2, "{parts:?}");
}

/// Even if nothing costs anything, time passes.
#[test]
fn costs_that_are_given_are_charged() {
    let cells = |costs: &[&str]| {
        let costs: Vec<_> = costs.iter().map(|cost| cost.parse().unwrap()).collect();
        let costs = GivenCosts::of(&costs).unwrap();
        let machine = Some(NamedMachine::find("1x2x2x2").unwrap());
        let plan = Plan { machine, costs, hosts: vec![HostModel::Cfs], ..plan(1, 50) };
        let names = ["wq", "wq-latency", "udp-rr", "compile"];
        let mut cells: Vec<Cell> =
            names.iter().flat_map(|name| Experiment::find(name).unwrap().cells(&plan)).collect();
        let machines = MachineSet::random_one(3, 1);
        cells.extend(machines.cells(&plan, &PolicyChoice::default()));
        simulate(&cells)
    };
    let free: Vec<String> = GivenCosts::default()
        .usual()
        .all()
        .iter()
        .filter(|(name, _)| name.ends_with("_ns"))
        .map(|(name, _)| format!("{name}=0"))
        .collect();
    let free: Vec<&str> = free.iter().map(String::as_str).collect();
    let rates = |measures: Vec<Measure>| {
        let mut rates: BTreeMap<String, f64> = BTreeMap::new();
        for Measure { key, values } in measures {
            *rates.entry(key.experiment).or_default() += values["rate"];
        }
        rates
    };
    let dear = rates(cells(&["switch_ns=300000", "idle_exit_ns=300000"]));
    for (experiment, free) in rates(cells(&free)) {
        let dear = dear[&experiment];
        assert!(free > dear * 1.02, "{experiment}: {free} {dear}");
    }
}

#[test]
fn a_comparison_finds_what_loses() {
    // The machine on which that setting was published to lose.
    let machines = MachineSet::named(vec![NamedMachine::find("ryzen-9-3900x").unwrap()]);
    let plan = Plan { hosts: vec![HostModel::Cfs], ..plan(2, 1_000) };
    let choice = PolicyChoice { only: vec!["CACHE+STRICT".to_owned()], ..PolicyChoice::default() };
    let wanted = |cell: &Cell| cell.key.scenario == "LOW";
    let cells: Vec<Cell> = machines.cells(&plan, &choice).filter(wanted).collect();
    let measures = simulate(&cells);
    let strict = Comparison::new(&measures, |name| name == "CACHE+STRICT", |name| name == "SYSTEM");
    let (worst, _, _) = strict.spread("LOW").unwrap();
    assert!(worst < -3.0, "a setting that loses is seen to lose: {worst}");
    let standings = standings(&figures(&measures));
    let told: Vec<_> = standings.iter().map(|of| (of.policy.as_str(), of.first)).collect();
    assert_eq!(told, [("SYSTEM", 1), ("CACHE+STRICT", 0)]);
    assert!((standings[1].ahead_pct.mean - worst).abs() < 1e-9);
}

/// This is the machine of the published experiments, with less simulated time than the lab's page
/// has.
#[test]
fn auto_stays_close_to_the_best_fixed_scope() {
    let machines = MachineSet::named(vec![NamedMachine::find("ryzen-9-3900x").unwrap()]);
    let hosts = vec![HostModel::Cfs, HostModel::Confined];
    let plan = Plan { hosts, ..plan(2, 2_000) };
    let ours = |cell: &Cell| cell.key.policy.starts_with("homing");
    let scopes = PolicyChoice { scopes: true, ..PolicyChoice::default() };
    let cells: Vec<Cell> = machines.cells(&plan, &scopes).filter(ours).collect();
    for place in Comparison::of_auto(&simulate(&cells)).places {
        let room = 1.0 + 2.0 * place.noise_pct;
        assert!(place.ahead_pct > -room, "{place:?}");
    }
}

#[test]
fn the_report_is_whole_and_needs_nothing_else() {
    let plan = plan(1, 20);
    let names: Vec<&str> = EXPERIMENTS.iter().map(|e| e.name).filter(|n| *n != "items").collect();
    let costs = GivenCosts::of(&["wake_ns=801".parse().unwrap()]).unwrap();
    let plan = Plan { costs, ..plan };
    let page = report(&simulate(&cells(&names, &plan)), true, &plan.settings());
    assert!(page.contains("<tr><td>wake_ns</td><td>801</td><td class=\"text\">given</td>"));
    for name in names {
        assert!(page.contains(&format!("<h2>{name}</h2>")), "{name}");
    }
    assert!(!page.contains("http://www.w3.org/1999/xlink") || page.contains("<svg"));
    for outside in ["<script", "<link", "src=", "@import"] {
        assert!(!page.contains(outside), "{outside}");
    }
    for open in ["<table", "<div", "<svg", "<dl", "<ul"] {
        let close = open.replace('<', "</");
        assert_eq!(page.matches(open).count(), page.matches(&close).count(), "{open}");
    }
}

#[test]
fn each_published_figure_belongs_to_a_run() {
    let known: BTreeSet<(String, String, String, String)> = EXPERIMENTS
        .iter()
        .flat_map(|experiment| experiment.cells(&plan(1, 10)))
        .map(|cell| {
            let key = cell.key;
            (key.experiment, key.machine, key.scenario, key.policy)
        })
        .collect();
    for figure in PUBLISHED {
        let key = (
            figure.experiment.to_owned(),
            figure.machine.to_owned(),
            figure.scenario.to_owned(),
            figure.policy.to_owned(),
        );
        assert!(known.contains(&key), "{figure:?}");
    }
}

/// The runtime's decisions on this machine are made again from the same facts.
#[test]
fn recorded_decisions_are_made_again() {
    let runtime = Runtime::builder().record_decisions(100_000).build().unwrap();
    let workqueue = runtime.workqueue("recorded").build().unwrap();
    // The monitor looks at an item that runs for long.
    let long = workqueue.queue(|| {
        let began = std::time::Instant::now();
        while began.elapsed().as_millis() < 50 {}
    });
    assert!(long.join().is_ok());
    for round in 0..200_u64 {
        let _ = workqueue.hand_off(round * 1_000, round % 2 == 0);
        let handles: Vec<_> = (0..round % 20)
            .map(|item| workqueue.queue(move || std::hint::black_box(item) * 3))
            .collect();
        for handle in handles {
            assert!(handle.join().is_ok());
        }
    }
    let mut records = runtime.take_decisions();
    assert!(records.len() > 200, "{}", records.len());
    let chooses = runtime.workqueue("chooses").affinity_auto(true).build().unwrap();
    let is_chosen = |record: &Record| record.asked().name() == "choose";
    while !records.iter().any(is_chosen) {
        chooses.execute_batch((0..2_000_u64).map(|item| {
            move || {
                let _ = std::hint::black_box(item);
            }
        }));
        chooses.flush();
        records.extend(runtime.take_decisions());
    }
    for name in ["hand_off", "tick", "before_park"] {
        assert!(records.iter().any(|record| record.asked().name() == name), "{name} is missing");
    }
    for record in &records {
        assert_eq!(record.replay(runtime.layout()), Ok(record.decided()), "{record:?}");
    }
}
