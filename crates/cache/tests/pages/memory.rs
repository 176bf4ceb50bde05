//! Memory that the system does not provide.
#![cfg(target_os = "linux")]

use std::env;
use std::process::Command;

use homing_cache::pages::{BuildError, PageCache, ResizeError};

use crate::disk::{ByHand, Disk};

const PAGE: usize = 512;
/// Set in the process that has little memory.
const LIMITED: &str = "HOMING_TEST_LIMITED";

fn without_much() {
    let builder =
        |bytes| PageCache::builder(bytes).page_size(PAGE).shards(1).background(ByHand::default());
    let error = builder(4 << 30).build().unwrap_err();
    assert!(matches!(error, BuildError::Memory { bytes, .. } if bytes == 4 << 30), "{error}");
    let cache = builder(64 << 20).build().unwrap();
    let file = cache.open(Disk::new(40 * PAGE), &cache.group("all").build()).unwrap();
    file.write(0, &[7; PAGE]).unwrap();
    let mut refused = 0;
    // For some of these sizes, there is room for the pages, but not for what the cache has to know
    // of them.
    for bytes in (400 << 20..800 << 20).step_by(10 << 20).chain([4 << 30]) {
        let before = cache.stats();
        if let Err(error) = cache.set_size(bytes) {
            let named = matches!(
                error,
                ResizeError::Size(BuildError::Memory { bytes: named, .. }) if named == bytes
            );
            assert!(named, "{error}");
            assert_eq!(cache.stats(), before);
            refused += 1;
        }
    }
    assert!(refused > 1);
    let mut data = [0; PAGE];
    file.read(0, &mut data).unwrap();
    assert_eq!(data, [7; PAGE]);
    cache.set_size(32 << 20).unwrap();
}

#[test]
fn a_size_that_the_system_does_not_give_changes_nothing() {
    if env::var_os(LIMITED).is_some() {
        return without_much();
    }
    let name = "memory::a_size_that_the_system_does_not_give_changes_nothing";
    let limited = format!("ulimit -v 800000 && exec \"$0\" --exact {name}");
    let mut child = Command::new("sh");
    child.arg("-c").arg(limited).arg(env::current_exe().unwrap()).env(LIMITED, "");
    let output = child.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
