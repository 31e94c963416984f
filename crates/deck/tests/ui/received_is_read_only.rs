// A received message is read-only: it may lie in the sender's own memory.

use udeck_deck::Received;

fn read(received: &mut Received<f64>) -> usize {
    received[0] = 1.0;
    received.len_bytes()
}

fn main() {}
