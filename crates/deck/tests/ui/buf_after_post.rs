// A posted message belongs to its receiver: the poster cannot use it any more.

use udeck_deck::{Buf, Postbox};

fn post(out: &Postbox<f64>, mut buf: Buf<f64>) {
    buf[0] = 1.0;
    out.post(buf).unwrap();
    buf[0] = 2.0;
}

fn main() {}
