//! Nothing panics, everything comes back, and what is refused is named.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Requests and answers are one line each, whatever is in them.
fn content(line: &[u8]) -> &[u8] {
    let (newline, content) = line.split_last().unwrap();
    assert_eq!(*newline, b'\n');
    assert!(!content.contains(&b'\n'));
    content
}

fn text() -> impl Strategy<Value = String> {
    any::<String>()
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        text().prop_map(|prefix| Request::List { prefix }),
        text().prop_map(|path| Request::Get { path }),
        (text(), text()).prop_map(|(path, value)| Request::Set { path, value }),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    let attribute =
        (text(), any::<bool>()).prop_map(|(path, writable)| Attribute { path, writable });
    let error = prop_oneof![
        text().prop_map(|path| AttributeError::NotFound { path }),
        text().prop_map(|path| AttributeError::ReadOnly { path }),
        (text(), text(), text()).prop_map(|(path, value, accepted)| AttributeError::Value {
            path,
            value,
            accepted
        }),
        (text(), text()).prop_map(|(path, reason)| AttributeError::Failed { path, reason }),
    ];
    let kind = prop_oneof![Just(REQUEST), Just(TOO_LONG), Just(BUSY), Just(TIMEOUT)];
    prop_oneof![
        vec(attribute, 0..5).prop_map(Answer::Attributes),
        text().prop_map(Answer::Value),
        Just(Answer::Done),
        error.prop_map(Answer::Refused),
        (kind, text()).prop_map(|(kind, message)| Answer::Failed(Failure::new(kind, message))),
    ]
}

/// Pieces of JSON in any order: closer to what is read than plain noise.
fn nearly_json() -> impl Strategy<Value = Vec<u8>> {
    let pieces = [
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"",
        "\\",
        "null",
        "0",
        "true",
        "\"get\"",
        "\"set\"",
        "\"to\"",
        "\"list\"",
        "\"error\"",
        "\"kind\"",
        "\"value\"",
        "\"control\"",
        "1",
        "\"a/b\"",
    ];
    vec(prop::sample::select(pieces.to_vec()), 0..20).prop_map(|pieces| pieces.concat().into())
}

proptest! {
    #[test]
    fn requests_come_back(request in request()) {
        prop_assert_eq!(Request::parse(content(&request.line())).unwrap(), request);
    }

    #[test]
    fn answers_come_back(answer in answer()) {
        prop_assert_eq!(Answer::parse(content(&answer.line())).unwrap(), answer);
    }

    #[test]
    fn no_bytes_panic(line in prop_oneof![vec(any::<u8>(), 0..200), nearly_json()]) {
        if let Ok(request) = Request::parse(&line) {
            prop_assert_eq!(Request::parse(content(&request.line())).unwrap(), request);
        }
        let _ = Answer::parse(&line);
        let _ = check_greeting(&line);
    }
}

#[test]
fn the_lines_are_those_of_the_readme() {
    let request = |text: &str| Request::parse(text.as_bytes()).unwrap();
    assert_eq!(request(r#"{"list":""}"#), Request::List { prefix: String::new() });
    assert_eq!(request(r#" {"get" : "a/b"} "#), Request::Get { path: "a/b".to_owned() });
    let (path, value) = ("a/b".to_owned(), "5".to_owned());
    let set = Request::Set { path: path.clone(), value: value.clone() };
    assert_eq!(request(r#"{"to":"5","set":"a/b"}"#), set);

    let lines = |answer: Answer| String::from_utf8(answer.line()).unwrap();
    let attributes = vec![Attribute { path: path.clone(), writable: true }];
    let expected = "{\"attributes\":[{\"path\":\"a/b\",\"writable\":true}]}\n";
    assert_eq!(lines(Answer::Attributes(attributes)), expected);
    assert_eq!(lines(Answer::Value("x\ny".to_owned())), "{\"value\":\"x\\ny\"}\n");
    assert_eq!(lines(Answer::Done), "{\"ok\":true}\n");
    let refused = AttributeError::Value { path, value, accepted: "0 or 1".to_owned() };
    let expected = r#"{"error":{"kind":"value","path":"a/b","value":"5","accepted":"0 or 1","message":"a/b: \"5\" is not accepted: use 0 or 1"}}"#;
    assert_eq!(lines(Answer::Refused(refused)), format!("{expected}\n"));
    assert_eq!(greeting(), b"{\"control\":1}\n");
}

#[test]
fn what_is_wrong_with_a_request_is_named() {
    let cases = [
        ("", "no JSON object"),
        (r#"["a/b"]"#, "no JSON object"),
        ("{", "EOF"),
        ("{}", "no `list`, `get` or `set`"),
        (r#"{"to":"5"}"#, "no `list`, `get` or `set`"),
        (r#"{"set":"a/b"}"#, "`set` needs `to`"),
        (r#"{"frob":"a/b"}"#, "unknown field `frob`"),
        (r#"{"get":"a","depth":1}"#, "unknown field `depth`"),
        (r#"{"get":"a","get":"b"}"#, "duplicate field `get`"),
        (r#"{"get":"a","set":"b","to":"c"}"#, "exclude each other"),
        (r#"{"get":"a","to":"c"}"#, "exclude each other"),
        (r#"{"get":5}"#, "expected a string"),
        // Numbers are strings, too.
        (r#"{"set":"a","to":5}"#, r#""to":"VALUE""#),
        (r#"{"set":"a","to":05}"#, r#""to":"VALUE""#),
        (r#"{"set":"a","to":1e999}"#, r#""to":"VALUE""#),
        (r#"{"get":"a"} {"get":"b"}"#, "trailing characters"),
    ];
    for (line, mention) in cases {
        let failure = Request::parse(line.as_bytes()).unwrap_err();
        assert_eq!(failure.kind, REQUEST);
        assert!(failure.message.contains(mention), "{line}: {}", failure.message);
        assert!(failure.message.contains("a request is"), "{line}: {}", failure.message);
    }
    assert!(Request::parse(b"{\"get\":\"\xff\"}").is_err());
}

#[test]
fn a_newer_server_is_understood_as_far_as_it_goes() {
    let value = Answer::parse(br#"{"value":"5","unit":"ms"}"#).unwrap();
    assert_eq!(value, Answer::Value("5".to_owned()));
    let newer = br#"{"error":{"kind":"quota","path":"a","left":0,"message":"no quota is left"}}"#;
    let reason = "no quota is left".to_owned();
    let expected = Answer::Refused(AttributeError::Failed { path: "a".to_owned(), reason });
    assert_eq!(Answer::parse(newer).unwrap(), expected);
    let newer = br#"{"error":{"kind":"asleep","message":"try later"}}"#;
    let expected = Answer::Failed(Failure::new("asleep", "try later"));
    assert_eq!(Answer::parse(newer).unwrap(), expected);
    assert!(check_greeting(br#"{"control":1,"program":"x"}"#).is_ok());
    assert!(check_greeting(br#"{"control":2}"#).unwrap_err().contains("version 2"));
    let busy = Answer::Failed(Failure::new(BUSY, "come back later")).line();
    assert_eq!(check_greeting(&busy).unwrap_err(), "come back later");
    assert_eq!(check_greeting(b"SSH-2.0").unwrap_err(), NOT_A_CONTROL_SOCKET);
}
