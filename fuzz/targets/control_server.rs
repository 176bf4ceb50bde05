//! A client of a control socket may send anything: it is answered in whole lines, and others are
//! served after it.
#![no_main]

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock};

use homing_control::{Attribute, AttributeError, AttributeTree, Client, ControlSocket};
use libfuzzer_sys::fuzz_target;

struct One;

impl AttributeTree for One {
    fn list(&self) -> Vec<Attribute> {
        vec![Attribute { path: "one".to_owned(), writable: true }]
    }

    fn get(&self, path: &str) -> Result<String, AttributeError> {
        match path {
            "one" => Ok("1".to_owned()),
            _ => Err(AttributeError::NotFound { path: path.to_owned() }),
        }
    }

    fn set(&self, path: &str, _: &str) -> Result<(), AttributeError> {
        self.get(path).map(drop)
    }
}

static SOCKET: LazyLock<(tempfile::TempDir, ControlSocket)> = LazyLock::new(|| {
    let folder = tempfile::tempdir_in(homing_fuzz::memory()).expect("a folder");
    let socket = ControlSocket::listen(folder.path().join("control"), Arc::new(One));
    (folder, socket.expect("a socket"))
});

fuzz_target!(|bytes: &[u8]| {
    let path = SOCKET.1.path();
    let mut stream = UnixStream::connect(path).expect("it listens");
    // The server may hang up.
    let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
    let mut answers = Vec::new();
    if stream.read_to_end(&mut answers).is_ok() {
        assert!(answers.ends_with(b"\n"), "{:?}", String::from_utf8_lossy(&answers));
    }
    assert_eq!(
        Client::connect(path).expect("it serves others").get("one").expect("it is there"),
        "1"
    );
});
