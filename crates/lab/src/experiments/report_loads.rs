//! What the simulated loads are made of, in the report: each figure with its source.

use std::fmt::Write as _;

use homing_sim::{Build, CryptLoad, GroupCommit, MemoryModel, Pairs, Ssd, Tenants};

use super::report::escaped;

const FITTED: &str = "fitted: SYSTEM, HIGH and LOW";
const PUBLISHED: &str = "published";
const GUESSED: &str = "guessed";

/// The experiment, what the figure is, its value, and where that is from.
type Figure = (&'static str, &'static str, String, &'static str);

pub(super) fn section(page: &mut String) {
    page.push_str(
        "<h2>Loads</h2><p>What is simulated, for a machine as the published one.</p>\
         <table><tr><th>experiment</th><th class=\"text\">what</th><th>value</th>\
         <th class=\"text\">source</th></tr>",
    );
    for (experiment, what, value, source) in figures() {
        let _ = write!(
            page,
            "<tr><td>{experiment}</td><td class=\"text\">{}</td><td>{value}</td>\
             <td class=\"text\">{}</td></tr>",
            escaped(what),
            escaped(source)
        );
    }
    page.push_str("</table>");
}

fn figures() -> Vec<Figure> {
    let us = |ns: u64| format!("{} us", ns as f64 / 1e3);
    let kib = |bytes: u64| format!("{} KiB", bytes >> 10);
    let crypt = CryptLoad::published(1);
    let jobs: Vec<_> = CryptLoad::LOADS.iter().map(|(_, each)| format!("1/{each}")).collect();
    let (pair, build) = (Pairs::new(1), Build::new(8));
    let (commit, tenants) =
        (GroupCommit::published(1, false), Tenants::published(MemoryModel::HitDensity));
    vec![
        ("wq", "issuers for each CPU: HIGH, MED, LOW", jobs.join(", "), PUBLISHED),
        ("wq", "requests that each has in flight", crypt.depth.to_string(), PUBLISHED),
        ("wq", "a request", kib(crypt.bytes), PUBLISHED),
        ("wq", "writes", format!("{} %", crypt.writes_pct), PUBLISHED),
        ("wq", "an issuer fills and hashes what it writes (fill_ns)", us(crypt.fill_ns), FITTED),
        ("wq", "a request is encrypted (crypt_ns)", us(crypt.crypt_ns), FITTED),
        ("wq", "how much both vary", format!("{} %", crypt.spread_pct), GUESSED),
        (
            "wq",
            "handing a write to the disk; submitting a read",
            "1.5 us; 2 us".to_owned(),
            "guessed: a system call's work",
        ),
        (
            "wq",
            "rare-newidle: a balance of an idle CPU",
            "800 us".to_owned(),
            "chosen between the published maximum, 400 us, and 1 ms, which published rows rule out",
        ),
        (
            "wq",
            "the other hosts: a balance of an idle CPU, by level",
            "33, 49, 45 us".to_owned(),
            "published: V. Guittot, means of max_newidle_lb_cost",
        ),
        ("wq", "the disk: a read", us(crypt.ssd.read_ns), "guessed: data sheets of PCIe 4.0 disks"),
        ("wq", "the disk: a write", us(crypt.ssd.write_ns), "guessed, likewise"),
        ("wq-latency", "a request", "512 bytes".to_owned(), PUBLISHED),
        ("wq-latency", "its encryption, by size", us(crypt.crypt_ns * 512 / (32 << 10)), FITTED),
        (
            "wq-latency",
            "an issuer's work before and after a request",
            "1 us each".to_owned(),
            "guessed: a system call of fio's",
        ),
        (
            "wq-latency",
            "cold data of a request, of that of 32 KiB",
            "a fifth".to_owned(),
            "guessed: by size it would be a sixty-fourth; the rest stands for queues and requests",
        ),
        (
            "wq-latency",
            "the disk in memory",
            us(Ssd::in_memory().read_ns),
            "guessed: a hop to the loop device's thread",
        ),
        (
            "udp-rr",
            "a message, with its system calls",
            us(pair.message_ns),
            "fitted: one pair on Ice Lake",
        ),
        (
            "compile",
            "a process computes",
            us(build.compute_ns),
            "guessed: so that 90 to 97 % are used",
        ),
        ("compile", "and waits", us(build.wait_ns), "guessed, likewise"),
        (
            "compile",
            "how much of its memory is warm",
            kib(build.warm_bytes),
            "fitted: the loss with SIS_NODE on the largest machine",
        ),
        (
            "aio-fsync",
            "an issuer's CPU time a file",
            us(commit.issuer_ns),
            "fitted: one that goes on",
        ),
        (
            "aio-fsync",
            "CPU time of a commit",
            us(commit.worker_ns),
            "published: 8 CPUs for 32,000 files/s",
        ),
        (
            "aio-fsync",
            "requests a second of the device",
            commit.iops.to_string(),
            "fitted: the plateau",
        ),
        (
            "aio-fsync",
            "a log write with its flush",
            us(commit.log_ns),
            "fitted: one issuer that waits",
        ),
        (
            "aio-fsync",
            "commits that fit into a log buffer",
            commit.buffer_commits.to_string(),
            "fitted: the plateau of aggregation; 32 KiB of some 320 bytes",
        ),
        (
            "aio-fsync",
            "the device's requests a second",
            commit.iops.to_string(),
            "fitted: the plateau of files/s",
        ),
        ("aio-fsync", "writing the data, beside the device's pace", us(commit.data_ns), GUESSED),
        (
            "aio-fsync",
            "CPUs; requests of the device at a time; log buffers",
            format!("{}; {}; {}", commit.cpus, commit.tags, commit.buffers),
            "guessed: the machine of the posting",
        ),
        (
            "aio-fsync",
            "files in flight of an issuer that goes on",
            commit.in_flight.to_string(),
            GUESSED,
        ),
        (
            "mglru-mixed",
            "a read of fio, if its page is there",
            us(tenants.read_ns),
            "fitted: fio before the patch",
        ),
        (
            "mglru-mixed",
            "a request to memcached, likewise",
            us(tenants.use_ns),
            "fitted: memcached with the patch",
        ),
        (
            "mglru-mixed",
            "reading a page from swap takes in addition",
            us(tenants.swap_in_ns),
            "fitted: memcached before the patch",
        ),
        ("mglru-mixed", "writing a page to swap", us(tenants.swap_out_ns), "fitted, likewise"),
        ("mglru-mixed", "looking at a page for reclaim", us(tenants.scan_ns), GUESSED),
        ("mglru-mixed", "reading a page of a file takes in addition", us(tenants.load_ns), GUESSED),
        ("mglru-mixed", "ageing, for each page of memory", us(tenants.age_page_ns), GUESSED),
        (
            "mglru-mixed",
            "pages kept free",
            tenants.free_pages.to_string(),
            "guessed: the kernel's default for 100 GiB",
        ),
        (
            "mglru-mixed",
            "pages of memory, memcached just fits",
            tenants.frames.to_string(),
            "fitted, likewise",
        ),
    ]
}
