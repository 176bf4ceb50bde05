//! A server may send anything: the client asks for no more bytes than an option reply may have.
#![no_main]

use homing_nbd::{ClientHandshake, ClientStep};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let (mut client, mut rest, mut given) = (ClientHandshake::new("disk"), input, &input[..0]);
    loop {
        match client.step(given) {
            Ok(ClientStep::Read(count)) => {
                assert!(count < 1 << 16, "{count} bytes are asked for");
                let Some((next, behind)) = rest.split_at_checked(count) else { return };
                (given, rest) = (next, behind);
            }
            Ok(ClientStep::Send(_)) => given = &[],
            Ok(ClientStep::Begin(_)) | Err(_) => return,
        }
    }
});
