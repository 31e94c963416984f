//! Bytes that the peer holds of our memory, added up on demand.

use udeck_via::transport::{LinkReport, PostedBuffer};

use super::Connection;

impl LinkReport for Connection {
    fn lent(&self) -> usize {
        let mut books = self.lent.lock();
        // Returned buffers are not counted. A false token is reported by the next send.
        let _ = books.collect();
        books.held.iter().flatten().map(PostedBuffer::bytes).sum()
    }
}
