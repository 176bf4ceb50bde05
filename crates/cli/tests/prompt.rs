//! The passphrase at a real terminal: `script` provides it, and its input is what somebody types.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use support::{CHEAP_KEYS, DEADLINE, Scratch, tool, wait_for};

/// A program at a terminal of its own.
struct Terminal {
    child: Child,
    shown: Receiver<Vec<u8>>,
    text: String,
}

impl Terminal {
    fn run(scratch: &Scratch, command: &str) -> Option<Self> {
        let mut script = tool("script")?.command();
        script.args(["-q", "-e", "-c", command, "/dev/null"]).current_dir(scratch.path("."));
        // `script` gives the command to this shell, which gets a Ctrl-C as well.
        script.env("SHELL", "/bin/sh");
        let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut stdout, (sender, shown)) = (child.stdout.take().unwrap(), channel());
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = stdout.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Some(Self { child, shown, text: String::new() })
    }

    /// Waits until the terminal shows `what`, after the text that was waited for before. Returns
    /// all that it has shown up to there.
    fn until(&mut self, what: &str) -> String {
        let began = Instant::now();
        loop {
            if let Some(at) = self.text.find(what) {
                return self.text.drain(..at + what.len()).collect();
            }
            let left = DEADLINE.saturating_sub(began.elapsed());
            match self.shown.recv_timeout(left) {
                Ok(bytes) => self.text.push_str(&String::from_utf8_lossy(&bytes)),
                Err(error) => panic!("no {what:?} in {:?}: {error}", self.text),
            }
        }
    }

    fn type_in(&mut self, bytes: &[u8]) {
        let mut stdin = self.child.stdin.as_ref().unwrap();
        stdin.write_all(bytes).unwrap();
        stdin.flush().unwrap();
    }

    /// Waits for the end, and returns its code and all that was still to be shown.
    fn end(mut self) -> (Option<i32>, String) {
        let status = wait_for(&mut self.child).unwrap();
        while let Ok(bytes) = self.shown.recv_timeout(Duration::from_secs(5)) {
            self.text.push_str(&String::from_utf8_lossy(&bytes));
        }
        (status.code().or(status.signal().map(|signal| 128 + signal)), self.text)
    }
}

fn homing() -> String {
    format!("'{}'", env!("CARGO_BIN_EXE_homing"))
}

#[test]
fn a_passphrase_is_asked_for_twice_taken_as_it_is_typed_and_not_shown() {
    let scratch = Scratch::new();
    let make = format!(
        "exec {} serve disk.img --size 1M --socket socket {}",
        homing(),
        CHEAP_KEYS.join(" ")
    );
    let Some(mut terminal) = Terminal::run(&scratch, &make) else { return };
    let secret = "  tr\u{fc}b, with\ta tab ";
    let mut shown = String::new();
    for question in ["assphrase", "The same again"] {
        shown += &terminal.until(question);
        shown += &terminal.until(": ");
        terminal.type_in(secret.as_bytes());
        terminal.type_in(b"\n");
    }
    shown += &terminal.until("socket");
    terminal.type_in(b"\x03");
    let (code, rest) = terminal.end();
    assert_eq!(code, Some(0), "{rest}");
    shown += &rest;
    assert!(!shown.contains("a tab"), "{shown}");
    // The typed passphrase equals a key file of the same bytes.
    fs::write(scratch.path("key"), secret).unwrap();
    let keyed = format!("exec {} serve disk.img --socket socket --key-file key", homing());
    let mut terminal = Terminal::run(&scratch, &keyed).unwrap();
    terminal.until("socket");
    terminal.type_in(b"\x03");
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn a_terminal_is_left_as_it_was_whatever_ends_the_question() {
    let scratch = Scratch::new();
    let ask = format!("{} serve disk.img --size 1M --socket socket", homing());
    for (typed, code) in [(&b"\x03"[..], 130), (b"\x1c", 131), (b"\x04", 1)] {
        // The shell goes on after a signal that has killed its child.
        let whole = format!("trap : INT QUIT; {ask}; echo \"code $?\"; stty -a");
        let Some(mut terminal) = Terminal::run(&scratch, &whole) else { return };
        terminal.until("assphrase");
        terminal.until(": ");
        terminal.type_in(typed);
        terminal.until(&format!("code {code}"));
        let (_, shown) = terminal.end();
        assert!(shown.contains(" echo ") && !shown.contains("-echo "), "{shown}");
        assert!(!scratch.path("disk.img").exists());
    }
}
