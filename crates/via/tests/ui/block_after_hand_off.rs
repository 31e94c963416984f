// A block that was handed off is the peer's; only a refused one comes back.

use udeck_via::{Block, Vi};

fn give(vi: &mut Vi, block: Block) {
    let back = vi.hand_off(None, b"", block).map_err(|(_, block)| block);
    drop((back, block));
}

fn main() {}
