use udeck_sys::position::Position;
use udeck_via::mem::Fill;
use udeck_via::transport::{PostedBuffer, TransferStatus};

use super::send_queue::Then;
use super::*;
use crate::wire::{Frame, Header};

/// What the peer's engine says.
fn hear(connection: &mut Connection, frame: Frame, behind: &[u8]) {
    let header = Header { taken: connection.window.taken().narrow(), control_ack: 0, frame };
    connection.on_receive(&[&header.encode()[..], behind].concat());
}

/// 2^31 messages are minutes: counts of 32 bits called such a message one that was not read, and its memory went back under
/// the reader.
#[test]
fn a_message_that_is_kept_for_long_was_read() {
    for later in [1 << 31, 1 << 32, (1 << 32) + 5] {
        let memory = Memory::fresh(8 << 20).unwrap();
        let hello = Hello {
            reliability: Reliability::Reception,
            writable_ptag: None,
            readable_ptag: None,
            private_data: Vec::new(),
        };
        let mut connection = Connection::new(&memory, &hello, &hello, 1 << 20);
        let block = memory.outbox.block(100, Fill::Zero).unwrap();
        let lend = |connection: &mut Connection, caller| {
            let number = connection.window.sent();
            let lent = connection.lend(None, b"", &[(block.offset(), 100)], PostedBuffer::Caller(caller));
            assert!(lent.is_ok(), "there is room");
            connection.after(Then::Left(number), TransferStatus::Arrived);
        };
        lend(&mut connection, 7);
        // The peer's program took it, and so many more, and goes on reading it.
        connection.window = SendWindow::at(Position::START.plus(later), Position::START.plus(later));
        let kept = Position::START.narrow();
        lend(&mut connection, 8);
        hear(&mut connection, Frame::End { broken: false, len: 0 }, b"");
        assert_eq!(
            connection.next_completion(),
            Some((8, TransferStatus::Unread)),
            "the peer closed before it took this one"
        );
        assert_eq!(
            connection.next_completion(),
            None,
            "taken before the peer closed, after {later} messages"
        );
        let receipt = Note::Receipt(kept, TransferStatus::Arrived).encode();
        hear(&mut connection, Frame::Notes { count: 1 }, &receipt);
        assert_eq!(
            connection.next_completion(),
            Some((7, TransferStatus::Arrived)),
            "after {later} messages"
        );
    }
}
