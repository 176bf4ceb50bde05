//! Random calls, made to the algorithm and to the model side by side. After each call, both must
//! have the same pages on the same lists in the same order, and the same counters. The invariants
//! must hold: there are 2 to 4 generations, sizes sum up to the pages on lists, and victims come
//! from neither of the two youngest generations.

use std::collections::BTreeMap;
use std::sync::Arc;

use homing_mglru::kernel::{
    Arrival, Enabled, Frames, Lruvec, Marks, Tunables, Type, Types, Victim,
};
use proptest::prelude::*;

use crate::model::{Model, Shadow, Uses};

/// The number of frames: three regions, the last one not full.
const FRAMES: u32 = 150;
/// How many of the frames get most of the pages.
const BUSY: u32 = 12;

#[derive(Clone, Debug)]
enum Call {
    Insert { frame: u32, of: Type, active: bool, dirty: bool, writing: bool },
    Access(u32, u8),
    Touch(u32),
    Remove(u32),
    Evict(u64, Types),
    Age(bool),
    SetType(u32, Type),
    SetDirty(u32, bool),
    BeginWrite(u32),
    EndWrite(u32),
    Rotate(u32),
    Putback { last: usize, writing: bool },
    Unevictable(u32, bool),
    Enable(u8),
    Swappiness(u16),
}

fn frame() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..BUSY, 1 => 0..FRAMES]
}

fn of() -> impl Strategy<Value = Type> {
    prop_oneof![Just(Type::Dirty), Just(Type::Clean)]
}

fn call() -> impl Strategy<Value = Call> {
    let rarely = || prop::bool::weighted(0.15);
    let types =
        prop_oneof![3 => Just(Types::Both), 1 => Just(Types::Clean), 1 => Just(Types::Dirty)];
    let insert = (frame(), of(), rarely(), rarely(), rarely());
    prop_oneof![
        12 => insert.prop_map(|(frame, of, active, dirty, writing)| Call::Insert {
            frame, of, active, dirty: dirty && of == Type::Clean, writing
        }),
        10 => (frame(), 1_u8..6).prop_map(|(frame, times)| Call::Access(frame, times)),
        6 => frame().prop_map(Call::Touch),
        1 => frame().prop_map(Call::Remove),
        8 => (0_u64..8, types).prop_map(|(budget, types)| Call::Evict(budget, types)),
        4 => any::<bool>().prop_map(Call::Age),
        1 => (frame(), of()).prop_map(|(frame, of)| Call::SetType(frame, of)),
        1 => (frame(), any::<bool>()).prop_map(|(frame, dirty)| Call::SetDirty(frame, dirty)),
        1 => frame().prop_map(Call::BeginWrite),
        2 => frame().prop_map(Call::EndWrite),
        1 => frame().prop_map(Call::Rotate),
        2 => (0_usize..3, any::<bool>()).prop_map(|(last, writing)| Call::Putback { last, writing }),
        1 => (frame(), any::<bool>()).prop_map(|(frame, on)| Call::Unevictable(frame, on)),
        1 => (0_u8..16).prop_map(Call::Enable),
        1 => prop_oneof![0_u16..=201, Just(0), Just(1), Just(200), Just(201)]
            .prop_map(Call::Swappiness),
    ]
}

/// The algorithm and the model, which get the same calls.
struct Pair {
    frames: Arc<Frames>,
    lruvec: Lruvec,
    model: Model,
    /// Victims that have not come back yet.
    ghosts: Vec<(Victim, Shadow)>,
}

impl Pair {
    fn new(tunables: Tunables) -> Self {
        let frames = Arc::new(Frames::new(FRAMES as usize));
        let lruvec = Lruvec::new(Arc::clone(&frames), 5, tunables, 0).unwrap();
        let model = Model::new(FRAMES, tunables);
        Self { frames, lruvec, model, ghosts: Vec::new() }
    }

    fn has(&self, frame: u32) -> bool {
        self.model.pages.contains_key(&frame)
    }

    fn insert(&mut self, frame: u32, mut arrival: Arrival) {
        let mut used = Uses::default();
        if let Some(at) = self.ghosts.iter().position(|(victim, _)| victim.frame == frame) {
            let (victim, shadow) = self.ghosts.remove(at);
            arrival.marks = self.lruvec.refault(victim.token);
            used = self.model.refault(shadow);
        }
        self.lruvec.insert(frame, arrival);
        self.model.insert(frame, arrival, used);
    }

    fn evict(&mut self, budget: u64, types: Types) {
        let (main, youngest) =
            (self.model.tunables.enabled.has(Enabled::MAIN), self.lruvec.max_seq());
        let before: BTreeMap<u32, u64> =
            (0..FRAMES).filter_map(|frame| Some((frame, self.lruvec.generation(frame)?))).collect();
        let mut victims = Vec::new();
        let report = self.lruvec.evict(budget, types, &mut victims);
        let swappiness = types.swappiness(self.model.tunables.swappiness);
        let shadows = self.model.evict(budget, swappiness);
        let seen: Vec<_> = victims.iter().map(|v| (v.frame, v.of as usize, v.dirty)).collect();
        let expected: Vec<_> = shadows.iter().map(|s| (s.frame, s.of, s.dirty)).collect();
        assert_eq!(seen, expected, "{types:?}");
        assert_eq!(report.isolated.iter().sum::<u64>(), victims.len() as u64);
        for (victim, shadow) in victims.into_iter().zip(shadows) {
            assert!(!main || before[&victim.frame] + 2 <= youngest, "{victim:?} is too young");
            self.ghosts.push((victim, shadow));
        }
    }

    /// The marks that accesses have left on a page, as far as they can be seen. A count that came
    /// with a refault shows only at the next access; `hidden` is that count.
    fn seen(&self, frame: u32, hidden: u32) -> Uses {
        let marks = self.frames.marks(frame);
        let refs = u32::from(marks.refs());
        Uses {
            referenced: refs > 0,
            count: if refs == 0 { hidden } else { refs - 1 },
            workingset: marks.workingset(),
            accessed: marks.accessed(),
        }
    }

    fn call(&mut self, call: &Call) {
        match *call {
            Call::Insert { frame, of, active, dirty, writing } if !self.has(frame) => {
                let marks = Marks::default();
                self.insert(frame, Arrival { of, active, dirty, writing, marks });
            }
            Call::Access(frame, times) if self.has(frame) => {
                for _ in 0..times {
                    self.frames.access(frame);
                    self.model.pages.get_mut(&frame).unwrap().used.access();
                }
            }
            Call::Touch(frame) if self.has(frame) => {
                self.frames.touch(frame);
                self.model.pages.get_mut(&frame).unwrap().used.accessed = true;
            }
            Call::Remove(frame) if self.has(frame) => {
                self.lruvec.remove(frame);
                self.model.remove(frame);
            }
            Call::Evict(budget, types) => self.evict(budget, types),
            Call::Age(force) => {
                self.lruvec.age(7, force);
                self.model.age(force);
            }
            Call::SetType(frame, of) if self.has(frame) => {
                self.lruvec.set_type(frame, of);
                self.model.set_type(frame, of as usize);
            }
            Call::SetDirty(frame, dirty) if self.has(frame) => {
                self.lruvec.set_dirty(frame, dirty);
                self.model.pages.get_mut(&frame).unwrap().dirty = dirty;
            }
            Call::BeginWrite(frame) if self.has(frame) => {
                self.lruvec.begin_write(frame);
                self.model.pages.get_mut(&frame).unwrap().writing = true;
            }
            Call::EndWrite(frame) if self.has(frame) => {
                self.lruvec.end_write(frame);
                self.model.end_write(frame);
            }
            Call::Rotate(frame) if self.has(frame) => {
                self.lruvec.rotate(frame);
                self.model.rotate(frame);
            }
            Call::Putback { last, writing } if last < self.ghosts.len() => {
                let at = self.ghosts.len() - 1 - last;
                if !self.has(self.ghosts[at].0.frame) {
                    let (victim, shadow) = self.ghosts.remove(at);
                    self.lruvec.putback(victim, writing);
                    self.model.putback(shadow, writing);
                }
            }
            Call::Unevictable(frame, on) if self.has(frame) => {
                self.lruvec.set_unevictable(frame, on);
                self.model.set_unevictable(frame, on);
            }
            Call::Enable(bits) => {
                let mut enabled = if bits < 12 { Enabled::MAIN } else { Enabled::NONE };
                for (bit, flag) in [(1, Enabled::WALK), (2, Enabled::NONLEAF)] {
                    enabled = if bits & bit == 0 { enabled.with(flag) } else { enabled };
                }
                self.tune(|tunables| tunables.enabled = enabled);
            }
            Call::Swappiness(swappiness) => self.tune(|tunables| tunables.swappiness = swappiness),
            _ => {}
        }
    }

    fn tune(&mut self, change: impl Fn(&mut Tunables)) {
        change(&mut self.model.tunables);
        self.lruvec.set_tunables(self.model.tunables).unwrap();
    }

    fn compare(&self) {
        let (lruvec, model) = (&self.lruvec, &self.model);
        assert_eq!(lruvec.max_seq(), model.max_seq);
        let mut on_lists = 0;
        for of in Type::ALL {
            let index = of as usize;
            assert_eq!(lruvec.min_seq(of), model.min_seq[index], "{of:?}");
            assert!((2..=4).contains(&lruvec.generations(of)));
            for seq in lruvec.min_seq(of)..=lruvec.max_seq() {
                let listed: Vec<u32> = lruvec.listed(seq, of).collect();
                let expected = model.lists.get(&(seq, index)).cloned().unwrap_or_default();
                assert_eq!(listed, expected, "generation {seq}, {of:?}");
                let pages = model.pages.values();
                let size = pages.filter(|page| page.of == index && page.seq == Some(seq)).count();
                assert_eq!(lruvec.size(seq, of), size as u64, "generation {seq}, {of:?}");
                on_lists += listed.len() as u64;
            }
            let (seen, expected) = (lruvec.feedback(of), &model.counters[index]);
            assert_eq!(seen.refaulted, expected.refaulted, "{of:?}");
            assert_eq!(seen.evicted, expected.evicted, "{of:?}");
            assert_eq!(seen.protected, expected.protected, "{of:?}");
            assert_eq!(seen.avg_refaulted, expected.avg_refaulted, "{of:?}");
            assert_eq!(seen.avg_total, expected.avg_total, "{of:?}");
        }
        assert_eq!(lruvec.totals().iter().sum::<u64>(), on_lists);
        for (frame, page) in &model.pages {
            assert_eq!(lruvec.generation(*frame), page.seq, "frame {frame}");
            assert_eq!(self.seen(*frame, page.used.count), page.used, "frame {frame}");
        }
    }
}

/// Small batches, so that limits are reached and the feedback has something to react to.
fn tunables() -> impl Strategy<Value = Tunables> {
    (1_u32..6, 1_u32..20, 0_u32..7, prop::sample::select(vec![1_u16, 60, 100, 199])).prop_map(
        |(min_lru_batch, max_lru_batch, look_around, swappiness)| Tunables {
            min_lru_batch,
            max_lru_batch,
            look_around: 1 << look_around,
            swappiness,
            ..Tunables::default()
        },
    )
}

fn run(tunables: Tunables, calls: &[Call]) {
    let mut pair = Pair::new(tunables);
    for call in calls {
        pair.call(call);
        pair.compare();
    }
}

proptest! {
    #[test]
    fn it_does_as_the_model(
        tunables in tunables(),
        calls in prop::collection::vec(call(), 0..250),
    ) {
        run(tunables, &calls);
    }
}

#[test]
fn a_model_that_is_wrong_is_noticed() {
    let mut pair = Pair::new(Tunables::default());
    let of = Type::Clean;
    pair.call(&Call::Insert { frame: 1, of, active: false, dirty: false, writing: false });
    pair.model.rotate(1);
    pair.compare();
    pair.model.counters[1].evicted[0] += 1;
    let wrong = || pair.compare();
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(wrong)).is_err());
}
