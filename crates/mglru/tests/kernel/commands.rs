//! Commands on `lru_gen`: arbitrary text is read or named in an error, and commands do what they
//! say.

use std::sync::Arc;

use homing_mglru::kernel::{
    Arrival, Enabled, Frames, Lruvec, RunError, Tunables, Type, parse_commands,
};
use proptest::prelude::*;

proptest! {
    #[test]
    fn any_text_is_read_or_its_word_is_named(
        text in prop_oneof![any::<String>(), "([+-] ([0-9]{1,5} ){0,6}(max|x|-1|)[,;\n ]){0,4}"],
    ) {
        if let Err(error) = parse_commands(&text) {
            let shown = error.to_string();
            let named = text
                .split(|c: char| ",;".contains(c) || c.is_whitespace())
                .any(|word| !word.is_empty() && shown.contains(&format!("{word:?}")));
            let missing = shown.contains(" lacks ");
            prop_assert!(named || missing, "{shown}");
        }
    }

    #[test]
    fn numbers_come_through(
        memcg in 0_u16..65_535,
        node: u16,
        seq: u64,
        swappiness in 0_u16..=201,
        count: u64,
    ) {
        let text = format!("- {memcg} {node} {seq} {swappiness} {count}; + {memcg} {node} {seq}");
        let commands = parse_commands(&text).unwrap();
        prop_assert_eq!(commands.len(), 2);
        let shown = format!("{:?}", commands[0]);
        for number in [memcg.to_string(), node.to_string(), seq.to_string(), count.to_string()] {
            prop_assert!(shown.contains(&number), "{}", shown);
        }
    }
}

fn lruvec(pages: u32) -> Lruvec {
    let frames = Arc::new(Frames::new(pages as usize));
    let mut lruvec = Lruvec::new(frames, 0, Tunables::default(), 0).unwrap();
    for frame in 0..pages {
        lruvec.insert(frame, Arrival::new(Type::Clean));
    }
    lruvec
}

#[test]
fn ageing_by_command_makes_one_generation() {
    let mut lruvec = lruvec(10);
    assert_eq!(lruvec.run_age(4, true, 1), Err(RunError::NotYet { max_gen: 4, max_seq: 3 }));
    assert_eq!(lruvec.run_age(3, true, 1), Ok(()));
    assert_eq!(lruvec.max_seq(), 4);
    let error = lruvec.run_age(3, true, 1).unwrap_err();
    assert_eq!(error, RunError::Exists { max_gen: 3, max_seq: 4 });
    assert!(error.to_string().contains('3') && error.to_string().contains('4'));
}

#[test]
fn evicting_by_command_stops_where_it_should() {
    let mut lruvec = lruvec(200);
    let mut victims = Vec::new();
    let too_young = Err(RunError::TooYoung { min_gen: 2, max_seq: 3 });
    assert_eq!(lruvec.run_evict(2, None, 10, &mut victims), too_young);
    let report = lruvec.run_evict(1, None, 10, &mut victims).unwrap();
    assert_eq!((report.isolated, victims.len()), ([0, 10], 10));
    let mut batches = 0;
    while lruvec.run_evict(1, Some(0), u64::MAX, &mut victims).unwrap().scanned > 0 {
        batches += 1;
    }
    assert_eq!((batches, victims.len()), (3, 200));
    // The dirty ones may still be where they began.
    assert_eq!((lruvec.min_seq(Type::Clean), lruvec.min_seq(Type::Dirty)), (2, 1));
}

#[test]
fn commands_need_generations() {
    let mut lruvec = lruvec(10);
    lruvec.set_tunables(Tunables { enabled: Enabled::NONE, ..Tunables::default() }).unwrap();
    assert_eq!(lruvec.run_age(3, true, 1), Err(RunError::Off));
    assert_eq!(lruvec.run_evict(0, None, 10, &mut Vec::new()), Err(RunError::Off));
    lruvec.age(1, true);
    assert_eq!(lruvec.max_seq(), 3);
}
