//! Logs of decisions: a log that is read is written the same, and each decision can be made again
//! or is refused.
#![no_main]

use homing_sched::DecisionLog;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(log) = text.parse::<DecisionLog>() else { return };
    let again: DecisionLog = log.to_string().parse().expect("what was written can be read");
    assert_eq!(again.to_string(), log.to_string());
    assert_eq!(log.replay().count(), log.records().len());
});
