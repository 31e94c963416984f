//! Names of families: one name under which each rank may register a member.
//!
//! The name service knows unique names only. A member is registered under the family's name, a mark and its
//! rank's number. Names that programs choose have no control characters, and so a family never meets a name of
//! its own.

use std::fmt::Write;

use crate::Ranks;

/// Separator of a family's name and its member's rank.
const MARK: char = '\u{2}';

/// Returns the name under which the member of `rank` is registered.
pub fn member(family: &str, rank: usize) -> String {
    format!("{family}{MARK}{rank}")
}

/// Returns the name that the program chose, and for a member its rank.
pub fn parts(registered: &str) -> (&str, Option<u32>) {
    match registered.rsplit_once(MARK).map(|(family, rank)| (family, rank.parse())) {
        Some((family, Ok(rank))) => (family, Some(rank)),
        _ => (registered, None),
    }
}

/// Returns registered names as a user reads them: members of a family together, as in `halo of ranks 0-3`.
pub fn listed(registered: &[String]) -> Vec<String> {
    let mut listed: Vec<(&str, Vec<u32>)> = Vec::new();
    for name in registered {
        let (family, rank) = parts(name);
        match listed.iter_mut().find(|(known, ranks)| *known == family && !ranks.is_empty() && rank.is_some())
        {
            Some((_, ranks)) => ranks.extend(rank),
            None => listed.push((family, rank.into_iter().collect())),
        }
    }
    let shown = |(name, mut ranks): (&str, Vec<u32>)| {
        ranks.sort_unstable();
        let mut shown = name.to_owned();
        if !ranks.is_empty() {
            let _ = write!(shown, " of {}", Ranks(&ranks));
        }
        shown
    };
    listed.into_iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_listed_together() {
        let names = [member("halo", 10), member("halo", 2), "halo".into(), member("halo", 11), "sums".into()];
        assert_eq!(listed(&names), ["halo of ranks 2, 10-11", "halo", "sums"]);
        assert_eq!(parts(&names[0]), ("halo", Some(10)));
        for own in ["halo", "", "halo\u{2}", "halo\u{2}x"] {
            assert_eq!(parts(own), (own, None));
        }
    }
}
