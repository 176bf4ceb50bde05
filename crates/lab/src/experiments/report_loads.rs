//! What the simulated loads are made of, in the report: each figure with its source.

use std::fmt::Write as _;

use homing_sim::{Build, CryptLoad, GroupCommit, MemoryModel, Pairs, Tenants};

use super::report::escaped;

const FITTED: &str = "fitted: SYSTEM, HIGH and LOW";
const PUBLISHED: &str = "published";
const GUESSED: &str = "guessed";

/// The experiment, what the figure is, its value, and where that is from.
type Figure = (&'static str, &'static str, String, &'static str);

pub(super) fn section(page: &mut String) {
    page.push_str(
        "<h2>Loads</h2><p>What is simulated, for a machine as the published one.</p>\
         <table><tr><th>experiment</th><th>what</th><th>value</th><th>source</th></tr>",
    );
    for (experiment, what, value, source) in figures() {
        let _ = write!(
            page,
            "<tr><td>{experiment}</td><td style=\"text-align:left\">{}</td><td>{value}</td>\
             <td style=\"text-align:left\">{}</td></tr>",
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
        ("wq", "the disk: a read", us(crypt.ssd.read_ns), "guessed: data sheets of PCIe 4.0 disks"),
        ("wq", "the disk: a write", us(crypt.ssd.write_ns), "guessed, likewise"),
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
            "guessed: 32 KiB of some 320 bytes",
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
    ]
}
