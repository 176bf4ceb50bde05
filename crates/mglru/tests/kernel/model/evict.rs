//! How the model evicts, with and without generations.

use super::{Model, Shadow, Uses};

impl Model {
    /// Refaults and totals of some tiers.
    fn rates(&self, of: usize, tiers: &[usize]) -> (u64, u64) {
        let counters = &self.counters[of];
        let add = |sum: (u64, u64), tier: &usize| {
            let total = counters.evicted[*tier] + counters.protected[*tier];
            let refaulted = counters.avg_refaulted[*tier] + counters.refaulted[*tier];
            (sum.0 + refaulted, sum.1 + counters.avg_total[*tier] + total)
        };
        tiers.iter().fold((0, 0), add)
    }

    fn positive(&self, sp: (u64, u64), sp_gain: u64, pv: (u64, u64), pv_gain: u64) -> bool {
        let batch = u64::from(self.tunables.min_lru_batch);
        pv.0 < batch || pv.0 * (sp.1 + batch) * sp_gain <= (sp.0 + 1) * pv.1 * pv_gain
    }

    pub(crate) fn evict(&mut self, budget: u64, swappiness: u16) -> Vec<Shadow> {
        let limit = budget.min(u64::from(self.tunables.min_lru_batch)) as usize;
        let mut victims = Vec::new();
        if limit == 0 {
            return victims;
        }
        let evictable = [swappiness > 0, swappiness < 201];
        if self.main() {
            let all = [0, 1, 2, 3];
            let (dirty, clean) = (self.rates(0, &all), self.rates(1, &all));
            let gain = u64::from(swappiness);
            let first = match swappiness {
                0 | 1 => 1,
                200.. => 0,
                _ => usize::from(self.positive(dirty, gain, clean, 200 - gain)),
            };
            if !(evictable[first] && self.scan(first, limit, &mut victims)) && evictable[1 - first]
            {
                self.scan(1 - first, limit, &mut victims);
            }
        } else {
            self.clock(limit, evictable, &mut victims);
        }
        self.leave_empty(evictable);
        victims
    }

    fn leave_empty(&mut self, evictable: [bool; 2]) {
        let mut next = self.min_seq;
        for of in [0, 1] {
            while evictable[of]
                && next[of] + 2 <= self.max_seq
                && self.lists.get(&(next[of], of)).is_none_or(Vec::is_empty)
            {
                next[of] += 1;
            }
        }
        if evictable == [true, true] {
            let hold = self.max_seq - 2;
            if next[0] > hold && next[1] < hold {
                next[0] = hold;
            } else if next[1] > hold && next[0] < hold {
                next[1] = hold;
            }
        }
        for of in [0, 1] {
            if next[of] > self.min_seq[of] {
                self.carry_over(of);
                self.min_seq[of] = next[of];
            }
        }
    }

    fn scan(&mut self, of: usize, limit: usize, victims: &mut Vec<Shadow>) -> bool {
        if self.max_seq - self.min_seq[of] == 1 {
            return false;
        }
        let base = self.rates(of, &[0]);
        let (base_gain, gain) = (self.tunables.gain_base.into(), self.tunables.gain_tier.into());
        let fails = |tier: &usize| !self.positive(base, base_gain, self.rates(of, &[*tier]), gain);
        let tier_index = (1..4).find(fails).unwrap_or(4) - 1;
        let oldest = self.min_seq[of];
        let mut taken = 0;
        for scanned in 0.. {
            if scanned == self.tunables.max_lru_batch {
                return true;
            }
            let first = self.lists.get(&(oldest, of)).and_then(|list| list.first().copied());
            let (true, Some(frame)) = (taken < limit, first) else { break };
            let page = self.pages.get_mut(&frame).unwrap();
            let seq = page.seq.unwrap();
            if page.unevictable {
                page.seq = None;
                self.unlist(frame);
            } else if seq != oldest {
                self.list(frame, seq, false);
            } else if page.used.lazily_promoted() {
                page.used.forget();
                self.list(frame, oldest + 1, false);
            } else if page.used.tier() > tier_index {
                self.counters[of].protected[page.used.tier()] += 1;
                page.used.forget();
                self.list(frame, oldest + 1, false);
            } else if page.writing || of == 1 && page.dirty {
                page.reclaim = true;
                page.used.forget();
                self.list(frame, oldest + 1, false);
            } else if page.used.accessed {
                taken += 1;
                self.look_around(frame);
                let again = self.pages.get_mut(&frame).unwrap().used.observe();
                self.reject(frame, again);
            } else {
                taken += 1;
                self.counters[of].evicted[page.used.tier()] += 1;
                self.let_go(frame, victims);
            }
        }
        taken > 0
    }

    fn look_around(&mut self, frame: u32) {
        let width = self.tunables.look_around;
        let begin = frame / width * width;
        let before = self.observe(begin..frame);
        let after = self.observe(frame + 1..begin + width);
        let (total, young) = (before.0 + after.0 + 1, before.1 + after.1 + 1);
        self.note(self.max_seq, frame / 64, total, young);
    }

    fn let_go(&mut self, frame: u32, victims: &mut Vec<Shadow>) {
        self.unlist(frame);
        let page = self.pages.remove(&frame).unwrap();
        victims.push(Shadow {
            frame,
            of: page.of,
            dirty: page.of == 0 || page.dirty,
            seq: self.min_seq[page.of],
            used: page.used,
        });
    }

    fn clock(&mut self, limit: usize, evictable: [bool; 2], victims: &mut Vec<Shadow>) {
        for _ in 0..self.tunables.max_lru_batch {
            let hand = |of: usize| {
                let lists =
                    self.lists.iter().filter(|((_, other), _)| *other == of && evictable[of]);
                lists.filter_map(|((seq, _), list)| Some((*seq, *list.first()?))).min()
            };
            if victims.len() == limit {
                return;
            }
            let frame = match (hand(0), hand(1)) {
                (None, None) => return,
                (Some((_, frame)), None) | (None, Some((_, frame))) => frame,
                (Some(dirty), Some(clean)) if dirty.0 != clean.0 => dirty.min(clean).1,
                (Some((_, dirty)), Some((_, clean))) => self.proportional(dirty, clean),
            };
            let page = self.pages.get_mut(&frame).unwrap();
            if page.unevictable {
                page.seq = None;
                self.unlist(frame);
            } else if page.used.referenced || page.used.accessed {
                page.used = Uses { workingset: page.used.workingset, ..Uses::default() };
                self.list(frame, self.max_seq, false);
            } else if page.dirty || page.writing {
                page.reclaim = true;
                self.list(frame, self.max_seq, false);
            } else {
                self.let_go(frame, victims);
            }
        }
    }

    fn proportional(&mut self, dirty: u32, clean: u32) -> u32 {
        let on_lists = |of| {
            self.pages.values().filter(|page| page.of == of && page.seq.is_some()).count() as u64
        };
        let (dirty_total, clean_total) = (on_lists(0), on_lists(1));
        let dirty_next = self.taken[0] * clean_total < self.taken[1] * dirty_total;
        self.taken[usize::from(!dirty_next)] += 1;
        if self.taken[0] + self.taken[1] > dirty_total + clean_total {
            self.taken = self.taken.map(|taken| taken / 2);
        }
        if dirty_next { dirty } else { clean }
    }
}
