//! Child processes that never outlive this one: stopped when dropped, waited for with a limit,
//! and quoted when they fail.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::interrupt::Interrupt;

const POLL: Duration = Duration::from_millis(10);

/// How long a child has to end after SIGTERM before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// How much of a failed child's output is quoted.
const QUOTED_LINES: usize = 5;

/// A child process in a process group of its own, so that the terminal's Ctrl-C reaches only us,
/// and the children of the child are stopped with it.
pub(crate) struct Running {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Running {
    /// Starts `command` with its output in the file `log`. Errors call it `name`.
    pub(crate) fn start(
        name: &str,
        command: &mut Command,
        stdin: Stdio,
        log: &Path,
    ) -> anyhow::Result<Self> {
        let output =
            File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stdin(stdin).stdout(output.try_clone()?).stderr(output).process_group(0);
        let child = command.spawn();
        let child = child.with_context(|| format!("{} does not start", program(command)))?;
        Ok(Self { child, name: name.to_owned(), log: log.to_owned() })
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The writing end of the child's standard input, once, where it was started with a pipe.
    pub(crate) fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// An error where the child has ended.
    pub(crate) fn check_alive(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("{} ended ({status}): {}", self.name, self.last_words()),
            None => Ok(()),
        }
    }

    /// Waits for the child to end well within `limit`.
    pub(crate) fn finish(mut self, limit: Duration, interrupt: &Interrupt) -> anyhow::Result<()> {
        let Some(status) = self.wait(limit, || interrupt.check())? else {
            bail!("{} is not done after {} s: {}", self.name, limit.as_secs(), self.last_words());
        };
        if !status.success() {
            bail!("{} failed ({status}): {}", self.name, self.last_words());
        }
        Ok(())
    }

    /// Ends a child that runs until it is told to stop.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        self.check_alive()?;
        if !self.end()? {
            bail!("{} does not end within {} s of SIGTERM", self.name, STOP_LIMIT.as_secs());
        }
        Ok(())
    }

    fn wait(
        &mut self,
        limit: Duration,
        mut check: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            check()?;
            if Instant::now() >= deadline {
                return Ok(None);
            }
            thread::sleep(POLL);
        }
    }

    /// Asks the child to end, and kills it if it does not. Returns `false` if it had to be killed.
    fn end(&mut self) -> anyhow::Result<bool> {
        // Once the child was waited for, its number may belong to another process.
        if self.child.try_wait()?.is_some() {
            return Ok(true);
        }
        let group = Pid::from_child(&self.child);
        kill_process_group(group, Signal::TERM)?;
        if self.wait(STOP_LIMIT, || Ok(()))?.is_some() {
            return Ok(true);
        }
        kill_process_group(group, Signal::KILL)?;
        self.child.wait()?;
        Ok(false)
    }

    /// The end of the child's output, for an error message.
    pub(crate) fn last_words(&self) -> String {
        let said = fs::read(&self.log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
        if lines.is_empty() {
            return "it said nothing".to_owned();
        }
        lines[lines.len().saturating_sub(QUOTED_LINES)..].join("\n")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // If this fails, nobody is left to be told.
        let _ = self.end();
    }
}

/// The trimmed standard output of a command that must succeed.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let done = command.stdin(Stdio::null()).output();
    let done = done.with_context(|| format!("{} does not start", program(command)))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        bail!("{} failed ({}): {}", program(command), done.status, said.trim());
    }
    let said = String::from_utf8(done.stdout).map_err(io::Error::other)?;
    Ok(said.trim().to_owned())
}

fn program(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn shell(script: &str, folder: &Path) -> Running {
        let log = folder.join("log");
        Running::start("sh", Command::new("sh").args(["-c", script]), Stdio::null(), &log).unwrap()
    }

    #[test]
    fn a_failure_quotes_the_end_of_the_output() {
        let folder = tempfile::tempdir().unwrap();
        let interrupt = Interrupt::install().unwrap();
        let child = shell("for i in 1 2 3 4 5 6; do echo line $i; done; exit 3", folder.path());
        let error = child.finish(Duration::from_secs(60), &interrupt).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("line 6"), "{error}");
        assert!(!error.contains("line 1"), "{error}");
    }

    #[test]
    fn dropping_ends_the_child_and_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        // Without the redirection a job in the background would read /dev/null.
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 <&0 & wait"]);
        let log = folder.path().join("log");
        let child = Running::start("sh", &mut command, reader.into(), &log).unwrap();
        drop((child, command));
        // The pipe breaks once no process holds its reading end: then the grandchild is gone as
        // well.
        let deadline = Instant::now() + Duration::from_secs(30);
        while writer.write_all(b"x").is_ok() {
            assert!(Instant::now() < deadline, "the grandchild still runs");
            thread::sleep(POLL);
        }
    }
}
