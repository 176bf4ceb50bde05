//! What the tests of the program share: a folder for each test, a server that ends with its
//! guard, and foreign programs, which may be missing.
#![allow(dead_code)] // every test file uses a part of it

pub(crate) mod nbd;
pub(crate) mod units;

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long anything may take that must happen: far beyond what a busy machine needs.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Key derivation that takes a few milliseconds.
pub(crate) const CHEAP_KEYS: [&str; 4] = ["--pbkdf-memory", "32", "--pbkdf-force-iterations", "4"];

/// A folder for one test, with a key file in it. Programs run in it, so names are short.
pub(crate) struct Scratch(TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        let scratch = Self(tempfile::tempdir().unwrap());
        fs::write(scratch.path("key"), "correct horse battery staple").unwrap();
        scratch
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file of this content and returns its path.
    pub(crate) fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        fs::write(self.path(name), content).unwrap();
        self.path(name)
    }

    /// `homing serve`, in this folder, with its key file and cheap key derivation.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_homing"));
        command.current_dir(&self.0).arg("serve").args(args);
        let has = |options: &[&str]| args.iter().any(|arg| options.contains(arg));
        if !has(&["--key-file", "--ephemeral", "--try"]) {
            command.args(["--key-file", "key"]);
        }
        if !has(&["--iter-time"]) {
            command.args(CHEAP_KEYS);
        }
        command
    }

    /// Starts a server, on the folder's socket unless the arguments say otherwise, and waits
    /// until it is ready.
    pub(crate) fn serve(&self, args: &[&str]) -> Server {
        let mut command = self.command(args);
        let value_of =
            |name| args.iter().position(|arg| *arg == name).map(|at| self.path(args[at + 1]));
        let socket = value_of("--socket").or_else(|| {
            if args.contains(&"--listen") {
                return None;
            }
            command.args(["--socket", "socket"]);
            Some(self.path("socket"))
        });
        Server::start(&mut command, socket)
    }

    /// The files of the folder with a hash of each: equal before and after means untouched.
    pub(crate) fn snapshot(&self) -> BTreeMap<PathBuf, u64> {
        let hash = |path: &Path| {
            let mut hasher = DefaultHasher::new();
            if path.is_file() {
                fs::read(path).unwrap().hash(&mut hasher);
            }
            hasher.finish()
        };
        let entries = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| (path.clone(), hash(&path))).collect()
    }
}

/// A running server; dropping it kills it.
pub(crate) struct Server {
    child: Child,
    /// The Unix socket, where it listens on one.
    socket: Option<PathBuf>,
    /// What it printed when it was ready.
    ready: serde_json::Value,
    log: Arc<Mutex<String>>,
}

impl Server {
    /// Starts the server of this command, which listens on `socket` or, without one, on TCP.
    pub(crate) fn start(command: &mut Command, socket: Option<PathBuf>) -> Self {
        command.arg("--json").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        collect(child.stderr.take().unwrap(), &log);
        let (send, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|l| send.send(l)));
        let mut server = Self { child, socket, ready: serde_json::Value::Null, log };
        let Ok(line) = lines.recv_timeout(DEADLINE) else {
            panic!("the server is not ready after {DEADLINE:?}, or it has ended: {command:?}");
        };
        server.ready = serde_json::from_str(&line).expect(&line);
        assert!(server.ready["uri"].is_string(), "{line}");
        server
    }

    /// What the server printed when it was ready.
    pub(crate) fn ready(&self) -> &serde_json::Value {
        &self.ready
    }

    /// The URI that it printed.
    pub(crate) fn printed_uri(&self) -> &str {
        self.ready["uri"].as_str().expect("it was there")
    }

    /// The address for an export.
    pub(crate) fn uri(&self, export: &str) -> String {
        if let Some(socket) = &self.socket {
            return format!("nbd+unix:///{export}?socket={}", socket.display());
        }
        format!("nbd://{}/{export}", self.host_and_port())
    }

    /// The `host:port` of a server that listens on TCP.
    pub(crate) fn host_and_port(&self) -> &str {
        let uri = self.printed_uri();
        let rest = uri.strip_prefix("nbd://").expect(uri);
        rest.split('/').next().unwrap()
    }

    pub(crate) fn socket(&self) -> &Path {
        self.socket.as_deref().expect("this server listens on TCP")
    }

    /// What the server has written to stderr so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The most memory it has ever used, in KiB.
    pub(crate) fn peak_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Asks it by SIGTERM to end, which it must do in order.
    pub(crate) fn stop(self) {
        self.stop_by(Signal::TERM);
    }

    /// As [`Self::stop`]; returns all that it has written to stderr.
    pub(crate) fn stop_and_tell(self) -> String {
        let log = Arc::clone(&self.log);
        self.stop();
        // The thread that collects the log has the other reference until the end of the file.
        let began = Instant::now();
        while Arc::strong_count(&log) > 1 && began.elapsed() < DEADLINE {
            thread::sleep(Duration::from_millis(1));
        }
        log.lock().unwrap().clone()
    }

    pub(crate) fn signal(&self, by: Signal) {
        signal(&self.child, by);
    }

    pub(crate) fn stop_by(mut self, by: Signal) {
        signal(&self.child, by);
        let status = wait_for(&mut self.child).expect("the server ends");
        assert_eq!(status.code(), Some(0), "after {by:?}: {status}");
    }

    /// Waits for its end, and returns its exit code.
    pub(crate) fn end(mut self) -> Option<i32> {
        wait_for(&mut self.child).expect("the server ends").code()
    }

    /// Ends it by SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Whether programs that are started from here get the signal of a closed terminal. Under nohup
/// they do not, and this function says so.
pub(crate) fn hears_of_hang_ups() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let hears = u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 == 0;
    if !hears {
        println!("skipped: SIGHUP is ignored here, as by nohup");
    }
    hears
}

/// Waits for a program to end, at most for the time of the deadline.
pub(crate) fn wait_for(child: &mut Child) -> Option<ExitStatus> {
    let begin = Instant::now();
    while begin.elapsed() < DEADLINE {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(2));
    }
    None
}

pub(crate) fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
    }
}

/// Keeps reading into `log`, so that the server never waits for its reader.
fn collect(from: impl Read + Send + 'static, log: &Arc<Mutex<String>>) {
    let log = Arc::clone(log);
    thread::spawn(move || {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            log.lock().unwrap().push_str(&(line + "\n"));
        }
    });
}

/// Foreign programs and the Debian packages they come in.
const PACKAGES: [(&str, &str); 11] = [
    ("cryptsetup", "cryptsetup-bin"),
    ("fio", "fio"),
    ("losetup", "mount"),
    ("mount", "mount"),
    ("nbd-client", "nbd-client"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdinfo", "libnbd-bin"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("script", "bsdutils"),
    ("setpriv", "util-linux"),
];

/// A foreign program that is installed.
pub(crate) struct Tool(PathBuf);

/// Finds a program, or skips the test.
pub(crate) fn tool(program: &str) -> Option<Tool> {
    let package = PACKAGES.iter().find(|(name, _)| *name == program).unwrap().1;
    // Users other than root may run cryptsetup, but do not have its folder in PATH.
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = folders.map(|folder| folder.join(program)).find(|file| file.is_file());
    if found.is_none() {
        skip(&format!("{program} is not installed (Debian package {package})"));
    }
    found.map(Tool)
}

/// Finds Debian's Python with libnbd's module, or skips the test. Other Pythons lack the module.
pub(crate) fn python_with_nbd() -> Option<Tool> {
    let python = Tool("/usr/bin/python3".into());
    if python.0.is_file() && python.output(["-c", "import nbd"]).status.success() {
        return Some(python);
    }
    skip("/usr/bin/python3 has no module nbd (Debian package python3-libnbd)");
    None
}

/// Says why a test does not run. With `HOMING_REQUIRE_TOOLS=1` that is a failure.
pub(crate) fn skip(reason: &str) {
    assert!(env::var_os("HOMING_REQUIRE_TOOLS").is_none_or(|value| value != "1"), "{reason}");
    println!("skipped: {reason}");
}

impl Tool {
    pub(crate) fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// A command line that has the program, and no arguments yet.
    pub(crate) fn bare_command(&self) -> Command {
        Command::new(&self.0)
    }

    /// The same under a time limit, without input.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "100"]).arg(&self.0).stdin(Stdio::null());
        command
    }

    pub(crate) fn output(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Output {
        self.command().args(args).output().unwrap()
    }

    /// Runs the program, which must succeed, and returns what it wrote to stdout.
    pub(crate) fn run(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
        succeed(self.command().args(args))
    }
}

/// A file as a block device, until it is dropped.
pub(crate) struct LoopDevice {
    losetup: Tool,
    pub(crate) path: String,
}

impl LoopDevice {
    /// Makes one of a file with losetup's options, or skips the test.
    pub(crate) fn new(file: &Path, options: &[&str]) -> Option<Self> {
        let losetup = tool("losetup")?;
        let made =
            losetup.command().args(options).args(["-f", "--show"]).arg(file).output().unwrap();
        if !made.status.success() {
            skip(&format!("no loop device, which takes root: {}", text(&made.stderr)));
            return None;
        }
        Some(Self { losetup, path: text(&made.stdout).trim().to_owned() })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        self.losetup.output(["-d", &self.path]);
    }
}

/// Runs a command, which must succeed, and returns what it wrote to stdout.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{stdout}\n{stderr}", output.status);
    stdout
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Random-looking bytes, the same for the same seed (splitmix64).
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random(seed);
    let words = (0..length.div_ceil(8)).flat_map(|_| random.word().to_le_bytes());
    words.take(length).collect()
}

/// A repeatable sequence of numbers (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }
}
