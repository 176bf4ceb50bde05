//! Memory as the kernel shares it: groups, watermarks, reclaim in the background, and direct
//! reclaim by a thread that finds no frame.

use std::sync::Arc;

use homing_mglru::kernel::{Arrival, Frame, Frames, Lruvec, Marks, Token, Tunables, Type, Victim};
use homing_mglru::reclaim::{
    Background, Fate, Flags, Goal, GroupId, Groups, Limits, LruvecPages, Outcome, Sink,
};

use super::{Memory, Tenant, Work};
use crate::agenda::Ns;

/// Pages that a thread which finds no frame reclaims: the kernel's `SWAP_CLUSTER_MAX`.
const DIRECT: u64 = 32;
/// Pages that the background reclaims before the others have a turn. Guessed.
const STRETCH: u64 = 256;

/// Holds victims until [`Kernel::settle`] finds them.
#[derive(Debug, Default)]
struct Gone(Vec<Victim>);

impl Sink for Gone {
    fn let_go(&mut self, victim: &Victim) -> Fate {
        self.0.push(*victim);
        Fate::Gone
    }
}

#[derive(Debug)]
struct Pages {
    frame_of: Vec<Option<Frame>>,
    token_of: Vec<Option<Token>>,
}

#[derive(Debug)]
pub(super) struct Kernel {
    frames: Arc<Frames>,
    groups: Groups<LruvecPages<Gone>>,
    of: [Pages; 2],
    free: Vec<Frame>,
    page_in: Vec<u32>,
    flags: Flags,
    /// The background begins when fewer frames than this are free, and ends when twice as many are.
    low: u32,
    /// The run of the background, while there is one.
    run: Option<Background>,
}

const TYPES: [Type; 2] = [Type::Clean, Type::Dirty];

impl Kernel {
    /// `frames` can be used before background reclaim begins.
    pub(super) fn new(frames: u32, low: u32, pages: [u32; 2], flags: Flags) -> Self {
        let count = frames + low;
        let frames = Arc::new(Frames::new(count as usize));
        let mut groups = Groups::new();
        for number in 0..2 {
            let lruvec = Lruvec::new(Arc::clone(&frames), number, Tunables::default(), 0)
                .expect("the defaults are within their bounds");
            let id = groups.add(LruvecPages::new(lruvec, Gone::default()), Limits::default(), 0);
            assert_eq!(id, GroupId(number.into()));
        }
        let of = pages.map(|pages| Pages {
            frame_of: vec![None; pages as usize],
            token_of: vec![None; pages as usize],
        });
        Self {
            frames,
            groups,
            of,
            free: (0..count).rev().collect(),
            page_in: vec![0; count as usize],
            flags,
            low,
            run: None,
        }
    }

    /// Frees the frames of victims.
    fn settle(&mut self, outcome: &Outcome) -> Work {
        for tenant in 0..2 {
            let group = self.groups.group_mut(GroupId(tenant)).expect("groups stay");
            let pages = &mut self.of[tenant as usize];
            for victim in group.pages.sink.0.drain(..) {
                let page = self.page_in[victim.frame as usize] as usize;
                pages.frame_of[page] = None;
                pages.token_of[page] = Some(victim.token);
                self.free.push(victim.frame);
            }
        }
        let Outcome { scanned, written, agings, .. } = *outcome;
        Work { hit: false, scanned, written, agings }
    }
}

impl Memory for Kernel {
    fn access(&mut self, tenant: Tenant, page: u32, now_ns: Ns) -> Work {
        let number = tenant as usize;
        let mut work = Work { hit: true, ..Work::default() };
        let frame = self.of[number].frame_of[page as usize].unwrap_or_else(|| {
            work.hit = false;
            if self.free.is_empty() {
                let outcome = self.groups.reclaim(DIRECT, now_ns / 1_000_000);
                work = self.settle(&outcome);
            }
            let frame = self.free.pop().expect("no group is protected");
            self.page_in[frame as usize] = page;
            let pages = &mut self.of[number];
            pages.frame_of[page as usize] = Some(frame);
            let token = pages.token_of[page as usize].take();
            let group = self.groups.group_mut(GroupId(number as u32)).expect("groups stay");
            let lruvec = &mut group.pages.lruvec;
            let marks = token.map_or_else(Marks::default, |token| lruvec.refault(token));
            // A page that faults in is mapped, and in use.
            let active = tenant == Tenant::User;
            lruvec.insert(frame, Arrival { active, marks, ..Arrival::new(TYPES[number]) });
            group.charge(1);
            frame
        });
        match tenant {
            Tenant::Reader => self.frames.access(frame),
            Tenant::User => self.frames.touch(frame),
        }
        work
    }

    fn background(&mut self, now_ns: Ns) -> Option<Work> {
        let low = self.low as usize;
        let end = if self.run.is_some() { 2 * low } else { low };
        if self.free.len() >= end {
            self.run = None;
            return None;
        }
        let flags = self.flags;
        let run = self.run.get_or_insert_with(|| Background::new(flags));
        let short = ((2 * low - self.free.len()) as u64).min(STRETCH);
        let goal = Goal { pages: short, short };
        let outcome = self.groups.run_background(run, goal, now_ns / 1_000_000);
        Some(self.settle(&outcome))
    }
}
