//! `homing lab run`, `compare`, `merge`, `recommend` and `report` on simulated machines: what they
//! tell people and programs, and what is kept when they are stopped.

mod support;

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::Value;

fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_homing"));
    command.current_dir(folder).arg("lab").args(args);
    command
}

fn lab(folder: &Path, args: &[&str]) -> Output {
    command(folder, args).output().unwrap()
}

fn succeeds(folder: &Path, args: &[&str]) -> String {
    let output = lab(folder, args);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {errors}");
    // There is no progress bar without a terminal.
    assert_eq!(errors, "", "{args:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn fails(folder: &Path, args: &[&str]) -> String {
    let output = lab(folder, args);
    assert!(!output.status.success(), "{args:?}");
    assert!(output.stdout.is_empty(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Short runs, since other tests check the figures.
const BRIEF: [&str; 4] = ["--seeds", "1", "--seconds", "0.01"];

fn brief<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [args, &BRIEF].concat()
}

#[test]
fn a_run_stands_beside_the_published_table_with_its_bracket() {
    let folder = tempfile::tempdir().unwrap();
    let args = brief(&["run", "wq-latency", "--host", "cfs,confined"]);
    let table = succeeds(folder.path(), &args);
    for text in
        ["wq-latency on ryzen-9-3900x, SYNC; MiB/s", "21.5 (+15.13)", "bracket, %", "confined"]
    {
        assert!(table.contains(text), "no {text} in\n{table}");
    }
    let cache = table.lines().find(|line| line.trim_start().starts_with("CACHE ")).unwrap();
    assert!(cache.contains("..") && cache.trim_end().ends_with('!'), "{cache}");
    let one_host = succeeds(folder.path(), &brief(&["run", "wq-latency", "--host", "cfs"]));
    assert!(!one_host.contains("bracket, %"), "{one_host}");
    let stale = brief(&[
        "run",
        "wq-latency",
        "--host",
        "cfs",
        "--stale-ns",
        "900",
        "--features",
        "SWQUEUE",
        "--json",
    ]);
    let measures = lines(&succeeds(folder.path(), &stale));
    let is = |name: &str| measures.iter().any(|measure| measure["policy"] == name);
    assert!(is("homing default stale 900 ns") && is("homing default (SWQUEUE) stale 900 ns"));
    assert!(measures.iter().all(|measure| measure["values"]["mib_s"].as_f64().unwrap() > 0.0));
}

#[test]
fn parts_of_a_comparison_make_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let compare = |more: &[&str]| -> String {
        let args = [
            "compare",
            "--machine",
            "1x2x2x1",
            "--host",
            "cfs,pinned",
            "--seeds",
            "1",
            "--milliseconds",
            "10",
            "--scopes",
            "--features",
            "SWQUEUE",
        ];
        succeeds(folder.path(), &[&args, more].concat())
    };
    let whole = compare(&[]);
    for text in [
        "homing against the best of the kernel's settings",
        "homing auto against the best fixed scope of homing",
        "homing default (SWQUEUE) against all of its policy",
        "the worst places",
    ] {
        assert!(whole.contains(text), "no {text} in\n{whole}");
    }
    for part in ["1/3", "2/3", "3/3"] {
        let told = compare(&["--shard", part, "--out", "sweep"]);
        assert!(told.contains(&part.replace('/', "-of-")), "{told}");
    }
    assert_eq!(succeeds(folder.path(), &["merge", "sweep"]), whole);
    let json: Value = serde_json::from_str(&compare(&["--json"])).unwrap();
    // Three loads on two hosts.
    assert_eq!(json["default"].as_array().unwrap().len(), 6);
    assert_eq!(json["auto"].as_array().unwrap().len(), 6);
    assert_eq!(json["features"]["homing default (SWQUEUE)"].as_array().unwrap().len(), 6);
    let measures = lines(&succeeds(folder.path(), &["merge", "sweep", "--json"]));
    assert!(measures.iter().all(|measure| measure["experiment"] == "compare"));
}

/// A machine that stood out can be looked at again, alone.
#[test]
fn a_drawn_machine_is_the_same_alone_and_among_others() {
    let folder = tempfile::tempdir().unwrap();
    let brief = ["--seeds", "1", "--milliseconds", "10", "--host", "cfs", "--json", "--draw", "7"];
    let rates = |which: &[&str]| -> Value {
        let text = succeeds(folder.path(), &[&["compare"], which, &brief].concat());
        serde_json::from_str::<Value>(&text).unwrap()["default"].take()
    };
    let alone = rates(&["--machine", "random:1"]);
    let name = alone[0]["machine"].as_str().unwrap();
    assert!(name.starts_with("random 1 of draw 7 ("), "{name}");
    let both = rates(&["--random", "2"]);
    let among: Vec<_> =
        both.as_array().unwrap().iter().filter(|place| place["machine"] == *name).collect();
    assert!(among.len() == 3 && among.iter().all(|of| alone.as_array().unwrap().contains(of)));
}

/// A machine that is named twice would count as other seeds.
#[test]
fn a_machine_counts_once_however_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    // The part's one run is of the first machine, and a part whose sweep has other machines is
    // refused.
    let first = |machines: &str, of: &str| {
        let args = ["compare", "--machine", machines, "--milliseconds", "10", "--shard", "1/5000"];
        succeeds(folder.path(), &[&args, &["--out", of][..]].concat())
    };
    let drawn = first("random:9", "drawn");
    assert!(drawn.contains(": 1 runs"), "{drawn}");
    assert_eq!(first("random:9,random:09,random:+9,random:9", "drawn"), drawn);
    let presets = first("presets", "presets");
    assert_eq!(first("presets,ryzen-9-3900x,presets", "presets"), presets);
}

/// It is stopped by whatever a batch system sends when the time is over.
#[test]
fn a_part_that_is_stopped_keeps_what_has_ended_and_goes_on() {
    for signal in [Signal::INT, Signal::TERM] {
        let folder = tempfile::tempdir().unwrap();
        let args = [
            "run",
            "wq",
            "--machine",
            "1x2x4x2",
            "--seeds",
            "2",
            "--seconds",
            "0.05",
            "--shard",
            "1/1",
            "--out",
            "sweep",
        ];
        let child = command(folder.path(), &args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let part = folder.path().join("sweep/1-of-1.jsonl.part");
        let kept = || fs::read_to_string(&part).map_or(0, |text| text.lines().count());
        let began = Instant::now();
        while kept() < 3 {
            assert!(began.elapsed() < Duration::from_secs(120), "nothing ends");
            std::thread::sleep(Duration::from_millis(2));
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            println!("skipped: it had ended before the signal came");
            continue;
        }
        assert!(
            errors.contains("stopped: ") && errors.contains("goes on with the rest"),
            "{errors}"
        );
        let before = kept();
        let told = succeeds(folder.path(), &args);
        assert!(told.contains("1-of-1.jsonl: "), "{told}");
        assert!(!part.exists() && before >= 3);
        let runs = lines(&succeeds(folder.path(), &["merge", "sweep", "--json"])).len();
        assert!(told.contains(&format!("{runs} runs")) && runs > before - 1, "{told}");
    }
}

/// The disk is full when all runs are put together: here a limit on the size of a file leaves too
/// little room for its last line.
#[test]
fn a_part_that_cannot_end_keeps_its_runs_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let part = |out| brief(&["run", "aio-fsync", "--shard", "1/1", "--out", out]);
    let told = succeeds(folder.path(), &part("whole"));
    let runs = told.trim_end().rsplit(' ').nth(1).unwrap();
    let length = fs::metadata(folder.path().join("whole/1-of-1.jsonl")).unwrap().len();
    let ours = command(folder.path(), &part("part"));
    let mut waiting = Command::new("sh");
    waiting.args(["-c", "trap '' XFSZ; read -r go; exec \"$@\"", "sh"]).arg(ours.get_program());
    waiting.args(ours.get_args()).current_dir(folder.path());
    let mut child = waiting.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let limit = Rlimit { current: Some(length - 1), maximum: Some(length - 1) };
    prlimit(Some(Pid::from_child(&child)), Resource::Fsize, limit).unwrap();
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{errors}");
    let kept = format!("{runs} of {runs} runs are kept, and the same command goes on");
    for text in ["File too large", &kept] {
        assert!(errors.contains(text), "no {text} in {errors}");
    }
    assert_eq!(succeeds(folder.path(), &part("part")), told.replace("whole/", "part/"));
}

#[test]
fn a_comparison_in_parts_has_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let mut args = vec!["compare", "--machine", "1x2x2x1", "--host", "cfs", "--milliseconds", "20"];
    args.extend(["--seeds", "1", "--shard", "1/1", "--out", "parts"]);
    succeeds(folder.path(), &args);
    let told = succeeds(folder.path(), &["merge", "parts", "--report", "page.html"]);
    assert!(told.contains("1x2x2x1") && told.contains("one seed tells nothing of noise"), "{told}");
    let page = fs::read_to_string(folder.path().join("page.html")).unwrap();
    for part in ["<h2>compare</h2>", "<td>HIGH</td><td>1</td>", "<td>1x2x2x1</td>", "<svg "] {
        assert!(page.contains(part), "no {part}");
    }
}

#[test]
fn advice_names_the_attributes_and_gives_the_evidence() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("load.json"), r#"{"issuers": 1, "item_us": 60}"#).unwrap();
    let args = ["recommend", "--machine", "1x2x2x1", "--workload", "load.json", "--seeds", "1"];
    let told = succeeds(folder.path(), &args);
    for text in ["on 1x2x2x1: affinity_scope ", ", affinity_strict ", "pull_cost", "auto", "400"] {
        assert!(told.contains(text), "no {text} in\n{told}");
    }
    let host = ["--host", "confined", "--json"];
    let told: Value =
        serde_json::from_str(&succeeds(folder.path(), &[&args[..], &host].concat())).unwrap();
    assert_eq!((&told["machine"], &told["host"]), (&"1x2x2x1".into(), &"confined".into()));
    assert_eq!((&told["load"]["issuers"], &told["whole"]), (&1.into(), &true.into()), "{told}");
    let advice = told["settings"].as_array().unwrap();
    let is_auto = |entry: &Value| entry["affinity_scope"] == "auto";
    assert!(advice.iter().any(is_auto));
    assert!(advice.iter().all(|entry| entry["pull_cost"].is_null() == is_auto(entry)));
    assert!(advice.iter().any(|entry| entry["pull_cost"] == 25));
    assert!(advice.iter().any(|entry| entry["affinity_strict"] == 1));
    fs::write(folder.path().join("bad.json"), r#"{"depth": 0}"#).unwrap();
    let errors = fails(folder.path(), &["recommend", "--workload", "bad.json"]);
    assert!(errors.contains("depth is 0"), "{errors}");
}

/// There are an odd number of runs of one, so that in another order other runs are in each part.
#[test]
fn parts_are_the_same_in_whatever_order_experiments_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let part = |one: &'static str, other, part| {
        let args = ["run", one, other, "--seeds", "1", "--seconds", "0.01"];
        succeeds(folder.path(), &[&args[..], &["--shard", part, "--out", "parts"]].concat());
    };
    part("aio-fsync", "wq-latency", "1/2");
    part("wq-latency", "aio-fsync", "2/2");
    let merged = succeeds(folder.path(), &["merge", "parts", "--json"]);
    let whole = ["run", "aio-fsync", "wq-latency", "--seeds", "1", "--seconds", "0.01", "--json"];
    assert_eq!(merged, succeeds(folder.path(), &whole));
}

#[test]
fn machines_are_listed_with_what_was_drawn_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let presets = succeeds(folder.path(), &["list", "--machines"]);
    assert!(presets.contains("epyc-9654-2s") && presets.contains("384"), "{presets}");
    let named: Value =
        serde_json::from_str(&succeeds(folder.path(), &["list", "--machines", "--json"])).unwrap();
    assert!(named.as_array().unwrap().iter().all(|of| of["cpus"].as_u64().unwrap() > 0));
    let drawn = ["compare", "--random", "3", "--list"];
    assert!(succeeds(folder.path(), &drawn).contains("cold_node_ns"));
    let drawn: Value =
        serde_json::from_str(&succeeds(folder.path(), &[&drawn[..], &["--json"]].concat()))
            .unwrap();
    assert_eq!(drawn.as_array().unwrap().len(), 3);
    assert!(drawn[2]["drawn"]["wake_ns"].as_u64().unwrap() >= 300, "{drawn}");
}

#[test]
fn a_report_is_one_page_and_takes_the_place_of_an_older_one_when_whole() {
    let folder = tempfile::tempdir().unwrap();
    let sweep = brief(&["run", "aio-fsync", "wq-latency", "--shard", "1/1", "--out", "sweep"]);
    succeeds(folder.path(), &sweep);
    let table = succeeds(folder.path(), &["merge", "sweep", "--report", "report.html"]);
    assert!(table.contains("aio-fsync on "), "{table}");
    let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
    assert!(page.contains("bracket over the hosts") && page.contains("<svg"));
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(names.len(), 2, "nothing is left beside: {names:?}");
}

#[test]
fn what_cannot_be_simulated_is_named_with_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("sweep")).unwrap();
    succeeds(folder.path(), &brief(&["run", "aio-fsync", "--shard", "1/1", "--out", "mine"]));
    fs::write(folder.path().join("load.json"), r#"{"depth": 0}"#).unwrap();
    fs::write(folder.path().join("bad.json"), r#"{"depth": -1}"#).unwrap();
    fs::write(folder.path().join("list.json"), "[]").unwrap();
    let cases: [(&[&str], &[&str]); 19] = [
        (&["run", "nonesuch"], &["nonesuch", "wq-latency"]),
        (&["run", "wq", "--machine", "ryzen"], &["\"ryzen\"", "ryzen-9-3900x", "4x3x2"]),
        (&["run", "wq", "--seconds", "0"], &["\"0\"", "0.01"]),
        (&["run", "wq", "--shard", "3/2", "--out", "x"], &["\"3/2\"", "2/8"]),
        (&["run", "wq", "--features", "FAST"], &["FAST", "SWQUEUE"]),
        (&["run", "wq", "--features", ""], &["name parts, or none"]),
        (&["compare", "--random", "100000"], &["runs, more than 4000000", "--shard"]),
        (&["run", "wq", "--seeds", "-1"], &["'-1'", "--seeds"]),
        (
            &["run", "wq", "aio-fsync", "--machine", "2x2x1"],
            &["--machine does not apply to aio-fsync, only to wq,"],
        ),
        (&["run", "compile", "--host", "cfs"], &["--host", "compile", "only to wq, wq-latency"]),
        (&["compare", "--host", "bsd"], &["bsd", "near-newidle"]),
        (&["compare", "--random", "0"], &["'0'", "--random"]),
        (&["compare", "--machine", "random:x"], &["--machine random:x", "100000"]),
        (&["compare", "--machine", "2x2x2x2", "--draw", "3"], &["--draw 3", "--machine random:"]),
        (&["recommend", "--workload", "load.json"], &["load.json: depth is 0", "1024"]),
        (&["recommend", "--workload", "bad.json"], &["bad.json", "`-1`", "an example: {"]),
        (&["recommend", "--workload", "list.json"], &["list.json holds a list", "{\"issuers\""]),
        (&["merge", "sweep"], &["sweep", ".jsonl"]),
        (
            &["run", "aio-fsync", "--seeds", "2", "--shard", "1/1", "--out", "mine"],
            &["mine/1-of-1.jsonl", "another sweep", "remove it"],
        ),
    ];
    for (args, mentions) in cases {
        let errors = fails(folder.path(), args);
        for mention in mentions {
            assert!(errors.contains(mention), "{args:?}: no {mention} in {errors}");
        }
    }
}

/// The older page may be of more runs. Those of the stopped one are printed, not lost.
#[test]
fn a_report_that_is_stopped_leaves_an_older_page_and_prints_what_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    fs::write(&page, "older").unwrap();
    // How long it takes until some run has ended depends on what else the machine does.
    let printed = (0..9).find_map(|attempt| {
        let args = ["report", "-o", "report.html", "--seeds", "500", "--seconds", "0.01"];
        let mut command = command(folder.path(), &args);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(200 << attempt));
        // Not Ctrl-C, which is ignored in the background until the program asks for it.
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success(), "it had time for all of its runs");
        let errors = String::from_utf8(output.stderr).unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        let left = errors.contains("report.html is left as it is");
        assert!(left || errors.is_empty(), "{errors}");
        (left && (printed.contains(" on ") || attempt == 8)).then_some(printed)
    });
    let printed = printed.unwrap();
    assert!(printed.contains(" on "), "no table in {printed:?}");
    assert_eq!(fs::read_to_string(page).unwrap(), "older");
}

/// It is refused before it has taken an hour to find out what to write.
#[test]
fn a_report_that_cannot_be_written_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let args = ["report", "-o", "nonesuch/report.html", "--seeds", "1000"];
    let errors = fails(folder.path(), &args);
    assert!(errors.contains("nonesuch/report.html: No such file"), "{errors}");
    assert!(!errors.contains(".tmp"), "{errors}");
    let errors = fails(folder.path(), &["report", "-o", ".", "--seeds", "1000"]);
    assert!(errors.contains(". is a folder"), "{errors}");
    assert!(began.elapsed().as_secs() < 60, "it ran everything first");
}
