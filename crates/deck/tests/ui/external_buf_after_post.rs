// A posted buffer cannot be used until it comes back: a NIC may be reading it.

use udeck_deck::{ExternalBuf, Postbox};

fn post(out: &Postbox<f64>, mut buffer: ExternalBuf<f64>) {
    buffer[0] = 1.0;
    out.post(buffer).unwrap();
    buffer[0] = 2.0;
}

fn main() {}
