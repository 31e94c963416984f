// A posted message belongs to its receiver: the poster cannot use it any more.

use udeck_deck::{Message, Packed, Postbox};

fn post(out: &Postbox<Packed>, mut message: Message) {
    message.pack(&[1.0]).unwrap();
    out.post(message).unwrap();
    message.pack(&[2.0]).unwrap();
}

fn main() {}
