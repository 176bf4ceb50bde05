//! A memory that groups share, without data: which page of which group is in each frame, and what
//! happened to it. Frames that are let go of are free at once; dirty pages are written at once.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use homing_mglru::kernel::{Arrival, Frame, Frames, Lruvec, Marks, Token, Tunables, Type, Victim};
use homing_mglru::reclaim::{Fate, GroupId, Groups, Limits, LruvecPages, Sink};

/// A generator of numbers that are random enough (G. Marsaglia, "Xorshift RNGs", 2003).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2) | 1)
    }

    /// A random number below `bound`.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (((self.0 >> 32) * u64::from(bound)) >> 32) as u32
    }
}

/// The memory that groups share.
pub(crate) struct Memory {
    pub(crate) free: Vec<Frame>,
    /// The page in each frame, numbered within the group that has the frame.
    page_in: Vec<u32>,
    tenants: Vec<Tenant>,
}

/// A group's pages.
#[derive(Default)]
struct Tenant {
    frame_of: Vec<Option<Frame>>,
    token_of: Vec<Option<Token>>,
    reclaimed: u64,
    written: u64,
}

/// Takes the victims of a group.
pub(crate) struct Out {
    memory: Rc<RefCell<Memory>>,
    tenant: usize,
}

impl Sink for Out {
    fn let_go(&mut self, victim: &Victim) -> Fate {
        let mut memory = self.memory.borrow_mut();
        let page = memory.page_in[victim.frame as usize] as usize;
        memory.free.push(victim.frame);
        let tenant = &mut memory.tenants[self.tenant];
        assert_eq!(tenant.frame_of[page].take(), Some(victim.frame));
        tenant.token_of[page] = Some(victim.token);
        tenant.reclaimed += 1;
        tenant.written += u64::from(victim.dirty);
        Fate::Gone
    }
}

/// A memory and its groups.
pub(crate) struct World {
    pub(crate) frames: Arc<Frames>,
    pub(crate) memory: Rc<RefCell<Memory>>,
    pub(crate) groups: Groups<LruvecPages<Out>>,
}

impl World {
    pub(crate) fn new(frames: u32) -> Self {
        let memory = Memory {
            free: (0..frames).rev().collect(),
            page_in: vec![0; frames as usize],
            tenants: Vec::new(),
        };
        Self {
            frames: Arc::new(Frames::new(frames as usize)),
            memory: Rc::new(RefCell::new(memory)),
            groups: Groups::new(),
        }
    }

    /// Adds a group with this many different pages, none of them in memory.
    pub(crate) fn add(&mut self, pages: u32, limits: Limits) -> GroupId {
        let mut memory = self.memory.borrow_mut();
        let tenant = memory.tenants.len();
        memory.tenants.push(Tenant {
            frame_of: vec![None; pages as usize],
            token_of: vec![None; pages as usize],
            ..Tenant::default()
        });
        let frames = Arc::clone(&self.frames);
        let lruvec = Lruvec::new(frames, tenant as u16, Tunables::default(), 0).unwrap();
        let out = Out { memory: Rc::clone(&self.memory), tenant };
        let id = self.groups.add(LruvecPages::new(lruvec, out), limits, 0);
        assert_eq!(id, GroupId(tenant as u32));
        id
    }

    /// The frame that a page of a group is in.
    pub(crate) fn frame_of(&self, id: GroupId, page: u32) -> Option<Frame> {
        self.memory.borrow().tenants[id.0 as usize].frame_of[page as usize]
    }

    /// Brings a page into a free frame.
    pub(crate) fn load(&mut self, id: GroupId, page: u32, of: Type, active: bool) -> Frame {
        let mut memory = self.memory.borrow_mut();
        let frame = memory.free.pop().expect("somebody has made room");
        memory.page_in[frame as usize] = page;
        let tenant = &mut memory.tenants[id.0 as usize];
        tenant.frame_of[page as usize] = Some(frame);
        let token = tenant.token_of[page as usize].take();
        let group = self.groups.group_mut(id).unwrap();
        let lruvec = &mut group.pages.lruvec;
        let marks = token.map_or_else(Marks::default, |token| lruvec.refault(token));
        lruvec.insert(frame, Arrival { active, marks, ..Arrival::new(of) });
        group.charge(1);
        frame
    }

    /// The number of free frames.
    pub(crate) fn free(&self) -> usize {
        self.memory.borrow().free.len()
    }

    /// How many pages of a group were reclaimed, and how many of these were written.
    pub(crate) fn taken(&self, id: GroupId) -> (u64, u64) {
        let tenant = &self.memory.borrow().tenants[id.0 as usize];
        (tenant.reclaimed, tenant.written)
    }

    /// Begins to count reclaimed pages anew.
    pub(crate) fn forget(&mut self) {
        for tenant in &mut self.memory.borrow_mut().tenants {
            (tenant.reclaimed, tenant.written) = (0, 0);
        }
    }
}
