//! `homing top` beside a runtime of our own: what it prints for programs, what it refuses, and that
//! it leaves a terminal as it was.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use homing::{Cache, Runtime};
use homing_control::{AttributeTree, ControlSocket, Trees};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{DEADLINE, Scratch, skip, text, wait_for};

const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";

struct Program {
    scratch: Scratch,
    runtime: Runtime,
    cache: Cache<u64, u64>,
    socket: Option<ControlSocket>,
}

fn program() -> Program {
    let (scratch, runtime) = (Scratch::new(), Runtime::new().unwrap());
    let mut program = Program { scratch, runtime, cache: Cache::new(100), socket: None };
    program.listen();
    program
}

impl Program {
    fn listen(&mut self) {
        let runtime: Arc<dyn AttributeTree> = Arc::new(self.runtime.attributes());
        let trees = Trees::new([runtime, Arc::new(self.cache.attributes("of/names"))]);
        let socket = ControlSocket::listen(self.scratch.path("control"), Arc::new(trees)).unwrap();
        self.socket = Some(socket);
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.scratch.path("")).args(args).env("HOMING_SOCKET", "control");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn top(&self, args: &[&str]) -> Output {
        let args = [&["top"], args].concat();
        let mut child = self.command(env!("CARGO_BIN_EXE_homing"), &args).spawn().unwrap();
        if wait_for(&mut child).is_none() {
            child.kill().unwrap();
        }
        child.wait_with_output().unwrap()
    }

    /// Runs it on a terminal of util-linux's `script`; `None` where there is none.
    fn on_a_terminal(&self, args: &str) -> Option<Terminal> {
        self.on_a_terminal_called("xterm-256color", args)
    }

    fn on_a_terminal_called(&self, term: &str, args: &str) -> Option<Terminal> {
        let line =
            format!("stty rows 24 cols 80; exec {} top {args}", env!("CARGO_BIN_EXE_homing"));
        let mut command = self.command("script", &["-qec", &line, "/dev/null"]);
        let child = command.env("TERM", term).stdin(Stdio::piped()).spawn();
        child
            .map(Terminal::on)
            .inspect_err(|error| skip(&format!("script cannot be run: {error}")))
            .ok()
    }
}

#[test]
fn programs_are_told_what_happened_since_the_look_before() {
    let program = program();
    let queue = program.runtime.workqueue("crypt").build().unwrap();
    let mut top =
        program.command(env!("CARGO_BIN_EXE_homing"), &["top", "--json", "-n", "3", "-i", "0.3"]);
    let mut child = top.spawn().unwrap();
    program.cache.insert(1, 1);
    while child.try_wait().unwrap().is_none() {
        queue.queue(|| {}).join().unwrap();
        (1..5).for_each(|key| _ = program.cache.get(&key));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let looks: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(looks.len(), 3);
    for look in &looks {
        let queues = look["workqueues"].as_array().unwrap();
        let crypt = queues.iter().find(|queue| queue["name"] == "crypt").unwrap();
        assert!(crypt["items_per_s"].as_f64().unwrap() > 0.0, "{look}");
        assert!(look["seconds"].as_f64().unwrap() >= 0.3, "{look}");
        assert_eq!(look["cpus"].as_array().unwrap().len(), program.runtime.cpus().len());
        let of_cpus = look["cpus"].as_array().unwrap().iter();
        assert!(
            of_cpus.map(|cpu| cpu["items_per_s"].as_f64().unwrap()).sum::<f64>() > 0.0,
            "{look}"
        );
        let [cache] = &look["object_caches"].as_array().unwrap()[..] else { panic!("{look}") };
        assert_eq!(cache["name"], "of/names");
        assert_eq!((&cache["entries"], &cache["capacity"]), (&1.into(), &100.into()), "{look}");
        assert!((0.2..0.3).contains(&cache["hit_ratio"].as_f64().unwrap()), "{look}");
        assert!(look["cache"].is_null() && look["durability"].is_null(), "it has none: {look}");
    }
}

#[test]
fn a_program_that_ends_is_the_end_for_programs_and_too_early_for_who_counts() {
    for (count, is_well) in [(&[][..], true), (&["-n", "1000000"], false)] {
        let mut program = program();
        let args = [&["top", "--json", "-i", "0.05"], count].concat();
        let mut top = program.command(env!("CARGO_BIN_EXE_homing"), &args).spawn().unwrap();
        let mut lines = BufReader::new(top.stdout.take().unwrap()).lines();
        serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
        program.socket = None;
        let ended = wait_for(&mut top).expect("it goes on");
        assert_eq!(ended.success(), is_well, "{count:?}");
        assert!(lines.all(|line| serde_json::from_str::<Value>(&line.unwrap()).is_ok()));
    }
}

#[test]
fn what_cannot_be_is_named() {
    let mut program = program();
    for (args, reason) in [
        (&["-n", "1"][..], "is not a terminal: use --json"),
        (&["-i", "0"], "0.05 seconds or more"),
        (&["--socket", "nowhere"], "cannot use the control socket nowhere"),
    ] {
        let output = program.top(args);
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains(reason), "{}", text(&output.stderr));
    }
    if let Some(terminal) = program.on_a_terminal_called("dumb", "") {
        terminal.wait_until("TERM is dumb");
    }
    program.socket = None;
    assert!(text(&program.top(&["--json"]).stderr).contains("is the program running"));
}

#[test]
fn a_terminal_is_drawn_on_and_given_back() {
    let program = program();
    let Some(mut terminal) = program.on_a_terminal("-n 2 -i 0.1") else { return };
    let ended = wait_for(&mut terminal.child);
    let screen = terminal.end();
    assert!(ended.is_some_and(|status| status.success()), "{screen}");
    assert!(screen.contains("Workqueues") && screen.contains("events"), "{screen}");
    let (enter, leave) = (screen.find(ENTER).unwrap(), screen.rfind(LEAVE).unwrap());
    assert!(enter < leave, "{screen}");
}

#[test]
fn a_key_and_a_signal_end_it_and_a_program_that_goes_is_waited_for() {
    let mut program = program();
    for by_key in [true, false] {
        let Some(mut terminal) = program.on_a_terminal("-i 0.1") else { return };
        terminal.wait_until_it("says how long a look took", tells_seconds);
        program.socket = None;
        terminal.wait_until("trying again");
        if by_key {
            terminal.keys.write_all(b"s q").unwrap();
        } else {
            terminal.signal(Signal::TERM);
        }
        assert!(wait_for(&mut terminal.child).is_some(), "it goes on");
        assert!(terminal.end().contains(LEAVE));
        program.listen();
    }
}

#[test]
fn it_ends_with_its_terminal() {
    let program = program();
    let Some(mut terminal) = program.on_a_terminal("-i 0.1") else { return };
    terminal.wait_until("Workqueues");
    let top = terminal.top();
    // After this, nobody is left at the other end of the terminal.
    terminal.child.kill().unwrap();
    terminal.child.wait().unwrap();
    let deadline = Instant::now() + DEADLINE;
    // A zombie has ended, too: whoever should take its status may not do so.
    let stat = format!("/proc/{}/stat", top.as_raw_nonzero());
    while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(Instant::now() < deadline, "it goes on");
        thread::sleep(Duration::from_millis(10));
    }
    terminal.end();
}

/// Whether the screen shows seconds, as in `0.1 s`. On a busy machine the first look may have taken
/// longer, and of later ones only the digits that differ are drawn.
fn tells_seconds(screen: &str) -> bool {
    screen.as_bytes().windows(5).any(|text| {
        matches!(text, [whole, b'.', tenths, b' ', b's'] if whole.is_ascii_digit() && tenths.is_ascii_digit())
    })
}

/// `homing top` on a terminal.
struct Terminal {
    child: Child,
    /// Kept open, since the end of its input would count as a key.
    keys: ChildStdin,
    screen: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
}

impl Terminal {
    fn on(mut child: Child) -> Self {
        let screen = Arc::new(Mutex::new(String::new()));
        let mut output = child.stdout.take().unwrap();
        let seen = Arc::clone(&screen);
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                seen.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        Self { keys: child.stdin.take().unwrap(), child, screen, reader }
    }

    fn wait_until(&self, shown: &str) {
        self.wait_until_it(&format!("shows {shown:?}"), |screen| screen.contains(shown));
    }

    fn wait_until_it(&self, does: &str, so: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let screen = self.screen.lock().unwrap().clone();
            if so(&screen) {
                return;
            }
            assert!(Instant::now() < deadline, "it never {does}: {screen}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.top(), signal).unwrap();
    }

    /// `script`'s only child.
    fn top(&self) -> Pid {
        let script = self.child.id();
        let children =
            fs::read_to_string(format!("/proc/{script}/task/{script}/children")).unwrap();
        Pid::from_raw(children.trim().parse().unwrap()).unwrap()
    }

    fn end(self) -> String {
        drop(self.keys);
        self.reader.join().unwrap();
        self.screen.lock().unwrap().clone()
    }
}
