//! What people read of the policy: `lru_gen` and `lru_gen_full`, in the form of the kernel's files.
//!
//! For each group there is a line with its number and name (control characters and `\` as in source
//! text). It is followed by a line for each age at which the group has pages, and one for the
//! current epoch: the epoch in which the pages were last used, how many requests ago that was, and
//! how many dirty and clean pages there are. A request of many pages counts as many.
//!
//! ```text
//! memcg     1 tenant
//!  node     0
//!          96       4096         12       3000      epoch, requests ago, dirty, clean
//!                      0          0       2000      full: the same by tier
//!                      2         12       1000
//!         tier          0 0r 0e 0p 0h  7r 900e 0p 0h     full: dirty, then clean ones
//! ```
//!
//! The full text also breaks these numbers down by tier (how often pages were used: tier 1 twice, 2
//! three or four times, and so on by octaves). Then it says for each tier and type what became of
//! the pages: refaulted (`r`: came back while they were remembered), evicted (`e`), protected (`p`:
//! due to be evicted, but used since they had last been looked at), and the hits (`h`) found that
//! way, at most one for each page and epoch.

use std::fmt::Write;
use std::sync::Arc;

use homing_control::printable_name;
use homing_mglru::density::{Feedback, Generation, Tiers, add_tiers};

use super::core::Core;
use super::group::GroupState;

impl Core {
    /// The text of `lru_gen`, or of `lru_gen_full`.
    pub(super) fn lru_gen(&self, full: bool) -> String {
        let mut text = String::new();
        let (epoch, length) = (self.habits.epoch(), self.habits.epoch_length());
        for shard in &self.shards {
            shard.write().listen(&self.habits);
        }
        for group in self.groups() {
            let (ages, tiers) = self.by_age(&group);
            let (number, name) = (group.number, printable_name(&group.name.replace('\\', r"\\")));
            let _ = writeln!(text, "memcg {number:5} {name}\n node {:5}", 0);
            for generation in ages {
                let ([clean, dirty], age) = (generation.sizes(), generation.age);
                let (seq, requests) = (epoch.saturating_sub(age), age as u64 * length);
                let _ = writeln!(text, " {seq:10} {requests:10} {dirty:10} {clean:10}");
                for (tier, [clean, dirty]) in generation.tiers.into_iter().enumerate() {
                    if full && clean + dirty > 0 {
                        let _ = writeln!(text, "            {tier:10} {dirty:10} {clean:10}");
                    }
                }
            }
            for (tier, [clean, dirty]) in tiers.into_iter().enumerate() {
                if full && [clean, dirty] != [Feedback::default(); 2] {
                    let _ = write!(text, "       tier {tier:10}");
                    for Feedback { refaulted, evicted, protected, hits } in [dirty, clean] {
                        let _ = write!(text, " {refaulted:10}r {evicted:10}e");
                        let _ = write!(text, " {protected:10}p {hits:10}h");
                    }
                    text.push('\n');
                }
            }
        }
        text
    }

    /// The pages of a group by age, the oldest first, and what came of pages of each tier.
    fn by_age(&self, group: &Arc<GroupState>) -> (Vec<Generation>, Tiers) {
        // The current epoch is always shown, because commands need its number.
        let (mut ages, mut tiers) = (vec![Generation::default()], Tiers::default());
        for shard in &self.shards {
            let table = shard.read();
            let Some(local) = table.known_local(group) else { continue };
            add_tiers(&mut tiers, &table.policy.tiers(local));
            for part in table.policy.generations(local) {
                match ages.iter_mut().find(|generation| generation.age == part.age) {
                    Some(generation) => generation.add(&part),
                    None => ages.push(part),
                }
            }
        }
        ages.sort_unstable_by_key(|generation| std::cmp::Reverse(generation.age));
        (ages, tiers)
    }
}
