use std::collections::BTreeMap;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::top::sample::Sample;

const BEFORE: &[(&str, &str)] = &[
    ("cpu/0", "items 100\nbusy_ns 0\nparks 10\nsearched_ns 0"),
    ("cpu/1", "items 5\nbusy_ns 0\nparks 0\nsearched_ns 0"),
    ("thread/1", "cpu 0\nworkqueue crypt\nrunning_ns 1500\nstate running"),
    ("thread/2", "cpu 1\nworkqueue -\nrunning_ns 0\nstate idle"),
    ("workqueue/crypt/affinity_scope", "default (cache_shard)"),
    ("workqueue/crypt/counters", "started 0\ninfl 3\ncpu_time_ns 0\nwoken 0\npulled_home 0"),
    ("workqueue/flush/counters", "started 9\ncpu_time_ns 0"),
    (
        "durable/counters",
        "asked 0\nbatches 0\nshared 0\nfailed 0\nlatency_p50_ns 2500000\nlatency_p99_ns -",
    ),
    ("durable/filesystems", "8:1 waiting 0"),
    ("durable/sharing", "auto"),
    ("durable/strategy", "files"),
    ("cache/size", "1073741824"),
    ("cache/memory", "1073741824"),
    ("cache/used", "536870912"),
    ("cache/group/a/b/stat", "usage 4096\ndirty 0\nhits 0\nmisses 0\nwrite_backs 0"),
    ("object_cache/x/y/capacity", "100000"),
    ("object_cache/x/y/stat", "entries 20\nweight 1500\nhits 5\nmisses 5\ninsertions 5"),
    ("export/a/b/stat", "clients 3\nin_flight 2\nread_requests 10\nread_bytes 0\nread_errors 1"),
    ("export/a/b/latency_ns", "read 1000 10\nwrite 5000 7"),
    ("module/cpu_time_ns", "5000000000"),
    ("module/stalls", "0"),
];

const NOW: &[(&str, &str)] = &[
    ("cpu/0", "items 2100\nbusy_ns 1000000000\nparks 30\nsearched_ns 0"),
    ("cpu/1", "items 1\nbusy_ns 0\nparks 0\nsearched_ns 0"),
    (
        "workqueue/crypt/counters",
        "started 250000\ninfl 3\ncpu_time_ns 3000000000\nwoken 4\npulled_home 0",
    ),
    ("workqueue/flush/counters", "started 9\ncpu_time_ns 0\nqueue_age_p99_ns 1500"),
    (
        "durable/counters",
        "asked 20\nbatches 16\nshared 4\nfailed 2\nlatency_p50_ns 2500000\nlatency_p99_ns -",
    ),
    ("cache/group/a/b/stat", "usage 4096\ndirty 0\nhits 30\nmisses 10\nwrite_backs 0"),
    (
        "export/a/b/stat",
        "clients 3\nin_flight 2\nread_requests 310\nread_bytes 8000000\nread_errors 2",
    ),
    ("export/a/b/latency_ns", "read 1000 11\nread 2000 297\nread 1500000 2\nwrite 5000 7"),
    ("module/cpu_time_ns", "8000000000"),
    ("object_cache/x/y/stat", "entries 21\nweight 1600\nhits 8\nmisses 6\ninsertions 9"),
];

fn sample(values: &[&[(&str, &str)]]) -> Sample {
    let values = values.iter().flat_map(|values| values.iter());
    let values: BTreeMap<_, _> =
        values.map(|(path, value)| ((*path).to_owned(), (*value).to_owned())).collect();
    Sample::of(values)
}

fn rates() -> Rates {
    let before = sample(&[BEFORE]);
    let mut now = sample(&[BEFORE, NOW]);
    now.at = before.at + Duration::from_secs(2);
    Rates::between(Some(&before), &now)
}

fn drawn(view: &View, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view)).unwrap();
    let cells = terminal.backend().buffer().content();
    let lines = cells.chunks(usize::from(width.max(1)));
    let lines =
        lines.map(|line| line.iter().map(ratatui::buffer::Cell::symbol).collect::<String>());
    lines.map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[test]
fn rates_are_differences_by_time_and_unknown_where_a_counter_went_back() {
    let rates = rates();
    assert_eq!(rates.seconds, Some(2.0));
    let [zero, one] = &rates.cpus[..] else { panic!("{:?}", rates.cpus) };
    assert_eq!(
        (zero.busy, zero.items_per_s, zero.sleeps_per_s),
        (Some(0.5), Some(1000.0), Some(10.0))
    );
    assert_eq!((zero.workqueue.as_deref(), zero.running_ns), (Some("crypt"), Some(1500)));
    assert_eq!(
        (one.items_per_s, one.workqueue.as_deref()),
        (None, None),
        "its program is a new one"
    );
    let crypt = &rates.workqueues[0];
    assert_eq!(
        (crypt.items_per_s, crypt.cpus, crypt.in_flight),
        (Some(125_000.0), Some(1.5), Some(3))
    );
    assert_eq!(crypt.pulled_per_s, [Some(0.0), None, None, None]);
    let durability = rates.durability.unwrap();
    assert_eq!((durability.asked_per_s, durability.failed), (Some(10.0), Some(2)));
    assert_eq!(durability.callers_per_sync, Some(1.25));
    assert_eq!((durability.latency_p50_ns, durability.latency_p99_ns), (Some(2_500_000), None));
    let group = &rates.cache.unwrap().groups[0];
    assert_eq!(
        (group.name.as_str(), group.hit_ratio, group.asked_per_s),
        ("a/b", Some(0.75), Some(20.0))
    );
    let [export] = &rates.exports[..] else { panic!("{:?}", rates.exports) };
    assert_eq!((export.name.as_str(), export.clients, export.in_flight), ("a/b", Some(3), Some(2)));
    let Operation { requests_per_s, bytes_per_s, errors, .. } = export.read;
    assert_eq!((requests_per_s, bytes_per_s, errors), (Some(150.0), Some(4e6), Some(2)));
    let latencies = |of: &Operation| (of.latency_p50_ns, of.latency_p99_ns);
    assert_eq!(latencies(&export.read), (Some(2000), Some(2000)), "only of the last two seconds");
    assert_eq!((latencies(&export.write), export.write.errors), ((None, None), None));
    let cache = &rates.object_caches[0];
    assert_eq!((cache.name.as_str(), cache.weight), ("x/y", Some(1600)));
    assert_eq!((cache.hit_ratio, cache.asked_per_s), (Some(0.75), Some(2.0)));
    assert_eq!((cache.insertions_per_s, cache.evictions_per_s), (Some(2.0), None));
}

#[test]
fn without_a_sample_before_there_are_no_rates() {
    let rates = Rates::between(None, &sample(&[BEFORE]));
    assert_eq!((rates.seconds, rates.cpus[0].busy), (None, None));
    assert_eq!(rates.workqueues[0].in_flight, Some(3));
    let empty = Rates::between(None, &sample(&[]));
    assert!(
        empty.durability.is_none()
            && empty.exports.is_empty()
            && empty.cache.is_none()
            && empty.cpus.is_empty()
    );
}

#[test]
fn an_ordinary_terminal_shows_all_panels() {
    let view = View { program: "disk.control".to_owned(), rates: rates(), ..View::default() };
    let text = drawn(&view, 80, 24);
    for part in [
        "homing top  disk.control  within 2.0 s",
        "Workers: 0.5 of 2 busy, 1000 items/s, 10 sleeps/s; process: 1.50 CPUs",
        "   0 [||||||||        ]  50 %    1000 items/s      10 sleeps/s  crypt for 1.5us",
        "Exports: 1, 3 clients, 2 errors",
        "a/b          2      2    150  4.0M   2.0us      -     -       -     -       -",
        "Workqueues",
        "Durability: 1.2 callers a sync",
        "10 syncs/s, 2.0 shared one",
        "p50 2.5ms, p99 -, 2 failed   strategy files, by -",
        "Cache: 512 MiB of 1 GiB used",
        "75.0 %",
        "Caches of objects",
        "x/y           21   1600     100k  75.0 %     2.0      2.0       -        -",
        "q end   space stand still   s sort (by CPU time)",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    let line = |name: &str| text.lines().position(|line| line.starts_with(name)).unwrap();
    assert!(line("crypt") < line("flush"), "{text}");
    let crypt: Vec<_> = text.lines().nth(line("crypt")).unwrap().split_whitespace().collect();
    assert_eq!(
        crypt,
        ["crypt", "cache_shard", "125k", "1.50", "3", "2.0", "0", "-", "-", "-", "-"]
    );
}

#[test]
fn what_does_not_apply_to_a_server_is_not_shown() {
    let now = sample(&[BEFORE, &[("durable/filesystems", "")]]);
    let rates = Rates::between(None, &now);
    assert_eq!(rates.durability.as_ref().and_then(|of| of.strategy.as_deref()), None);
    let text = drawn(&View { rates, ..View::default() }, 80, 24);
    assert!(text.contains("0 failed   sharing auto") && !text.contains("strategy"), "{text}");
}

#[test]
fn any_size_of_terminal_and_any_number_of_cpus_can_be_drawn() {
    for cpus in [0, 1, 8, 9, 1024] {
        let mut rates = rates();
        rates.cpus = (0..cpus)
            .map(|cpu| Cpu { cpu: cpu.to_string(), busy: Some(2.0), ..Cpu::default() })
            .collect();
        let view = View { rates, trouble: Some("gone".to_owned()), ..View::default() };
        for (width, height) in [(0, 0), (1, 1), (20, 5), (80, 24), (300, 100)] {
            let text = drawn(&view, width, height);
            assert_eq!(text.contains("trying again: gone"), width >= 20, "{width}x{height}");
        }
    }
}

#[test]
fn colors_are_used_only_where_they_are_wanted() {
    for colors in [false, true] {
        let view = View { rates: rates(), colors, ..View::default() };
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| draw(frame, &view)).unwrap();
        let cells = terminal.backend().buffer().content();
        assert_eq!(cells.iter().any(|cell| cell.fg != Color::Reset), colors);
    }
}

#[test]
fn rates_have_five_characters_at_most() {
    let rates = [0.0, 0.04, 9.96, 9_999.6, 99_999.0, 999_600.0, 1e8, 9.996e8, 1.2e10, 1.2e11];
    let texts = rates.map(|of| rate(Some(of)));
    let expected = ["0", "0.0", "10", "10.0k", "100k", "1.0M", "100M", "1.0G", "12.0G", "120G"];
    assert_eq!(texts, expected);
}

#[test]
fn exports_that_stand_come_first_and_then_the_busiest() {
    let export = |name: &str, in_flight, rate| Export {
        name: name.to_owned(),
        in_flight: Some(in_flight),
        write: Operation { requests_per_s: Some(rate), ..Operation::default() },
        ..Export::default()
    };
    let exports = [
        export("idle", 0, 0.0),
        export("busy", 9, 5.0),
        export("also idle", 0, 0.0),
        export("stuck", 1, 0.0),
    ];
    let names: Vec<_> = busiest_first(&exports).iter().map(|of| of.name.as_str()).collect();
    assert_eq!(names, ["stuck", "busy", "also idle", "idle"]);
}

#[test]
fn what_has_no_room_is_counted_and_failing_groups_come_first() {
    let mut rates = rates();
    let export = |number: u32| Export { name: format!("e{number}"), ..Export::default() };
    rates.exports = (0..40).map(export).collect();
    let group = |number: u32| Group {
        name: format!("g{number:02}"),
        asked_per_s: Some(f64::from(number)),
        write_back_errors: Some(u64::from(number == 7)),
        ..Group::default()
    };
    rates.cache.as_mut().unwrap().groups = (0..40).map(group).collect();
    let view = View { rates, ..View::default() };
    let text = drawn(&view, 80, 60);
    for part in
        ["Exports: 40 (14 shown)", "of 1 GiB used, 40 (14 shown) groups", "Caches of objects, 1 "]
    {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    let groups: Vec<_> = text.lines().filter_map(|line| line.get(..3)).collect();
    let groups: Vec<_> = groups.iter().filter(|name| name.starts_with('g')).collect();
    assert_eq!(groups[1..4], [&"g07", &"g39", &"g38"], "{text}");
}

#[test]
fn on_a_wide_terminal_figures_stay_beside_their_names() {
    let view = View { rates: rates(), ..View::default() };
    let text = drawn(&view, 200, 30);
    let line = text.lines().find(|line| line.starts_with("crypt")).unwrap();
    assert!(line.len() < 80, "{line}");
}

#[test]
fn a_column_without_room_is_left_out() {
    let view = View { rates: rates(), ..View::default() };
    let headers = |width, first: &str| {
        let text = drawn(&view, width, 30);
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(first));
        line.unwrap_or_default().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    for (first, all) in [
        ("scope", "scope items/s CPUs infl woken home llc node remote age_p99"),
        ("infl", "infl errors reads B/s p99 writes B/s p99 flush p99"),
        ("group", "group usage dirty hits asked/s refaults evicted written"),
    ] {
        let all: Vec<_> = all.split(' ').map(str::to_owned).collect();
        assert_eq!(headers(80, first), all);
        for width in 20..80 {
            let some = headers(width, first);
            assert!(!some.is_empty() && all.starts_with(&some), "{width}: {some:?}");
        }
        assert!(headers(40, first).len() < all.len());
    }
}
