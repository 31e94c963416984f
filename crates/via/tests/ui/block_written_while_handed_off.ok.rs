// No slice of a block outlasts its hand-off: the peer reads that very memory.

use udeck_via::{Block, Vi};

fn give(vi: &mut Vi, mut block: Block) {
    let bytes = block.bytes_mut();
    bytes[0] = 1;
    vi.hand_off(None, b"", block).unwrap();
}

fn main() {}
