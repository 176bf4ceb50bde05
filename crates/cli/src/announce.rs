//! What a server says when it is ready: its exports, and what to type next.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use homing_server::Endpoint;
use serde_json::{Value, json};

use crate::images::export_name;
use crate::output;

/// The exports that clients can have, and where.
pub(crate) struct Offer<'a> {
    pub(crate) endpoint: &'a Endpoint,
    /// Whether clients have to speak TLS.
    pub(crate) tls: bool,
    pub(crate) images: &'a [PathBuf],
    /// Where the attributes are, if they are offered.
    pub(crate) control: Option<&'a Path>,
    /// The URL of the metrics, likewise.
    pub(crate) metrics: Option<&'a str>,
}

impl Offer<'_> {
    fn uri(&self, image: &Path) -> String {
        uri(self.endpoint, self.tls, &export_name(image))
    }
}

fn uri(endpoint: &Endpoint, tls: bool, export: &str) -> String {
    let scheme = if tls { "nbds" } else { "nbd" };
    // The characters that RFC 3986 allows in both places; all others are escaped.
    let escape = |text: &[u8]| {
        text.iter().fold(String::new(), |mut escaped, byte| {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                    escaped.push(char::from(*byte));
                }
                _ => {
                    let _ = write!(escaped, "%{byte:02X}");
                }
            }
            escaped
        })
    };
    let export = escape(export.as_bytes());
    match endpoint {
        Endpoint::Unix(path) => {
            let path = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str());
            format!("{scheme}+unix:///{export}?socket={}", escape(path))
        }
        Endpoint::Tcp(address) => format!("{scheme}://{address}/{export}"),
    }
}

/// The text as one word of a shell.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._/+:@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// What to try with the live attributes.
fn control_commands(socket: &str) -> String {
    let socket = shell_word(socket);
    format!(
        "\nWhat it does, live:\n  homing top --socket {socket}\n  homing wq monitor --socket {socket}\n  \
         homing set workqueue/crypt/affinity_scope numa --socket {socket}\n"
    )
}

/// The exports, for programs. JSON has no bytes that are not text: for a path with such bytes, only
/// the URI tells all.
fn for_programs(offer: &Offer<'_>) -> Value {
    let export = |image: &PathBuf| {
        let (name, path) = (export_name(image), image.to_string_lossy());
        json!({ "name": name, "image": path, "uri": offer.uri(image) })
    };
    let exports: Vec<_> = offer.images.iter().map(export).collect();
    let first = &exports[0]["uri"];
    let mut line = json!({ "uri": first, "pid": std::process::id(), "exports": exports });
    if let Some(control) = offer.control {
        line["control"] = json!(control.to_string_lossy());
    }
    if let Some(metrics) = offer.metrics {
        line["metrics"] = json!(metrics);
    }
    line
}

/// The exports and what to type next, or a line for programs.
pub(crate) fn announcement(json: bool, offer: &Offer<'_>) -> anyhow::Result<String> {
    if json {
        return Ok(output::json_line(&for_programs(offer))?);
    }
    let mut text = String::from("Serving:\n");
    for image in offer.images {
        let _ = writeln!(text, "  {}    {}", offer.uri(image), image.display());
    }
    let mut first = offer.uri(&offer.images[0]);
    // Clients look for the host's name in the certificate, and may not trust its signer without
    // `tls-certificates`.
    match offer.endpoint {
        _ if !offer.tls => {}
        Endpoint::Tcp(address) => {
            let host = format!("HOST:{}", address.port());
            first = first.replacen(&address.to_string(), &host, 1) + "?tls-certificates=DIR";
        }
        Endpoint::Unix(_) => first.push_str("&tls-certificates=DIR"),
    }
    let _ = writeln!(
        text,
        "\nNext, in another terminal:\n  nbdinfo '{first}'\n  nbdcopy --progress some.img '{first}'"
    );
    let name = shell_word(&export_name(&offer.images[0]));
    let _ = match offer.endpoint {
        endpoint if offer.tls => writeln!(
            text,
            "\nwhere DIR has the ca-cert.pem that signed this server's certificate, and client-cert.pem and \
             client-key.pem\nif clients have to show one{}.",
            match endpoint {
                Endpoint::Tcp(_) => "; HOST is a name that the certificate has",
                Endpoint::Unix(_) => "",
            }
        ),
        Endpoint::Unix(path) => {
            let path = shell_word(&path.to_string_lossy());
            writeln!(text, "  sudo nbd-client -unix {path} -N {name} -C 4 /dev/nbd0")
        }
        Endpoint::Tcp(address) => writeln!(
            text,
            "  sudo nbd-client {} {} -N {name} -C 4 /dev/nbd0\n\nTCP is not encrypted, and whoever \
             can connect can read and write everything: keep it on\na trusted network, or use \
             --tls-certificates and --tls-verify-peer.",
            address.ip(),
            address.port(),
        ),
    };
    if let Some(metrics) = offer.metrics {
        let _ = writeln!(text, "\nFor Prometheus: {metrics}");
    }
    if let Some(control) = offer.control {
        text.push_str(&control_commands(&control.to_string_lossy()));
    }
    text.push_str("\nCtrl-C stops the server after making everything durable.\n");
    Ok(output::printable(&text))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn uris_escape_what_must_be() {
        let unix = Endpoint::Unix(PathBuf::from("/tmp/a b?.sock"));
        assert_eq!(uri(&unix, false, "di#sk"), "nbd+unix:///di%23sk?socket=/tmp/a%20b%3F.sock");
        let tcp = Endpoint::Tcp("[::1]:10809".parse().unwrap());
        assert_eq!(uri(&tcp, false, "disk"), "nbd://[::1]:10809/disk");
        assert_eq!(uri(&tcp, true, "disk"), "nbds://[::1]:10809/disk");
        assert_eq!(uri(&unix, true, "d"), "nbds+unix:///d?socket=/tmp/a%20b%3F.sock");
    }

    #[test]
    fn a_path_that_is_no_text_is_told_all_the_same() {
        let path: &OsStr = std::os::unix::ffi::OsStrExt::from_bytes(&b"n\xff/disk.img"[..]);
        let images = [PathBuf::from(path)];
        let endpoint = Endpoint::Unix(images[0].clone());
        let offer = Offer {
            endpoint: &endpoint,
            tls: false,
            images: &images,
            control: Some(&images[0]),
            metrics: None,
        };
        let line = for_programs(&offer);
        assert_eq!(line["uri"], "nbd+unix:///disk?socket=n%FF/disk.img");
        assert_eq!(line["exports"][0]["uri"], line["uri"]);
        assert_eq!(line["control"], "n\u{fffd}/disk.img");
    }

    #[test]
    fn words_survive_a_shell() {
        assert_eq!(shell_word("/tmp/disk.img.sock"), "/tmp/disk.img.sock");
        for odd in ["my disk", "it's", "$HOME", "", "a;b", "\u{fc}"] {
            let line = format!("printf %s {}", shell_word(odd));
            let output = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(output.stdout, odd.as_bytes());
        }
    }
}
