// A slice of a message cannot outlive its posting: the receiver reads the same memory.

use udeck_deck::{Buf, Postbox};

fn post(out: &Postbox<f64>, mut buf: Buf<f64>) {
    let values = &mut buf[..];
    values[0] = 1.0;
    out.post(buf).unwrap();
    values[0] = 2.0;
}

fn main() {}
