//! Words of Rust source text, by proc-macro2's lexer: comments and documentation are none.

use proc_macro2::{Group, TokenStream, TokenTree};

/// The parts of a source that are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Code only.
    Code,
    /// Code and the contents of literals.
    CodeAndStrings,
}

/// Words of the source, each with its line number: names and keywords, and runs of letters, digits and underscores in
/// literals.
pub fn words(source: &str, keep: Keep) -> Result<Vec<(usize, String)>, String> {
    let mut found = Vec::new();
    add_words(tokens(source)?, keep, &mut found);
    Ok(found)
}

/// Tokens of the source.
pub fn tokens(source: &str) -> Result<TokenStream, String> {
    source.parse().map_err(|error: proc_macro2::LexError| format!("{}: {error}", error.span().start().line))
}

fn add_words(stream: TokenStream, keep: Keep, found: &mut Vec<(usize, String)>) {
    for tree in stream {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Group(group) if is_documentation(&group) => {}
            TokenTree::Group(group) => add_words(group.stream(), keep, found),
            TokenTree::Ident(name) => found.push((line, name.to_string())),
            TokenTree::Literal(literal) if keep == Keep::CodeAndStrings => {
                let literal = literal.to_string();
                let words = literal.split(|c: char| !(c.is_alphanumeric() || c == '_'));
                found.extend(words.filter(|word| !word.is_empty()).map(|word| (line, word.to_owned())));
            }
            TokenTree::Literal(_) | TokenTree::Punct(_) => {}
        }
    }
}

/// Whether the brackets are those of `#[doc = "…"]`, as which the lexer gives a documentation comment.
fn is_documentation(group: &Group) -> bool {
    matches!(group.stream().into_iter().next(), Some(TokenTree::Ident(name)) if name == "doc")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of the source that count as code.
    fn code(source: &str) -> Vec<String> {
        words(source, Keep::Code).unwrap().into_iter().map(|(_, word)| word).collect()
    }

    #[test]
    fn comments_are_no_code() {
        assert_eq!(code("a // b\nc /* d /* e */ f */ g\n/// h\ni"), ["a", "c", "g", "i"]);
    }

    #[test]
    fn literals_are_no_code() {
        assert_eq!(code(r##"a "b \" c" d r#"e " f"# g br"h" i"##), ["a", "d", "g", "i"]);
        assert_eq!(code(r"let x = '\''; y '\u{41}' z 'w' v"), ["let", "x", "y", "z", "v"]);
    }

    #[test]
    fn a_comment_in_a_string_and_a_string_in_a_comment_do_not_confuse() {
        assert_eq!(code("a \"// b\" c // \" d\ne"), ["a", "c", "e"]);
        assert_eq!(code("f(br\"\\\") ; g"), ["f", "g"], "a raw string has no escapes");
    }

    #[test]
    fn lifetimes_and_identifiers_in_r_are_code() {
        assert_eq!(code("fn f<'a>(s: &'a str) { ptr }"), ["fn", "f", "a", "s", "a", "str", "ptr"]);
        assert_eq!(code("r#type var r"), ["r#type", "var", "r"]);
    }

    #[test]
    fn strings_can_be_kept_and_lines_keep_their_numbers() {
        let text = words("/* a\nb */ \"c\"\nd", Keep::CodeAndStrings).unwrap();
        assert_eq!(text, [(2, "c".to_owned()), (3, "d".to_owned())]);
    }

    #[test]
    fn text_that_is_no_rust_is_an_error_with_its_line() {
        assert!(words("fn f() {\n\"", Keep::Code).unwrap_err().starts_with("2: "));
    }
}
