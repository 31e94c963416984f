//! A received message is read until it is dropped, which sends its memory home.

use udeck_deck::Received;

fn read(received: Received<f64>) -> f64 {
    let values = received.to_vec();
    drop(received);
    values[0]
}

fn main() {}
