//! No slice of a message outlasts its posting: the receiver reads that very memory.

use udeck_deck::{Buf, Postbox};

fn post(out: &Postbox<f64>, mut buf: Buf<f64>) {
    let values = &mut buf[..];
    values[0] = 1.0;
    out.post(buf).unwrap();
}

fn main() {}
