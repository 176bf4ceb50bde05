//! `homing ls`, `get`, `set` and `wq` against a tree of our own: what they print, what they refuse,
//! and that gaps in the tree are gaps in the picture.

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use homing_control::{Attribute, AttributeError, AttributeTree, ControlSocket};
use rustix::process::Signal;
use serde_json::{Value, json};
use support::{Scratch, text, wait_for};

/// Attributes by path, each with whether it may be set.
#[derive(Default)]
struct Fake(Mutex<BTreeMap<String, (bool, String)>>);

impl Fake {
    fn put(&self, path: &str, value: &str) {
        let writable = !["pod/", "pool/", "thread/"].iter().any(|kind| path.starts_with(kind))
            && !["cpumask", "type", "counters"].iter().any(|name| path.ends_with(name));
        self.0.lock().unwrap().insert(path.to_owned(), (writable, value.to_owned()));
    }

    fn remove(&self, path: &str) {
        self.0.lock().unwrap().remove(path).unwrap();
    }
}

impl AttributeTree for Fake {
    fn list(&self) -> Vec<Attribute> {
        let all = self.0.lock().unwrap();
        let attribute = |(path, (writable, _)): (&String, &(bool, String))| Attribute {
            path: path.clone(),
            writable: *writable,
        };
        all.iter().map(attribute).collect()
    }

    fn get(&self, path: &str) -> Result<String, AttributeError> {
        let missing = || AttributeError::not_found(path);
        self.0.lock().unwrap().get(path).map(|(_, value)| value.clone()).ok_or_else(missing)
    }

    fn set(&self, path: &str, value: &str) -> Result<(), AttributeError> {
        let (path, value) = (path.to_owned(), value.to_owned());
        match self.0.lock().unwrap().get_mut(&path) {
            None => Err(AttributeError::NotFound { path }),
            Some((false, _)) => Err(AttributeError::ReadOnly { path }),
            Some(_) if path.ends_with("/nice") && value.parse::<i8>().is_err() => {
                let accepted = "a number from -20 to 19".to_owned();
                Err(AttributeError::Value { path, value, accepted })
            }
            Some((true, held)) => {
                *held = value;
                Ok(())
            }
        }
    }
}

const ATTRIBUTES: &[(&str, &str)] = &[
    ("module/default_affinity_scope", "cache"),
    ("module/cpumask", "0-3"),
    ("pod/cpu/cpus", "0\n1\n2\n3"),
    ("pod/cpu/node", "0\n0\n1\n1"),
    ("pod/cache/cpus", "0,1\n2,3\n"),
    ("pod/cache/node", "0\n-1\n"),
    ("pod/system/cpus", "0-3"),
    ("pod/system/node", "-1"),
    (
        "pool/2",
        "affinity_scope cache\naffinity_strict 1\nlocalize 0\npull_cost 100\nnice 0\nblocking 0\ncpumask 0-3\nref 1\n\
         queue 0 0,1 0\nqueue 2 2,3 17\n",
    ),
    ("pool/10", "affinity_scope cpu\nnice -5\nref 2\nqueue 0 0 0\nqueue 3 3 1"),
    ("workqueue/crypt/type", "unbound,S"),
    ("workqueue/crypt/flags", "mem_reclaim highpri"),
    ("workqueue/crypt/per_cpu", "0"),
    ("workqueue/crypt/affinity_scope", "default (cache)"),
    ("workqueue/crypt/nice", "0"),
    ("workqueue/crypt/max_active", "8"),
    ("workqueue/crypt/min_active", "4"),
    ("workqueue/crypt/pool", "2"),
    ("workqueue/crypt/active", "N0 3/4 0\nN1 4/4 5\n"),
    ("workqueue/crypt/rescuer", "4711 0-3"),
    (
        "workqueue/crypt/counters",
        "queued 120\nstarted 110\ncompleted 100\ninfl 10\ncpu_time_ns 12345678900\n\
         cpu_intensive 3\ncm_wakeup -\nrepatriated 6\nmayday 2\nrescued 1\npulled_home 90\n\
         pulled_llc 15\npulled_node 4\npulled_remote 1\nqueue_age_p50_ns 800\n\
         queue_age_p99_ns 45600\ninactive 5\n",
    ),
    ("workqueue/flush/type", "per_cpu"),
    ("workqueue/flush/flags", ""),
    ("workqueue/flush/per_cpu", "1"),
    ("workqueue/flush/pool", "10"),
    ("workqueue/flush/active", "cpu0 1/1 0"),
    ("workqueue/flush/rescuer", "none"),
    (
        "workqueue/flush/counters",
        "started 5\ncompleted 5\ncpu_time_ns 0\ncpu_intensive 0\ncm_wakeup 7\nrepatriated -\n\
         mayday 0\nrescued 0\n",
    ),
];

struct Setup {
    scratch: Scratch,
    tree: Arc<Fake>,
    socket: Option<ControlSocket>,
}

fn setup() -> Setup {
    let scratch = Scratch::new();
    let tree = Arc::new(Fake::default());
    for (path, value) in ATTRIBUTES {
        tree.put(path, value);
    }
    let socket = Some(ControlSocket::listen(scratch.path("control"), tree.clone()).unwrap());
    Setup { scratch, tree, socket }
}

impl Setup {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_homing"));
        command.current_dir(self.scratch.path("")).args(args).env("HOMING_SOCKET", "control");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = self.command(args);
        let mut child = command.spawn().unwrap();
        if wait_for(&mut child).is_none() {
            child.kill().unwrap();
        }
        child.wait_with_output().unwrap()
    }

    /// Runs a command that must succeed, and returns what it prints.
    fn printed(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success() && output.stderr.is_empty(), "{args:?}: {output:?}");
        text(&output.stdout)
    }

    fn json(&self, args: &[&str]) -> Value {
        let printed = self.printed(args);
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
    }

    /// Checks that a command fails, but not by a panic, and says each of `mentions`.
    fn refused(&self, args: &[&str], mentions: &[&str]) {
        let output = self.run(args);
        let stderr = text(&output.stderr);
        assert!(output.status.code().is_some_and(|code| code != 0 && code != 101), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        for mention in mentions {
            assert!(stderr.contains(mention), "{args:?}: no {mention:?} in {stderr}");
        }
    }
}

#[test]
fn attributes_are_listed_read_and_set() {
    let setup = setup();
    assert_eq!(setup.printed(&["ls"]).lines().count(), ATTRIBUTES.len());
    let expected = "ro module/cpumask\nrw module/default_affinity_scope\n";
    assert_eq!(setup.printed(&["ls", "module"]), expected);
    let expected = json!([{ "path": "pool/2", "writable": false }]);
    assert_eq!(setup.json(&["ls", "pool/2", "--json"]), expected);

    assert_eq!(setup.printed(&["get", "workqueue/crypt/nice"]), "0\n");
    assert_eq!(setup.printed(&["get", "pod/cache/cpus"]), "0,1\n2,3\n");
    let expected = json!({ "path": "workqueue/flush/flags", "value": "" });
    assert_eq!(setup.json(&["get", "workqueue/flush/flags", "--json"]), expected);

    assert_eq!(setup.printed(&["set", "workqueue/crypt/nice", "-5"]), "");
    assert_eq!(setup.tree.get("workqueue/crypt/nice").unwrap(), "-5");
    let expected = json!({ "path": "workqueue/crypt/nice", "value": "3" });
    assert_eq!(setup.json(&["set", "workqueue/crypt/nice", "3", "--json"]), expected);
    assert_eq!(setup.tree.get("workqueue/crypt/nice").unwrap(), "3");
}

#[test]
fn a_name_does_nothing_to_a_terminal() {
    let setup = setup();
    setup.tree.put("group/a\u{1b}[2J\nrw b\u{9b}/min", "0");
    let shown = "group/a\\u{1b}[2J\\nrw b\\u{9b}/min";
    assert_eq!(setup.printed(&["ls", "group"]), format!("rw {shown}\n"));
    setup.printed(&["set", shown, "6"]);
    assert_eq!(setup.printed(&["get", shown]), "6\n", "as it is listed");
    let expected = json!([{ "path": "group/a\u{1b}[2J\nrw b\u{9b}/min", "writable": true }]);
    assert_eq!(setup.json(&["ls", "group", "--json"]), expected);

    setup.tree.put("workqueue/a\u{1b}[2J\nb/counters", "started 1");
    setup.tree.put("pod/c\u{9b}2J\nd/cpus", "0");
    setup.tree.put("module/value", "e\u{1b}[2J\nf\u{7f}");
    assert_eq!(setup.printed(&["get", "module/value"]), "e\\u{1b}[2J\nf\\u{7f}\n");
    setup.tree.put("workqueue/g\u{9b}2J\u{7f}/counters", "started 1");
    let monitored = setup.printed(&["wq", "monitor", "-i", "0"]);
    let dumped = setup.printed(&["wq", "dump"]);
    let monitored_json = setup.printed(&["wq", "monitor", "-i", "0", "--json"]);
    let dumped_json = setup.printed(&["wq", "dump", "--json"]);
    let got_json = setup.printed(&["get", "module/value", "--json"]);
    let asked = setup.run(&["get", "workqueue/a\u{1b}[2J\nb/counter"]).stderr;
    for (printed, name) in [
        (&monitored, "\na\\u{1b}[2J\\nb "),
        (&dumped, "\na\\u{1b}[2J\\nb "),
        (&dumped, "\nc\\u{9b}2J\\nd\n"),
        (&text(&asked), "a\\u{1b}[2J"),
        (&monitored_json, "\"g\\u009b2J\\u007f\""),
        (&dumped_json, "\"g\\u009b2J\\u007f\""),
        (&got_json, "f\\u007f\""),
    ] {
        assert!(printed.contains(name), "{printed:?}");
        assert!(!printed.chars().any(|c| c.is_control() && c != '\n'), "{printed:?}");
    }
}

#[test]
fn what_cannot_be_is_named_with_a_way_out() {
    let setup = setup();
    setup.refused(&["get", "workqueue/crpyt/nice"], &["did you mean workqueue/crypt/nice?"]);
    setup.refused(&["get", "something else"], &["something else", "homing ls"]);
    for path in ["workqueue/crypt", "workqueue/crypt/"] {
        let mentions = ["\"workqueue/crypt\" is no attribute", "`homing ls workqueue/crypt`"];
        setup.refused(&["get", path], &mentions);
    }
    setup.refused(&["set", "crypt/nice", "1"], &["did you mean workqueue/crypt/nice?"]);
    setup.refused(&["set", "module/cpumask", "0"], &["module/cpumask", "can be read, not set"]);
    let mentions = ["workqueue/crypt/nice", "\"42x\"", "a number from -20 to 19"];
    setup.refused(&["set", "workqueue/crypt/nice", "42x"], &mentions);
    setup.refused(&["ls", "work"], &["\"work\"", "homing ls"]);
    setup.refused(&["wq", "monitor", "crypt", "a["], &["a[", "unclosed"]);
    setup.refused(&["wq", "monitor", "-i", "soon"], &["soon", "number of seconds"]);
    assert_eq!(setup.tree.get("workqueue/crypt/nice").unwrap(), "0");
}

#[test]
fn a_program_that_is_not_there_is_asked_about() {
    let mut setup = setup();
    for command in [&["ls"][..], &["get", "a"], &["set", "a", "1"], &["wq", "dump"]] {
        let elsewhere = [command, &["--socket", "nowhere"]].concat();
        setup.refused(&elsewhere, &["nowhere", "is the program running, with --control?"]);
    }
    setup.socket = None;
    setup.refused(&["wq", "monitor"], &["control", "is the program running"]);
    let mut command = setup.command(&["ls"]);
    let output = command.env_remove("HOMING_SOCKET").output().unwrap();
    assert!(text(&output.stderr).contains("--socket <SOCKET>"), "{output:?}");
    for args in [&["ls"][..], &["get"], &["set"], &["wq", "dump"], &["wq", "monitor"]] {
        let help = setup.printed(&[args, &["--help"]].concat());
        assert!(help.contains("Examples:") && help.contains("HOMING_SOCKET"), "{help}");
    }
}

#[test]
fn a_dump_has_five_sections() {
    let setup = setup();
    let dump = setup.printed(&["wq", "dump"]);
    let expected = "\
Affinity Scopes
===============
CPUs that have workers: 0-3

cpu
  nr_pods   4
  pod_cpus  [0]=0 [1]=1 [2]=2 [3]=3
  pod_node  [0]=0 [1]=0 [2]=1 [3]=1

cache (default)
  nr_pods   2
  pod_cpus  [0]=0,1 [1]=2,3
  pod_node  [0]=0 [1]=-

system
  nr_pods   1
  pod_cpus  [0]=0-3
  pod_node  [0]=-

Worker Pools
============
pool  ref  nice  scope  strict  localize  pull  blocking  cpus
2     1    0     cache  1       0         100   0         0-3
10    2    -5    cpu    -       -         -     -         -

pool  home queue  cpus  waiting
2     0           0,1   0
2     2           2,3   17
10    0           0     0
10    3           3     1

Workqueue CPU -> pool
=====================
workqueue  type       pool  CPU  0  1  2  3
crypt      unbound,S  2          0  0  2  2
flush      per_cpu    10         0  -  -  3

Workqueue -> rescuer
====================
workqueue  rescuer  cpus
crypt      4711     0-3
flush      -        -

Unbound workqueue -> node_nr/max_active
=======================================
workqueue  min_active  max_active   N0      N1
crypt               4           8  3/4  4/4 +5
";
    assert_eq!(dump, expected, "\n{dump}");

    let dump = setup.json(&["wq", "dump", "--json"]);
    assert_eq!(dump["default_affinity_scope"], json!("cache"));
    assert_eq!(dump["affinity_scopes"][1]["pods"][0], json!({ "cpus": "0,1", "node": 0 }));
    assert_eq!(dump["pools"][0]["queues"][1], json!({"leader": "2", "cpus": "2,3", "waiting": 17}));
    assert_eq!(dump["pools"][1]["attributes"]["nice"], json!("-5"));
    assert_eq!(dump["workqueues"][0]["type"], json!("unbound,S"));
    let active = json!({ "slot": "N1", "active": "4/4", "inactive": 5 });
    assert_eq!(dump["workqueues"][0]["active"][1], active);
}

#[test]
fn the_table_of_the_monitor_is_the_kernels_and_more() {
    let setup = setup();
    let table = setup.printed(&["wq", "monitor", "-i", "0"]);
    let lines: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
    let header = "total infl CPUtime CPUhog CMW/RPR mayday rescued home llc node remote age_p99";
    assert_eq!(lines[0].join(" "), header);
    assert_eq!(lines[1].join(" "), "crypt 110 10 12.3 3 6 2 1 90 15 4 1 45.6us");
    assert_eq!(lines[2].join(" "), "flush 5 0 0.0 0 7 - - - - - - -");
    assert_eq!(lines.len(), 3, "{table}");
    let ends = |line: &str, column: &str| line.find(column).unwrap() + column.len();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(ends(lines[0], "total"), ends(lines[1], " 110"), "\n{table}");
    assert_eq!(ends(lines[0], "CMW/RPR"), ends(lines[2], " 7"), "\n{table}");

    let filtered = |args: &[&str]| {
        let lines = setup.printed(&[&["wq", "monitor", "-i0"], args].concat());
        lines.lines().skip(1).map(|l| l.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(filtered(&["^cr"]), ["crypt"]);
    assert_eq!(filtered(&["ush", "^c"]), ["crypt", "flush"]);
    setup.refused(&["wq", "monitor", "-i0", "^ush"], &["^ush", "crypt, flush"]);
}

#[test]
fn the_monitor_prints_an_object_for_each_workqueue() {
    let setup = setup();
    let lines = setup.printed(&["wq", "monitor", "-i", "0", "--json"]);
    let mut rows = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut crypt = rows.next().unwrap();
    assert!(crypt["timestamp"].as_f64().unwrap() > 1e9);
    crypt.as_object_mut().unwrap().remove("timestamp");
    let expected = json!({
        "name": "crypt", "unbound": true, "mem_reclaim": true, "started": 110, "completed": 100,
        "cpu_time": 12_345_678, "cpu_intensive": 3, "cm_wakeup": null, "repatriated": 6,
        "mayday": 2, "rescued": 1, "queue_age_p99_ns": 45600,
        "pulls": { "home": 90, "llc": 15, "node": 4, "remote": 1 },
    });
    assert_eq!(crypt, expected);
    let flush = rows.next().unwrap();
    assert_eq!(flush["mayday"], Value::Null);
    assert_eq!(flush["pulls"]["home"], Value::Null);
    assert!(rows.next().is_none());
}

#[test]
fn a_gap_in_the_tree_is_a_gap_in_the_picture() {
    let setup = setup();
    // Whatever is missing, and whatever stands in its place, nothing fails.
    for (path, value) in ATTRIBUTES {
        for odd in [None, Some(""), Some("?"), Some("\n\n"), Some("queue\nx 1\n- -"), Some("-1")] {
            match odd {
                None => setup.tree.remove(path),
                Some(odd) => setup.tree.put(path, odd),
            }
            assert!(setup.printed(&["wq", "dump"]).contains("node_nr"), "{path}: {odd:?}");
            assert!(setup.printed(&["wq", "monitor", "-i0"]).contains("crypt"), "{path}: {odd:?}");
        }
        setup.tree.put(path, value);
    }
    setup.tree.put("workqueue/a/b/nice", "0");
    setup.tree.put("workqueue/crypt/news", "0");
    setup.tree.put("galaxy/far/away", "0");
    let table = setup.printed(&["wq", "monitor", "-i0"]);
    let row: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row.join(" "), "a/b - - - - - - - - - - - -");
    setup.tree.put("workqueue/crypt/in/nice", "0"); // among those of crypt
    let table = setup.printed(&["wq", "monitor", "-i0", "crypt"]);
    assert_eq!(table.lines().count(), 3, "{table}");
    setup.tree.remove("workqueue/crypt/in/nice");
    for (path, _) in ATTRIBUTES {
        setup.tree.remove(path);
    }
    assert!(setup.printed(&["wq", "dump"]).contains("CPUs that have workers: -"));
}

#[test]
fn the_monitor_goes_on_until_a_signal() {
    for signal in [Signal::INT, Signal::TERM] {
        let setup = setup();
        let mut child = setup.command(&["wq", "monitor", "crypt", "-i", "0.05"]).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.by_ref().any(|line| line.contains(" 110 ")));
        let counters = "started 111\n";
        setup.tree.put("workqueue/crypt/counters", counters);
        assert!(lines.by_ref().any(|line| line.contains(" 111 ")));
        support::signal(&child, signal);
        let status = wait_for(&mut child).expect("the monitor ends");
        assert_eq!(status.code(), Some(0));
        assert_eq!(lines.last().as_deref(), Some(""), "its last table is whole");
    }
}

#[test]
fn the_monitor_ends_when_nobody_reads_or_answers_any_more() {
    let mut setup = setup();
    let began = Instant::now();
    let mut child = setup.command(&["wq", "monitor", "-i", "600"]).spawn().unwrap();
    let mut first = [0];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap(); // then leaves, as `head` does
    let status = wait_for(&mut child).expect("the monitor ends");
    assert_eq!(status.code(), Some(0));

    let mut child = setup.command(&["wq", "monitor", "-i", "0.05"]).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    setup.socket = None;
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("is the program running"), "{output:?}");
    assert!(began.elapsed() < Duration::from_secs(60));
}
