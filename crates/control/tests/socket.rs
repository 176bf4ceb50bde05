//! Clients of every kind on one socket: many at once, those that stall, flood or never read, and
//! the end of the socket while they are there.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use homing_control::{
    Attribute, AttributeError, AttributeTree, CONNECTIONS_MAX, Client, ClientError, ControlSocket,
    REQUEST_LENGTH_MAX,
};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Well under the time after which a stalled client is cut off: a client that waits for that is
/// held up.
const PROMPT: Duration = Duration::from_secs(5);

/// Writable attributes that take anything but `no`; `big` is read-only and long.
struct Fake(Mutex<BTreeMap<String, String>>);

impl Fake {
    fn new() -> Arc<Self> {
        let pairs = [("a/x", "1"), ("a/y", "2"), ("ab", "3")];
        let values = pairs.map(|(path, value)| (path.to_owned(), value.to_owned()));
        Arc::new(Self(Mutex::new(BTreeMap::from(values))))
    }
}

impl AttributeTree for Fake {
    fn list(&self) -> Vec<Attribute> {
        let values = self.0.lock().unwrap();
        values.keys().map(|path| Attribute { path: path.clone(), writable: true }).collect()
    }

    fn get(&self, path: &str) -> Result<String, AttributeError> {
        match path {
            "big" => return Ok("x".repeat(1 << 20)),
            "bug" => panic!("this panic is part of the test"),
            _ => {}
        }
        let missing = || AttributeError::not_found(path);
        self.0.lock().unwrap().get(path).cloned().ok_or_else(missing)
    }

    fn set(&self, path: &str, value: &str) -> Result<(), AttributeError> {
        let (path, value) = (path.to_owned(), value.to_owned());
        if path == "big" {
            return Err(AttributeError::ReadOnly { path });
        }
        if value == "no" {
            return Err(AttributeError::Value {
                path,
                value,
                accepted: "anything else".to_owned(),
            });
        }
        match self.0.lock().unwrap().get_mut(&path) {
            Some(held) => *held = value,
            None => return Err(AttributeError::NotFound { path }),
        }
        Ok(())
    }
}

struct Setup {
    socket: ControlSocket,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

fn setup() -> Setup {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    let socket = ControlSocket::listen(&path, Fake::new()).unwrap();
    Setup { socket, path, _folder: folder }
}

impl Setup {
    /// Connects a client that has been greeted and can write anything.
    fn raw(&self) -> BufReader<UnixStream> {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(PROMPT)).unwrap();
        stream.set_write_timeout(Some(PROMPT)).unwrap();
        let mut raw = BufReader::new(stream);
        assert_eq!(line(&mut raw), "{\"control\":1}\n");
        raw
    }

    /// Checks that another client is served.
    fn works(&self) {
        let began = Instant::now();
        assert_eq!(Client::connect(&self.path).unwrap().get("a/x").unwrap(), "1");
        assert!(began.elapsed() < PROMPT);
    }

    fn ends_promptly(self) {
        let began = Instant::now();
        drop(self.socket);
        assert!(began.elapsed() < PROMPT, "{:?}", began.elapsed());
        assert!(!self.path.exists());
    }
}

fn line(raw: &mut BufReader<UnixStream>) -> String {
    let mut line = String::new();
    raw.read_line(&mut line).unwrap();
    line
}

#[test]
fn attributes_are_listed_read_and_written() {
    let setup = setup();
    let mode = std::fs::metadata(&setup.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut client = Client::connect(&setup.path).unwrap();
    let mut paths = |prefix| {
        let list = client.list(prefix).unwrap();
        list.into_iter().map(|attribute| attribute.path).collect::<Vec<_>>()
    };
    assert_eq!(paths(""), ["a/x", "a/y", "ab"]);
    assert_eq!(paths("a"), ["a/x", "a/y"]);
    assert!(paths("b").is_empty());
    client.set("a/x", "line 1\nline 2\n").unwrap();
    assert_eq!(client.get("a/x").unwrap(), "line 1\nline 2\n");
    assert_eq!(client.get("big").unwrap().len(), 1 << 20);

    let mut refused = |path: &str, value: &str| match client.set(path, value) {
        Err(ClientError::Attribute(error)) => error,
        other => panic!("{other:?}"),
    };
    let (path, value, accepted) = ("a/x".into(), "no".into(), "anything else".into());
    assert_eq!(refused("a/x", "no"), AttributeError::Value { path, value, accepted });
    assert_eq!(refused("c", "1"), AttributeError::NotFound { path: "c".into() });
    assert_eq!(refused("big", "1"), AttributeError::ReadOnly { path: "big".into() });
    assert_eq!(client.closest("a/z").unwrap().as_deref(), Some("a/x"));
    assert_eq!(client.get("a/x").unwrap(), "line 1\nline 2\n");
    setup.ends_promptly();
}

#[test]
fn clients_are_served_at_once() {
    let setup = setup();
    let mut clients: Vec<_> = (0..3).map(|_| Client::connect(&setup.path).unwrap()).collect();
    for client in clients.iter_mut().rev() {
        client.set("ab", "4").unwrap();
    }
    thread::scope(|scope| {
        for client in &mut clients {
            scope.spawn(|| (0..200).for_each(|_| assert_eq!(client.get("ab").unwrap(), "4")));
        }
    });
}

#[test]
fn one_too_many_is_told_so_and_let_in_when_another_leaves() {
    let setup = setup();
    let mut clients: Vec<_> = (0..CONNECTIONS_MAX).map(|_| setup.raw()).collect();
    let error = Client::connect(&setup.path).unwrap_err().to_string();
    assert!(error.contains("16 clients are connected"), "{error}");
    clients.pop();
    let began = Instant::now();
    while Client::connect(&setup.path).is_err() {
        assert!(began.elapsed() < PROMPT, "a place stays taken");
        thread::sleep(Duration::from_millis(1));
    }
    setup.ends_promptly();
}

#[test]
fn a_client_that_never_reads_holds_nobody_up() {
    let setup = setup();
    let raw = setup.raw();
    // These answers are more than its socket holds; it writes until the server reads no further.
    let mut stream = raw.get_ref();
    stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    while stream.write_all(b"{\"get\":\"big\"}\n").is_ok() {}
    setup.works();
    setup.ends_promptly();
}

#[test]
fn half_a_line_holds_nobody_up() {
    let setup = setup();
    let mut stalled = setup.raw();
    stalled.get_mut().write_all(b"{\"get\":\"a").unwrap();
    let _idle = setup.raw();
    setup.works();
    stalled.get_mut().write_all(b"/y\"}\n").unwrap();
    assert_eq!(line(&mut stalled), "{\"value\":\"2\"}\n");
    stalled.get_mut().write_all(b"{").unwrap();
    setup.ends_promptly();
}

#[test]
fn half_a_line_is_cut_off_in_the_end_however_slowly_it_grows() {
    let setup = setup();
    let mut stalled = setup.raw();
    let began = Instant::now();
    stalled.get_ref().set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let mut word = String::new();
    while word.is_empty() {
        assert!(began.elapsed() < Duration::from_secs(30), "it is never cut off");
        let _ = stalled.get_mut().write_all(b" ");
        let _ = stalled.read_line(&mut word);
    }
    assert!(word.contains("\"timeout\"") && word.contains("half a line"), "{word}");
    let mut rest = Vec::new();
    // A blank that the server did not read may come back as a reset.
    let _ = stalled.read_to_end(&mut rest);
    assert!(rest.is_empty());
}

#[test]
fn a_line_that_is_too_long_is_refused_and_the_next_is_served() {
    let setup = setup();
    let mut raw = setup.raw();
    let mut long = vec![b' '; 3 * REQUEST_LENGTH_MAX];
    long.extend(b"\n{\"get\":\"a/y\"}\n");
    raw.get_mut().write_all(&long).unwrap();
    let refusal = line(&mut raw);
    assert!(refusal.contains("\"too_long\"") && refusal.contains("65536"), "{refusal}");
    assert_eq!(line(&mut raw), "{\"value\":\"2\"}\n");

    let mut client = Client::connect(&setup.path).unwrap();
    let error = client.set("ab", &"x".repeat(REQUEST_LENGTH_MAX)).unwrap_err();
    assert!(matches!(&error, ClientError::Protocol { .. }), "{error}");
    assert_eq!(client.get("ab").unwrap(), "3");
}

#[test]
fn what_is_not_understood_is_named_and_the_next_is_served() {
    let setup = setup();
    let mut raw = setup.raw();
    for (request, mention) in [("{\"frob\":1}", "`frob`"), ("", "no JSON"), ("\u{7f}", "no JSON")] {
        raw.get_mut().write_all(format!("{request}\n").as_bytes()).unwrap();
        let answer = line(&mut raw);
        assert!(answer.contains("\"request\"") && answer.contains(mention), "{answer}");
    }
    raw.get_mut().write_all(b"{\"get\":\"a/x\"}\r\n").unwrap();
    assert_eq!(line(&mut raw), "{\"value\":\"1\"}\n");
}

#[test]
fn a_tree_that_panics_fails_one_request() {
    let setup = setup();
    let mut client = Client::connect(&setup.path).unwrap();
    for _ in 0..=CONNECTIONS_MAX {
        let error = client.get("bug").unwrap_err();
        assert!(matches!(error, ClientError::Attribute(AttributeError::Failed { .. })), "{error}");
        assert!(error.to_string().contains("bug") && error.to_string().contains("panicked"));
        assert_eq!(client.get("a/x").unwrap(), "1");
    }
    setup.works();
    setup.ends_promptly();
}

#[test]
fn the_tree_is_let_go_and_clients_learn_of_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    let tree = Fake::new();
    let socket = ControlSocket::listen(&path, tree.clone()).unwrap();
    let mut client = Client::connect(&path).unwrap();
    drop(socket);
    assert_eq!(Arc::strong_count(&tree), 1);
    assert!(matches!(client.get("a/x"), Err(ClientError::Io { .. })));
    let error = Client::connect(&path).unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()) && error.contains("--control"), "{error}");
    drop(ControlSocket::listen(&path, tree).unwrap()); // the name is free again
}

/// Counts the events that are a warning or worse.
struct Warnings(Arc<AtomicUsize>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn an_end_in_order_is_not_worth_a_warning() {
    let warnings = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::set_global_default(Warnings(Arc::clone(&warnings))).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let begin_and_end = |name: &str| {
        for _ in 0..200 {
            let socket = ControlSocket::listen(folder.path().join(name), Fake::new()).unwrap();
            // By then the socket waits for clients.
            thread::sleep(Duration::from_millis(1));
            drop(socket);
        }
    };
    // Several run at a time, so any of them may be interrupted anywhere.
    thread::scope(|scope| {
        for name in ["a", "b", "c", "d"] {
            scope.spawn(|| begin_and_end(name));
        }
    });
    assert_eq!(warnings.load(Ordering::Relaxed), 0);
}

/// A server that says this to each client in turn, whatever they ask, until they hang up.
fn says(path: &Path, words: Vec<String>) -> thread::JoinHandle<()> {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        for word in words {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(word.as_bytes()).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        }
    })
}

#[test]
fn a_socket_of_something_else_is_recognised() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nbd");
    let other = says(&path, vec!["NBDMAGICIHAVEOPT\0\x03".to_owned()]);
    let began = Instant::now();
    let error = Client::connect(&path).unwrap_err();
    assert!(matches!(&error, ClientError::Protocol { .. }), "{error}");
    assert!(error.to_string().contains("something else") && began.elapsed() < PROMPT, "{error}");
    other.join().unwrap();
}

/// Otherwise it would be the answer to the next request.
#[test]
fn what_comes_behind_an_answer_that_makes_no_sense_is_not_taken_for_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    let words = [r#"{"value":1}"#, r#"{"ok":true}"#]
        .map(|senseless| format!("{{\"control\":1}}\n{senseless}\n{{\"value\":\"late\"}}\n"));
    let other = says(&path, words.into());
    for _ in 0..2 {
        let mut client = Client::connect(&path).unwrap();
        let error = client.get("one").unwrap_err();
        assert!(matches!(&error, ClientError::Protocol { .. }), "{error}");
        let error = client.get("other").unwrap_err();
        assert!(matches!(&error, ClientError::Io { .. }), "{error}");
    }
    other.join().unwrap();
}

/// A tree with an attribute that ends the socket.
struct Ends(Mutex<Option<ControlSocket>>, Mutex<Sender<()>>);

impl AttributeTree for Ends {
    fn list(&self) -> Vec<Attribute> {
        vec![Attribute { path: "end".to_owned(), writable: true }]
    }

    fn get(&self, path: &str) -> Result<String, AttributeError> {
        Err(AttributeError::not_found(path))
    }

    fn set(&self, _: &str, _: &str) -> Result<(), AttributeError> {
        drop(self.0.lock().unwrap().take());
        self.1.lock().unwrap().send(()).unwrap();
        Ok(())
    }
}

#[test]
fn a_call_of_the_tree_may_drop_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    let (ended, ends) = channel();
    let tree = Arc::new(Ends(Mutex::default(), Mutex::new(ended)));
    let socket = ControlSocket::listen(&path, tree.clone()).unwrap();
    *tree.0.lock().unwrap() = Some(socket);
    let mut client = Client::connect(&path).unwrap();
    // The client is cut off before there is an answer.
    let _ = client.set("end", "now");
    ends.recv_timeout(PROMPT).expect("dropping it ends");
    assert!(!path.exists() && Client::connect(&path).is_err());
}
