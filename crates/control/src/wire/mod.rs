//! Requests and answers as lines of JSON, and back. The protocol is in `README.md`. Does no I/O.

use serde::{Deserialize, Serialize};

use crate::attribute::{Attribute, AttributeError};

/// The longest request, in bytes, without its newline.
///
/// ```
/// # use std::sync::Arc;
/// # use homing_control::{Client, ClientError, ControlSocket, REQUEST_LENGTH_MAX, Trees};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("control");
/// # let socket = ControlSocket::listen(&path, Arc::new(Trees::default()))?;
/// let mut client = Client::connect(&path)?;
/// let refused = client.get(&"x".repeat(REQUEST_LENGTH_MAX)).unwrap_err();
/// assert!(matches!(refused, ClientError::Protocol { .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const REQUEST_LENGTH_MAX: usize = 64 << 10;
/// The version that the greeting says.
pub(crate) const VERSION: u32 = 1;

const USAGE: &str =
    r#"a request is {"list":"PREFIX"}, {"get":"PATH"} or {"set":"PATH","to":"VALUE"}, on one line"#;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    List { prefix: String },
    Get { path: String },
    Set { path: String, value: String },
}

/// What the client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Attributes(Vec<Attribute>),
    Value(String),
    Done,
    /// An attribute's error.
    Refused(AttributeError),
    /// Any other error: the request's, or the connection's.
    Failed(Failure),
}

/// An error that concerns no attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// For programs: [`REQUEST`], [`TOO_LONG`], [`BUSY`], [`TIMEOUT`], or a newer one.
    pub(crate) kind: String,
    /// For people.
    pub(crate) message: String,
}

/// Not understood.
pub(crate) const REQUEST: &str = "request";
/// Longer than [`REQUEST_LENGTH_MAX`].
pub(crate) const TOO_LONG: &str = "too_long";
/// Too many clients.
pub(crate) const BUSY: &str = "busy";
/// Half a line and no more, or nothing at all for long.
pub(crate) const TIMEOUT: &str = "timeout";

impl Failure {
    pub(crate) fn new(kind: &str, message: impl Into<String>) -> Self {
        Self { kind: kind.to_owned(), message: message.into() }
    }
}

// An unknown field is refused by name, so that a client learns that this server is older than it
// is.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    list: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    get: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    set: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
}

impl Request {
    /// Reads a line, without its newline.
    pub(crate) fn parse(line: &[u8]) -> Result<Self, Failure> {
        let fail = |problem: &str| Failure::new(REQUEST, format!("{problem}: {USAGE}"));
        // Where serde expects a struct, it would take an array as well.
        if line.trim_ascii_start().first() != Some(&b'{') {
            return Err(fail("this is no JSON object"));
        }
        let fields: RequestFields =
            serde_json::from_slice(line).map_err(|error| fail(&error.to_string()))?;
        match fields {
            RequestFields { list: Some(prefix), get: None, set: None, to: None } => {
                Ok(Self::List { prefix })
            }
            RequestFields { list: None, get: Some(path), set: None, to: None } => {
                Ok(Self::Get { path })
            }
            RequestFields { list: None, get: None, set: Some(path), to: Some(value) } => {
                Ok(Self::Set { path, value })
            }
            RequestFields { list: None, get: None, set: Some(_), to: None } => {
                Err(fail("`set` needs `to`"))
            }
            RequestFields { list: None, get: None, set: None, .. } => {
                Err(fail("there is no `list`, `get` or `set` in it"))
            }
            _ => Err(fail("it has fields that exclude each other")),
        }
    }

    /// The line, with its newline.
    pub(crate) fn line(&self) -> Vec<u8> {
        let none = RequestFields::default();
        let fields = match self.clone() {
            Self::List { prefix } => RequestFields { list: Some(prefix), ..none },
            Self::Get { path } => RequestFields { get: Some(path), ..none },
            Self::Set { path, value } => RequestFields { set: Some(path), to: Some(value), ..none },
        };
        line(&fields)
    }
}

// Answers may get new fields: a client passes over those that it does not know.
#[derive(Default, Serialize, Deserialize)]
struct AnswerFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    attributes: Option<Vec<Attribute>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ok: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorFields>,
}

#[derive(Default, Serialize, Deserialize)]
struct ErrorFields {
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default)]
    message: String,
}

impl Answer {
    /// Reads a line, without its newline; the error says what is wrong with it.
    pub(crate) fn parse(line: &[u8]) -> Result<Self, String> {
        let fields: AnswerFields = serde_json::from_slice(line)
            .map_err(|error| format!("it answered what this program cannot read: {error}"))?;
        match fields {
            AnswerFields { error: Some(error), .. } => Ok(error.into()),
            AnswerFields { attributes: Some(attributes), .. } => Ok(Self::Attributes(attributes)),
            AnswerFields { value: Some(value), .. } => Ok(Self::Value(value)),
            AnswerFields { ok: Some(true), .. } => Ok(Self::Done),
            _ => Err("it answered what this program does not know".to_owned()),
        }
    }

    /// The line, with its newline.
    pub(crate) fn line(&self) -> Vec<u8> {
        let none = AnswerFields::default();
        line(&match self.clone() {
            Self::Attributes(list) => AnswerFields { attributes: Some(list), ..none },
            Self::Value(value) => AnswerFields { value: Some(value), ..none },
            Self::Done => AnswerFields { ok: Some(true), ..none },
            Self::Refused(error) => AnswerFields { error: Some(error.into()), ..none },
            Self::Failed(Failure { kind, message }) => {
                let error = ErrorFields { kind, message, ..ErrorFields::default() };
                AnswerFields { error: Some(error), ..none }
            }
        })
    }
}

impl From<AttributeError> for ErrorFields {
    fn from(error: AttributeError) -> Self {
        let message = error.to_string();
        let (kind, path, value, accepted, reason) = match error {
            AttributeError::NotFound { path } => ("not_found", path, None, None, None),
            AttributeError::ReadOnly { path } => ("read_only", path, None, None, None),
            AttributeError::Value { path, value, accepted } => {
                ("value", path, Some(value), Some(accepted), None)
            }
            AttributeError::Failed { path, reason } => ("failed", path, None, None, Some(reason)),
        };
        Self { kind: kind.to_owned(), path: Some(path), value, accepted, reason, message }
    }
}

impl From<ErrorFields> for Answer {
    fn from(fields: ErrorFields) -> Self {
        let ErrorFields { kind, path, value, accepted, reason, message } = fields;
        let error = match (kind.as_str(), path, value, accepted, reason) {
            ("not_found", Some(path), ..) => AttributeError::NotFound { path },
            ("read_only", Some(path), ..) => AttributeError::ReadOnly { path },
            ("value", Some(path), Some(value), Some(accepted), _) => {
                AttributeError::Value { path, value, accepted }
            }
            ("failed", Some(path), _, _, Some(reason)) => AttributeError::Failed { path, reason },
            // The kind is newer than this client; its message is for everybody. If it is about one
            // attribute, the others can be had.
            (_, Some(path), ..) => AttributeError::Failed { path, reason: message },
            _ => return Self::Failed(Failure { kind, message }),
        };
        Self::Refused(error)
    }
}

#[derive(Serialize, Deserialize)]
struct GreetingFields {
    control: u32,
}

/// What the server says first, with its newline.
pub(crate) fn greeting() -> Vec<u8> {
    line(&GreetingFields { control: VERSION })
}

/// Reads the server's first line: a greeting of our version, or why there is none.
pub(crate) fn check_greeting(line: &[u8]) -> Result<(), String> {
    match serde_json::from_slice(line) {
        Ok(GreetingFields { control: VERSION }) => Ok(()),
        Ok(GreetingFields { control }) => Err(format!(
            "it speaks version {control} of the control protocol, this program version {VERSION}: \
             use the `homing` that came with it"
        )),
        Err(_) => match Answer::parse(line) {
            Ok(Answer::Failed(failure)) => Err(failure.message),
            _ => Err(NOT_A_CONTROL_SOCKET.to_owned()),
        },
    }
}

/// What is said of a socket that does not greet us.
pub(crate) const NOT_A_CONTROL_SOCKET: &str =
    "this is a socket of something else: give the one that --control made";

fn line(fields: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(fields).expect("plain fields can be written");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests;
