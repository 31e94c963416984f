// A refused loan is over.

use udeck_via::Lent;

fn read(lent: Lent) -> usize {
    let pieces: Vec<Vec<u8>> = lent.parts().map(Vec::from).collect();
    lent.refuse();
    pieces.len()
}

fn main() {}
