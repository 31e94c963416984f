use udeck_sys::segment::{PeerAccess, create};

use super::*;
use crate::layout::CONTROL_BYTES;

/// 2^31 messages take only minutes. With counts of 32 bits, such a buffer was taken for one that the closed peer had
/// not read, and was freed under its reader.
#[test]
fn a_buffer_that_a_closed_peer_has_read_long_ago_stays_lent() {
    let (_fd, control) = create("positions", CONTROL_BYTES, PeerAccess::Write).unwrap();
    let collector = Collector::new(Direction::new(&Arc::new(control), 0));
    let mut table = LentTable {
        collector,
        held: Vec::new(),
        position: Vec::new(),
        free: u64::MAX,
        returned: VecDeque::new(),
    };
    for later in [1 << 31, 1 << 32, (1 << 32) + 5] {
        let read = Position::START.plus(later);
        table.hold(0, PostedBuffer::Caller(7), Position::START);
        table.hold(1, PostedBuffer::Caller(8), read);
        table.collect_unread(read);
        assert!(
            matches!(table.held[0], Some(PostedBuffer::Caller(7))),
            "read before the peer closed, after {later} messages"
        );
        assert_eq!(
            table.returned.pop_front(),
            Some((8, TransferStatus::Unread)),
            "the peer closed before it read this one"
        );
        assert_eq!(table.returned, []);
    }
}
