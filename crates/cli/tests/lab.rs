//! `homing lab trace`: tables for people, JSON for programs, errors that say what to do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Keys, in the order of their accesses, and which are writes.
type Accesses = Vec<(u64, bool)>;

/// A loop over 50 pages with a working set of 5, some of it written.
fn accesses() -> Accesses {
    let pages = (0..4000_u64).flat_map(|n| [(n % 50, false), (100 + n % 5, n % 7 == 0)]);
    pages.collect()
}

/// Writes a container into a folder.
fn container(folder: &Path, name: &str, accesses: &[(u64, bool)]) -> PathBuf {
    let mut bytes = b"CTR1\x01\0\0\0".to_vec();
    bytes.extend((accesses.len() as u64).to_le_bytes());
    for (key, write) in accesses {
        bytes.extend(key.to_le_bytes());
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend(u16::from(*write).to_le_bytes());
        bytes.extend(0_u16.to_le_bytes());
    }
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn lab(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_homing"));
    command.current_dir(folder).args(["lab", "trace"]).args(args).output().unwrap()
}

fn succeeds(folder: &Path, args: &[&str]) -> String {
    let output = lab(folder, args);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {errors}");
    // There is no progress bar without a terminal.
    assert_eq!(errors, "", "{args:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(folder: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&succeeds(folder, args)).unwrap()
}

fn with_a_trace() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    container(folder.path(), "a.ctr", &accesses());
    folder
}

#[test]
fn one_replay_is_an_object() {
    let folder = with_a_trace();
    let replay = json(folder.path(), &["a.ctr", "--size", "20%", "--policy", "lru", "--json"]);
    let number = |key: &str| replay[key].as_u64().unwrap();
    assert_eq!(replay["trace"], "a");
    assert_eq!(replay["policy"], "lru");
    assert_eq!(replay["size"], "20%");
    assert_eq!((number("capacity"), number("pages"), number("requests")), (11, 55, 8000));
    // The working set is held, the loop is not.
    assert_eq!((number("hits"), number("evictions")), (3995, 4005 - 11));
    let ratio = replay["hit_ratio"].as_f64().unwrap();
    assert!((ratio - 3995.0 / 8000.0).abs() < 1e-12);
    assert_eq!(number("io"), number("writebacks") + 4005 - 1);
    assert!(replay["seconds"].as_f64().unwrap() > 0.0);
    assert!(replay["accesses_per_second"].as_f64().unwrap() > 0.0);
    assert!(replay.get("tenants").is_none());
}

#[test]
fn text_is_replayed_like_a_container() {
    let folder = with_a_trace();
    let keys: Vec<String> = accesses().iter().map(|(key, _)| key.to_string()).collect();
    let rows: Vec<String> = keys.iter().map(|key| format!("1,{key},4096")).collect();
    let rows = rows.join("\n");
    fs::write(folder.path().join("a.txt"), keys.join("\n")).unwrap();
    fs::write(folder.path().join("a.csv"), format!("time,obj_id,obj_size\n{rows}")).unwrap();
    fs::write(folder.path().join("rows"), rows).unwrap();
    // To this policy a write is an access like any other.
    let lru = ["--policy", "lru", "--json"];
    let hits = |args: &[&str]| json(folder.path(), &[args, &lru].concat())["hits"].clone();
    let expected = hits(&["a.ctr"]);
    assert_eq!(hits(&["a.txt"]), expected);
    assert_eq!(hits(&["a.csv", "--obj-id-col", "obj_id"]), expected);
    assert_eq!(hits(&["rows", "--trace-type", "csv", "--obj-id-col", "2"]), expected);
}

#[test]
fn several_replays_are_an_array() {
    let folder = with_a_trace();
    let args = ["a.ctr", "--size", "5,10%", "--policy", "lru", "--policy", "opt,lru", "--json"];
    let replays = json(folder.path(), &args);
    let told = |replay: &Value| format!("{} {}", replay["policy"], replay["size"]);
    let told: Vec<_> = replays.as_array().unwrap().iter().map(told).collect();
    assert_eq!(told, [r#""lru" "5""#, r#""lru" "10%""#, r#""opt" "5""#, r#""opt" "10%""#]);
}

#[test]
fn a_mix_tells_its_tenants_apart() {
    let folder = with_a_trace();
    container(folder.path(), "b.ctr", &(0..100).map(|n| (n % 4, false)).collect::<Vec<_>>());
    let replay = json(folder.path(), &["a.ctr", "b.ctr", "--mix", "-s", "30", "--json"]);
    let tenants = replay["tenants"].as_array().unwrap();
    let told: Vec<_> = tenants.iter().map(|t| (&t["file"], t["requests"].as_u64())).collect();
    assert_eq!(told, [(&"a.ctr".into(), Some(8000)), (&"b.ctr".into(), Some(100))]);
    let table = succeeds(folder.path(), &["a.ctr", "b.ctr", "--mix", "-s", "30"]);
    assert!(table.contains("a + b: 8,100 requests") && table.contains("1: b.ctr"), "{table}");
}

#[test]
fn a_comparison_marks_the_best_and_sums_up() {
    let folder = with_a_trace();
    container(folder.path(), "b.ctr", &(0..600).map(|n| (n % 30, false)).collect::<Vec<_>>());
    let one = succeeds(folder.path(), &["a.ctr", "--compare"]);
    for text in ["8,000 requests for 55 pages", "25%", "share, %", "w-tinylfu-adaptive", " *"] {
        assert!(one.contains(text), "no {text} in\n{one}");
    }
    let marked = one.lines().filter(|line| line.trim_start().starts_with("opt"));
    assert!(marked.clone().count() == 2 && marked.clone().all(|line| !line.contains('*')));
    let two = succeeds(folder.path(), &["a.ctr", "b.ctr", "--compare", "-p", "lru,lirs"]);
    assert!(two.contains("2 traces") && two.contains("worst against LRU"), "{two}");
    let told = json(folder.path(), &["a.ctr", "b.ctr", "--compare", "-p", "lru,lirs", "--json"]);
    assert_eq!(told["cells"].as_array().unwrap().len(), 2 * 2 * 4);
    assert!(told["policies"][1]["share"].as_f64().unwrap() > 0.3, "{told}");
    assert_eq!(told["policies"][0]["worst_against_lru"]["points"].as_f64(), Some(0.0));
}

#[test]
fn a_plot_is_an_svg_file() {
    let folder = with_a_trace();
    let table = succeeds(folder.path(), &["a.ctr", "--plot", "a.svg", "-p", "arc"]);
    assert!(table.contains("40%"), "{table}");
    let svg = fs::read_to_string(folder.path().join("a.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("arc") && svg.contains("opt-bypass"));
}

#[test]
fn policies_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let list = succeeds(folder.path(), &["--list"]);
    assert!(list.contains("cflru") && list.contains("(the default)"), "{list}");
    let told = json(folder.path(), &["--list", "--json"]);
    assert!(told.as_array().unwrap().iter().any(|entry| entry["policy"] == "opt-bypass"));
}

#[test]
fn what_cannot_be_done_is_named_with_the_way_out() {
    let folder = with_a_trace();
    container(folder.path(), "empty.ctr", &[]);
    fs::write(folder.path().join("text.ctr"), "no trace").unwrap();
    fs::write(folder.path().join("a.csv"), "time,obj_id\n1,7\n2\n").unwrap();
    fs::create_dir(folder.path().join("folder.svg")).unwrap();
    let cases: [(&[&str], &[&str]); 17] = [
        (&[], &["<FILE>"]),
        (&["gone.ctr"], &["gone.ctr", "No such file"]),
        (&["text.ctr"], &["text.ctr", "\"no t\"", "CTR1", "--trace-type txt"]),
        (&["a.csv"], &["a.csv", "--obj-id-col"]),
        (&["a.csv", "--obj-id-col", "0"], &["'0'", "--obj-id-col", "from 1"]),
        (&["a.csv", "--obj-id-col", "key"], &["a.csv", "line 1", "time,obj_id", "\"key\""]),
        (&["a.csv", "--obj-id-col", "obj_id"], &["a.csv", "line 3", "\"2\"", "column 2"]),
        (&["a.csv", "-t", "txt", "--requests-max", "1"], &["line 2", "--requests-max"]),
        (&["a.ctr", "-j", "0"], &["'0'", "--threads", "at least 1"]),
        (&["empty.ctr"], &["empty.ctr", "no requests"]),
        (&["."], &["cannot read ."]),
        (&["a.ctr", "--size", "0"], &["\"0\"", "5%"]),
        (&["a.ctr", "--policy", "lirz"], &["lirz", "lirs"]),
        (&["a.ctr", "--plot", "a.png"], &["a.png", ".svg"]),
        (&["a.ctr", "--plot", "no/a.svg"], &["no/a.svg", "no folder no"]),
        (&["a.ctr", "--plot", "folder.svg"], &["folder.svg is a folder"]),
        (&["a.ctr", "--requests-max", "100"], &["a.ctr", "100 requests", "--requests-max"]),
    ];
    for (args, mentions) in cases {
        let output = lab(folder.path(), args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code().is_some_and(|code| code == 1 || code == 2), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
        for mention in mentions {
            assert!(errors.contains(mention), "{args:?}: no {mention} in {errors}");
        }
    }
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(names.len(), 5);
}
