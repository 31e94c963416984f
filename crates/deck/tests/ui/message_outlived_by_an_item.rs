//! What was unpacked lies in the message.

use udeck_deck::Message;

fn unpack(message: Message) -> f64 {
    let items = message.unpack::<f64>().unwrap();
    drop(message);
    items[0]
}

fn main() {}
