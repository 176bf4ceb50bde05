//! Commands on `lru_gen`: `+` makes a generation, which shows the working set. `-` evicts
//! generations that are old enough, before memory is short.
//!
//! ```text
//! + memcg node max_gen [swappiness [force_scan]]
//! - memcg node min_gen [swappiness [nr_to_reclaim]]
//! ```
//!
//! Several are separated by commas, semicolons or line ends (the kernel's `multigen_lru.rst`,
//! "Debugfs interface"). Nothing is run if one of them cannot be read.

use super::lruvec::Lruvec;
use super::tunables::{MIN_NR_GENS, SWAPPINESS_DIRTY_ONLY};
use super::{Evicted, Victim};

/// A command, for one group's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `+`: ages, so that there is a generation `max_gen + 1`.
    Age {
        /// The number of the lruvec.
        memcg: u16,
        /// The number that identifies its memory.
        node: u16,
        /// The generation that must be the youngest before this command.
        max_gen: u64,
        /// The swappiness to use instead of the one that is set.
        swappiness: Option<u16>,
        /// Whether every region is visited, which is the default in the kernel.
        force_scan: bool,
    },
    /// `-`: evicts the generations up to `min_gen`.
    Evict {
        /// The number of the lruvec.
        memcg: u16,
        /// The number that identifies its memory.
        node: u16,
        /// The youngest generation to be evicted.
        min_gen: u64,
        /// The swappiness to use instead of the one that is set.
        swappiness: Option<u16>,
        /// The number of pages after which to stop.
        nr_to_reclaim: u64,
    },
}

/// Why a text is not a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// It begins with a word that is not a command.
    #[error("{token:?} is not a command: write + to age or - to evict")]
    Verb {
        /// The word.
        token: String,
    },
    /// It ends early.
    #[error("{command:?} lacks {name}: write {usage}")]
    Missing {
        /// The command.
        command: String,
        /// The missing argument.
        name: &'static str,
        /// How the command is written.
        usage: &'static str,
    },
    /// One of its arguments is invalid.
    #[error("{token:?} is no {name}: take {bounds}")]
    Argument {
        /// The word.
        token: String,
        /// The argument.
        name: &'static str,
        /// The values that it can have.
        bounds: &'static str,
    },
    /// It has an extra word.
    #[error("{token:?} is one word too many: write {usage}")]
    Surplus {
        /// The word.
        token: String,
        /// How the command is written.
        usage: &'static str,
    },
}

/// Why a command that could be read was not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// There is no such generation yet (`EINVAL`).
    #[error("generation {max_gen} does not exist: the youngest is {max_seq}")]
    NotYet {
        /// The generation of the command.
        max_gen: u64,
        /// The youngest one.
        max_seq: u64,
    },
    /// There is already a younger generation (`EEXIST`).
    #[error("a generation after {max_gen} exists already: the youngest is {max_seq}")]
    Exists {
        /// The generation of the command.
        max_gen: u64,
        /// The youngest one.
        max_seq: u64,
    },
    /// The generation is one of the two youngest, or does not exist yet (`EINVAL`).
    #[error("generation {min_gen} cannot be evicted: the two youngest, up to {max_seq}, are kept")]
    TooYoung {
        /// The generation of the command.
        min_gen: u64,
        /// The youngest one.
        max_seq: u64,
    },
    /// The generations are switched off (`EINVAL`).
    #[error("the generations are switched off: set enabled to y")]
    Off,
}

const AGE: &str = "+ memcg node max_gen [swappiness [force_scan]]";
const EVICT: &str = "- memcg node min_gen [swappiness [nr_to_reclaim]]";
const NUMBER: &str = "a number from 0";

/// Reads commands. An error names the word at which reading failed.
pub fn parse_commands(text: &str) -> Result<Vec<Command>, CommandError> {
    let commands = text.split([',', ';', '\n']).map(str::trim);
    commands.filter(|command| !command.is_empty()).map(parse_command).collect()
}

fn parse_command(command: &str) -> Result<Command, CommandError> {
    let mut words = command.split_whitespace();
    let usage = match words.next() {
        Some("+") => AGE,
        Some("-") => EVICT,
        other => return Err(CommandError::Verb { token: other.unwrap_or_default().to_owned() }),
    };
    let mut required = |name| {
        let missing = || CommandError::Missing { command: command.to_owned(), name, usage };
        words.next().ok_or_else(missing)
    };
    let memcg = number(required("memcg")?, "memcg", "a number from 0 to 65534", 65_534)?;
    let node = number(required("node")?, "node", "a number from 0 to 65535", 65_535)?;
    let name = if usage == AGE { "max_gen" } else { "min_gen" };
    let seq = number(required(name)?, name, NUMBER, u64::MAX)?;
    let (memcg, node) = (memcg as u16, node as u16);
    let swappiness = words.next().map(swappiness).transpose()?;
    let last = words.next();
    if let Some(token) = words.next() {
        return Err(CommandError::Surplus { token: token.to_owned(), usage });
    }
    if usage == AGE {
        let force_scan = last.map_or(Ok(1), |word| number(word, "force_scan", "0 or 1", 1))? == 1;
        return Ok(Command::Age { memcg, node, max_gen: seq, swappiness, force_scan });
    }
    let nr_to_reclaim =
        last.map_or(Ok(u64::MAX), |word| number(word, "nr_to_reclaim", NUMBER, u64::MAX))?;
    Ok(Command::Evict { memcg, node, min_gen: seq, swappiness, nr_to_reclaim })
}

/// 0 to 200, or `max`, which is 201.
fn swappiness(word: &str) -> Result<u16, CommandError> {
    let max = u64::from(SWAPPINESS_DIRTY_ONLY);
    if word == "max" {
        return Ok(SWAPPINESS_DIRTY_ONLY);
    }
    number(word, "swappiness", "0 to 201, or max", max).map(|number| number as u16)
}

fn number(
    word: &str,
    name: &'static str,
    bounds: &'static str,
    max: u64,
) -> Result<u64, CommandError> {
    let digits = word.bytes().all(|byte| byte.is_ascii_digit());
    let number = word.parse().ok().filter(|number| digits && *number <= max);
    number.ok_or_else(|| CommandError::Argument { token: word.to_owned(), name, bounds })
}

impl Lruvec {
    /// Runs `+` for this youngest generation, at a time in milliseconds.
    pub fn run_age(&mut self, max_gen: u64, force_scan: bool, now_ms: u64) -> Result<(), RunError> {
        let max_seq = self.max_seq();
        if !self.main() {
            return Err(RunError::Off);
        }
        if max_gen > max_seq {
            return Err(RunError::NotYet { max_gen, max_seq });
        }
        if max_gen < max_seq {
            return Err(RunError::Exists { max_gen, max_seq });
        }
        self.age(now_ms, force_scan);
        Ok(())
    }

    /// Runs one batch of `-` up to this generation; by default under the swappiness that is set.
    /// The caller calls it again until it has enough, nothing was scanned, or somebody interrupts
    /// it.
    pub fn run_evict(
        &mut self,
        min_gen: u64,
        swappiness: Option<u16>,
        nr_to_reclaim: u64,
        victims: &mut Vec<Victim>,
    ) -> Result<Evicted, RunError> {
        let max_seq = self.max_seq();
        if !self.main() {
            return Err(RunError::Off);
        }
        if min_gen.saturating_add(MIN_NR_GENS) > max_seq {
            return Err(RunError::TooYoung { min_gen, max_seq });
        }
        let swappiness = swappiness.unwrap_or(self.tunables().swappiness);
        let mut report = Evicted::default();
        // A batch that only moves on from empty generations does not count.
        while self.eldest(swappiness) <= min_gen && report.scanned == 0 {
            let before = self.eldest(swappiness);
            report = self.evict_with(nr_to_reclaim, swappiness, victims);
            if report.scanned == 0 && self.eldest(swappiness) == before {
                break;
            }
        }
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read() {
        let text = "+ 1 0 3\n- 2 1 4 max 100; + 0 0 9 0 0,,- 3 0 1 60\n";
        let commands = parse_commands(text).unwrap();
        let age = |memcg, max_gen, swappiness, force_scan| Command::Age {
            memcg,
            node: 0,
            max_gen,
            swappiness,
            force_scan,
        };
        let evict = |memcg, node, min_gen, swappiness, nr_to_reclaim| Command::Evict {
            memcg,
            node,
            min_gen,
            swappiness,
            nr_to_reclaim,
        };
        let expected = [
            age(1, 3, None, true),
            evict(2, 1, 4, Some(201), 100),
            age(0, 9, Some(0), false),
            evict(3, 0, 1, Some(60), u64::MAX),
        ];
        assert_eq!(commands, expected);
        assert_eq!(parse_commands(" \n;,"), Ok(vec![]));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (text, named) in [
            ("* 1 0 3", "\"*\""),
            ("+1 0 3", "\"+1\""),
            ("+ 1 0", "max_gen"),
            ("- 1 0", "min_gen"),
            ("-", "memcg"),
            ("+ 65535 0 3", "\"65535\""),
            ("+ 1 -1 3", "\"-1\""),
            ("+ 1 0 +3", "\"+3\""),
            ("+ 1 0 3 202", "\"202\""),
            ("+ 1 0 3 60 2", "\"2\""),
            ("- 1 0 3 60 1 x", "\"x\""),
            ("+ 1 0 3; - 1 0 18446744073709551616", "\"18446744073709551616\""),
        ] {
            let error = parse_commands(text).unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
