//! The protocol in all interleavings of a few threads: `cargo xtask loom`. The cell that the
//! checker puts around the value reports a thread that writes while another one reads.

use loom::sync::Arc;
use loom::thread;

use crate::lock::BiasedRwLock;
use crate::readers::Slot;

/// A lock, and the slots of the threads that read.
struct Bed {
    lock: BiasedRwLock<u32>,
    slots: Vec<Arc<Slot>>,
}

impl Bed {
    /// A lock that is biased already, because of two reads of the first thread.
    fn new(threads: usize) -> Arc<Self> {
        let slots = (0..threads).map(|number| Arc::new(Slot::new(number))).collect();
        let bed = Self { lock: BiasedRwLock::new(0), slots };
        (0..2).for_each(|_| assert_eq!(bed.read(0), 0));
        Arc::new(bed)
    }

    fn read(&self, thread: usize) -> u32 {
        *self.lock.read_at(Some(&self.slots[thread]))
    }

    fn write(&self) {
        *self.lock.write_among(|| self.slots.clone()) += 1;
    }
}

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn a_writer_waits_for_readers_who_have_no_lock() {
    check(|| {
        let bed = Bed::new(1);
        let writer = thread::spawn({
            let bed = Arc::clone(&bed);
            move || bed.write()
        });
        let (first, second) = (bed.read(0), bed.read(0));
        assert!(first <= second);
        writer.join().unwrap();
        assert_eq!(bed.read(0), 1);
    });
}

#[test]
fn a_bias_that_comes_back_lets_nobody_see_the_past() {
    check(|| {
        let bed = Bed::new(2);
        let writer = thread::spawn({
            let bed = Arc::clone(&bed);
            move || {
                bed.write();
                // Two reads under the lock: the bias is back.
                assert_eq!((bed.read(1), bed.read(1)), (1, 1));
                bed.write();
            }
        });
        let (first, second) = (bed.read(0), bed.read(0));
        assert!(first <= second);
        writer.join().unwrap();
        assert_eq!(bed.read(0), 2);
    });
}

#[test]
fn two_writers_and_a_reader() {
    check(|| {
        let bed = Bed::new(1);
        let writers = [(); 2].map(|()| {
            let bed = Arc::clone(&bed);
            thread::spawn(move || bed.write())
        });
        assert!(bed.read(0) <= 2);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!(bed.read(0), 2);
    });
}

/// The canary: a writer that looks at no slot is reported.
#[test]
#[should_panic(expected = "Causality violation")]
fn a_writer_that_does_not_wait_is_found() {
    check(|| {
        let bed = Bed::new(1);
        let writer = thread::spawn({
            let bed = Arc::clone(&bed);
            move || *bed.lock.write_among(Vec::<Arc<Slot>>::new) += 1
        });
        bed.read(0);
        writer.join().unwrap();
    });
}
