//! The programs a comparison runs: where they are, which Debian package has them, which version.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use serde::Serialize;

/// A program that is not ours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tool {
    /// Its name.
    pub(crate) program: &'static str,
    /// The Debian package that provides it.
    pub(crate) package: &'static str,
}

pub(crate) const FIO: Tool = Tool { program: "fio", package: "fio" };
pub(crate) const NBDKIT: Tool = Tool { program: "nbdkit", package: "nbdkit" };
pub(crate) const QEMU_NBD: Tool = Tool { program: "qemu-nbd", package: "qemu-utils" };
pub(crate) const NBDCOPY: Tool = Tool { program: "nbdcopy", package: "libnbd-bin" };
pub(crate) const NBDINFO: Tool = Tool { program: "nbdinfo", package: "libnbd-bin" };
pub(crate) const CRYPTSETUP: Tool = Tool { program: "cryptsetup", package: "cryptsetup-bin" };

impl Tool {
    /// Finds the program. The error names the package to install.
    pub(crate) fn find(&self) -> Result<PathBuf> {
        let path = env::var_os("PATH").unwrap_or_default();
        // Not every user has the administrator's folders in the path.
        let folders = env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
        let found = folders.map(|folder| folder.join(self.program)).find(|path| is_program(path));
        match found {
            Some(path) => Ok(path),
            None => bail!(
                "{} is not installed: Debian has it in the package {}",
                self.program,
                self.package
            ),
        }
    }
}

/// Whether there is a file that may be run.
pub(crate) fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// A program and its version, as it says itself.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Version {
    /// The name.
    pub(crate) program: String,
    /// The version without the name.
    pub(crate) version: String,
}

impl Version {
    /// Asks the program at `path` for its version.
    pub(crate) fn of(program: &str, path: &Path) -> Self {
        let said = Command::new(path).arg("--version").stdin(Stdio::null()).output();
        let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let version = bare_version(program, &said.unwrap_or_default());
        Self { program: program.to_owned(), version }
    }
}

fn bare_version(program: &str, said: &str) -> String {
    let line = said.lines().next().unwrap_or_default();
    // qemu-nbd puts its whole path there.
    let line = line.split_once(program).map_or(line, |(_, rest)| rest);
    // cryptsetup then says how it was built.
    let line = line.split_once(" flags:").map_or(line, |(version, _)| version);
    let version = line.trim_matches(|c: char| c == '-' || c.is_whitespace());
    if version.is_empty() { "unknown version".to_owned() } else { version.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_lose_the_name_and_the_build_options() {
        assert_eq!(bare_version("fio", "fio-3.33\n"), "3.33");
        assert_eq!(bare_version("nbdkit", "nbdkit 1.32.5\n"), "1.32.5");
        assert_eq!(bare_version("cryptsetup", "cryptsetup 2.6.1 flags: UDEV BLKID\n"), "2.6.1");
        let said = "/usr/bin/qemu-nbd 7.2.22 (Debian 1:7.2+dfsg-7)\nCopyright\n";
        assert_eq!(bare_version("qemu-nbd", said), "7.2.22 (Debian 1:7.2+dfsg-7)");
        assert_eq!(bare_version("homing", ""), "unknown version");
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let missing = Tool { program: "no-such-program-anywhere", package: "some-package" };
        let error = missing.find().unwrap_err().to_string();
        assert!(error.contains("no-such-program-anywhere") && error.contains("some-package"));
        assert!(Tool { program: "sh", package: "dash" }.find().is_ok());
    }
}
