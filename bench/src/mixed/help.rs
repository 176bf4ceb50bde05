//! The text about the comparison: what it is a model of, and what it is not.

/// Below the options.
pub(crate) const HELP: &str = "\
What is measured:
  The mixed workload of the kernel patch \"mm: multi-gen LRU: optimize multiple memcgs\" (Y. Zhao, 8
  March 2022), in small, on homing's page cache. A reader reads pages of a file larger than
  memory, a dirty tenant reads and overwrites pages of a working set that fits; all pages are as
  popular as any. First the dirty tenant's set is written, then the reader has the memory for as
  many reads as it has pages, then both run. It counts after eight cachefuls of requests.

    lru             one group for both; what was used longest ago goes
    one-group       the default policy, which does not know of tenants there
    two-groups      a group for each tenant, without limits
    two-groups-min  likewise, and the dirty tenant's working set is its min

Sizes:
  Published were 36 files of 1,408 MiB for fio, 50 million keys with values of 2,000 bytes for
  memcached, and two disks in memory of 54 GiB, for swap and files; not how much memory was left.
  So proportions are a choice: the reader's file is twice the memory, the dirty tenant's set three
  fifths of it (--reader-set, --dirty-set). The published gets only read once the keys were there;
  here half of the operations write (--writes).

Disks:
  Files in memory (--dir) take a microsecond or two for a page: there a miss costs little.
  --disk-us has reads and writes sleep for so long on top; the machine adds to a sleep, some 60 us
  where timers have the usual slack, so what it took is measured and told. Files on a disk are
  read through the kernel's own cache. With a depth the reader has so many times as many reads
  under way, as fio had (128 a job): then it takes more of one LRU, and with enough of them all of
  it.

The kernel's policy, which homing_mglru has for traces, cannot be had in the page cache: it is
left out.

Examples:
  homing-bench mixed --memory 64M --seconds 2 --rounds 3
  homing-bench mixed --disk-us 0,20,100 --reader-depth 1,8,32 --markdown mixed.md";
