//! A control socket may answer anything: the client ends with a value or an error.
#![no_main]

use std::io::Write as _;
use std::net::Shutdown;
use std::os::unix::net::UnixListener;
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use homing_control::Client;
use libfuzzer_sys::fuzz_target;

/// A server that sends the next client the bytes that it is given, whatever the client asks.
static SERVER: LazyLock<(tempfile::TempDir, Sender<Vec<u8>>)> = LazyLock::new(|| {
    let folder = tempfile::tempdir_in(homing_fuzz::memory()).expect("a folder");
    let listener = UnixListener::bind(folder.path().join("control")).expect("a socket");
    let (say, said) = channel::<Vec<u8>>();
    thread::spawn(move || {
        for answers in said {
            let (mut stream, _) = listener.accept().expect("a client");
            let _ = stream.write_all(&answers).and_then(|()| stream.shutdown(Shutdown::Write));
        }
    });
    (folder, say)
});

fuzz_target!(|answers: &[u8]| {
    let (folder, say) = &*SERVER;
    say.send(answers.to_vec()).expect("it listens");
    if let Ok(mut client) = Client::connect(folder.path().join("control")) {
        let _ = client.get("one");
        let _ = client.list("");
    }
});
