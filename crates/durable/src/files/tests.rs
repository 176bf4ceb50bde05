//! What is begun, and when: the files of one filesystem, without any system call.

use std::fs::File;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use homing_runtime::Runtime;

use crate::choices::early::WriteBack;
use crate::choices::group::{Group, Service};
use crate::choices::policy::Policy;
use crate::choices::strategy::Strategy;
use crate::durable::{Durable, Kind};
use crate::engine::commit;
use crate::files::entry::Sync;
use crate::files::failures::Failures;
use crate::files::file_id::{FileId, Is};
use crate::files::filesystem::{Filesystem, Work};
use crate::files::{Asked, Files, Job};
use crate::system::Failure;

const DEVICE: u64 = 7;
const TAKES: Duration = Duration::from_millis(4);

fn id(inode: u64) -> FileId {
    FileId { device: DEVICE, inode, is: Is::Plain }
}

fn by(strategy: Strategy) -> Policy {
    Policy { strategy, depth: Some(64), ..Policy::default() }
}

fn files() -> Files {
    let mut files = Files::default();
    files.note_commits(DEVICE, true, true);
    files
}

fn ask(files: &mut Files, inode: u64) {
    let keep = || File::open("/").map(Arc::new);
    assert!(matches!(files.ask(id(inode), Kind::All, 1, Some(3), keep), Ok(Asked::New(_))));
}

fn next(files: &mut Files) -> Option<Job> {
    files.next_job(by(Strategy::Filesystem))
}

fn commit(files: &mut Files) -> Vec<u64> {
    match next(files) {
        Some(Job::Commit(syncs, false)) => syncs.iter().map(|sync| sync.id.inode).collect(),
        other => panic!("{other:?} instead of a commit"),
    }
}

#[test]
fn a_bulk_begins_with_its_first_files_where_all_are_worth_a_commit() {
    let mut files = files();
    let begun = |files: &mut Files, expected, strategy| {
        files.first_commit(DEVICE, expected, by(strategy)).is_some()
    };
    ask(&mut files, 1);
    assert!(!begun(&mut files, 5000, Strategy::Auto), "the others are elsewhere");
    (2..=8).for_each(|inode| ask(&mut files, inode));
    assert!(!begun(&mut files, 20, Strategy::Auto), "too few");
    assert!(!begun(&mut files, 1000, Strategy::Files), "forbidden");
    let first = files.first_commit(DEVICE, 1000, by(Strategy::Auto));
    assert!(matches!(first, Some(Job::Commit(syncs, false)) if syncs.len() == 8));
    (9..=100).for_each(|inode| ask(&mut files, inode));
    assert!(!begun(&mut files, 1000, Strategy::Auto), "one runs");
    assert!(files.next_job(by(Strategy::Auto)).is_none(), "the others wait for its end");
    end(&mut files, &[1, 2, 3, 4, 5, 6, 7, 8]);
    files.end_gather(DEVICE);
    assert_eq!(commit(&mut files).len(), 92);
}

/// Ends a commit of these files. Returns whether the next one is put off.
fn end(files: &mut Files, inodes: &[u64]) -> bool {
    let count = inodes.len();
    for inode in inodes {
        files.end(id(*inode), Ok(()), || None);
    }
    let work = Work {
        was_commit: true,
        files: count,
        askers: count,
        callers: count,
        waved: 0,
        by_caller: false,
    };
    files.end_job(DEVICE, work, TAKES, by(Strategy::Filesystem));
    let put_off = files.begin_gather(DEVICE, by(Strategy::Filesystem));
    match &put_off {
        Some(Job::Gather(DEVICE, limit)) => assert_eq!(*limit, TAKES / 2),
        Some(other) => panic!("{other:?}"),
        None => {}
    }
    put_off.is_some()
}

#[test]
fn who_comes_while_a_group_is_served_is_of_the_next_one_which_waits_for_those_who_were_there() {
    let mut files = files();
    (1..=3).for_each(|inode| ask(&mut files, inode));
    assert_eq!(commit(&mut files), [1, 2, 3]);
    ask(&mut files, 4);
    ask(&mut files, 1);
    assert!(next(&mut files).is_none(), "one at a time");
    assert!(!begins_alone(&mut files, 5, Strategy::Filesystem));

    assert!(end(&mut files, &[1, 2, 3]), "five are known, and two wait");
    assert!(next(&mut files).is_none() && !begins_alone(&mut files, 5, Strategy::Filesystem));
    ask(&mut files, 2);
    ask(&mut files, 3);
    assert!(!files.has_gathered(DEVICE) && !files.have_gathered());
    ask(&mut files, 5);
    assert!(files.has_gathered(DEVICE) && files.have_gathered());
    ask(&mut files, 6);
    assert!(files.has_gathered(DEVICE) && !files.have_gathered(), "said once");
    files.end_gather(DEVICE);
    assert_eq!(commit(&mut files), [4, 1, 2, 3, 5, 6]);
}

fn begins_alone(files: &mut Files, inode: u64, strategy: Strategy) -> bool {
    files.begin_alone(id(inode), by(strategy), true).unwrap().is_some()
}

#[test]
fn a_group_that_nobody_comes_for_is_put_off_no_longer() {
    let mut files = files();
    (1..=3).for_each(|inode| ask(&mut files, inode));
    let served = commit(&mut files);
    assert!(end(&mut files, &served));
    files.end_gather(DEVICE);
    assert!(next(&mut files).is_none());
    let forced = begins_alone(&mut files, 1, Strategy::Filesystem);
    assert!(!forced, "also one file is synced by a commit");
    assert!(begins_alone(&mut files, 1, Strategy::Auto), "nothing is under way");
    let work =
        Work { was_commit: false, files: 1, askers: 1, callers: 1, waved: 0, by_caller: true };
    files.end(id(1), Ok(()), || None);
    files.end_job(DEVICE, work, TAKES, by(Strategy::Filesystem));
    let job = files.begin_gather(DEVICE, by(Strategy::Filesystem));
    assert!(job.is_none(), "for a lone one nobody is waited for: {job:?}");
}

#[test]
fn where_much_waits_to_be_written_commits_go_on_until_one_is_dear() {
    for (takes, goes_on) in [(TAKES, true), (Duration::from_secs(1), false)] {
        let mut filesystem =
            Filesystem { syncing: 2, serving: 2, commits: Some(true), ..Filesystem::default() };
        let work =
            Work { was_commit: true, files: 2, askers: 2, callers: 2, waved: 0, by_caller: false };
        filesystem.end_work(work, takes, by(Strategy::Auto), Instant::now());
        filesystem.group = Group::with(Service::Commits);
        let serves = |crowded: bool| {
            let unwritten = if crowded { u64::MAX } else { 0 };
            filesystem.service(Policy { unwritten, ..by(Strategy::Auto) })
        };
        assert_eq!(serves(false), Service::Commits);
        assert_eq!(serves(true) == Service::Commits, goes_on);
    }
}

#[test]
fn whoever_cannot_be_kept_waits_until_nobody_else_syncs_the_file() {
    let mut files = files();
    ask(&mut files, 1);
    let here = |files: &mut Files, claim: &mut bool| files.begin_here(id(1), claim);
    let (mut first, mut second) = (false, false);
    assert!(!here(&mut files, &mut first), "somebody waits for it");
    let job = files.next_job(by(Strategy::Files));
    assert!(matches!(job, Some(Job::File(Sync { is_known: true, .. }))));
    assert!(!here(&mut files, &mut first));
    ask(&mut files, 1);
    end(&mut files, &[1]);
    assert!(files.next_job(by(Strategy::Files)).is_none(), "his claim is older");
    let alone = files.begin_alone(id(1), by(Strategy::Files), true);
    assert!(alone.unwrap().is_none(), "nor is he overtaken by who comes now");
    assert!(here(&mut files, &mut first) && !here(&mut files, &mut second));
    files.end(id(1), Ok(()), || None);
    assert!(!here(&mut files, &mut second), "who waited meanwhile comes before another claim");
    assert!(matches!(files.next_job(by(Strategy::Files)), Some(Job::File(_))));
    end(&mut files, &[1]);
    assert!(begins_alone(&mut files, 2, Strategy::Files), "another file is not held up");
    assert!(here(&mut files, &mut second));
    files.end(id(1), Ok(()), || None);
    assert!(!first && !second && begins_alone(&mut files, 1, Strategy::Files));
}

#[test]
fn a_files_next_sync_waits_for_those_who_had_the_last_one() {
    let mut files = files();
    let next = |files: &mut Files| files.next_job(by(Strategy::Files));
    let ended = |files: &mut Files, askers| {
        files.note_ended(id(1), askers, Duration::from_secs(80));
        end(files, &[1]);
    };
    let shares = |files: &mut Files| {
        let asked = files.ask(id(1), Kind::All, 1, None, || File::open("/").map(Arc::new));
        assert!(matches!(asked, Ok(Asked::Shares(_))));
    };
    ask(&mut files, 1);
    assert!(matches!(next(&mut files), Some(Job::File(_))));
    ended(&mut files, 1);
    ask(&mut files, 1);
    assert!(matches!(next(&mut files), Some(Job::File(_))), "nobody else was there");
    ask(&mut files, 1);
    ended(&mut files, 2);
    let Some(Job::GatherFile(_, limit)) = next(&mut files) else { panic!("two come again") };
    assert!(limit >= Duration::from_secs(10), "{limit:?}");
    assert!(next(&mut files).is_none() && !files.has_gathered_of(id(1)));
    shares(&mut files);
    assert!(!files.have_gathered(), "one is still missing");
    shares(&mut files);
    assert!(files.have_gathered() && files.has_gathered_of(id(1)) && !files.have_gathered());
    files.end_gather_of(id(1));
    assert!(matches!(next(&mut files), Some(Job::File(_))) && next(&mut files).is_none());
    ended(&mut files, 3);
    assert!(!begins_alone(&mut files, 1, Strategy::Files), "nobody waits yet: they may come");
    // Callers that wait may be told meanwhile that they wait in vain.
    ask(&mut files, 1);
    assert!(matches!(next(&mut files), Some(Job::GatherFile(..))));
    let failure =
        Failure { operation: "fsync", error: std::io::Error::from_raw_os_error(libc::EIO) };
    let lost = commit::error(id(1), &File::open("/").unwrap(), Kind::All, &failure);
    let failed = files.end_own(id(1), Err(lost), || None);
    assert!(failed.in_vain.is_some() && files.has_gathered_of(id(1)));
    files.end_gather_of(id(1));
    assert!(next(&mut files).is_none() && files.acknowledge(id(1), |_| true).is_some());
    // A caller that was alone again waits for nobody.
    files.note_ended(id(1), 1, TAKES);
    assert!(begins_alone(&mut files, 1, Strategy::Files));
}

#[test]
fn those_who_sync_side_by_side_begin_at_once() {
    let mut files = files();
    for inode in 1..=3 {
        ask(&mut files, inode);
        let job = files.next_job(by(Strategy::Files));
        assert!(matches!(job, Some(Job::File(Sync { .. }))), "{job:?}");
    }
    let beside = files.begin_alone(id(4), by(Strategy::Files), true);
    assert!(beside.unwrap().unwrap().beside);
}

fn ask_for_a_bulk(files: &mut Files, inodes: std::ops::Range<u64>) {
    for inode in inodes {
        let keep = || File::open("/").map(Arc::new);
        assert!(files.ask(id(inode), Kind::All, 0, Some(3), keep).is_ok());
    }
}

#[test]
fn a_bulk_keeps_nobody_from_syncing_one_file() {
    for strategy in [Strategy::Files, Strategy::Auto] {
        let policy = Policy { depth: Some(2), write_back: WriteBack::Late, ..by(strategy) };
        let mut files = files();
        let alone = |files: &mut Files, inode| files.begin_alone(id(inode), policy, true).unwrap();
        ask_for_a_bulk(&mut files, 100..200);
        assert!(alone(&mut files, 1).is_some(), "before it has begun");
        assert!(files.begin_alone(id(5), policy, false).unwrap().is_none(), "who must not wait");
        let jobs = std::iter::from_fn(|| files.next_job(policy)).count();
        assert_eq!(jobs, if strategy == Strategy::Files { 2 } else { 1 }, "{strategy:?}");
        ask_for_a_bulk(&mut files, 200..300);
        assert!(alone(&mut files, 2).is_some(), "while it goes on");
        assert!(alone(&mut files, 3).is_none(), "but not more than so many");
    }
}

#[test]
fn a_bulk_that_waits_holds_up_nobody_with_one_file() {
    let mut files = files();
    let policy = Policy { depth: Some(2), write_back: WriteBack::Late, ..by(Strategy::Files) };
    let next = |files: &mut Files, policy| match files.next_job(policy) {
        Some(Job::File(sync)) => sync.id.inode,
        other => panic!("{other:?}"),
    };
    let end_one = |files: &mut Files, inode| {
        files.end(id(inode), Ok(()), || None);
        let work = Work { files: 1, askers: 1, ..Work::default() };
        files.end_job(DEVICE, Work { callers: usize::from(inode < 100), ..work }, TAKES, policy);
    };
    ask_for_a_bulk(&mut files, 100..200);
    assert_eq!([next(&mut files, policy), next(&mut files, policy)], [100, 101]);
    (1..=2).for_each(|inode| ask(&mut files, inode));
    let order = [100, 1, 102, 2].map(|ends| {
        end_one(&mut files, ends);
        next(&mut files, policy)
    });
    assert_eq!(order, [1, 102, 2, 103], "nor is the bulk held up for ever");

    // Nor while the bulk waits for its next commit.
    let policy = by(Strategy::Auto);
    end_one(&mut files, 101);
    end_one(&mut files, 103);
    assert!(matches!(files.next_job(policy), Some(Job::Commit(..))));
    ask_for_a_bulk(&mut files, 200..300);
    assert!(files.next_job(policy).is_none());
    ask(&mut files, 3);
    assert_eq!(next(&mut files, policy), 3);
    assert!(files.next_job(policy).is_none());
}

/// How many callers the files of a batch have when a commit of them begins.
fn callers_of(batch: &[u64], notes: bool) -> usize {
    let mut files = files();
    for inode in batch {
        let keep = || File::open("/").map(Arc::new);
        assert!(files.ask(id(*inode), Kind::All, 0, Some(3), keep).is_ok());
    }
    if notes {
        files.note_caller(id(batch[0]));
    }
    let Some(Job::Commit(syncs, _)) = next(&mut files) else { panic!("no commit") };
    syncs.iter().map(|sync| sync.callers).sum()
}

#[test]
fn a_batch_has_one_caller_once_it_is_known_to_be_no_bulk() {
    assert_eq!([callers_of(&[1, 2], true), callers_of(&[1, 2], false)], [1, 0]);
}

#[test]
fn files_of_batches_are_no_answers() {
    const ISSUERS: usize = 8;
    let mut now = Instant::now();
    // The rate for issuers with this many files at a time. If synced by themselves, each file is a
    // job of its own.
    let mut rate_of = |files: usize, was_commit: bool| {
        let mut filesystem = Filesystem { commits: Some(true), ..Filesystem::default() };
        for _ in 0..10 {
            now += Duration::from_millis(10);
            let all = ISSUERS * files;
            let callers_of = |number: usize| usize::from(number.is_multiple_of(files));
            (0..all).for_each(|number| filesystem.push(id(number as u64), callers_of(number)));
            filesystem.ready.take_plain();
            (0..all).for_each(|number| filesystem.begin(callers_of(number)));
            let mut end = |files, callers| {
                let work = Work { was_commit, files, askers: files, callers, ..Work::default() };
                filesystem.end_work(work, TAKES, by(Strategy::Files), now);
            };
            if was_commit {
                end(all, ISSUERS);
            } else {
                (0..all).for_each(|number| end(1, callers_of(number)));
            }
        }
        filesystem.group.rate()
    };
    for was_commit in [false, true] {
        let rate = rate_of(1, was_commit);
        assert!(rate.is_some());
        assert_eq!(rate_of(4, was_commit), rate, "commits: {was_commit}");
    }
}

#[test]
fn a_bulk_is_not_one_of_those_who_sync_a_file_each() {
    let policy = by(Strategy::Auto);
    let mut now = Instant::now();
    // Whether a batch with this many callers, beside a caller that syncs one file, is ever served
    // otherwise than side by side.
    let mut tries = |callers: usize| {
        let batch = 100;
        let mut filesystem = Filesystem { commits: Some(true), ..Filesystem::default() };
        filesystem.begin_alone();
        (0..10_000).any(|_| {
            now += Duration::from_millis(1);
            let work = Work { files: batch, askers: batch, callers, ..Work::default() };
            let callers_of = |number| if number == 0 { callers } else { 0 };
            (0..batch).for_each(|number| filesystem.push(id(number as u64), callers_of(number)));
            filesystem.ready.take_plain();
            (0..batch).for_each(|number| filesystem.begin(callers_of(number)));
            let one = Work { files: 1, askers: 1, callers: 1, by_caller: true, ..Work::default() };
            filesystem.end_work(one, TAKES, policy, now);
            filesystem.begin_alone();
            filesystem.end_work(Work { was_commit: true, ..work }, TAKES, policy, now);
            filesystem.service(policy) != Service::Beside
        })
    };
    assert!(tries(1) && !tries(0));
}

#[test]
fn nobody_is_held_up_for_long_by_a_slow_sync_that_began_before() {
    let mut files = files();
    files.put_off(DEVICE, 3);
    files.end_gather(DEVICE);
    ask(&mut files, 1);
    let job = files.next_job(by(Strategy::Files));
    assert!(matches!(job, Some(Job::File(Sync { .. }))), "{job:?}");
    ask(&mut files, 2);
    ask(&mut files, 3);
    let held = next(&mut files);
    assert!(matches!(held, Some(Job::Gather(DEVICE, _))), "{held:?}");
    assert!(next(&mut files).is_none() && !files.has_gathered(DEVICE));
    files.end_gather(DEVICE);
    assert_eq!(commit(&mut files), [2, 3], "beside the slow one");
    assert!(next(&mut files).is_none());
}

#[test]
fn filesystems_take_turns() {
    let mut files = files();
    files.note_commits(DEVICE + 1, true, true);
    let keep = || File::open("/").map(Arc::new);
    for inode in 0..10 {
        let other = FileId { device: DEVICE + 1, ..id(inode) };
        assert!(files.ask(other, Kind::All, 1, Some(3), keep).is_ok());
        ask(&mut files, inode);
        ask(&mut files, 100 + inode);
    }
    let begun = (0..10).map(|_| match files.next_job(by(Strategy::Files)) {
        Some(Job::File(sync)) => sync.id.device,
        other => panic!("{other:?}"),
    });
    assert_eq!(begun.filter(|device| *device == DEVICE).count(), 5);
}

/// However many disks hang, another one has at least one job.
#[test]
fn a_disk_that_hangs_keeps_its_own_jobs_alone() {
    let policy = Policy { depth: Some(2), write_back: WriteBack::Late, ..by(Strategy::Files) };
    let mut files = files();
    let mut begins = |device: u64| {
        let keep = || File::open("/").map(Arc::new);
        for inode in 1..=10 {
            let of_it = FileId { device, ..id(inode) };
            assert!(files.ask(of_it, Kind::All, 1, Some(3), keep).is_ok());
        }
        let alone = (11..=20).filter(|inode| {
            let of_it = FileId { device, ..id(*inode) };
            files.begin_alone(of_it, policy, true).unwrap().is_some()
        });
        let alone = alone.count();
        (std::iter::from_fn(|| files.next_job(policy)).count(), alone)
    };
    let begun: Vec<_> = (0..10).map(|number| begins(DEVICE + number)).collect();
    assert_eq!(begun[..8], [(2, 2); 8]);
    assert_eq!(begun[8..], [(1, 2); 2], "there are eight times as many as one may have");
}

/// The last caller that was missing wakes the worker, which would otherwise wait for minutes.
#[test]
fn those_who_have_come_wake_whoever_waits_for_them() {
    let runtime = Runtime::new().unwrap();
    let durable = Durable::new(&runtime).unwrap();
    let (one, two) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    let device = FileId::of(&one).unwrap().device;
    durable.engine.put_off(device, 2, Duration::from_secs(100));
    let (sender, receiver) = mpsc::channel();
    for file in [one, two] {
        let (durable, sender) = (durable.clone(), sender.clone());
        thread::spawn(move || sender.send(durable.fsync_and_wait(&file)).unwrap());
    }
    for _ in 0..2 {
        receiver.recv_timeout(Duration::from_secs(60)).unwrap().unwrap();
    }
}

#[test]
fn of_filesystems_that_have_gone_few_are_kept() {
    let mut files = files();
    ask(&mut files, 1);
    for device in 100..10_000 {
        files.note_commits(device, true, true);
    }
    let known = (100..10_000).filter(|device| files.knows(*device)).count();
    assert!((1..=64).contains(&known), "{known}");
    assert!(files.knows(DEVICE) && commit(&mut files) == [1], "somebody waits there");
}

#[test]
fn what_failed_with_one_engine_has_failed_with_all_until_somebody_acknowledges_it() {
    let failures = Failures::default();
    let (mut one, mut other) = (Files::with(failures.another()), Files::with(failures.another()));
    let keep = || File::open("/").map(Arc::new);
    let failure =
        Failure { operation: "fsync", error: std::io::Error::from_raw_os_error(libc::EIO) };
    let error = || commit::error(id(1), &keep().unwrap(), Kind::All, &failure);
    // A sync of the other engine is under way when the first one hears of the failure.
    ask(&mut other, 1);
    assert!(matches!(other.next_job(by(Strategy::Files)), Some(Job::File(_))));
    ask(&mut one, 1);
    assert!(matches!(one.next_job(by(Strategy::Files)), Some(Job::File(_))));
    assert!(one.end(id(1), Err(error()), || None).verdict.is_err());
    assert!(
        other.end(id(1), Ok(()), || None).verdict.is_err(),
        "it may have found nothing to write"
    );
    for files in [&mut one, &mut other] {
        let asked = files.ask(id(1), Kind::All, 1, Some(3), keep);
        assert!(matches!(asked, Ok(Asked::Failed(_))));
        assert!(files.begin_alone(id(1), by(Strategy::Files), true).is_err());
        assert_eq!(files.failures(), [files.failure(id(1)).unwrap()]);
    }
    ask(&mut other, 2);
    assert!(other.acknowledge(id(1), |_| true).is_some() && one.failures().is_empty());
    ask(&mut one, 1);
    // A failure goes with the last engine that heard of it itself.
    assert!(one.end_own(id(5), Err(error()), || None).verdict.is_err());
    assert!(one.end_own(id(6), Err(error()), || None).verdict.is_err());
    assert!(other.end_own(id(6), Err(error()), || None).verdict.is_err());
    assert!(other.failure(id(5)).is_some());
    drop(one);
    assert!(other.failure(id(5)).is_none() && other.failure(id(6)).is_some());
}

#[test]
fn a_failure_that_was_noted_stays_with_what_was_kept_for_it_whoever_hears_of_another() {
    let failures = Failures::default();
    let (one, other) = (failures.another(), failures.another());
    let kept = || Arc::new(File::open("/").unwrap());
    let failed = |errno: i32, file: &Arc<File>| {
        let error = std::io::Error::from_raw_os_error(errno);
        let failure = Failure { operation: "fsync", error };
        (commit::error(id(1), file, Kind::All, &failure), Some(Arc::clone(file)))
    };
    let (first, second) = (kept(), kept());
    one.note(id(1), || failed(libc::EIO, &first));
    other.note(id(1), || failed(libc::ENOSPC, &second));
    assert_eq!(other.of(id(1)).unwrap().errno, libc::EIO);
    drop(other);
    assert_eq!(one.of(id(1)).unwrap().errno, libc::EIO, "the first engine has heard of it, too");
    let (_, file) = one.take(id(1), |_| true).unwrap();
    assert!(Arc::ptr_eq(&file.unwrap(), &first));
}

#[test]
fn who_has_a_claim_gets_the_file_once_the_sync_before_it_is_given_up() {
    let mut files = files();
    ask(&mut files, 1);
    let mut claim = false;
    assert!(!files.begin_here(id(1), &mut claim), "somebody waits for it");
    assert!(files.give_up(id(1)).is_some());
    assert!(files.begin_here(id(1), &mut claim) && !claim);
}

#[test]
fn a_lost_flush_of_a_filesystem_is_no_loss_of_a_device_whose_node_is_there() {
    let mut files = files();
    let error = std::io::Error::from_raw_os_error(libc::EIO);
    files.note_lost(DEVICE, &Arc::new(Failure { operation: "fsync", error }));
    let is_lost = |is: Is| files.lost_since(FileId { is, ..id(1) }, 0).is_some();
    assert!(is_lost(Is::Plain) && is_lost(Is::Directory));
    assert!(!is_lost(Is::Device) && !is_lost(Is::Other));
}

#[test]
fn a_claim_is_older_than_who_comes_when_the_file_is_free() {
    let mut files = files();
    assert!(begins_alone(&mut files, 1, Strategy::Files));
    let mut claim = false;
    assert!(!files.begin_here(id(1), &mut claim), "somebody syncs it");
    files.end(id(1), Ok(()), || None);
    assert!(!begins_alone(&mut files, 1, Strategy::Files));
    assert!(files.begin_here(id(1), &mut claim));
}

#[test]
fn a_sync_whose_callers_would_wait_in_vain_is_waited_for_by_nobody() {
    let mut files = files();
    ask(&mut files, 1);
    let mut claim = false;
    assert!(files.waits() && !files.begin_here(id(1), &mut claim));
    let error = std::io::Error::from_raw_os_error(libc::EIO);
    let failure = Failure { operation: "pwritev2", error };
    let lost = commit::error(id(1), &File::open("/").unwrap(), Kind::Data, &failure);
    assert!(files.end_own(id(1), Err(lost), || None).in_vain.is_some());
    assert!(!files.waits());
    assert!(files.acknowledge(id(1), |_| true).is_some());
    assert!(files.begin_here(id(1), &mut claim), "the claim goes on");
}
