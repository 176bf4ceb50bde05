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

/// The replies to options: each one's option, kind and body.
fn replies(options: &[Vec<u8>]) -> Vec<(u32, u32, Vec<u8>)> {
    let output = talk(3, options).2;
    let (mut all, mut rest) = (Vec::new(), &output[..]);
    while !rest.is_empty() {
        assert_eq!(rest[..8], wire::OPTION_REPLY_MAGIC.to_be_bytes());
        let at = |at| be32(rest, at).unwrap();
        let end = 20 + at(16) as usize;
        all.push((at(8), at(12), rest[20..end].to_vec()));
        rest = &rest[end..];
    }
    all
}

fn asking(code: u32, name: &[u8], kinds: &[u16]) -> Vec<u8> {
    let kinds: Vec<u8> =
        [kinds.len() as u16].iter().chain(kinds).flat_map(|number| number.to_be_bytes()).collect();
    option(code, &[named(name), kinds].concat())
}

#[test]
fn go_and_info_tell_size_flags_and_block_sizes_and_what_else_is_asked_for() {
    let export = &exports()[0];
    let sizes = [1_u32, 4096, 32 << 20].map(u32::to_be_bytes).concat();
    let block_sizes = [&info::BLOCK_SIZE.to_be_bytes()[..], &sizes].concat();
    for (code, structured) in
        [(option::INFO, false), (option::INFO, true), (option::GO, false), (option::GO, true)]
    {
        let told = |kinds: &[u16]| {
            let asked = asking(code, b"disk", kinds);
            let before = option(option::STRUCTURED_REPLY, &[]);
            let options = if structured { vec![before, asked] } else { vec![asked] };
            replies(&options).into_iter().filter(|reply| reply.0 == code).collect::<Vec<_>>()
        };
        let mut first = info::EXPORT.to_be_bytes().to_vec();
        first.extend(export.size.to_be_bytes());
        first.extend(export.flags(structured).to_be_bytes());
        let said = |body: Vec<u8>| (code, rep::INFO, body);
        let text =
            |kind: u16, text: &str| said([&kind.to_be_bytes()[..], text.as_bytes()].concat());
        let (name, about) = (text(info::NAME, "disk"), text(info::DESCRIPTION, "about disk"));
        let always = [said(first), said(block_sizes.clone())];
        let end = (code, rep::ACK, Vec::new());
        let with = |more: &[&(u32, u32, Vec<u8>)]| {
            always.iter().chain(more.iter().copied()).chain([&end]).cloned().collect::<Vec<_>>()
        };
        assert_eq!(told(&[]), with(&[]));
        assert_eq!(told(&[info::DESCRIPTION, info::NAME]), with(&[&name, &about]));
        assert_eq!(told(&[info::NAME]), with(&[&name]));
    }
    let end = talk(3, &[asking(option::INFO, b"disk", &[])]).0;
    assert!(matches!(end, Ok(Progress::NeedMore(_))), "it only asked");
}

#[test]
fn a_name_that_was_not_given_is_told_and_an_empty_text_is_not() {
    let mut exports = exports();
    exports[1].description.clear();
    let mut input = 3_u32.to_be_bytes().to_vec();
    input.extend(asking(option::INFO, b"other", &[info::DESCRIPTION]));
    let mut output = Vec::new();
    Handshake::new(Tls::Off).advance(&exports, &input, &mut output).unwrap();
    // Of the export, of its block sizes, and the end.
    assert_eq!(output.len(), 20 + 12 + 20 + 14 + 20);
    let first = replies(&[asking(option::INFO, b"", &[info::NAME])]);
    assert_eq!(first[2].2, [&[0, 1][..], b"disk"].concat());
}

#[test]
fn an_export_by_name_is_told_with_the_flags_that_were_negotiated() {
    let name = option(option::EXPORT_NAME, b"disk");
    let export = &exports()[0];
    for structured in [false, true] {
        let before = if structured { option(option::STRUCTURED_REPLY, &[]) } else { Vec::new() };
        let output = talk(3, &[before, name.clone()]).2;
        let told = &output[output.len() - 10..];
        assert_eq!(told[..8], export.size.to_be_bytes());
        assert_eq!(told[8..], export.flags(structured).to_be_bytes());
    }
}

#[test]
fn a_list_has_the_names_and_descriptions() {
    let list = replies(&[option(option::LIST, &[])]);
    let body = |name: &str| [&named(name.as_bytes())[..], b"about ", name.as_bytes()].concat();
    let server = |name| (option::LIST, rep::SERVER, body(name));
    assert_eq!(list, [server("disk"), server("other"), (option::LIST, rep::ACK, Vec::new())]);
}

#[test]
fn contexts_are_listed_to_anyone_and_selected_by_their_whole_names() {
    let structured = option(option::STRUCTURED_REPLY, &[]);
    let asked = |code, name: &[u8], queries: &[&[u8]]| {
        let mut asked = set_meta(name, queries);
        asked[8..12].copy_from_slice(&u32::to_be_bytes(code));
        asked
    };
    let context = |id: u32| [&id.to_be_bytes()[..], b"base:allocation"].concat();
    let list = |queries: &[&[u8]]| {
        let all = replies(&[asked(option::LIST_META_CONTEXT, b"disk", queries)]);
        all.into_iter().map(|reply| (reply.1, reply.2)).collect::<Vec<_>>()
    };
    let (one, end) = ((rep::META_CONTEXT, context(0)), (rep::ACK, Vec::new()));
    let all: [&[&[u8]]; 3] = [&[], &[b"base:"], &[b"x", b"base:allocation"]];
    for queries in all {
        assert_eq!(list(queries), [one.clone(), end.clone()], "{queries:x?}");
    }
    assert_eq!(list(&[b"qemu:"]), [end]);
    let set = |queries: &[&[u8]]| {
        let options = [structured.clone(), asked(option::SET_META_CONTEXT, b"disk", queries)];
        let all = replies(&options);
        let all = all.into_iter().filter(|reply| reply.0 == option::SET_META_CONTEXT);
        all.map(|reply| (reply.1, reply.2)).collect::<Vec<_>>()
    };
    let selected = (rep::META_CONTEXT, context(wire::BASE_ALLOCATION_ID));
    assert_eq!(set(&[b"base:allocation"]), [selected, (rep::ACK, Vec::new())]);
    let none: [&[&[u8]]; 2] = [&[], &[b"base:"]];
    for queries in none {
        assert_eq!(set(queries), [(rep::ACK, Vec::new())], "{queries:x?}");
    }
    for code in [option::LIST_META_CONTEXT, option::SET_META_CONTEXT] {
        let unknown = replies(&[structured.clone(), asked(code, b"nonesuch", &[])]);
        assert_eq!(unknown[1].1, rep::ERR_UNKNOWN);
    }
}

#[test]
fn a_context_is_selected_by_set_alone_and_not_by_one_that_failed() {
    let structured = option(option::STRUCTURED_REPLY, &[]);
    let set = set_meta(b"disk", &[b"base:allocation"]);
    let mut list = set.clone();
    list[8..12].copy_from_slice(&option::LIST_META_CONTEXT.to_be_bytes());
    let selected = |options: &[&Vec<u8>]| {
        let options = [&structured].into_iter().chain(options.iter().copied()).cloned();
        session(3, &options.chain([go(b"disk")]).collect::<Vec<_>>()).base_allocation
    };
    assert!(!selected(&[&list]));
    assert!(selected(&[&set]) && selected(&[&set, &list]));
    for failed in [option(option::SET_META_CONTEXT, &[1]), set_meta(b"nonesuch", &[])] {
        assert!(!selected(&[&set, &failed]));
    }
    let mut behind = set;
    behind[15] += 1;
    behind.push(0);
    assert!(!selected(&[&behind]), "a byte too many");
}

/// What an option is answered does not depend on how much comes with it, except where it is read.
#[test]
fn what_is_too_long_to_be_read_is_skipped_and_answered_by_its_kind() {
    let long = |code| option(code, &vec![0; OPTION_LEN_MAX as usize + 1]);
    let list = option(option::LIST, &[]);
    let answered = |code, wanted: u32| {
        let (end, codes, _) = talk(3, &[long(code), list.clone()]);
        assert!(matches!(end, Ok(Progress::NeedMore(_))), "{code}: {end:?}");
        assert_eq!(codes, [wanted, rep::SERVER, rep::SERVER, rep::ACK], "{code}");
    };
    for code in [option::LIST, option::STRUCTURED_REPLY, option::STARTTLS] {
        answered(code, rep::ERR_INVALID);
    }
    for code in [option::INFO, option::GO, option::LIST_META_CONTEXT, option::SET_META_CONTEXT] {
        answered(code, rep::ERR_TOO_BIG);
    }
    answered(99, rep::ERR_UNSUP);
    let (end, codes, _) = talk(3, &[long(option::ABORT)]);
    assert!(matches!(end, Ok(Progress::Close(_))) && codes == [rep::ACK], "{end:?} {codes:?}");

    let structured = option(option::STRUCTURED_REPLY, &[]);
    let set = option(
        option::SET_META_CONTEXT,
        &[named(b"disk"), 1_u32.to_be_bytes().to_vec(), named(b"base:allocation")].concat(),
    );
    let go = option(option::GO, &[named(b"disk"), vec![0; 2]].concat());
    let begun = |options: &[Vec<u8>]| match talk(3, options).0 {
        Ok(Progress::Begin(_, session)) => session.base_allocation,
        end => panic!("{end:?}"),
    };
    assert!(begun(&[structured.clone(), set.clone(), go.clone()]));
    assert!(!begun(&[structured, set, long(option::SET_META_CONTEXT), go]), "the later one counts");
}

#[test]
fn options_may_be_as_long_and_as_many_as_the_limits_say() {
    let long = |length: u32| option(option::INFO, &vec![0; length as usize]);
    assert_eq!(talk(3, &[long(OPTION_LEN_MAX)]).1, [rep::ERR_INVALID]);
    assert_eq!(talk(3, &[long(OPTION_LEN_MAX + 1)]).1, [rep::ERR_TOO_BIG]);
    assert_eq!(talk(3, &[long(OPTION_SKIP_MAX)]).1, [rep::ERR_TOO_BIG]);
    assert!(talk(3, &[long(OPTION_SKIP_MAX + 1)]).0.is_err());
    let longest = wire::STRING_LEN_MAX;
    let name = |length| option(option::EXPORT_NAME, &vec![b'x'; length]);
    let refused = talk(3, &[name(longest + 1)]).0;
    assert!(
        matches!(refused, Err(PeerError::OptionTooLong { limit, .. }) if limit == longest as u32)
    );
    let Err(unknown) = talk(3, &[name(longest)]).0 else { panic!("there is no such export") };
    let told = unknown.to_string();
    assert!(told.contains("xxx") && told.len() < 2 * QUOTED_MAX, "{told}");
    let mut most = vec![option(option::LIST, &[]); OPTION_COUNT_MAX as usize];
    assert!(talk(3, &most).0.is_ok());
    most.pop();
    most.push(long(OPTION_LEN_MAX + 1));
    assert!(talk(3, &most).0.is_ok(), "those that are skipped count like any other");
    most.push(long(OPTION_LEN_MAX + 1));
    assert!(matches!(talk(3, &most).0, Err(PeerError::TooManyOptions { .. })));
}

#[test]
fn without_exports_there_is_no_first_one_and_long_names_are_cut_between_characters() {
    let input = [&3_u32.to_be_bytes()[..], &go(b"")].concat();
    let mut output = Vec::new();
    let end = Handshake::new(Tls::Off).advance(&[], &input, &mut output);
    assert!(matches!(end, Ok(Progress::NeedMore(_))));
    assert_eq!(be32(&output, 12), Some(rep::ERR_UNKNOWN));
    for shift in 0..3 {
        let name = ["x".repeat(shift), "\u{20ac}".repeat(1365)].concat();
        let said = replies(&[go(&name.as_bytes()[..name.len().min(4095) / 3 * 3 + shift])]);
        assert!(said[0].2.len() <= wire::STRING_LEN_MAX);
        assert!(std::str::from_utf8(&said[0].2).is_ok());
    }
}
