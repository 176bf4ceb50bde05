//! Power cuts, on XFS, ext4 and btrfs over a disk that forgets what was not flushed: every file
//! whose sync had completed is there, whole, and not older than that sync. Engines that are wrong
//! on purpose must be found out.
//!
//! Needs root, FUSE and loop devices, and says so if they are missing. `HOMING_POWER_CUTS` is how
//! many cuts there are of each filesystem, `HOMING_POWER_CUT_SEED` the seed of their random
//! numbers.
#![cfg(target_os = "linux")]

mod bulk;
mod contents;
mod history;
mod log;
mod replaced;
mod wrong;

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use homing_durable::{Backend, Durable, Linux, Strategy, System, WriteBack};
use homing_faultdisk::{Disk, Filesystem, Image, Random, Record, Volume, available, number};
use homing_runtime::Runtime;

use bulk::Bulk;
use contents::{Issuer, Shape};
use history::History;
use wrong::{NoFlush, Nothing, OneCommit};

/// The step from one setting to the next: it leads through all of them in the end, and first to
/// some of each kind.
const STRIDE: usize = 29;
/// How many cuts are made of one run.
const CUTS_OF_A_RUN: usize = 10;

/// What is run, and on what.
#[derive(Clone, Copy, Debug)]
struct Setting {
    filesystem: Filesystem,
    /// The options of the mount.
    options: &'static str,
    shape: Shape,
    way: Way,
}

/// How files are made durable.
type Way = (Strategy, WriteBack, Backend);
const BY_COMMITS: Way = (Strategy::Filesystem, WriteBack::Auto, Backend::Threads);

/// What a run leaves to be cut.
struct Run {
    record: Record,
    history: History,
}

/// Lets the issuers write and sync with an engine on `system`.
fn run(setting: &Setting, system: impl System, seed: u64) -> io::Result<Run> {
    let image = Image::new(setting.filesystem.size_min());
    let disk = Arc::new(Disk::new(image, Duration::ZERO));
    let volume = Volume::make(&disk, setting.filesystem, setting.options)?;
    let history = History::default();
    let root = volume.path();
    let mut issuers: Vec<_> = (0..setting.shape.issuers())
        .map(|number| Issuer::new(number, &root, setting.shape, seed))
        .collect::<io::Result<_>>()?;
    let bulks = setting.shape.bulks();
    let mut bulk = (bulks > 0).then(|| Bulk::new(&root, seed)).transpose()?;
    rustix::fs::syncfs(File::open(&root)?)?;
    disk.start_recording();
    let runtime = Runtime::new().map_err(io::Error::other)?;
    let durable = Durable::with_system(&runtime, system).map_err(io::Error::other)?;
    let (strategy, write_back, backend) = setting.way;
    durable.set_strategy(strategy);
    durable.set_write_back(write_back);
    if let Err(error) = durable.set_backend(backend) {
        eprintln!("threads instead: no {} here: {error}", backend.name());
    }
    let moment = || disk.moment();
    let go = |issuer: &mut Issuer| issuer.go(&durable, &history, &moment);
    for _ in 0..bulks.max(1) {
        let (go, issuers) = (&go, &mut issuers);
        thread::scope(|scope| {
            let begin = || {
                for issuer in issuers {
                    scope.spawn(move || go(issuer));
                }
            };
            match &mut bulk {
                Some(bulk) => bulk.go(&durable, &history, &moment, begin),
                None => begin(),
            }
        });
    }
    // All descriptors have to be closed, or the volume could not be unmounted.
    drop((bulk, issuers, durable, runtime));
    let record = disk.stop_recording().unwrap();
    volume.unmount()?;
    Ok(Run { record, history })
}

/// What is wrong with the filesystem after each of `cuts` cuts, if anything.
fn cut(setting: &Setting, run: &Run, cuts: usize, random: &mut Random) -> Vec<Option<String>> {
    let of_files = run.history.moments_of_syncs();
    let mut of_verdicts = of_files.clone();
    of_verdicts.sort_unstable();
    of_verdicts.dedup();
    let mut moment = || match random.below(4) {
        // A false verdict is best found out just after it was given; a bulk gives most at a time.
        0 if !of_files.is_empty() => of_files[random.below(of_files.len())],
        1 if !of_verdicts.is_empty() => of_verdicts[random.below(of_verdicts.len())],
        _ => random.below(run.record.events.len() + 1),
    };
    let mut moments: Vec<usize> = (0..cuts).map(|_| moment()).collect();
    moments.sort_unstable();
    let mut cut = run.record.cuts();
    let after = |moment| {
        cut.move_to(moment);
        let disk = Arc::new(Disk::new(cut.image(random), Duration::ZERO));
        let lost = match Volume::open(&disk, setting.filesystem, "") {
            Ok(volume) => run.history.verify(&volume.path(), moment),
            Err(error) => Some(format!("it cannot be mounted, or nothing could be here: {error}")),
        };
        let all = run.record.events.len();
        lost.map(|lost| {
            format!(
                "{setting:?}: cut at {moment} of {all}, {} writes volatile: {lost}",
                cut.volatile()
            )
        })
    };
    moments.into_iter().map(after).collect()
}

/// Cuts the power this many times, half of them at moments when something was told, and calls
/// `verify` with the root of the filesystem and the moment. Returns what that has found wrong.
fn after_cuts(
    (record, told): (&Record, &[usize]),
    filesystem: Filesystem,
    cuts: usize,
    random: &mut Random,
    verify: impl Fn(&Path, usize) -> Result<(), String>,
) -> Vec<String> {
    let mut moment = || match random.below(2) {
        0 => told[random.below(told.len())],
        _ => random.below(record.events.len() + 1),
    };
    let mut moments: Vec<usize> = (0..cuts).map(|_| moment()).collect();
    moments.sort_unstable();
    let mut cut = record.cuts();
    let mut after = |moment| {
        cut.move_to(moment);
        let disk = Arc::new(Disk::new(cut.image(random), Duration::ZERO));
        let verified = match Volume::open(&disk, filesystem, "") {
            Ok(volume) => verify(&volume.path(), moment),
            Err(error) => Err(format!("it cannot be mounted: {error}")),
        };
        let all = record.events.len();
        verified.err().map(|lost| format!("cut at {moment} of {all}: {lost}"))
    };
    moments.into_iter().filter_map(&mut after).collect()
}

/// Runs and cuts until there were enough cuts, with another setting each time. Returns what was
/// lost.
fn losses<S: System>(
    filesystem: Filesystem,
    cuts: usize,
    settings: &[(Shape, Way, &'static str)],
    system: impl Fn() -> S,
) -> Vec<String> {
    let seed = number("HOMING_POWER_CUT_SEED", 1);
    let mut random = Random::new(seed);
    let (mut lost, mut synced) = (Vec::new(), 0);
    for round in 0..cuts.div_ceil(CUTS_OF_A_RUN) {
        let (shape, way, options) = settings[round * STRIDE % settings.len()];
        let setting = Setting { filesystem, options, shape, way };
        let run = run(&setting, system(), random.draw()).unwrap();
        synced += run.history.moments_of_syncs().len();
        let cuts = CUTS_OF_A_RUN.min(cuts - round * CUTS_OF_A_RUN);
        lost.extend(cut(&setting, &run, cuts, &mut random).into_iter().flatten());
    }
    eprintln!(
        "{}: {cuts} cuts among {synced} completed syncs, {} with a loss",
        filesystem.name(),
        lost.len()
    );
    lost
}

#[test]
fn every_completed_sync_survives() {
    let cuts = number("HOMING_POWER_CUTS", 60) as usize;
    let ways = [
        (Strategy::Auto, WriteBack::Auto, Backend::Threads),
        BY_COMMITS,
        (Strategy::Files, WriteBack::Auto, Backend::Threads),
        (Strategy::Filesystem, WriteBack::Early, Backend::Threads),
        (Strategy::Files, WriteBack::Auto, Backend::IoUring),
        (Strategy::Files, WriteBack::Early, Backend::Threads),
    ];
    // Files that are synced by themselves are no bulk that begins with a commit, but one whose
    // write-back begins before the first sync.
    let ways_of_bulks = [ways[0], BY_COMMITS, ways[3], ways[5]];
    available().for_each(|filesystem| {
        let mut settings = Vec::new();
        let all_options: &[_] = match filesystem {
            Filesystem::Xfs => &["", "lazytime"],
            Filesystem::Ext4 => &["", "lazytime", "data=journal"],
            Filesystem::Btrfs => &["", "compress-force", "nodatacow"],
        };
        for options in all_options {
            for (number, way) in ways.into_iter().enumerate() {
                settings.push((Shape::Mixed, way, *options));
                settings.push((Shape::BesideStranger, BY_COMMITS, options));
                settings.push((Shape::Overwrites, ways[(number + 2) % ways.len()], options));
                settings.push((
                    Shape::BesideBulk,
                    ways_of_bulks[number % ways_of_bulks.len()],
                    options,
                ));
            }
        }
        let lost = losses(filesystem, cuts, &settings, || Linux);
        assert!(lost.is_empty(), "{}", lost.join("\n"));
    });
}

#[test]
fn a_log_has_every_record_that_was_durable_and_none_that_was_gone() {
    let seed = number("HOMING_POWER_CUT_SEED", 1);
    let cuts = number("HOMING_POWER_CUTS", 60).div_ceil(3) as usize;
    available().for_each(|filesystem| {
        let lost = log::losses(filesystem, Linux, cuts, seed);
        assert!(lost.is_empty(), "{}", lost.join("\n"));
        assert!(!log::losses(filesystem, Nothing, 10, seed).is_empty(), "nothing was lost");
    });
}

#[test]
fn a_file_that_was_replaced_is_the_old_one_or_the_new_one_and_not_older_than_was_said() {
    let seed = number("HOMING_POWER_CUT_SEED", 1);
    let cuts = number("HOMING_POWER_CUTS", 60).div_ceil(3) as usize;
    available().for_each(|filesystem| {
        let lost = replaced::losses(filesystem, Linux, cuts, seed);
        assert!(lost.is_empty(), "{}", lost.join("\n"));
        assert!(!replaced::losses(filesystem, Nothing, 10, seed).is_empty(), "nothing was lost");
    });
}

#[test]
fn an_engine_that_does_not_flush_the_device_is_found_out() {
    let settings = [(Shape::BesideStranger, BY_COMMITS, "")];
    available().for_each(|filesystem| {
        let lost = losses(filesystem, 40, &settings, || NoFlush);
        // ext4 flushes its device itself if its journal has nothing to write, and btrfs always.
        assert!(filesystem != Filesystem::Xfs || !lost.is_empty(), "nothing was lost");
    });
}

#[test]
fn an_engine_that_does_nothing_is_found_out() {
    let way = (Strategy::Auto, WriteBack::Auto, Backend::Threads);
    let settings = [(Shape::Mixed, way, "")];
    available().for_each(|filesystem| {
        assert!(!losses(filesystem, 20, &settings, || Nothing).is_empty());
    });
}

/// The first commit of the bulk covers what was written until then, and no more.
#[test]
fn a_bulk_that_is_committed_only_once_is_found_out() {
    let settings = [(Shape::BesideBulk, (Strategy::Auto, WriteBack::Late, Backend::Threads), "")];
    available().for_each(|filesystem| {
        assert!(!losses(filesystem, 20, &settings, OneCommit::default).is_empty());
    });
}
