//! What the peer has of ours, added up on demand.

use udeck_via::transport::{LinkReport, PostedBuffer};

use super::Connection;

impl LinkReport for Connection {
    fn lent(&self) -> usize {
        let mut books = self.lent.lock();
        // What came back is not out. A liar is found out by who sends to it.
        let _ = books.collect();
        books.held.iter().flatten().map(PostedBuffer::bytes).sum()
    }
}
