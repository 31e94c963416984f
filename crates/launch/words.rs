//! Foreign text, made safe for a terminal: from agents, nodes, and other hosts' reports.

/// Writes control characters out, except line ends and tabs: foreign text must not move the cursor, change a
/// title, or pass for ours.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => out.push(c),
            // Marks that turn the direction of the following text.
            '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' => {
                out.extend(c.escape_unicode())
            }
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_written_out() {
        assert_eq!(printable("a\tb\nc\u{e9}"), "a\tb\nc\u{e9}");
        assert_eq!(printable("\x1b[2J\r\x07"), "\\u{1b}[2J\\r\\u{7}");
        assert_eq!(printable("\u{9b}31m\u{202e}"), "\\u{9b}31m\\u{202e}");
    }
}
