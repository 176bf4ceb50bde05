//! The other end of the control socket: one request at a time, with typed errors.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use homing_socket::dial;

use crate::attribute::{Attribute, AttributeError};
use crate::lines::{Line, Lines};
use crate::wire::{self, Answer, Request};

/// How long a server may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// The shortest wait: a time of zero would be no limit.
const LEAST_TIME: Duration = Duration::from_millis(1);
/// The longest answer that is read: far beyond a list of every attribute there may be.
const ANSWER_LENGTH_MAX: usize = 64 << 20;

/// Why a client has no answer.
///
/// ```
/// use std::sync::Arc;
/// use homing_control::{AttributeError, Client, ClientError, ControlSocket, Trees};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("control");
/// let nobody = Client::connect(&path).unwrap_err();
/// assert!(matches!(nobody, ClientError::Io { .. }));
/// let socket = ControlSocket::listen(&path, Arc::new(Trees::default()))?;
/// let missing = Client::connect(&path)?.get("volume").unwrap_err();
/// assert!(matches!(missing, ClientError::Attribute(AttributeError::NotFound { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The server cannot be reached, or went away.
    #[error("cannot use the control socket {} ({}): {source}", path.display(), advice(source))]
    Io {
        /// The socket.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The attribute does not exist, or does not allow this request.
    #[error(transparent)]
    Attribute(#[from] AttributeError),
    /// The server refused the request or the connection, or is not a control socket.
    #[error("the control socket {}: {reason}", path.display())]
    Protocol {
        /// The socket.
        path: PathBuf,
        /// What the server said, or what is wrong with it.
        reason: String,
    },
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "only the user that the program runs as may",
        io::ErrorKind::TimedOut => "is the program stopped?",
        io::ErrorKind::InvalidInput => "give another path",
        _ => "is the program running, with --control?",
    }
}

/// A connection to a [`ControlSocket`](crate::ControlSocket).
///
/// A server hangs up after some minutes without a request: a caller that asks now and then connects
/// anew each time.
///
/// ```
/// # use std::sync::Arc;
/// # use homing_control::{Attribute, AttributeError, AttributeTree};
/// # struct Crypt;
/// # impl AttributeTree for Crypt {
/// #     fn list(&self) -> Vec<Attribute> {
/// #         vec![Attribute { path: "workqueue/crypt/nice".to_owned(), writable: true }]
/// #     }
/// #     fn get(&self, _: &str) -> Result<String, AttributeError> {
/// #         Ok("5".to_owned())
/// #     }
/// #     fn set(&self, _: &str, _: &str) -> Result<(), AttributeError> {
/// #         Ok(())
/// #     }
/// # }
/// use homing_control::{Client, ControlSocket};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("control");
/// let socket = ControlSocket::listen(&path, Arc::new(Crypt))?;
/// let mut client = Client::connect(socket.path())?;
/// assert_eq!(client.list("workqueue")?.len(), 1);
/// assert_eq!(client.get("workqueue/crypt/nice")?, "5");
/// client.set("workqueue/crypt/nice", "10")?;
/// // Somebody mistyped it, or left out its beginning.
/// assert_eq!(client.closest("workqueue/crpyt/nice")?, Some("workqueue/crypt/nice".to_owned()));
/// assert_eq!(client.closest("crypt/nice")?, Some("workqueue/crypt/nice".to_owned()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    path: PathBuf,
    lines: Lines,
    /// The server was out of step, or took too long: nothing that it has sent or still sends is an
    /// answer.
    ended: bool,
}

impl Client {
    /// Connects, and makes sure that a control socket is at the other end.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, ClientError> {
        let path = path.as_ref().to_owned();
        let stream = match dial(&path, ANSWER_TIME) {
            Ok(stream) => stream,
            Err(error) => return Err(ClientError::Io { path, source: told(error) }),
        };
        let lines = Lines::new(ANSWER_LENGTH_MAX);
        let mut client = Self { stream, path, lines, ended: false };
        let greeting = client.read_line()?;
        wire::check_greeting(&greeting).map_err(|reason| client.protocol(reason))?;
        Ok(client)
    }

    /// The attributes at and below `prefix`, sorted by path. For an empty prefix, all of them.
    pub fn list(&mut self, prefix: &str) -> Result<Vec<Attribute>, ClientError> {
        match self.ask(&Request::List { prefix: prefix.to_owned() })? {
            Answer::Attributes(attributes) => Ok(attributes),
            _ => Err(self.out_of_step()),
        }
    }

    /// An attribute's value.
    pub fn get(&mut self, path: &str) -> Result<String, ClientError> {
        match self.ask(&Request::Get { path: path.to_owned() })? {
            Answer::Value(value) => Ok(value),
            _ => Err(self.out_of_step()),
        }
    }

    /// Changes an attribute's value. If this fails, nothing has changed.
    pub fn set(&mut self, path: &str, value: &str) -> Result<(), ClientError> {
        let (path, value) = (path.to_owned(), value.to_owned());
        match self.ask(&Request::Set { path, value })? {
            Answer::Done => Ok(()),
            _ => Err(self.out_of_step()),
        }
    }

    /// The path of the attribute that is so close to `path` that it may have been meant.
    pub fn closest(&mut self, path: &str) -> Result<Option<String>, ClientError> {
        Ok(closest(path, self.list("")?.into_iter().map(|attribute| attribute.path)))
    }

    /// Sends a request and reads its answer.
    fn ask(&mut self, request: &Request) -> Result<Answer, ClientError> {
        if self.ended {
            let source = io::Error::new(io::ErrorKind::NotConnected, "it was cut off before");
            return Err(self.io(source));
        }
        let sent = self.stream.write_all(&request.line());
        // A server that has hung up may have said why before that.
        let answer = match (self.read_line(), sent) {
            (Ok(line), _) => Answer::parse(&line).map_err(|reason| self.protocol(reason))?,
            (Err(_), Err(source)) => {
                return Err(ClientError::Io { path: self.path.clone(), source: told(source) });
            }
            (Err(error), Ok(())) => return Err(error),
        };
        match answer {
            Answer::Refused(error) => Err(error.into()),
            Answer::Failed(failure) => {
                Err(ClientError::Protocol { path: self.path.clone(), reason: failure.message })
            }
            answer => Ok(answer),
        }
    }

    /// Reads a line, however its bytes come in.
    fn read_line(&mut self) -> Result<Vec<u8>, ClientError> {
        let mut buffer = [0; 16 << 10];
        let deadline = Instant::now() + ANSWER_TIME;
        loop {
            match self.lines.next() {
                Some(Line::Whole(line)) => return Ok(line),
                Some(Line::TooLong) => {
                    return Err(self.protocol("its answer has no end".to_owned()));
                }
                None => {}
            }
            // Many protocols greet without a newline: do not wait for one.
            if self.lines.first_byte().is_some_and(|byte| byte != b'{') {
                return Err(self.protocol(wire::NOT_A_CONTROL_SOCKET.to_owned()));
            }
            // A time of zero would be no timeout.
            let left = deadline.saturating_duration_since(Instant::now()).max(LEAST_TIME);
            let read = self.stream.set_read_timeout(Some(left));
            match read.and_then(|()| self.stream.read(&mut buffer)) {
                Ok(0) => {
                    let source = io::Error::new(io::ErrorKind::UnexpectedEof, "it hung up");
                    return Err(self.io(source));
                }
                Ok(count) => self.lines.push(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.io(error)),
            }
        }
    }

    fn out_of_step(&mut self) -> ClientError {
        self.protocol("it answered what was not asked".to_owned())
    }

    /// Ends the connection, too: an answer that comes late must not be taken for that of the next
    /// request.
    fn protocol(&mut self, reason: String) -> ClientError {
        self.end();
        ClientError::Protocol { path: self.path.clone(), reason }
    }

    fn io(&mut self, error: io::Error) -> ClientError {
        self.end();
        ClientError::Io { path: self.path.clone(), source: told(error) }
    }

    /// Ends the connection. What has come before could still be read after the shutdown, so `ended`
    /// says that it is no answer.
    fn end(&mut self) {
        self.ended = true;
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Puts a timeout into words, which the system reports as "temporarily unavailable".
fn told(error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::WouldBlock {
        return error;
    }
    let text = format!("it did not answer for {} s", ANSWER_TIME.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, text)
}

/// The known path that ends with this one (`crypt/nice` for `workqueue/crypt/nice`), or else the
/// one with the fewest typing errors, if they are few.
fn closest(path: &str, known: impl Iterator<Item = String>) -> Option<String> {
    let end = format!("/{path}");
    let distance = |known: &str| {
        if known.ends_with(&end) { 0 } else { strsim::osa_distance(path, known) }
    };
    let (distance, known) = known.map(|known| (distance(&known), known)).min()?;
    (distance <= 1 + path.len() / 8).then_some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_close_is_found() {
        let known = ["workqueue/crypt/nice", "workqueue/flush/nice", "module/cpumask"];
        let near = |path| closest(path, known.iter().map(|path| (*path).to_owned()));
        assert_eq!(near("workqueue/crpyt/nice").as_deref(), Some(known[0]));
        assert_eq!(near("flush/nice").as_deref(), Some(known[1]));
        assert_eq!(near("module/cpu_mask").as_deref(), Some(known[2]));
        assert_eq!(near("something/else"), None);
        assert_eq!(near(""), None);
    }
}
