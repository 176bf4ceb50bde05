//! What a peer can do wrong so badly that the connection ends.

/// The other side broke the protocol; the connection cannot go on. The message says what came and
/// what was expected, for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// A magic number is wrong: the peer speaks something else, or the two are out of step.
    #[error("the peer sent {found:#x} instead of {expected:#x} at the beginning of {what}")]
    Magic {
        /// What was to begin.
        what: &'static str,
        /// What came.
        found: u64,
        /// What belongs there.
        expected: u64,
    },
    /// The client's handshake flags have bits that the server did not offer.
    #[error("the client set handshake flags {flags:#x}, of which {unknown:#x} were not offered")]
    ClientFlags {
        /// All flags that it set.
        flags: u32,
        /// Those that the server did not offer.
        unknown: u32,
    },
    /// An option that is too long even to skip.
    #[error("option {option} announces {length} bytes of data; the limit is {limit}")]
    OptionTooLong {
        /// The option's code.
        option: u32,
        /// The length announced.
        length: u32,
        /// The longest that is skipped, or that a name may be.
        limit: u32,
    },
    /// More options than any client needs.
    #[error("the client sent more than {limit} options without choosing an export")]
    TooManyOptions {
        /// The limit.
        limit: u32,
    },
    /// `EXPORT_NAME`, which has no error reply, named an export that does not exist.
    #[error("the client asked for export {name:?}, which does not exist")]
    UnknownExport {
        /// The name asked for.
        name: String,
    },
    /// `EXPORT_NAME`, which has no error reply, came before TLS, which is required.
    #[error("the client asked for an export without TLS, which is required")]
    TlsRequired,
    /// The server did not let this client in.
    #[error("the server refused {what}: {message} (reply {code:#x})")]
    Refused {
        /// What was asked for.
        what: &'static str,
        /// The reply's code.
        code: u32,
        /// The reply's text, if it had one.
        message: String,
    },
    /// A reply that does not fit what was asked.
    #[error("the server's reply to {what} is malformed")]
    BadReply {
        /// What was asked for.
        what: &'static str,
    },
}
