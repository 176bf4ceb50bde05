//! What people read: `lru_gen`, a histogram of pages by age, and `lru_gen_full`, which also has the
//! feedback and the sweeps.
//!
//! The lines are those of the kernel's debugfs files (`multigen_lru.rst`, "Debugfs interface"). The
//! two columns of sizes are dirty and clean pages. In the full text, an `x` follows the size of a
//! type that no longer has this generation. Below each generation there is a line for each tier,
//! with three numbers for each type: refaulted, evicted and protected (`rep`) at its oldest
//! generation, the averages of refaulted and total (`RT`) at the youngest. Then it shows what the
//! last sweep found: pages, the young ones among them, regions, and those to visit again (`TYFA`).

use std::fmt::{self, Write};

use super::Type;
use super::lruvec::{Lruvec, index};
use super::tunables::MAX_NR_TIERS;

impl Lruvec {
    /// Writes this group's part of `lru_gen`, or of `lru_gen_full`, at a time in milliseconds. The
    /// path is that of the group, the node a number that identifies its memory.
    pub fn write_lru_gen(
        &self,
        out: &mut impl Write,
        path: &str,
        node: u16,
        now_ms: u64,
        full: bool,
    ) -> fmt::Result {
        writeln!(out, "memcg {:5} {path}", self.owner)?;
        writeln!(out, " node {node:5}")?;
        let oldest = Type::ALL.map(|of| self.min_seq(of)).into_iter().min().unwrap_or(0);
        for seq in oldest..=self.max_seq {
            let age_ms = now_ms.saturating_sub(self.births_ms[index(seq)]);
            write!(out, " {seq:10} {age_ms:10}")?;
            for of in Type::ALL {
                let mark = if full && seq < self.min_seq(of) { 'x' } else { ' ' };
                write!(out, " {:10}{mark}", self.size(seq, of))?;
            }
            writeln!(out)?;
            if full {
                self.write_tiers(out, seq)?;
            }
        }
        Ok(())
    }

    fn write_tiers(&self, out: &mut impl Write, seq: u64) -> fmt::Result {
        for tier in 0..MAX_NR_TIERS {
            write!(out, "            {tier:10}")?;
            for of in Type::ALL {
                let feedback = self.feedback(of);
                let numbers = if seq == self.max_seq {
                    let averages = (feedback.avg_refaulted[tier], feedback.avg_total[tier]);
                    [(averages.0, 'R'), (averages.1, 'T'), (0, ' ')]
                } else if seq == self.min_seq(of) {
                    let counters = (feedback.refaulted[tier], feedback.evicted[tier]);
                    [(counters.0, 'r'), (counters.1, 'e'), (feedback.protected[tier], 'p')]
                } else {
                    [(0, ' '); 3]
                };
                for (number, mark) in numbers {
                    write!(out, " {number:10}{mark}")?;
                }
            }
            writeln!(out)?;
        }
        let walked = self.walk_stats();
        let numbers = if seq == self.max_seq {
            [(walked.total, 'T'), (walked.young, 'Y'), (walked.found, 'F'), (walked.added, 'A')]
        } else {
            [(0, ' '); 4]
        };
        write!(out, "                      ")?;
        for (number, mark) in numbers {
            write!(out, " {number:10}{mark}")?;
        }
        writeln!(out)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Arrival, Frames, Tunables, Types};
    use super::*;

    #[test]
    fn the_texts_show_generations_and_feedback() {
        let frames = Arc::new(Frames::new(8));
        let mut lruvec = Lruvec::new(frames, 7, Tunables::default(), 100).unwrap();
        for frame in 0..3 {
            lruvec.insert(frame, Arrival::new(Type::Clean));
        }
        lruvec.insert(3, Arrival::new(Type::Dirty));
        lruvec.evict(1, Types::Clean, &mut Vec::new());
        let mut text = String::new();
        lruvec.write_lru_gen(&mut text, "/tenant", 1, 350, false).unwrap();
        let expected = [
            "memcg     7 /tenant",
            " node     1",
            "          0        250          0           2 ",
            "          1        250          0           0 ",
            "          2        250          1           0 ",
            "          3        250          0           0 ",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
        let mut full = String::new();
        lruvec.write_lru_gen(&mut full, "/", 0, 350, true).unwrap();
        assert_eq!(full.lines().count(), 2 + 4 * (1 + 4 + 1));
        let first: Vec<_> = full.lines().nth(3).unwrap().split_whitespace().collect();
        assert_eq!(first, ["0", "0r", "0e", "0p", "0r", "1e", "0p"]);
        assert!(full.lines().last().unwrap().ends_with('A'));
    }
}
