//! The texts about the comparison: how to read it, and what its figures mean.

/// Below the options.
pub(crate) const HELP: &str = "\
What is measured:
  Threads share one cache and ask it for keys, of which there are a million, u64 -> u64. A read that
  misses inserts (cache-aside). How popular keys are follows Zipf's law; which ones are is drawn at
  random, before the clock starts. Room for 1M entries is room for all keys, and nearly all reads
  hit; with room for 100k the policy has to choose.

    read-0.99-100k   reads; 0.99 is Zipf's exponent, 100k the capacity
    write-5-100k     5 in a hundred requests overwrite (see --writes), exponent 0.99
    remove-5-1M      5 in a hundred requests remove, as after a change elsewhere
    scan-20-100k     20 in a hundred requests read keys that never come again
    memory           resident memory for each entry, after 3 million keys went through 1M entries

  Each with 1 and 2 threads, and with 16 where there are as many CPUs. Caches are as they come, with
  the policy, the hasher and the locks that one gets without asking. All of it takes about 40
  minutes on two CPUs; --workloads read --rounds 3 takes 10.

How to read it:
  CPU ns/op   CPU time of the whole process, the reading of the requests included. The steadiest
              figure, and the one to go by where threads do not wait for each other.
  M ops/s     by the wall clock, of all threads together.
  hits %      of the reads, those of a scan aside, among two million requests that are the same for
              all peers. A policy that hits more may take longer and still be the better one: a miss
              costs its user what the cache is there to avoid, which is nothing here.
              Who held the most popular keys from the start would hit 83.0 (0.99) and 60.9 (0.8);
              policies that learn how often keys are used gain about another point later on.
  p50 ...     single operations, one in 509, the reading of the clock (20 to 50 ns) included. An
              operation alone takes longer than one among others: CPUs overlap them.
  nothing     no cache: what reading the requests takes.
  array       no cache either: each key has its place. The limit is here. A hit takes one cache line
              from wherever it is (about 5 ns from L2, 20 to 70 from L3, 100 from memory, less where
              CPUs overlap the waits); a cache also has to find it, and to note that it was used.
  memory      no cache can have less than the 16 bytes of key and value.

What noise does:
  Every cell is a process of its own. Rounds go over all cells, the peers of a case one after the
  other and in another order each round: what the machine does meanwhile befalls them all. Figures
  are medians; where the least and the greatest are far apart, trust ratios of the same run only.
  Others on the machine take from the caches of its CPU: CPU time grows as well. Where they leave
  too few CPUs for all threads, these take turns and are no longer in each other's way: CPU time
  falls. Such a cell is measured up to three times, and the least disturbed counts. The report
  says how busy others were. Hits are exact with one thread, as far as the peer's hasher is the
  same each time, and as good as that with more. Ctrl-C ends the run and tells what was measured
  until then.

Examples:
  homing-bench cache --workloads read --threads 1
  homing-bench cache --peers moka,quick_cache --writes 50 --rounds 9 --html caches.html";

/// Below the tables.
pub(crate) const LEGEND: [&str; 8] = [
    "Each figure is the median over the rounds, with the least and the greatest.",
    "read-S-N: reads, and an insertion for each that misses; keys by Zipf's law with exponent S; \
     room for N of a million entries. write-P-N and remove-P-N: P in a hundred requests overwrite \
     or remove, exponent 0.99. scan-P-N: P in a hundred read keys that never come again; hits are \
     those of the other reads.",
    "Hits are those among the last two of four million requests that come before the clock starts: \
     the same for all peers, however fast they are.",
    "CPU time is that of the whole process. Latencies are those of one operation in 509, the \
     reading of the clock included.",
    "nothing is no cache: it is what reading the requests takes. array is none either: each key \
     has its place there, which is one cache line for each request, the least that a hit can take.",
    "memory: resident memory after three million keys went through a million entries, for each \
     entry that is there, of which 16 bytes are its key and its value.",
    "Caches are as they come, but moka and mini-moka have the others' hash (foldhash), and foyer has as many \
     shards as lru mutexes.",
    "Room for as many entries as keys is not always room for all: shards have bounds of their own.",
];
