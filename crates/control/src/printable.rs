//! Names for people to read.

/// Makes a name safe to print: it stays on its line and does nothing to a terminal. Names may come
/// from anybody. Control characters are written as in source text.
///
/// ```
/// use homing_control::printable_name;
///
/// assert_eq!(printable_name("disk 1"), "disk 1");
/// assert_eq!(printable_name("disk\n\u{1b}[2J"), r"disk\n\u{1b}[2J");
/// ```
pub fn printable_name(name: &str) -> String {
    name.chars().fold(String::new(), |mut all, c| {
        if c.is_control() {
            all.extend(c.escape_default());
        } else {
            all.push(c);
        }
        all
    })
}
