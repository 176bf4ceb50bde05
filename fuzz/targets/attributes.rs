//! Values written to attributes of a page cache, of async fsync and of a runtime: each is taken or
//! refused. Writing the value that is shown then succeeds, and changes nothing.
#![no_main]

use std::sync::LazyLock;

use homing_cache::pages::PageCache;
use homing_control::{Attribute, AttributeTree};
use homing_durable::Durable;
use homing_runtime::Runtime;
use libfuzzer_sys::fuzz_target;

static TREES: LazyLock<[Box<dyn AttributeTree>; 3]> = LazyLock::new(|| {
    let runtime = Runtime::new().expect("a runtime");
    runtime.workqueue("work").build().expect("a workqueue");
    let cache = PageCache::builder(4 << 20).shards(1).build().expect("a cache");
    cache.group("tenant").build();
    let durable = Durable::new(&runtime).expect("an engine");
    [Box::new(cache.attributes()), Box::new(durable.attributes()), Box::new(runtime.attributes())]
});

fuzz_target!(|input: (u8, &str)| {
    let (which, value) = input;
    // Attributes that would take threads or memory are not tested here.
    let is_tried = |attribute: &Attribute| attribute.writable && attribute.path != "cache/size";
    let all: Vec<(&dyn AttributeTree, Attribute)> = TREES
        .iter()
        .flat_map(|tree| tree.list().into_iter().map(move |attribute| (&**tree, attribute)))
        .filter(|(_, attribute)| is_tried(attribute))
        .collect();
    let (tree, Attribute { path, .. }) = &all[usize::from(which) % all.len()];
    match tree.set(path, value) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(()) if path.contains("debug/") => {}
        Ok(()) => {
            let shown = tree.get(path).expect("it is there");
            tree.set(path, &shown)
                .unwrap_or_else(|error| panic!("{path} shows {shown:?}: {error}"));
            assert_eq!(tree.get(path).ok(), Some(shown), "{path}");
        }
    }
});
