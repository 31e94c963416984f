//! A posted message is its receiver's.

use udeck_deck::{Buf, Postbox};

fn post(out: &Postbox<f64>, mut buf: Buf<f64>) {
    buf[0] = 1.0;
    out.post(buf).unwrap();
    buf[0] = 2.0;
}

fn main() {}
