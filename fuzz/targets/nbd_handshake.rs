//! A client may send anything before it asks for data: the conversation ends, and replies are
//! bounded.
#![no_main]

use homing_nbd::{BlockSizes, Export, Handshake, Progress, Tls};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let exports = ["disk", "other"].map(|name| Export {
        name: name.to_owned(),
        description: "about it".to_owned(),
        size: 1 << 20,
        read_only: name == "other",
        block_sizes: BlockSizes { minimum: 1, preferred: 4096, payload_max: 32 << 20 },
    });
    // The first byte says how much comes at a time, the second the state of TLS.
    let Some((&[portion, tls], input)) = input.split_first_chunk() else { return };
    let portion = usize::from(portion) + 1;
    let tls = [Tls::Off, Tls::Required, Tls::Begun][usize::from(tls) % 3];
    let (mut handshake, mut output) = (Handshake::new(tls), Vec::new());
    let (mut begin, mut end) = (0, portion.min(input.len()));
    loop {
        output.clear();
        let Ok(progress) = handshake.advance(&exports, &input[begin..end], &mut output) else {
            return;
        };
        assert!(output.len() < 1 << 20, "{} bytes of replies at once", output.len());
        match progress {
            Progress::Send(consumed) => begin += consumed,
            Progress::BeginTls(consumed) => {
                assert_eq!(tls, Tls::Required);
                begin += consumed;
            }
            Progress::NeedMore(_) if end == input.len() => return,
            Progress::NeedMore(consumed) => {
                begin += consumed;
                end = (end + portion).min(input.len());
            }
            Progress::Begin(consumed, session) => {
                assert!(begin + consumed <= end && session.export_index < exports.len());
                return;
            }
            _ => return,
        }
    }
});
