//! What `homing ls`, `get` and `set` see of an engine.

mod support;

use homing_control::{AttributeError, AttributeTree};
use homing_durable::{Strategy, WriteBack};
use support::{Call, World};

#[test]
fn everything_that_is_listed_can_be_read_and_what_is_writable_takes_its_own_value() {
    let world = World::new();
    let tree = world.durable.attributes();
    let all = tree.list();
    assert!(all.is_sorted_by(|one, other| one.path < other.path));
    for attribute in all {
        let value = tree.get(&attribute.path).unwrap();
        let path = attribute.path.clone();
        let expected =
            if attribute.writable { Ok(()) } else { Err(AttributeError::ReadOnly { path }) };
        assert_eq!(tree.set(&attribute.path, &value), expected);
    }
    for path in ["", "durable", "durable/nice", "strategy"] {
        let missing = AttributeError::not_found(path);
        assert_eq!(tree.get(path), Err(missing.clone()));
        assert_eq!(tree.set(path, "1"), Err(missing));
    }
}

#[test]
fn what_is_set_is_in_force_and_bad_values_change_nothing() {
    let world = World::new();
    let tree = world.durable.attributes();
    tree.set("durable/strategy", "files\n").unwrap();
    tree.set("durable/depth", "7").unwrap();
    tree.set("durable/write_back", "late").unwrap();
    tree.set("durable/sharing", "beside").unwrap();
    assert_eq!(tree.get("durable/sharing").unwrap(), "beside");
    assert_eq!(world.durable.write_back(), WriteBack::Late);
    assert_eq!((world.durable.strategy(), world.durable.depth()), (Strategy::Files, Some(7)));
    for (path, value, accepted) in [
        ("durable/strategy", "syncfs", "auto, files, filesystem"),
        ("durable/strategy", "", "auto, files, filesystem"),
        ("durable/backend", "aio", "threads, io_uring"),
        ("durable/write_back", "on", "auto, early, late"),
        ("durable/sharing", "Beside", "auto, beside, together"),
        ("durable/depth", "0", "1 to 4096"),
        ("durable/depth", "4097", "1 to 4096"),
        ("durable/depth", "-1", "1 to 4096"),
        ("durable/depth", "many", "auto, or a number from 1 to 4096"),
    ] {
        let error = tree.set(path, value).unwrap_err();
        let AttributeError::Value { accepted: listed, .. } = &error else { panic!("{error}") };
        assert!(listed.contains(accepted), "{error}");
    }
    assert_eq!((world.durable.strategy(), world.durable.depth()), (Strategy::Files, Some(7)));
    tree.set("durable/depth", "auto\n").unwrap();
    assert_eq!((world.durable.depth(), tree.get("durable/depth").unwrap()), (None, "auto".into()));
    // The disk of these tests is not the system's, so the ring cannot be used.
    let error = tree.set("durable/backend", "io_uring").unwrap_err().to_string();
    assert!(error.contains("durable/backend: io_uring is not to be had here"), "{error}");
    assert_eq!(tree.get("durable/backend").unwrap(), "threads");
    tree.set("durable/strategy", "filesystem").unwrap();
    world.durable.fsync(&world.file("one")).wait().unwrap();
    assert_eq!(world.durable.counters().commits, 1, "also for one file");
}

#[test]
fn counters_histograms_and_failures_tell_what_has_happened() {
    let world = World::new();
    let tree = world.durable.attributes();
    let files: Vec<_> = (0..5).map(|number| world.file(&number.to_string())).collect();
    files[4].set_len(7).unwrap();
    world.durable.set_strategy(Strategy::Filesystem);
    world.disk.hold(true);
    let first = world.durable.fsync_many(&files);
    world.disk.until_asked(1);
    let later: Vec<_> = (0..3).map(|_| world.durable.fsync(&files[0])).collect();
    world.disk.fail(Call::Check, &files[4], 1);
    world.disk.hold(false);
    assert_eq!(first.wait().iter().filter(|verdict| verdict.is_err()).count(), 1);
    for later in later {
        later.wait().unwrap();
    }
    let counters = tree.get("durable/counters").unwrap();
    for line in [
        "asked 8",
        "shared 2",
        "batches 2",
        "files 0",
        "early 0",
        "commits 2",
        "committed 5",
        "flushes_saved 5",
        "failed 1",
    ] {
        assert!(counters.lines().any(|known| known == line), "{line} is not in {counters}");
    }
    assert!(!counters.contains(" -"), "{counters}");
    assert_eq!(tree.get("durable/batch_sizes").unwrap(), "4 1\n8 1", "of 5 and of 3");
    let syncs: u64 = tree
        .get("durable/latency_ns")
        .unwrap()
        .lines()
        .map(|line| line.split_once(' ').unwrap().1.parse::<u64>().unwrap())
        .sum();
    assert_eq!(syncs, 6);
    let filesystems = tree.get("durable/filesystems").unwrap();
    assert!(filesystems.contains(" waiting 0 committing 0 file_ns - commit_ns "), "{filesystems}");
    assert!(filesystems.contains(" depth 64 early 1 service "), "{filesystems}");
    let failed = tree.get("durable/failed").unwrap();
    let error = world.durable.acknowledge_loss(&files[4]).unwrap();
    let seen = error.first_seen.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let end = format!("/4\" bytes 0..7 first_seen {seen}");
    assert!(failed.starts_with("5 sync_file_range \"/") && failed.ends_with(&end), "{failed}");
    assert_eq!(tree.get("durable/failed").unwrap(), "");
}
