// A single value is posted as a slice of one element.

use udeck_deck::Postbox;

fn post(out: &Postbox<f64>, value: f64) {
    let _ = out.post(value).map_err(drop);
}

fn main() {}
