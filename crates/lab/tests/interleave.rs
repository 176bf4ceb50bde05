//! Mixed traces keep their order and their proportions, and share no page.

use homing_lab::Trace;
use proptest::prelude::*;

fn trace(name: &str, keys: impl IntoIterator<Item = u64>) -> Trace {
    Trace::from_keys(name, keys.into_iter().map(|key| (key, key % 2 == 1))).unwrap()
}

#[test]
fn requests_stand_in_proportion_to_the_lengths() {
    let mixed = Trace::interleave(&[trace("a", 0..6), trace("b", 0..2), trace("c", [])]).unwrap();
    assert_eq!(mixed.name(), "a + b + c");
    assert_eq!(mixed.tenants().unwrap(), [0, 0, 1, 0, 0, 0, 1, 0].as_slice());
    let nothing = Trace::interleave(&[]).unwrap();
    assert!(nothing.is_empty() && nothing.tenants().is_none());
}

#[test]
fn neighbours_stay_neighbours_and_aligned() {
    let high = 5_000_000_000_017;
    let mixed = Trace::interleave(&[trace("a", [3, 4]), trace("b", [high, high + 1])]).unwrap();
    let [a, b, c, d] = mixed.keys() else { panic!("{:?}", mixed.keys()) };
    assert_eq!((*a, *c), (3, 4));
    assert_eq!((b % 4096, d - b), (high % 4096, 1));
}

#[test]
fn keys_that_are_strewn_over_all_there_are_get_others() {
    let wide = || trace("wide", [u64::MAX, 0, u64::MAX]);
    let mixed = Trace::interleave(&[wide(), trace("more", [1 << 20, (1 << 20) + 1]), wide()]);
    let mut keys = mixed.unwrap().keys().to_vec();
    keys.sort_unstable();
    assert_eq!(keys, [0, 1, 1 << 20, (1 << 20) + 1, 2 << 20, (2 << 20) + 1]);
}

proptest! {
    #[test]
    fn each_tenant_sees_its_own_trace(
        sources in prop::collection::vec(prop::collection::vec(any::<u32>(), 0..40), 1..5)
    ) {
        let keys = |source: &Vec<u32>| source.iter().map(|key| u64::from(*key)).collect::<Vec<_>>();
        let traces: Vec<_> = sources.iter().map(|source| trace("t", keys(source))).collect();
        let mixed = Trace::interleave(&traces).unwrap();
        prop_assert_eq!(mixed.pages(), traces.iter().map(Trace::pages).sum::<usize>());
        prop_assert_eq!(mixed.writes(), traces.iter().map(Trace::writes).sum::<u64>());
        let mut taken = vec![0; traces.len()];
        for (index, request) in mixed.requests().enumerate() {
            let tenant = usize::from(request.tenant);
            let own = traces[tenant].request(taken[tenant]);
            prop_assert_eq!(request.write, own.write);
            let key = traces[tenant].keys()[own.page as usize];
            let first = traces[tenant].keys()[0];
            let mixed_first = mixed.requests().find(|r| r.tenant == request.tenant).unwrap();
            let mixed_key = mixed.keys()[request.page as usize];
            let base = mixed.keys()[mixed_first.page as usize];
            prop_assert_eq!(mixed_key.wrapping_sub(base), key.wrapping_sub(first));
            taken[tenant] += 1;
            // No tenant is ever further from its proportion than a request, and half a one for each
            // tenant.
            let due = (index + 1) as f64 * traces[tenant].len() as f64 / mixed.len() as f64;
            prop_assert!((taken[tenant] as f64 - due).abs() <= 1.0 + traces.len() as f64 / 2.0);
        }
    }
}
