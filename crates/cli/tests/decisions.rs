//! `homing wq record` beside a runtime of our own, and `homing lab replay` of what it wrote.

mod support;

use std::fs;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use homing::Runtime;
use homing_control::{AttributeTree, ControlSocket};
use serde_json::Value;
use support::{Scratch, text};

fn homing(scratch: &Scratch, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_homing"));
    command.args(args).current_dir(scratch.path("")).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn what_a_program_decides_is_recorded_and_decided_again() {
    let (scratch, runtime) = (Scratch::new(), Runtime::new().unwrap());
    let tree = runtime.attributes();
    let _socket = ControlSocket::listen(scratch.path("control"), Arc::new(tree.clone())).unwrap();
    let end = AtomicBool::new(false);
    let recorded = thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                runtime.queue(|| ()).join().unwrap();
            }
        });
        let args = [
            "wq",
            "record",
            "--socket",
            "control",
            "-o",
            "log",
            "--seconds",
            "0.3",
            "--decisions",
            "500",
        ];
        let recorded = homing(&scratch, &args);
        end.store(true, Ordering::Relaxed);
        recorded
    });
    assert!(recorded.status.success(), "{}", text(&recorded.stderr));
    assert!(text(&recorded.stdout).contains("decisions; homing lab replay log"));
    assert_eq!(tree.get("module/record_decisions").unwrap(), "0", "as it was");

    let replayed = homing(&scratch, &["lab", "replay", "log", "--json"]);
    assert!(replayed.status.success(), "{}", text(&replayed.stderr));
    let answer: Value = serde_json::from_slice(&replayed.stdout).unwrap();
    let count = answer["decisions"].as_u64().unwrap();
    assert!((1..=500).contains(&count), "{answer}");
    assert_eq!(answer["differences"], Value::Array(Vec::new()));

    let args = ["wq", "record", "--socket", "control", "-o", "no/log", "--seconds", "3600"];
    let refused = homing(&scratch, &args);
    assert!(text(&refused.stderr).contains("cannot write no/log"), "before it records");
    assert_eq!(tree.get("module/record_decisions").unwrap(), "0");

    tree.set("module/record_decisions", "7").unwrap();
    let args = ["wq", "record", "--socket", "control", "-o", "-", "--seconds", "0"];
    let refused = homing(&scratch, &args);
    assert!(!refused.status.success());
    assert!(text(&refused.stderr).contains("homing set module/record_decisions 0"));
    assert_eq!(tree.get("module/record_decisions").unwrap(), "7");
    tree.set("module/record_decisions", "0").unwrap();
    let told = text(&homing(&scratch, &args).stdout);
    assert!(told.starts_with("{\"decisions_version\""), "{told}");
    assert!(!scratch.path("-").exists());

    // This changes a decision, as if another version had made it.
    let log = fs::read_to_string(scratch.path("log")).unwrap();
    let mut changed = false;
    let others = log.lines().map(|line| {
        let mut record: Value = serde_json::from_str(line).unwrap();
        if !changed && record.pointer("/decided/Wake").is_some() {
            record["decided"]["Wake"] = 99.into();
            changed = true;
        }
        record.to_string() + "\n"
    });
    let other: String = others.collect();
    fs::write(scratch.path("other"), other).unwrap();
    let replayed = homing(&scratch, &["lab", "replay", "other"]);
    assert_eq!(replayed.status.code(), Some(1));
    let shown = text(&replayed.stdout);
    assert!(shown.contains("then: wake CPU 99\n  now:  wake "), "{shown}");
    let error = text(&replayed.stderr);
    assert!(error.contains(&format!("1 of {count} decisions come out in another way")), "{error}");
}

#[test]
fn what_cannot_be_replayed_is_told() {
    let scratch = Scratch::new();
    fs::write(scratch.path("trace"), "CTR1 and so on").unwrap();
    for (file, problem) in [
        ("nothing", "cannot read nothing"),
        (
            "trace",
            "trace holds no recorded decisions: line 1 is not what a log of decisions begins",
        ),
    ] {
        let output = homing(&scratch, &["lab", "replay", file]);
        assert_eq!(output.status.code(), Some(1));
        let error = text(&output.stderr);
        assert!(error.contains(problem), "{error}");
    }
}
