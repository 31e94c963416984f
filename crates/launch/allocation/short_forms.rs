//! Slurm's short forms: `n[1-3,07],gpu[01-02]x[1-2]` for names, `2(x3),1` for a number for each of them.
//!
//! The lists come from the environment, and a few bytes may stand for any number of names: a list of more than
//! [`MAX_HOSTS`] is refused before it is expanded.

/// Upper bound of the hosts, more than any allocation has.
pub(super) const MAX_HOSTS: usize = 65_536;

/// Upper bound of a name, in bytes.
const MAX_NAME: usize = 255;

/// Upper bound of a number's digits: the number fits a `u64`.
const MAX_DIGITS: usize = 18;

/// A part of a name.
enum Part<'a> {
    Text(&'a str),
    Numbers(Vec<Range>),
}

/// A range like `07-12`. Each number has at least as many digits as `first`.
struct Range {
    first: u64,
    last: u64,
    width: usize,
}

/// Returns all names of a list, in its order; a name that stands there twice comes twice.
///
/// # Errors
/// What is wrong with the list.
pub(super) fn names(list: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for item in items(list)? {
        let parts = parts(item)?;
        let most = MAX_HOSTS - names.len();
        if parts.iter().fold(1_u64, |all, part| all.saturating_mul(part.count())) > most as u64 {
            return Err(format!("`{item}` makes more than {MAX_HOSTS} hosts of it"));
        }
        if parts.iter().map(Part::longest).sum::<usize>() > MAX_NAME {
            return Err(format!("a host's name may have {MAX_NAME} bytes at most"));
        }
        names.extend(parts.iter().fold(vec![String::new()], |heads, part| part.behind(heads)));
    }
    Ok(names)
}

/// Returns all numbers of a list, in its order.
///
/// # Errors
/// What is wrong with the list.
pub(super) fn numbers(list: &str) -> Result<Vec<u32>, String> {
    let mut all = Vec::new();
    for item in list.split(',') {
        let (number, times) = match item.split_once("(x") {
            Some((number, times)) => (number, times.strip_suffix(')')),
            None => (item, Some("1")),
        };
        let read =
            |text: &str| text.parse::<u32>().ok().filter(|number| (1..=MAX_HOSTS as u32).contains(number));
        let (Some(number), Some(times)) = (read(number), times.and_then(read)) else {
            return Err(format!(
                "`{item}` is neither a number (`2`) nor one with how often it stands there (`2(x3)`)"
            ));
        };
        if all.len() + times as usize > MAX_HOSTS {
            return Err(format!("`{item}` makes more than {MAX_HOSTS} numbers of it"));
        }
        all.resize(all.len() + times as usize, number);
    }
    Ok(all)
}

/// Returns the items between commas outside of brackets.
fn items(list: &str) -> Result<Vec<&str>, String> {
    let (mut items, mut begin, mut open) = (Vec::new(), 0, false);
    for (at, c) in list.char_indices() {
        match c {
            '[' if open => return Err("a bracket within brackets".into()),
            ']' if !open => return Err("a bracket is closed that is not open".into()),
            '[' | ']' => open = !open,
            ',' if !open => {
                items.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    if open {
        return Err("a bracket is not closed".into());
    }
    items.push(&list[begin..]);
    match items.contains(&"") {
        true => Err("a name is missing".into()),
        false => Ok(items),
    }
}

/// Splits an item, whose brackets are in order, into its parts.
fn parts(item: &str) -> Result<Vec<Part<'_>>, String> {
    let mut parts = Vec::new();
    for (number, piece) in item.split('[').enumerate() {
        let text = match piece.split_once(']') {
            Some((ranges, text)) if number > 0 => {
                parts.push(Part::Numbers(ranges.split(',').map(range).collect::<Result<_, _>>()?));
                text
            }
            _ => piece,
        };
        parts.push(Part::Text(text));
    }
    Ok(parts)
}

fn range(text: &str) -> Result<Range, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| {
        let fits = text.len() <= MAX_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| fits)
    };
    match (number(first), number(last)) {
        (Some(from), Some(to)) if from <= to => Ok(Range { first: from, last: to, width: first.len() }),
        (Some(_), Some(_)) => Err(format!("the range `{text}` ends before it begins")),
        _ => Err(format!("`{text}` is neither a number nor a range, as 1-3")),
    }
}

impl Part<'_> {
    /// Returns how many texts the part stands for.
    fn count(&self) -> u64 {
        match self {
            Part::Text(_) => 1,
            Part::Numbers(ranges) => ranges.iter().fold(0, |all, r| all.saturating_add(r.last - r.first + 1)),
        }
    }

    fn longest(&self) -> usize {
        match self {
            Part::Text(text) => text.len(),
            Part::Numbers(ranges) => {
                ranges.iter().map(|r| r.width.max(r.last.to_string().len())).max().unwrap_or_default()
            }
        }
    }

    /// Appends each of the part's texts to each of these heads.
    fn behind(&self, mut heads: Vec<String>) -> Vec<String> {
        match self {
            Part::Text(text) => {
                heads.iter_mut().for_each(|head| head.push_str(text));
                heads
            }
            Part::Numbers(ranges) => {
                let mut longer = Vec::new();
                for head in heads {
                    for Range { first, last, width } in ranges {
                        longer.extend((*first..=*last).map(|number| format!("{head}{number:0width$}")));
                    }
                }
                longer
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn expanded(list: &str) -> String {
        names(list).unwrap().join(" ")
    }

    /// The expected names are the output of `scontrol show hostnames` of Slurm 22.05.
    #[test]
    fn lists_are_expanded_as_slurm_does_it() {
        for (list, wanted) in [
            ("n1", "n1"),
            ("n[1-3,07],gpu[01-02]x[1-2]", "n1 n2 n3 n07 gpu01x1 gpu01x2 gpu02x1 gpu02x2"),
            ("a[08-10]", "a08 a09 a10"),
            ("a[8-10]", "a8 a9 a10"),
            ("a[099-101]", "a099 a100 a101"),
            ("a[1-2][3-4]", "a13 a14 a23 a24"),
            ("a[1-010]", "a1 a2 a3 a4 a5 a6 a7 a8 a9 a10"),
            ("a1,a1", "a1 a1"),
            ("[1-2],b", "1 2 b"),
        ] {
            assert_eq!(expanded(list), wanted, "{list}");
        }
        // Newer versions of Slurm expand this form, too.
        assert_eq!(expanded("n[1-2].west"), "n1.west n2.west");
    }

    #[test]
    fn what_is_no_list_is_said() {
        for (list, wanted) in [
            ("", "a name is missing"),
            ("a,,b", "a name is missing"),
            ("a,", "a name is missing"),
            ("a[1-3", "a bracket is not closed"),
            ("a]", "a bracket is closed that is not open"),
            ("a[[1]]", "a bracket within brackets"),
            ("a[3-1]", "the range `3-1` ends before it begins"),
            ("a[]", "`` is neither a number nor a range"),
            ("a[1,]", "`` is neither"),
            ("a[x]", "`x` is neither"),
            ("a[1-2-3]", "`1-2-3` is neither"),
            ("a[+1]", "`+1` is neither"),
            ("a[1 -2]", "`1 -2` is neither"),
            ("a[1-1234567890123456789]", "`1-1234567890123456789` is neither"),
        ] {
            let said = names(list).unwrap_err();
            assert!(said.contains(wanted), "{list:?}: {said}");
        }
    }

    #[test]
    fn a_list_has_its_bounds() {
        assert_eq!(names("a[1-65536]").map(|names| names.len()), Ok(MAX_HOSTS));
        let long = "x".repeat(250);
        for list in [
            "a[1-65537]",
            "a[1-65536],b",
            "a[0-999999999999999999]",
            "a[1-999][1-999][1-999][1-999][1-999][1-999][1-999][1-999]",
            "a[0-999999999999999999][0-999999999999999999]",
        ] {
            assert!(names(list).unwrap_err().contains("more than 65536 hosts"), "{list}");
        }
        assert!(names(&format!("{long}[100000-100001]")).unwrap_err().contains("255 bytes"));
        assert!(names(&format!("{long}[99999-99999]")).is_ok());
    }

    #[test]
    fn numbers_are_repeated() {
        assert_eq!(numbers("2(x3),1"), Ok(vec![2, 2, 2, 1]));
        assert_eq!(numbers("4"), Ok(vec![4]));
        for list in
            ["", "x", "2,", "2(x3", "2(x)", "2x3", "(x3)", "2(x3)4", "0", "-1", "65537", "2(x0)", "2 (x3)"]
        {
            assert!(numbers(list).unwrap_err().contains("is neither a number"), "{list}");
        }
        assert_eq!(numbers("1(x65536)").map(|all| all.len()), Ok(MAX_HOSTS));
        assert!(numbers("1(x65536),1").unwrap_err().contains("more than 65536 numbers"));
    }

    proptest! {
        /// Any text is either refused or read within the bound.
        #[test]
        fn prop_anything_is_read_or_refused(list in r"[a-c0-9\[\],\-(x)]{0,40}", other in ".{0,20}") {
            for list in [list, other] {
                if let Ok(names) = names(&list) {
                    prop_assert!(!names.is_empty() && names.len() <= MAX_HOSTS);
                    prop_assert!(names.iter().all(|name| !name.is_empty() && name.len() <= MAX_NAME));
                }
                if let Ok(numbers) = numbers(&list) {
                    prop_assert!(!numbers.is_empty() && numbers.len() <= MAX_HOSTS && !numbers.contains(&0));
                }
            }
        }

        /// A list in short form is expanded to the names from which it was made.
        #[test]
        fn prop_short_forms_stand_for_what_they_were_made_of(
            groups in prop::collection::vec(("[a-z]{1,4}", 0_u64..2000, 0_u64..20, 1_usize..6, "[a-z]{0,3}"), 1..6),
            counts in prop::collection::vec((1_u32..500, 1_u32..9), 1..9),
        ) {
            let (mut long, mut short) = (Vec::new(), Vec::new());
            for (head, first, more, width, tail) in groups {
                let last = first + more;
                short.push(format!("{head}[{first:0width$}-{last}]{tail}"));
                let width = width.max(first.to_string().len());
                long.extend((first..=last).map(|number| format!("{head}{number:0width$}{tail}")));
            }
            prop_assert_eq!(names(&short.join(",")), Ok(long));
            let short: Vec<_> = counts.iter().map(|(number, times)| match times {
                1 => number.to_string(),
                _ => format!("{number}(x{times})"),
            }).collect();
            let long = counts.iter().flat_map(|(number, times)| vec![*number; *times as usize]).collect();
            prop_assert_eq!(numbers(&short.join(",")), Ok(long));
        }
    }
}
