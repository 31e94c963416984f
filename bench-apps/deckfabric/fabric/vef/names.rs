//! Files of names, beside traces of networks on a chip: which tile each node of the trace is on.
//!
//! ```text
//! NODES:50:2              number of nodes, and clocks from a node to another one of its tile
//! 0:L1Cache_0             node 0 is the level-1 cache of tile 0
//! 48:DMA_0
//! ```

use super::{BadTrace, MOST_NODES, number};

/// Names of a trace's nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// Clocks of the trace that a message between nodes of a tile takes.
    pub within: u64,
    /// Kind and tile of each node.
    pub nodes: Vec<(String, u32)>,
}

impl Names {
    /// Reads a file of names, beside a trace of `nodes` nodes.
    ///
    /// # Errors
    /// A line is invalid, or the names are not those of the trace's nodes.
    pub fn parse(text: &str, nodes: u32) -> Result<Self, BadTrace> {
        let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
        let (line, first) = lines.next().unwrap_or((1, ""));
        let within = within(first.trim(), nodes).map_err(|reason| BadTrace { line, reason })?;
        let mut names: Vec<Option<(String, u32, usize)>> = vec![None; nodes as usize];
        let mut last = line;
        for (line, text) in lines {
            last = line;
            let bad = |reason| BadTrace { line, reason };
            let (node, kind, tile) = name(text.trim()).map_err(bad)?;
            let place = names
                .get_mut(node as usize)
                .ok_or_else(|| bad(format!("node {node} is not there: the trace has {nodes}, from 0")))?;
            if let Some((_, _, first)) = place {
                return Err(bad(format!("node {node} again: line {first} has it")));
            }
            *place = Some((kind, tile, line));
        }
        let missing = names.iter().position(Option::is_none);
        if let Some(node) = missing {
            let reason = format!("node {node} has no line: each of the {nodes} nodes needs one");
            return Err(BadTrace { line: last, reason });
        }
        let nodes = names.into_iter().flatten().map(|(kind, tile, _)| (kind, tile)).collect();
        Ok(Self { within, nodes })
    }

    /// Number of hosts that the tiles need: tile n is host n.
    pub fn hosts(&self) -> usize {
        self.nodes.iter().map(|(_, tile)| *tile as usize + 1).max().unwrap_or(0)
    }
}

/// Reads the first line: clocks between two nodes of a tile.
fn within(text: &str, nodes: u32) -> Result<u64, String> {
    let numbers = text.strip_prefix("NODES:").and_then(|rest| rest.split_once(':'));
    let (count, within) = numbers.ok_or(
        "the first line is `NODES:n:m`, the number of nodes and the clocks between two nodes of a tile",
    )?;
    let (count, within) = (number(count, "the number of nodes")?, number(within, "the number of clocks")?);
    if count != u64::from(nodes) {
        return Err(format!(
            "here are names of {count} nodes, and the trace has {nodes}: take the file of this trace"
        ));
    }
    Ok(within)
}

/// Reads a line: a node, its kind and its tile.
fn name(text: &str) -> Result<(u64, String, u32), String> {
    let parts = text.split_once(':').and_then(|(node, name)| Some((node, name.rsplit_once('_')?)));
    let (node, (kind, tile)) = parts.ok_or("a line is `node:kind_tile`, for example `0:L1Cache_0`")?;
    let (node, tile) = (number(node, "the node")?, number(tile, "the tile")?);
    match u32::try_from(tile) {
        Ok(tile) if u64::from(tile) < MOST_NODES => Ok((node, kind.into(), tile)),
        _ => Err(format!("the tile is {tile}: take 0 to {}", MOST_NODES - 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &str = "NODES:3:2\n0:L1Cache_0\n1:L2_Cache_1\n2:DMA_0\n";

    #[test]
    fn a_node_has_a_kind_and_a_tile() {
        let names = Names::parse(NAMES, 3).unwrap();
        let nodes = [("L1Cache", 0), ("L2_Cache", 1), ("DMA", 0)].map(|(kind, tile)| (kind.to_owned(), tile));
        assert_eq!((names.within, &names.nodes[..], names.hosts()), (2, &nodes[..], 2));
    }

    #[test]
    fn a_bad_file_has_its_line_and_a_reason() {
        let cases = [
            ("NODES:3:2\n", "", 1, "the first line is `NODES:n:m`"),
            ("NODES:3:2", "NODES:3:x", 1, "the number of clocks is \"x\", and no number"),
            ("NODES:3:2", "NODES:4:2", 1, "names of 4 nodes, and the trace has 3"),
            ("0:L1Cache_0", "0:L1Cache", 2, "a line is `node:kind_tile`"),
            ("0:L1Cache_0", "0:L1Cache_65536", 2, "the tile is 65536"),
            ("0:L1Cache_0", "3:L1Cache_0", 2, "node 3 is not there"),
            ("1:L2_Cache_1", "0:L2_Cache_1", 3, "node 0 again: line 2 has it"),
            ("2:DMA_0\n", "", 3, "node 2 has no line"),
        ];
        for (from, to, line, reason) in cases {
            let bad = Names::parse(&NAMES.replacen(from, to, 1), 3).unwrap_err();
            assert!(bad.line == line && bad.reason.contains(reason), "{to}: {bad}");
        }
        assert_eq!(Names::parse("", 3).unwrap_err().line, 1);
    }
}
