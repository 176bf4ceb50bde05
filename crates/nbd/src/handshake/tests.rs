use proptest::prelude::*;

use super::*;
use crate::export::BlockSizes;
use crate::wire::option_request as option;

fn exports() -> Vec<Export> {
    let export = |name: &str, read_only| Export {
        name: name.to_owned(),
        description: format!("about {name}"),
        size: 1 << 20,
        read_only,
        block_sizes: BlockSizes { minimum: 1, preferred: 4096, payload_max: 32 << 20 },
    };
    vec![export("disk", false), export("other", true)]
}

fn named(name: &[u8]) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes()[..], name].concat()
}

fn go(name: &[u8]) -> Vec<u8> {
    option(option::GO, &[named(name), vec![0, 0]].concat())
}

fn set_meta(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
    let mut data = named(name);
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend(named(query));
    }
    option(option::SET_META_CONTEXT, &data)
}

/// Runs a whole conversation; returns how it ended, the codes of the option replies, and all
/// output.
fn talk(flags: u32, options: &[Vec<u8>]) -> (Result<Progress, PeerError>, Vec<u32>, Vec<u8>) {
    let input = [&flags.to_be_bytes()[..], &options.concat()].concat();
    talk_on(&mut Handshake::new(Tls::Off), &input)
}

fn talk_on(
    handshake: &mut Handshake,
    mut input: &[u8],
) -> (Result<Progress, PeerError>, Vec<u32>, Vec<u8>) {
    let mut output = Vec::new();
    let end = loop {
        let mut portion = Vec::new();
        let end = handshake.advance(&exports(), input, &mut portion);
        output.extend(portion);
        match end {
            Ok(Progress::Send(consumed)) => input = &input[consumed..],
            end => break end,
        }
    };
    let mut codes = Vec::new();
    let mut rest = &output[..];
    while rest.len() >= 20 && rest[..8] == wire::OPTION_REPLY_MAGIC.to_be_bytes() {
        codes.push(be32(rest, 12).unwrap());
        rest = &rest[20 + be32(rest, 16).unwrap() as usize..];
    }
    (end, codes, output.clone())
}

fn session(flags: u32, options: &[Vec<u8>]) -> Session {
    match talk(flags, options).0 {
        Ok(Progress::Begin(_, session)) => session,
        other => panic!("expected a session, got {other:?}"),
    }
}

#[test]
fn go_begins_with_what_was_negotiated() {
    let structured = option(option::STRUCTURED_REPLY, &[]);
    let meta = set_meta(b"disk", &[b"base:allocation"]);
    let plain = Session { export_index: 0, structured: false, base_allocation: false };
    assert_eq!(session(3, &[go(b"disk")]), plain);
    assert_eq!(session(3, &[go(b"")]), plain, "the empty name is the first export");
    let full = Session { export_index: 0, structured: true, base_allocation: true };
    assert_eq!(session(3, &[structured.clone(), meta.clone(), go(b"disk")]), full);
    assert_eq!(session(3, &[structured.clone(), meta.clone(), go(b"")]), full);
    // Selected for one export, but GO names another.
    let other = Session { export_index: 1, structured: true, base_allocation: false };
    assert_eq!(session(3, &[structured.clone(), meta.clone(), go(b"other")]), other);
    // A later SET replaces an earlier one.
    let none = set_meta(b"disk", &[b"base:", b"qemu:dirty-bitmap:x"]);
    assert!(!session(3, &[structured, meta, none, go(b"disk")]).base_allocation);
}

#[test]
fn old_clients_get_their_zeroes() {
    let name = option(option::EXPORT_NAME, b"disk");
    let (end, _, output) = talk(1, std::slice::from_ref(&name));
    assert!(matches!(end, Ok(Progress::Begin(_, Session { structured: false, .. }))));
    assert_eq!(output.len(), 10 + 124);
    assert_eq!(talk(3, &[name]).2.len(), 10);
    let unknown = talk(3, &[option(option::EXPORT_NAME, b"nonesuch")]).0.unwrap_err();
    assert!(unknown.to_string().contains("nonesuch"));
}

#[test]
fn what_is_not_spoken_is_refused_and_negotiation_goes_on() {
    let cases = [
        (option(option::STARTTLS, &[]), rep::ERR_UNSUP),
        (option(option::EXTENDED_HEADERS, &[]), rep::ERR_UNSUP),
        (option(0x0765_4321, b"data"), rep::ERR_UNSUP),
        (option(option::LIST, b"x"), rep::ERR_INVALID),
        (option(option::STRUCTURED_REPLY, b"x"), rep::ERR_INVALID),
        (go(b"nonesuch"), rep::ERR_UNKNOWN),
        (option(option::GO, &[0; 5]), rep::ERR_INVALID),
        (option(option::GO, &[named(b"disk"), vec![0, 9]].concat()), rep::ERR_INVALID),
        (option(option::GO, &[named(b"disk"), vec![0, 0, 1]].concat()), rep::ERR_INVALID),
        (go(&[b'x'; 4097]), rep::ERR_INVALID),
        (set_meta(b"disk", &[b"base:allocation"]), rep::ERR_INVALID), // not structured yet
        (option(option::SET_META_CONTEXT, &[0xff; 12]), rep::ERR_INVALID),
        (option(option::INFO, &vec![0; 65537]), rep::ERR_TOO_BIG),
    ];
    for (bad, expected) in cases {
        let (end, codes, _) = talk(3, &[bad.clone(), go(b"disk")]);
        assert_eq!(codes[0], expected, "{bad:x?}");
        assert!(matches!(end, Ok(Progress::Begin(..))), "{end:?}");
    }
}

#[test]
fn without_tls_a_client_gets_nothing_where_it_is_required() {
    let begins = |options: &[Vec<u8>]| {
        let input = [&3_u32.to_be_bytes()[..], &options.concat()].concat();
        let mut handshake = Handshake::new(Tls::Required);
        let (end, codes, _) = talk_on(&mut handshake, &input);
        (end, codes, handshake, input.len())
    };
    let (structured, start) =
        (option(option::STRUCTURED_REPLY, &[]), option(option::STARTTLS, &[]));
    for refused in [
        structured.clone(),
        option(option::LIST, &[]),
        option(option::LIST, b"x"),
        go(b"disk"),
        go(b"nonesuch"),
        set_meta(b"disk", &[b"base:allocation"]),
        option(77, b"unknown"),
    ] {
        let (end, codes, ..) = begins(std::slice::from_ref(&refused));
        assert!(matches!(end, Ok(Progress::NeedMore(_))), "{end:?}");
        assert_eq!(codes, [rep::ERR_TLS_REQD], "{refused:x?}");
    }
    let name = option(option::EXPORT_NAME, b"disk");
    assert!(matches!(begins(&[name]).0, Err(PeerError::TlsRequired)));
    assert!(matches!(begins(&[option(option::ABORT, &[])]).0, Ok(Progress::Close(_))));
    let (_, codes, ..) = begins(&[option(option::STARTTLS, b"x"), option(option::LIST, &[])]);
    assert_eq!(codes, [rep::ERR_INVALID, rep::ERR_TLS_REQD]);

    // Bytes that follow before TLS are left to the caller, which begins TLS.
    let (end, codes, mut handshake, sent) = begins(&[start.clone(), go(b"disk")]);
    assert!(
        matches!(end, Ok(Progress::BeginTls(consumed)) if consumed == 4 + start.len() && consumed < sent)
    );
    assert_eq!(codes, [rep::ACK]);
    // The flags still hold, and TLS begins only once.
    let meta = set_meta(b"disk", &[b"base:allocation"]);
    let (end, codes, _) = talk_on(&mut handshake, &[start, meta, go(b"disk")].concat());
    let plain = Session { export_index: 0, structured: false, base_allocation: false };
    assert!(matches!(end, Ok(Progress::Begin(_, session)) if session == plain));
    assert_eq!(codes[..2], [rep::ERR_INVALID, rep::ERR_INVALID]);
}

#[test]
fn however_often_it_begins_options_are_counted() {
    let mut handshake = Handshake::new(Tls::Required);
    let flood = vec![option(option::LIST, &[]); OPTION_COUNT_MAX as usize - 1];
    let before =
        [&3_u32.to_be_bytes()[..], &flood.concat(), &option(option::STARTTLS, &[])].concat();
    assert!(matches!(talk_on(&mut handshake, &before).0, Ok(Progress::BeginTls(_))));
    let after = option(option::LIST, &[]);
    assert!(matches!(talk_on(&mut handshake, &after).0, Err(PeerError::TooManyOptions { .. })));
}

#[test]
fn listing_and_good_bye() {
    let (end, codes, output) = talk(3, &[option(option::LIST, &[]), option(option::ABORT, b"?")]);
    assert!(matches!(end, Ok(Progress::Close(_))));
    assert_eq!(codes, [rep::SERVER, rep::SERVER, rep::ACK, rep::ACK]);
    assert!(output.windows(5).any(|window| window == b"other"));
    let list_meta = option(option::LIST_META_CONTEXT, &[named(b"disk"), vec![0; 4]].concat());
    assert_eq!(talk(3, &[list_meta]).1, [rep::META_CONTEXT, rep::ACK]);
}

#[test]
fn what_cannot_go_on_says_why() {
    let long = [&option(9, &[])[..12], &u32::MAX.to_be_bytes()].concat();
    assert!(matches!(talk(3, &[long]).0, Err(PeerError::OptionTooLong { length: u32::MAX, .. })));
    assert!(matches!(talk(0x80, &[]).0, Err(PeerError::ClientFlags { unknown: 0x80, .. })));
    assert!(matches!(talk(3, &[vec![7; 16]]).0, Err(PeerError::Magic { .. })));
    let flood = vec![option(option::LIST, &[]); OPTION_COUNT_MAX as usize + 1];
    assert!(matches!(talk(3, &flood).0, Err(PeerError::TooManyOptions { .. })));
}

#[test]
fn replies_to_many_options_at_once_come_in_portions() {
    let mut input = 3_u32.to_be_bytes().to_vec();
    input.extend(option(option::LIST, &[]).repeat(OPTION_COUNT_MAX as usize - 1));
    input.extend(option(option::ABORT, &[]));
    let (mut handshake, mut rest, mut sent) = (Handshake::new(Tls::Off), &input[..], 0);
    loop {
        let mut output = Vec::new();
        let progress = handshake.advance(&exports(), rest, &mut output).unwrap();
        assert!(output.len() < REPLIES_LEN_MAX + 200, "{} bytes of replies", output.len());
        sent += output.len();
        match progress {
            Progress::Send(consumed) => rest = &rest[consumed..],
            Progress::Close(consumed) => {
                assert_eq!(consumed, rest.len());
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    let (_, _, one) = talk(3, &[option(option::LIST, &[])]);
    assert_eq!(sent, one.len() * (OPTION_COUNT_MAX as usize - 1) + OPTION_HEADER_LEN + 4);
}

proptest! {
    /// The conversation is the same however the bytes are cut into pieces.
    #[test]
    fn pieces_do_not_matter(cuts in prop::collection::vec(1_usize..40, 1..60)) {
        let options = [
            option(option::STRUCTURED_REPLY, &[]),
            option(option::INFO, &vec![1; 65540]),
            set_meta(b"disk", &[b"base:allocation", b"x"]),
            option(77, b"unknown"),
            go(b"disk"),
        ];
        let input = [&3_u32.to_be_bytes()[..], &options.concat()].concat();
        let whole = talk(3, &options).2;

        let mut handshake = Handshake::new(Tls::Off);
        let (mut output, mut buffer, mut rest) = (Vec::new(), Vec::new(), &input[..]);
        let mut cuts = cuts.into_iter().chain(std::iter::repeat(997));
        let session = loop {
            let cut = cuts.next().unwrap_or(1).min(rest.len());
            prop_assert!(cut > 0, "the input ended before the session began");
            buffer.extend(&rest[..cut]);
            rest = &rest[cut..];
            match handshake.advance(&exports(), &buffer, &mut output) {
                Ok(Progress::NeedMore(consumed)) => drop(buffer.drain(..consumed)),
                Ok(Progress::Begin(_, session)) => break session,
                other => panic!("{other:?}"),
            }
        };
        prop_assert!(session.base_allocation);
        prop_assert_eq!(output, whole);
    }

    /// No bytes make it panic, or consume more than there was.
    #[test]
    fn survives_anything(
        flags in 0_u32..4,
        tls in prop::sample::select(vec![Tls::Off, Tls::Required, Tls::Begun]),
        options in prop::collection::vec((0_u32..13, prop::collection::vec(any::<u8>(), 0..64)), 0..8),
        tail in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut input = flags.to_be_bytes().to_vec();
        for (code, data) in &options {
            input.extend(option(*code, data));
        }
        input.extend(tail);
        let mut output = Vec::new();
        if let Ok(
            Progress::NeedMore(n)
            | Progress::Send(n)
            | Progress::Begin(n, _)
            | Progress::BeginTls(n)
            | Progress::Close(n),
        ) = Handshake::new(tls).advance(&exports(), &input, &mut output)
        {
            prop_assert!(n <= input.len());
        }
    }
}
