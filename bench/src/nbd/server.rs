//! The servers that are compared: how each is started, and when it is ready.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Serialize, Serializer};

use crate::child::Running;
use crate::interrupt::Interrupt;
use crate::tool::{NBDKIT, QEMU_NBD, Tool};

/// How long a server may take until it answers. Most of it is key derivation.
const START_LIMIT: Duration = Duration::from_secs(60);

/// The most connections of any load, with room to spare.
const QEMU_CLIENTS: &str = "32";

/// The first bytes from an NBD server.
const GREETING: &[u8; 16] = b"NBDMAGICIHAVEOPT";

/// The handshake flags that follow it.
const FLAGS_LEN: usize = 2;

/// A server, as a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Ours.
    Homing,
    /// Ours, with room for all pages in memory.
    HomingCache,
    /// Ours, on a container as the others have it.
    HomingLuks1,
    /// nbdkit's file plugin below its luks filter.
    Nbdkit,
    /// qemu-nbd, through the page cache by `io_uring`.
    QemuUring,
    /// qemu-nbd, past the page cache by Linux AIO.
    QemuNative,
}

impl Kind {
    /// All of them, ours first.
    pub(crate) const ALL: [Self; 6] = [
        Self::Homing,
        Self::HomingCache,
        Self::HomingLuks1,
        Self::Nbdkit,
        Self::QemuUring,
        Self::QemuNative,
    ];

    /// Whether its container is LUKS1, in sectors of 512 bytes.
    pub(crate) const fn is_luks1(self) -> bool {
        !matches!(self, Self::Homing | Self::HomingCache)
    }

    /// The name in the results.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Homing => "homing",
            Self::HomingCache => "homing --cache",
            Self::HomingLuks1 => "homing, LUKS1",
            Self::Nbdkit => "nbdkit",
            Self::QemuUring => "qemu io_uring",
            Self::QemuNative => "qemu native",
        }
    }

    /// The name as part of a file's name.
    pub(crate) const fn file_stem(self) -> &'static str {
        match self {
            Self::Homing => "homing",
            Self::HomingCache => "homing-cache",
            Self::HomingLuks1 => "homing-luks1",
            Self::Nbdkit => "nbdkit",
            Self::QemuUring => "qemu-uring",
            Self::QemuNative => "qemu-native",
        }
    }

    /// The program to look for, where it is not ours.
    pub(crate) const fn tool(self) -> Option<Tool> {
        match self {
            Self::Homing | Self::HomingCache | Self::HomingLuks1 => None,
            Self::Nbdkit => Some(NBDKIT),
            Self::QemuUring | Self::QemuNative => Some(QEMU_NBD),
        }
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A server with its files, ready to be started any number of times.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    /// Which it is.
    pub(crate) kind: Kind,
    /// The program.
    pub(crate) program: PathBuf,
    /// The encrypted container.
    pub(crate) image: PathBuf,
    /// The file with the passphrase, without a newline.
    pub(crate) passphrase: PathBuf,
    /// The socket that it listens on.
    pub(crate) socket: PathBuf,
    /// The size of the export in bytes.
    pub(crate) size: u64,
    /// The folder with its certificates, where it speaks TLS.
    pub(crate) tls: Option<PathBuf>,
}

impl Server {
    /// The address of its export.
    pub(crate) fn uri(&self) -> String {
        let uri = uri(&self.socket);
        let Some(folder) = &self.tls else { return uri };
        format!("{}&tls-certificates={}", uri.replacen("nbd", "nbds", 1), folder.display())
    }

    /// Starts the server and waits until it answers.
    pub(crate) fn start(&self, interrupt: &Interrupt) -> anyhow::Result<Running> {
        // nbdkit leaves its socket behind, and will not replace it.
        if let Err(error) = fs::remove_file(&self.socket)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(error).with_context(|| format!("cannot remove {}", self.socket.display()));
        }
        let log = self.socket.with_extension("log");
        let name = self.kind.name();
        let mut running = Running::start(name, &mut self.command(), Stdio::null(), &log)?;
        let deadline = Instant::now() + START_LIMIT;
        while !greets(&self.socket) {
            running.check_alive()?;
            interrupt.check()?;
            if Instant::now() >= deadline {
                bail!("{name} does not answer after {} s", START_LIMIT.as_secs());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(running)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        let (image, passphrase) = (self.image.display(), self.passphrase.display());
        match self.kind {
            Kind::Homing | Kind::HomingCache | Kind::HomingLuks1 => {
                command.arg("serve").arg(&self.image);
                command.arg("--key-file").arg(&self.passphrase);
                command.arg("--socket").arg(&self.socket);
                if self.kind != Kind::HomingLuks1 {
                    command.args(["--size", &self.size.to_string(), "--iter-time", "100"]);
                }
                if self.kind == Kind::HomingCache {
                    // Room for all pages, and for what is known of each.
                    let room = self.size + self.size / 8 + (16 << 20);
                    command.args(["--cache", &room.to_string()]);
                }
                if let Some(folder) = &self.tls {
                    command.arg("--tls-certificates").arg(folder);
                }
            }
            Kind::Nbdkit => {
                command.arg("-f").arg("-U").arg(&self.socket);
                if let Some(folder) = &self.tls {
                    command.arg("--tls=require");
                    command.arg(format!("--tls-certificates={}", folder.display()));
                }
                command.args(["--filter=luks", "file"]);
                command.arg(&self.image).arg(format!("passphrase=+{passphrase}"));
            }
            Kind::QemuUring | Kind::QemuNative => {
                let access = if self.kind == Kind::QemuUring {
                    "file.aio=io_uring"
                } else {
                    "file.cache.direct=on,file.aio=native"
                };
                command.args(["-t", "-e", QEMU_CLIENTS]).arg("-k").arg(&self.socket);
                if let Some(folder) = &self.tls {
                    let folder = folder.display();
                    let tls = format!(
                        "tls-creds-x509,id=tls,endpoint=server,verify-peer=off,dir={folder}"
                    );
                    command.args(["--object", &tls, "--tls-creds", "tls"]);
                }
                command.arg("--object").arg(format!("secret,id=key,file={passphrase}"));
                command.arg("--image-opts").arg(format!(
                    "driver=luks,key-secret=key,file.driver=file,file.filename={image},{access}"
                ));
            }
        }
        command
    }
}

/// The address of the default export behind `socket`.
pub(crate) fn uri(socket: &Path) -> String {
    format!("nbd+unix:///?socket={}", socket.display())
}

fn greets(socket: &Path) -> bool {
    let greeting = UnixStream::connect(socket).and_then(|mut stream| {
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        let mut greeting = [0; GREETING.len()];
        stream.read_exact(&mut greeting)?;
        // Closing with anything unread would be a reset, which servers complain about.
        stream.read_exact(&mut [0; FLAGS_LEN])?;
        Ok(greeting)
    });
    greeting.is_ok_and(|greeting| greeting == *GREETING)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn server(kind: Kind) -> Server {
        Server {
            kind,
            program: "/bin/server".into(),
            image: "/d/image".into(),
            passphrase: "/d/pass".into(),
            socket: "/d/socket".into(),
            size: 1 << 20,
            tls: None,
        }
    }

    fn line(kind: Kind) -> String {
        line_of(&server(kind))
    }

    fn line_of(server: &Server) -> String {
        let command = server.command();
        let words = command.get_args().map(|word| word.to_str().unwrap().to_owned());
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_kind_is_started_its_own_way() {
        assert_eq!(
            line(Kind::Homing),
            "serve /d/image --key-file /d/pass --socket /d/socket --size 1048576 --iter-time 100"
        );
        assert!(line(Kind::HomingCache).ends_with("--iter-time 100 --cache 17956864"));
        assert!(line(Kind::HomingLuks1).ends_with("--key-file /d/pass --socket /d/socket"));
        assert_eq!(
            line(Kind::Nbdkit),
            "-f -U /d/socket --filter=luks file /d/image passphrase=+/d/pass"
        );
        assert!(line(Kind::QemuUring).ends_with("file.filename=/d/image,file.aio=io_uring"));
        assert!(line(Kind::QemuNative).ends_with("file.cache.direct=on,file.aio=native"));
    }

    #[test]
    fn each_speaks_tls_its_own_way() {
        let line = |kind| line_of(&Server { tls: Some("/d/pki".into()), ..server(kind) });
        assert!(line(Kind::Homing).ends_with(" --tls-certificates /d/pki"));
        assert!(line(Kind::Nbdkit).contains(" --tls=require --tls-certificates=/d/pki --filter"));
        assert!(line(Kind::QemuUring).contains("dir=/d/pki --tls-creds tls --object secret"));
        let server = Server { tls: Some("/d/pki".into()), ..server(Kind::Homing) };
        assert_eq!(server.uri(), "nbds+unix:///?socket=/d/socket&tls-certificates=/d/pki");
    }

    #[test]
    fn only_an_nbd_server_counts_as_ready() {
        let folder = tempfile::tempdir().unwrap();
        for (name, said, ready) in [
            ("nbd", &b"NBDMAGICIHAVEOPT\0\x03"[..], true),
            ("other", b"220 mail ready here", false),
        ] {
            let socket = folder.path().join(name);
            assert!(!greets(&socket));
            let listener = UnixListener::bind(&socket).unwrap();
            let server = thread::spawn(move || listener.accept().unwrap().0.write_all(said));
            assert_eq!(greets(&socket), ready);
            server.join().unwrap().unwrap();
        }
    }
}
