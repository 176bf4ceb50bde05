//! Commands that are written to `lru_gen`, in the kernel's form: `+` lets all pages grow older now,
//! `-` makes a group give up pages before anybody needs their frames.
//!
//! ```text
//! + memcg node max_gen                                  the epoch max_gen ends
//! - memcg node min_gen [swappiness [nr_to_reclaim]]     pages last used in min_gen or before go
//! ```
//!
//! The differences are these. Groups share a clock, so `+` lets the pages of all groups grow older.
//! Neither the types that grow older nor what is scanned for that can be chosen. `-` takes the
//! pages that are worth least first, whatever their age, and writes dirty ones back for that. It
//! also takes what a group has within `min` and what `min_ttl_ms` protects, because somebody asked
//! for it, and ends when nothing is left.

use std::sync::Arc;

use homing_mglru::density::Swappiness;
use homing_mglru::kernel::{Command, CommandError, RunError, parse_commands};

use super::core::Core;
use super::group::GroupState;

/// Why a command was not run. The commands before it were run.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error(transparent)]
    Unreadable(#[from] CommandError),
    #[error(transparent)]
    Not(#[from] RunError),
    #[error("no group has the number {0}: lru_gen shows those that there are")]
    Group(u16),
    #[error("there is no node {0}: the pages of a cache have node 0")]
    Node(u16),
    #[error("a swappiness of {0} has no meaning for +: pages of both types grow older")]
    Aging(u16),
    #[error("a swappiness of {0} has no meaning for -: take 0 to 200")]
    Swappiness(u16),
}

impl Core {
    /// Runs all commands of a text. None is run if one of them cannot be parsed.
    pub(super) fn run_commands(&self, text: &str) -> Result<(), Refused> {
        let commands = parse_commands(text)?;
        commands.into_iter().try_for_each(|command| self.run_command(command))
    }

    fn run_command(&self, command: Command) -> Result<(), Refused> {
        let (Command::Age { memcg, node, .. } | Command::Evict { memcg, node, .. }) = command;
        let group = self.groups().into_iter().find(|group| group.number == memcg as usize);
        let group = group.ok_or(Refused::Group(memcg))?;
        if node != 0 {
            return Err(Refused::Node(node));
        }
        match command {
            Command::Age { swappiness: Some(given), .. } => Err(Refused::Aging(given)),
            Command::Age { max_gen, .. } => self.age(max_gen).map_err(Refused::from),
            Command::Evict { min_gen, swappiness, nr_to_reclaim, .. } => {
                let refused = |given| Refused::Swappiness(given);
                let swappiness = match swappiness {
                    None => group.swappiness(),
                    Some(given) => u8::try_from(given)
                        .ok()
                        .and_then(Swappiness::new)
                        .ok_or_else(|| refused(given))?,
                };
                let epoch = self.habits.epoch();
                if min_gen.saturating_add(2) > epoch as u64 {
                    return Err(RunError::TooYoung { min_gen, max_seq: epoch as u64 }.into());
                }
                self.evict_old(&group, epoch - min_gen as u32, swappiness, nr_to_reclaim);
                Ok(())
            }
        }
    }

    fn age(&self, max_gen: u64) -> Result<(), RunError> {
        let runs = self.habits.epoch();
        let ended = u32::try_from(max_gen).map_err(|_| runs).and_then(|at| self.habits.age(at));
        match ended {
            Ok(_) => Ok(()),
            Err(max_seq) if max_gen > max_seq as u64 => {
                Err(RunError::NotYet { max_gen, max_seq: max_seq as u64 })
            }
            Err(max_seq) => Err(RunError::Exists { max_gen, max_seq: max_seq as u64 }),
        }
    }

    /// Evicts up to `count` pages of a group that were last used `epochs` epochs ago or earlier.
    fn evict_old(&self, group: &Arc<GroupState>, epochs: u32, swappiness: Swappiness, count: u64) {
        self.reclaim(group, count, |table, local| {
            table.evict_old(local, epochs, swappiness, &self.habits)
        });
    }
}
