// Elements of a received message cannot outlive it: dropping it gives its memory back to the sender.

use udeck_deck::Received;

fn read(received: Received<f64>) -> f64 {
    let values = &received[..];
    drop(received);
    values[0]
}

fn main() {}
