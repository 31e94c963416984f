// Messages pack DECK's types only. A struct of plain data is packed as its bytes.

use udeck_deck::{Message, Result, bytemuck};

fn pack(message: &mut Message, pairs: &[[f64; 2]]) -> Result {
    message.pack::<u8>(bytemuck::cast_slice(pairs)).map(drop)
}

fn main() {
    let _ = bytemuck::bytes_of(&1_u8);
}
