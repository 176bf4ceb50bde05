//! What is done when its reply comes, and durable by FUA or a flush. This also holds where no
//! memory is left for another thread.

use std::io::{Read as _, Write as _};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use homing_nbd::RequestHeader;
use homing_nbd::wire::{command, command_flag};
use homing_server::{CryptOn, ServerOptions};
use homing_volume::{Block, BlockError, Bytes, Durability, File};

use crate::client::Pipelined;
use crate::{serve, socket};

const SIZE: usize = 16 << 20;
const LEN: usize = 4096;
/// Discarded bytes read as this.
const DISCARDED: u8 = 0xDD;

/// A disk with a cache: its contents now, and what a power cut leaves of them.
struct Disk(Mutex<[Vec<u8>; 2]>);

impl Disk {
    fn change(&self, offset: u64, length: usize, d: Durability, change: impl Fn(&mut [u8])) {
        let mut both = self.0.lock().unwrap();
        let changed = if d == Durability::Flushed { &mut both[..] } else { &mut both[..1] };
        for bytes in changed {
            change(&mut bytes[offset as usize..][..length]);
        }
    }

    fn is_durable(&self, offset: usize, byte: u8) -> bool {
        self.0.lock().unwrap()[1][offset..][..LEN].iter().all(|found| *found == byte)
    }
}

impl Block for Disk {
    fn size(&self) -> u64 {
        SIZE as u64
    }

    fn block_size(&self) -> u32 {
        1
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), BlockError> {
        data.copy_from_slice(&self.0.lock().unwrap()[0][offset as usize..][..data.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, data: &mut [u8], d: Durability) -> Result<(), BlockError> {
        self.change(offset, data.len(), d, |bytes| bytes.copy_from_slice(data));
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, length: u64, d: Durability) -> Result<(), BlockError> {
        self.change(offset, length as usize, d, |bytes| bytes.fill(0));
        Ok(())
    }

    fn flush(&self) -> Result<(), BlockError> {
        let [now, durable] = &mut *self.0.lock().unwrap();
        durable.copy_from_slice(now);
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), BlockError> {
        self.change(offset, length as usize, Durability::Written, |bytes| bytes.fill(DISCARDED));
        Ok(())
    }

    fn cost_ns(&self, length: u64) -> u64 {
        length
    }
}

/// Sends these requests at once: flags, command, offset and length. A write's data are its number
/// in the list plus one.
fn ask(client: &mut Pipelined, requests: &[(u16, u16, usize, usize)]) {
    let (mut bytes, mut sent) = (Vec::new(), Vec::new());
    for (cookie, &(flags, command, offset, length)) in (0..).zip(requests) {
        let (offset, length) = (offset as u64, length as u32);
        bytes.extend(RequestHeader { flags, command, cookie, offset, length }.encode());
        if command == command::WRITE {
            bytes.extend(vec![cookie as u8 + 1; length as usize]);
        }
        sent.push((command, offset, length, Vec::new()));
    }
    client.0.write_all(&bytes).unwrap();
    assert!(client.replies(&sent).iter().all(|(errno, _)| *errno == 0));
}

#[test]
fn what_is_forced_or_flushed_is_durable_when_it_is_answered() {
    use command::{FLUSH, TRIM, WRITE, WRITE_ZEROES};
    const FUA: u16 = command_flag::FUA;
    for crypt_on in [CryptOn::Connection, CryptOn::Workqueue, CryptOn::Auto] {
        for is_short in [false, true] {
            let disk = Arc::new(Disk(Mutex::new([vec![9; SIZE], vec![9; SIZE]])));
            let request_memory_max = if is_short { 1 } else { 64 << 20 };
            let stall_timeout = Duration::from_secs(60);
            let options =
                ServerOptions { crypt_on, request_memory_max, stall_timeout, ..Default::default() };
            let (_folder, endpoint) = socket();
            serve(&endpoint, &[("disk", &disk)], &options, |served| {
                let endpoint = &served.endpoint;
                let told = format!("{crypt_on:?}, short of memory: {is_short}");
                let mut stalls = Pipelined::connect(endpoint);
                if is_short {
                    // It sends half of what it wants to write, and so holds all the memory that
                    // there is.
                    let (command, length) = (WRITE, 2 << 20);
                    let header =
                        RequestHeader { flags: 0, command, cookie: 0, offset: 8 << 20, length };
                    stalls.0.write_all(&header.encode()).unwrap();
                    stalls.0.write_all(&vec![1; 1 << 20]).unwrap();
                    std::thread::sleep(Duration::from_millis(300));
                }
                let mut client = Pipelined::connect(endpoint);
                let mut both = |first: (u16, u16, usize, usize), second| {
                    if crypt_on == CryptOn::Connection {
                        return ask(&mut client, &[first, second]);
                    }
                    // Workers keep no order among the requests that are under way.
                    ask(&mut client, &[first]);
                    ask(&mut client, &[second]);
                };
                for round in 0..20 {
                    let at = [0, 1, 2, 3, 4, 5].map(|place| (6 * round + place) * LEN);
                    both((0, WRITE, at[0], LEN), (FUA, WRITE, at[0], LEN));
                    let byte = if crypt_on == CryptOn::Connection { 2 } else { 1 };
                    assert!(disk.is_durable(at[0], byte), "{told}: a write");
                    both((0, WRITE, at[1], LEN), (FUA, WRITE_ZEROES, at[1], LEN));
                    assert!(disk.is_durable(at[1], 0), "{told}: zeroes");
                    both((0, WRITE, at[2], LEN), (FUA, TRIM, at[2], LEN));
                    assert!(disk.is_durable(at[2], DISCARDED), "{told}: a discard");
                    both((0, WRITE_ZEROES, at[3], LEN), (0, FLUSH, 0, 0));
                    assert!(disk.is_durable(at[3], 0), "{told}: a flush after zeroes");
                    both((0, WRITE, at[4], LEN), (0, FLUSH, 0, 0));
                    assert!(disk.is_durable(at[4], 1), "{told}: a flush after a write");
                    both((0, WRITE, at[3], LEN), (0, WRITE, at[5], LEN));
                    assert!(!disk.is_durable(at[3], 1), "{told}: this test finds nothing");
                    ask(&mut Pipelined::connect(endpoint), &[(0, FLUSH, 0, 0)]);
                    assert!(disk.is_durable(at[3], 1), "{told}: a flush of another connection");
                    let forced = [(at[0], byte), (at[1], 0), (at[2], DISCARDED)];
                    for (at, byte) in forced {
                        assert!(disk.is_durable(at, byte), "{told}: what came before came after");
                    }
                }
                drop(stalls);
            });
        }
    }
}

#[test]
fn zeroes_that_are_written_in_pieces_reach_their_end() {
    const ALL: (usize, usize) = (LEN, 15 << 20);
    for crypt_on in [CryptOn::Connection, CryptOn::Workqueue] {
        for flags in [0, command_flag::FUA] {
            let disk = Arc::new(Disk(Mutex::new([vec![9; SIZE], vec![9; SIZE]])));
            let options = ServerOptions { crypt_on, ..Default::default() };
            let (_folder, endpoint) = socket();
            serve(&endpoint, &[("disk", &disk)], &options, |served| {
                let mut client = Pipelined::connect(&served.endpoint);
                ask(&mut client, &[(flags, command::WRITE_ZEROES, ALL.0, ALL.1)]);
            });
            let now = &disk.0.lock().unwrap()[0];
            let (before, rest) = now.split_at(ALL.0);
            let (zeroes, behind) = rest.split_at(ALL.1);
            assert!(zeroes.iter().all(|byte| *byte == 0));
            assert!(before.iter().chain(behind).all(|byte| *byte == 9));
        }
    }
}

#[test]
fn what_came_before_rubbish_is_done() {
    let disk = Arc::new(Disk(Mutex::new([vec![9; SIZE], vec![9; SIZE]])));
    let (_folder, endpoint) = socket();
    let options = ServerOptions { crypt_on: CryptOn::Connection, ..Default::default() };
    serve(&endpoint, &[("disk", &disk)], &options, |served| {
        let mut client = Pipelined::connect(&served.endpoint);
        let (command, length) = (command::WRITE, LEN as u32);
        let mut bytes = Vec::new();
        let header = RequestHeader { flags: 0, command, cookie: 0, offset: 0, length };
        bytes.extend(header.encode());
        bytes.extend(vec![1; LEN]);
        bytes.extend([0xFF; 28]);
        client.0.write_all(&bytes).unwrap();
        // This ends when the server has hung up.
        let _ = client.0.read_to_end(&mut Vec::new());
        assert!(disk.0.lock().unwrap()[0][..LEN].iter().all(|byte| *byte == 1));
    });
}

#[test]
fn the_engine_counts_a_write_with_fua_that_shares_no_sync() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(SIZE as u64).unwrap();
    let device = Arc::new(Bytes::new(File::new(Arc::new(file), 0, SIZE as u64, 4096)));
    let (_folder, endpoint) = socket();
    serve(&endpoint, &[("disk", &device)], &ServerOptions::default(), |served| {
        let mut client = Pipelined::connect(&served.endpoint);
        // The second one begins and ends within blocks.
        for (offset, asked) in [(0, 1), (LEN / 2, 3)] {
            ask(&mut client, &[(command_flag::FUA, command::WRITE, offset, LEN)]);
            assert_eq!(served.durable.counters().asked, asked);
        }
    });
}
