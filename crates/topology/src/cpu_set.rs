//! CPU numbers and sets of them: a fixed bit set, copied freely, never allocated.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::TopologyError;

/// CPU numbers are below this. The kernel's own limit on x86-64 is 8,192; machines above 1,024 CPUs
/// are refused with an error rather than read in part.
pub const CPU_COUNT_MAX: usize = 1024;

const WORD_COUNT: usize = CPU_COUNT_MAX / u64::BITS as usize;

/// The operating system's number of one hardware thread, below [`CPU_COUNT_MAX`].
///
/// ```
/// use homing_topology::{CPU_COUNT_MAX, CpuId};
///
/// assert_eq!(CpuId::new(5).map(CpuId::index), Some(5));
/// assert_eq!(CpuId::new(CPU_COUNT_MAX), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "usize")]
pub struct CpuId(u16);

impl TryFrom<usize> for CpuId {
    type Error = TopologyError;

    fn try_from(number: usize) -> Result<Self, TopologyError> {
        Self::new(number).ok_or(TopologyError::CpuNumber { number })
    }
}

impl CpuId {
    /// CPU `number`, or `None` if it is not below [`CPU_COUNT_MAX`].
    pub const fn new(number: usize) -> Option<Self> {
        if number < CPU_COUNT_MAX { Some(Self(number as u16)) } else { None }
    }

    /// The number as an index into a table with a slot per possible CPU.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of CPUs: 128 bytes, `Copy`.
///
/// Reads and prints the kernel's list format. Two neighboring CPUs are printed with a comma, not as
/// a range:
///
/// ```
/// use homing_topology::CpuSet;
/// let set: CpuSet = "0-2,8".parse()?;
/// assert_eq!(set.len(), 4);
/// assert_eq!(set.to_string(), "0-2,8");
/// # Ok::<(), homing_topology::ParseCpuSetError>(())
/// ```
///
/// ```
/// # use homing_topology::{CpuId, CpuSet};
/// let (two, five) = (CpuId::new(2).ok_or("?")?, CpuId::new(5).ok_or("?")?);
/// let mut set = CpuSet::of(five);
/// set.insert(two);
/// assert!(set.contains(two) && set.first() == Some(two));
/// assert!(set.iter().eq([two, five]), "lowest first");
/// set.remove(five);
/// set.remove(two);
/// assert!(set.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct CpuSet {
    words: [u64; WORD_COUNT],
}

impl CpuSet {
    /// The set without members.
    pub const EMPTY: Self = Self { words: [0; WORD_COUNT] };

    /// The set with one member.
    pub fn of(cpu: CpuId) -> Self {
        let mut set = Self::EMPTY;
        set.insert(cpu);
        set
    }

    /// Adds a member.
    pub const fn insert(&mut self, cpu: CpuId) {
        self.words[cpu.index() / 64] |= 1 << (cpu.index() % 64);
    }

    /// Takes a member away.
    pub const fn remove(&mut self, cpu: CpuId) {
        self.words[cpu.index() / 64] &= !(1 << (cpu.index() % 64));
    }

    /// Whether `cpu` is a member.
    pub const fn contains(&self, cpu: CpuId) -> bool {
        self.words[cpu.index() / 64] & (1 << (cpu.index() % 64)) != 0
    }

    /// How many members there are.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The member with the lowest number.
    pub fn first(&self) -> Option<CpuId> {
        self.iter().next()
    }

    /// The first member at or after `from`, or else the lowest one: a fair start for a search.
    ///
    /// ```
    /// # use homing_topology::{CpuId, CpuSet};
    /// let set: CpuSet = "1,4".parse()?;
    /// assert_eq!(set.first_from(CpuId::new(2).ok_or("?")?), CpuId::new(4));
    /// assert_eq!(set.first_from(CpuId::new(5).ok_or("?")?), CpuId::new(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn first_from(&self, from: CpuId) -> Option<CpuId> {
        let start = from.index() / 64;
        let high = self.words[start] & (u64::MAX << (from.index() % 64));
        if high != 0 {
            return CpuId::new(start * 64 + high.trailing_zeros() as usize);
        }
        let later = (start + 1..WORD_COUNT).find(|index| self.words[*index] != 0);
        let found = later.or_else(|| (0..=start).find(|index| self.words[*index] != 0))?;
        CpuId::new(found * 64 + self.words[found].trailing_zeros() as usize)
    }

    /// The members of both.
    ///
    /// ```
    /// # use homing_topology::CpuSet;
    /// let (low, odd): (CpuSet, CpuSet) = ("0-3".parse()?, "1,3,5".parse()?);
    /// assert_eq!(low.and(&odd).to_string(), "1,3");
    /// assert_eq!(low.or(&odd).to_string(), "0-3,5");
    /// assert_eq!(low.minus(&odd).to_string(), "0,2");
    /// assert!(low.intersects(&odd) && !low.is_subset(&odd));
    /// # Ok::<(), homing_topology::ParseCpuSetError>(())
    /// ```
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a & b)
    }

    /// The members of either.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a | b)
    }

    /// The members that `other` lacks.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a & !b)
    }

    /// Whether any member is shared.
    pub fn intersects(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).any(|(a, b)| a & b != 0)
    }

    /// Whether `other` holds every member of this set.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).all(|(a, b)| a & !b == 0)
    }

    /// The members, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + '_ {
        self.words.iter().enumerate().flat_map(|(index, word)| members(index, *word))
    }

    /// The members at and after `from`, and then those before it.
    ///
    /// ```
    /// # use homing_topology::{CpuId, CpuSet};
    /// let set: CpuSet = "1,4,70".parse()?;
    /// let around: Vec<_> = set.iter_from(CpuId::new(4).ok_or("?")?).map(CpuId::index).collect();
    /// assert_eq!(around, [4, 70, 1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter_from(&self, from: CpuId) -> impl Iterator<Item = CpuId> + '_ {
        let (start, later) = (from.index() / 64, u64::MAX << (from.index() % 64));
        (0..=WORD_COUNT).flat_map(move |step| {
            let index = (start + step) % WORD_COUNT;
            let these = match step {
                0 => later,
                WORD_COUNT => !later,
                _ => u64::MAX,
            };
            members(index, self.words[index] & these)
        })
    }

    /// The 64 members from CPU `64 * index` on, as bits. An index that is out of range reads as
    /// none.
    pub fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or(0)
    }

    /// Replaces the 64 members from CPU `64 * index` on. Panics if `index` is out of range.
    ///
    /// ```
    /// # use homing_topology::CpuSet;
    /// let mut set = CpuSet::EMPTY;
    /// set.set_word(1, 0b101);
    /// assert_eq!(set.to_string(), "64,66");
    /// assert_eq!((set.word(0), set.word(1)), (0, 0b101));
    /// ```
    pub fn set_word(&mut self, index: usize, bits: u64) {
        self.words[index] = bits;
    }

    /// Reads the kernel's mask format: hexadecimal words of 32 bits, the highest first, separated
    /// by commas, with or without `0x` (`ff,00000000`, `0xff`).
    ///
    /// ```
    /// # use homing_topology::CpuSet;
    /// assert_eq!(CpuSet::from_mask("f,00000001")?.to_string(), "0,32-35");
    /// # Ok::<(), homing_topology::ParseCpuSetError>(())
    /// ```
    pub fn from_mask(text: &str) -> Result<Self, ParseCpuSetError> {
        let bad = || ParseCpuSetError { text: text.to_owned() };
        let mut set = Self::EMPTY;
        for (index, part) in text.trim().split(',').rev().enumerate() {
            let digits = part.trim().trim_start_matches("0x");
            // hwloc leaves out the zeros of a word that is empty: "0xf,,0x1".
            let bits = if digits.is_empty() && index > 0 {
                0
            } else {
                u32::from_str_radix(digits, 16).map_err(|_| bad())?
            };
            if index >= WORD_COUNT * 2 {
                if bits != 0 {
                    return Err(bad());
                }
                continue;
            }
            set.words[index / 2] |= u64::from(bits) << (32 * (index % 2));
        }
        Ok(set)
    }

    fn zip(&self, other: &Self, join: impl Fn(u64, u64) -> u64) -> Self {
        Self { words: std::array::from_fn(|i| join(self.words[i], other.words[i])) }
    }
}

/// The CPUs of a set's word.
fn members(index: usize, word: u64) -> impl Iterator<Item = CpuId> {
    let mut rest = word;
    std::iter::from_fn(move || {
        let bit = (rest != 0).then(|| rest.trailing_zeros())?;
        rest &= rest - 1;
        CpuId::new(index * 64 + bit as usize)
    })
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> Self {
        let mut set = Self::EMPTY;
        cpus.into_iter().for_each(|cpu| set.insert(cpu));
        set
    }
}

/// Text that is not a CPU list or mask, or names a CPU at or above [`CPU_COUNT_MAX`].
///
/// ```
/// use homing_topology::CpuSet;
///
/// let error = "3-1".parse::<CpuSet>().unwrap_err();
/// assert_eq!(error.text, "3-1");
/// assert!(error.to_string().contains("as in 0-3,8"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{text}\" is not a set of CPUs: write numbers below {CPU_COUNT_MAX} and ranges, as in 0-3,8"
)]
pub struct ParseCpuSetError {
    /// The text that was given.
    pub text: String,
}

impl FromStr for CpuSet {
    type Err = ParseCpuSetError;

    /// Reads the kernel's list format: `0-3,8`, and `0-31:2/4` (the first 2 of each 4).
    fn from_str(text: &str) -> Result<Self, ParseCpuSetError> {
        let bad = || ParseCpuSetError { text: text.to_owned() };
        let number = |part: &str| part.trim().parse::<usize>().map_err(|_| bad());
        let mut set = Self::EMPTY;
        for part in text.trim().split(',').filter(|part| !part.trim().is_empty()) {
            let (range, stride) = part.split_once(':').map_or((part, None), |(r, s)| (r, Some(s)));
            let (first, last) = match range.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(range)?, number(range)?),
            };
            let (used, group) = match stride.map(|s| s.split_once('/').ok_or_else(bad)) {
                Some(pair) => pair.and_then(|(u, g)| Ok((number(u)?, number(g)?)))?,
                None => (1, 1),
            };
            if first > last || last >= CPU_COUNT_MAX || group == 0 {
                return Err(bad());
            }
            let cpus = (first..=last).filter(|cpu| (cpu - first) % group < used);
            cpus.filter_map(CpuId::new).for_each(|cpu| set.insert(cpu));
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut cpus = self.iter().peekable();
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|next| next.index() == last.index() + 1) {
                last = next;
            }
            match last.index() - first.index() {
                0 => write!(f, "{separator}{first}")?,
                1 => write!(f, "{separator}{first},{last}")?,
                _ => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

impl Serialize for CpuSet {
    /// An array of CPU numbers.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<CpuId>::deserialize(deserializer)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn cpu(number: usize) -> CpuId {
        CpuId::new(number).unwrap()
    }

    #[test]
    fn reads_the_kernels_formats() {
        let list = |text: &str| text.parse::<CpuSet>().map(|set| set.to_string());
        assert_eq!(list("0-3,8\n").unwrap(), "0-3,8");
        assert_eq!(list("").unwrap(), "");
        assert_eq!(list("0-7:1/2").unwrap(), "0,2,4,6");
        assert_eq!(CpuSet::from_mask("00000001,80000000\n").unwrap().to_string(), "31,32");
        assert_eq!(CpuSet::from_mask("0xf,,0x3").unwrap().to_string(), "0,1,64-67");
    }

    #[test]
    fn bad_text_is_named_in_the_error() {
        for text in ["3-1", "1024", "a", "0-3:1", "0-3:1/0"] {
            let error = text.parse::<CpuSet>().unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
        assert!(CpuSet::from_mask("xyz").is_err());
        assert!(CpuSet::from_mask(&format!("1{}", ",00000000".repeat(32))).is_err());
    }

    proptest! {
        #[test]
        fn agrees_with_a_naive_set(
            a in prop::collection::btree_set(0..CPU_COUNT_MAX, 0..40),
            b in prop::collection::btree_set(0..CPU_COUNT_MAX, 0..40),
            from in 0..CPU_COUNT_MAX,
        ) {
            let set = |members: &BTreeSet<usize>| members.iter().map(|n| cpu(*n)).collect::<CpuSet>();
            let list = |set: CpuSet| set.iter().map(CpuId::index).collect::<BTreeSet<_>>();
            let (sa, sb) = (set(&a), set(&b));
            prop_assert_eq!(list(sa.and(&sb)), &a & &b);
            prop_assert_eq!(list(sa.or(&sb)), &a | &b);
            prop_assert_eq!(list(sa.minus(&sb)), &a - &b);
            prop_assert_eq!(sa.intersects(&sb), !a.is_disjoint(&b));
            prop_assert_eq!(sa.is_subset(&sb), a.is_subset(&b));
            prop_assert_eq!(sa.len(), a.len());
            let expected = a.range(from..).next().or(a.first());
            prop_assert_eq!(sa.first_from(cpu(from)).map(CpuId::index), expected.copied());
            let around = a.range(from..).chain(a.range(..from)).copied();
            prop_assert!(sa.iter_from(cpu(from)).map(CpuId::index).eq(around));
            prop_assert_eq!(sa.to_string().parse::<CpuSet>().unwrap(), sa);
        }
    }
}
