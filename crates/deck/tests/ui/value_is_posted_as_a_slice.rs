//! A value is posted as a slice of one.

use udeck_deck::Postbox;

fn post(out: &Postbox<f64>, value: f64) {
    let _ = out.post(value).map_err(drop);
}

fn main() {}
