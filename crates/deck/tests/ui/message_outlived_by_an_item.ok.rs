// Unpacked items lie in the message, so they cannot outlive it.

use udeck_deck::Message;

fn unpack(message: Message) -> f64 {
    let items = message.unpack::<f64>().unwrap().to_vec();
    drop(message);
    items[0]
}

fn main() {}
