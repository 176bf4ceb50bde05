//! What a server says when it is ready: its exports, and what to type next.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use homing_server::Endpoint;
use serde_json::json;

use crate::images::export_name;
use crate::output;

fn uri(endpoint: &Endpoint, export: &str) -> String {
    // The characters that RFC 3986 lets stand in both places; all others are escaped.
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
            format!("nbd+unix:///{export}?socket={}", escape(path))
        }
        Endpoint::Tcp(address) => format!("nbd://{address}/{export}"),
    }
}

/// A word as a shell takes it.
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
        "\nThe workqueues, live:\n  homing wq monitor --socket {socket}\n  \
         homing set workqueue/crypt/affinity_scope numa --socket {socket}\n"
    )
}

/// Prints the exports and what to type next, or a line for programs. `control`: where the
/// attributes are offered, if they are.
pub(crate) fn announce(
    json: bool,
    endpoint: &Endpoint,
    images: &[PathBuf],
    control: Option<&Path>,
) -> anyhow::Result<()> {
    let uris: Vec<String> = images.iter().map(|image| uri(endpoint, &export_name(image))).collect();
    if json {
        let exports: Vec<_> = images
            .iter()
            .zip(&uris)
            .map(|(image, uri)| json!({ "name": export_name(image), "image": image, "uri": uri }))
            .collect();
        let mut line = json!({ "uri": uris[0], "pid": std::process::id(), "exports": exports });
        if let Some(control) = control {
            line["control"] = json!(control);
        }
        return output::print_line(&line.to_string());
    }
    let mut text = String::from("Serving:\n");
    for (image, uri) in images.iter().zip(&uris) {
        let _ = writeln!(text, "  {uri}    {}", image.display());
    }
    let first = &uris[0];
    let _ = writeln!(
        text,
        "\nNext, in another terminal:\n  nbdinfo '{first}'\n  nbdcopy --progress some.img '{first}'"
    );
    let name = shell_word(&export_name(&images[0]));
    let _ = match endpoint {
        Endpoint::Unix(path) => {
            let path = shell_word(&path.to_string_lossy());
            writeln!(text, "  sudo nbd-client -unix {path} -N {name} -C 4 /dev/nbd0")
        }
        Endpoint::Tcp(address) => writeln!(
            text,
            "  sudo nbd-client {} {} -N {name} -C 4 /dev/nbd0\n\nTCP is not encrypted: keep it on \
             a trusted network.",
            address.ip(),
            address.port(),
        ),
    };
    if let Some(control) = control {
        text.push_str(&control_commands(&control.to_string_lossy()));
    }
    text.push_str("\nCtrl-C stops the server after making everything durable.\n");
    output::print(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_escape_what_must_be() {
        let unix = Endpoint::Unix(PathBuf::from("/tmp/a b?.sock"));
        assert_eq!(uri(&unix, "di#sk"), "nbd+unix:///di%23sk?socket=/tmp/a%20b%3F.sock");
        let tcp = Endpoint::Tcp("[::1]:10809".parse().unwrap());
        assert_eq!(uri(&tcp, "disk"), "nbd://[::1]:10809/disk");
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
