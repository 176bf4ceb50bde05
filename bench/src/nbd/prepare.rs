//! Before the first round: finds the servers and makes their containers.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use homing::control::ByteSize;

use super::server::{Kind, Server, uri};
use crate::child::{self, Running};
use crate::interrupt::Interrupt;
use crate::tool::{CRYPTSETUP, NBDCOPY, NBDINFO, Version, is_program};

/// The size of a container in addition to its content: LUKS2 puts the content 16 MiB in, LUKS1
/// less.
const HEADER_MAX: u64 = 16 << 20;

/// The offset of the content of the LUKS1 containers: sectors of 512 bytes.
const LUKS1_OFFSET: u64 = 4096 * 512;

const FORMAT_LIMIT: Duration = Duration::from_secs(60);

/// What preparing needs, and what it found.
pub(crate) struct Preparation {
    /// What fills the containers.
    pub(crate) nbdcopy: PathBuf,
    nbdinfo: PathBuf,
    cryptsetup: Option<PathBuf>,
    folder: PathBuf,
    passphrase: PathBuf,
    /// The size of every export in bytes.
    pub(crate) size: u64,
    /// The programs used so far.
    pub(crate) versions: Vec<Version>,
    /// What was left out, and why.
    pub(crate) left_out: Vec<String>,
}

impl Preparation {
    /// Finds the tools that no comparison can do without.
    pub(crate) fn new(folder: &Path, size: u64) -> anyhow::Result<Self> {
        let mut preparation = Self {
            nbdcopy: NBDCOPY.find()?,
            nbdinfo: NBDINFO.find()?,
            cryptsetup: None,
            folder: folder.to_owned(),
            passphrase: folder.join("passphrase"),
            size,
            versions: Vec::new(),
            left_out: Vec::new(),
        };
        preparation.versions.push(Version::of(NBDCOPY.program, &preparation.nbdcopy));
        Ok(preparation)
    }

    /// The servers that are installed; `homing` is where ours ought to be.
    pub(crate) fn find(&mut self, homing: &Path) -> Vec<Server> {
        match CRYPTSETUP.find() {
            Ok(path) => {
                self.versions.push(Version::of(CRYPTSETUP.program, &path));
                self.cryptsetup = Some(path);
            }
            Err(error) => self.note(format!("all on LUKS1: {error}")),
        }
        let mut servers = Vec::new();
        for kind in Kind::ALL {
            let program = match kind.tool() {
                None if is_program(homing) => homing.to_owned(),
                None => {
                    self.note(format!(
                        "homing: there is no program at {}: build it with cargo build --release",
                        homing.display()
                    ));
                    continue;
                }
                _ if kind.is_luks1() && self.cryptsetup.is_none() => continue,
                Some(tool) => match tool.find() {
                    Ok(path) => path,
                    Err(error) => {
                        self.note(format!("{}: {error}", kind.name()));
                        continue;
                    }
                },
            };
            let name = kind.tool().map_or("homing", |tool| tool.program);
            if self.versions.iter().all(|version| version.program != name) {
                self.versions.push(Version::of(name, &program));
            }
            servers.push(Server {
                kind,
                program,
                image: self.folder.join(format!("{}.img", kind.file_stem())),
                passphrase: self.passphrase.clone(),
                socket: self.folder.join(format!("{}.sock", kind.file_stem())),
                size: self.size,
                tls: None,
            });
        }
        servers
    }

    /// How much space the containers of `count` servers take below `dir`. An error if that much is
    /// not free.
    pub(crate) fn space(&self, count: usize, dir: &Path) -> anyhow::Result<String> {
        let needed = (self.size + HEADER_MAX).saturating_mul(count as u64);
        let dir = dir.display();
        let stat = rustix::fs::statvfs(&self.folder);
        let stat = stat.with_context(|| format!("the free space of {dir} cannot be read"))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        let needs = format!(
            "{count} containers need {} in {dir}, and {} are free",
            ByteSize(needed),
            ByteSize(free)
        );
        ensure!(free >= needed, "{needs}: choose another --dir or a smaller --size");
        Ok(needs)
    }

    /// Makes the container of `server` and serves it.
    pub(crate) fn serve(&self, server: &Server, interrupt: &Interrupt) -> anyhow::Result<Running> {
        if server.kind.is_luks1() {
            self.format_luks1(server, interrupt)?;
        }
        let running = server.start(interrupt)?;
        let export =
            child::output(Command::new(&self.nbdinfo).arg("--size").arg(uri(&server.socket)))?;
        ensure!(
            export == self.size.to_string(),
            "the export has {export} bytes: expected {}",
            self.size
        );
        Ok(running)
    }

    /// Leaves out a peer that failed; ours must not fail.
    pub(crate) fn leave_out(&mut self, kind: Kind, error: anyhow::Error) -> anyhow::Result<()> {
        let name = kind.name();
        if kind.tool().is_none() {
            return Err(error.context("homing cannot be prepared"));
        }
        self.note(format!("{name}: {error:#}"));
        Ok(())
    }

    /// Reports what is left out at once, and again in the report.
    fn note(&mut self, line: String) {
        eprintln!("left out: {line}");
        self.left_out.push(line);
    }

    /// Neither nbdkit nor qemu reads LUKS2. The cipher is the same in both.
    fn format_luks1(&self, server: &Server, interrupt: &Interrupt) -> anyhow::Result<()> {
        let Some(cryptsetup) = &self.cryptsetup else {
            bail!("there is no cryptsetup to make its container");
        };
        let image = File::create(&server.image)?;
        image.set_len(self.size + LUKS1_OFFSET)?;
        let mut command = Command::new(cryptsetup);
        command.args(["luksFormat", "-q", "--type", "luks1", "--hash", "sha256"]);
        command.args(["--cipher", "aes-xts-plain64", "--key-size", "512"]);
        // Key derivation is not measured.
        command.args(["--pbkdf-force-iterations", "1000"]);
        command.arg("--key-file").arg(&self.passphrase).arg(&server.image);
        let log = self.folder.join("cryptsetup.log");
        let child = Running::start("cryptsetup", &mut command, Stdio::null(), &log)?;
        child.finish(FORMAT_LIMIT, interrupt)
    }

    /// Writes the passphrase that all containers have. It guards nothing: the content is random.
    pub(crate) fn write_passphrase(&self) -> anyhow::Result<()> {
        std::fs::write(&self.passphrase, "homing-bench")
            .with_context(|| format!("cannot write {}", self.passphrase.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preparation(folder: &Path, size: u64) -> Preparation {
        Preparation {
            nbdcopy: "nbdcopy".into(),
            nbdinfo: "nbdinfo".into(),
            cryptsetup: None,
            folder: folder.to_owned(),
            passphrase: folder.join("passphrase"),
            size,
            versions: Vec::new(),
            left_out: Vec::new(),
        }
    }

    #[test]
    fn too_little_space_is_told_in_figures() {
        let folder = tempfile::tempdir().unwrap();
        let error = preparation(folder.path(), 1 << 60).space(4, folder.path()).unwrap_err();
        assert!(error.to_string().contains("4 containers need 4096.0 PiB"), "{error}");
    }

    #[test]
    fn what_is_missing_is_left_out_with_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let mut preparation = preparation(folder.path(), 1 << 20);
        let servers = preparation.find(&folder.path().join("homing"));
        assert!(servers.iter().all(|server| server.kind.tool().is_some()));
        assert!(preparation.left_out.iter().any(|line| line.starts_with("homing: ")));
    }
}
