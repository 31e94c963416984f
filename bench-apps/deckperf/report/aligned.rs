//! Aligned columns that fit a terminal of the usual width.

/// Characters in the longest line of a report.
pub const WIDTH: usize = 80;

/// Lays out lines of cells in columns as wide as their widest cell, two spaces apart; an empty line stays empty. Columns
/// for which `left` holds are aligned to the left, others to the right. Columns that do not fit into [`WIDTH`] follow in
/// further blocks; each block begins with the first `keys` columns.
pub fn aligned(lines: &[Vec<String>], keys: usize, left: impl Fn(usize) -> bool) -> String {
    let count = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| {
        lines.iter().filter_map(|line| line.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let block = |columns: &Vec<usize>| -> String {
        let rest = &columns[keys.min(columns.len())..];
        // A heading line whose cells in these columns are all empty is left out.
        let says = |cells: &&Vec<String>| {
            cells.len() <= keys || rest.iter().any(|&at| cells.get(at).is_some_and(|cell| !cell.is_empty()))
        };
        lines.iter().filter(says).map(|cells| line(cells, columns, &widths, &left)).collect()
    };
    blocks(&widths, keys).iter().map(block).collect::<Vec<_>>().join("\n")
}

/// Groups columns into blocks; the columns of one block stand side by side.
fn blocks(widths: &[usize], keys: usize) -> Vec<Vec<usize>> {
    let keys: Vec<usize> = (0..keys.min(widths.len())).collect();
    let first: usize = keys.iter().map(|&key| widths[key] + 2).sum();
    let (mut all, mut block, mut used) = (Vec::new(), keys.clone(), first);
    for (at, width) in widths.iter().enumerate().skip(keys.len()) {
        if used + width > WIDTH && block.len() > keys.len() {
            all.push(std::mem::replace(&mut block, keys.clone()));
            used = first;
        }
        block.push(at);
        used += width + 2;
    }
    all.push(block);
    all
}

fn line(cells: &[String], columns: &[usize], widths: &[usize], left: &impl Fn(usize) -> bool) -> String {
    let cells = columns.iter().filter_map(|&at| cells.get(at).map(|cell| (at, cell)));
    let padded = cells.map(|(at, cell)| {
        let width = widths[at];
        if left(at) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
    });
    padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
}

/// Wraps `sentence` into lines of at most [`WIDTH`] characters (longer only for a longer word): the first begins with
/// `first`, the others with `others`.
pub fn wrapped(first: &str, others: &str, sentence: &str) -> String {
    let length = |text: &str| text.chars().count();
    let mut text = first.to_owned();
    let mut line = length(first);
    for (index, word) in sentence.split(' ').enumerate() {
        if index > 0 && line + 1 + length(word) > WIDTH {
            text += &format!("\n{others}");
            line = length(others);
        } else if index > 0 {
            text.push(' ');
            line += 1;
        }
        text += word;
        line += length(word);
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(cells: &[&[&str]]) -> Vec<Vec<String>> {
        cells.iter().map(|line| line.iter().map(|cell| (*cell).to_owned()).collect()).collect()
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let table = lines(&[&["# name", "n", "why"], &["µ", "1000", "a b"], &[], &["x"]]);
        assert_eq!(aligned(&table, 1, |at| at != 1), "# name     n  why\nµ       1000  a b\n\nx\n");
    }

    #[test]
    fn what_does_not_fit_follows_in_blocks_that_begin_alike() {
        let wide = "x".repeat(30);
        let table = lines(&[&["# size", "one", "two", "three"], &["8", &wide, &wide, &wide]]);
        let text = aligned(&table, 1, |at| at == 0);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        let heads: Vec<Vec<&str>> = text
            .split("\n\n")
            .map(|block| block.lines().next().unwrap_or("").split_whitespace().collect())
            .collect();
        assert_eq!(heads, [vec!["#", "size", "one", "two"], vec!["#", "size", "three"]]);
        assert_eq!(text.matches(&wide).count(), 3);
    }

    #[test]
    fn a_cell_that_no_line_can_hold_has_a_block_of_its_own() {
        let wide = "x".repeat(100);
        let text = aligned(&lines(&[&["# size", "one", "two"], &["8", &wide, "2"]]), 1, |at| at == 0);
        assert_eq!(text.matches("# size").count(), 2, "{text}");
    }

    #[test]
    fn sentences_are_wrapped_by_characters() {
        let text = wrapped("# a: ", "#    ", &["µµµµ"; 40].join(" "));
        assert!(
            text.lines()
                .all(|line| (70..=WIDTH).contains(&line.chars().count())
                    || line == text.lines().last().unwrap())
        );
    }
}
