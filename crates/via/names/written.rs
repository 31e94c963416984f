//! Addresses in the form of a table's text.

use std::fmt;

pub(super) fn is_quotable(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| matches!(byte, b' '..=b'~') && byte != b'"')
}

/// An address in the form of a table's text.
pub(super) struct Written<'a>(pub &'a [u8]);

impl fmt::Display for Written<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(self.0) {
            Ok(text) if is_quotable(self.0) => write!(f, "\"{text}\""),
            _ => {
                f.write_str("0x")?;
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}
