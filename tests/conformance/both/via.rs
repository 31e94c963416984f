//! VIA as an interface under test.

use std::ops::Range;

use udeck_via::{
    Caps, Completion, Deadline, Descriptor, Region, RemoteBuffer, Rights, State, Status, Window,
};

use super::{Access, FinishedPost, Interface, Place, PostStatus};
use crate::kit::{self, Pair, regions};
use crate::{Fabric, Options};

/// Virtual interfaces that receive into posted descriptors.
#[derive(Debug)]
pub struct Via;

impl Interface for Via {
    type End = kit::End;
    const WRITE: &'static [Caps] = &[Caps::RDMA_WRITE];
    const READ: &'static [Caps] = &[Caps::RDMA_READ];
    const BOTH: &'static [Caps] = &[Caps::RDMA_READ, Caps::RDMA_WRITE];

    fn pair(fabric: &dyn Fabric) -> (kit::End, kit::End) {
        let Pair { a, b } = Pair::posted(fabric);
        (a, b)
    }

    fn reaching(fabric: &dyn Fabric) -> (kit::End, kit::End) {
        let caps = fabric.open(&Options::default()).caps();
        let Pair { a, b } = Pair::with(fabric, &Options::default(), |attributes| {
            attributes.enable_rdma_read = caps.has(Caps::RDMA_READ);
            attributes.enable_rdma_write = caps.has(Caps::RDMA_WRITE);
        });
        (a, b)
    }
}

impl Place for Window {
    type At = RemoteBuffer;

    fn at(&self) -> RemoteBuffer {
        self.remote()
    }

    fn part(at: RemoteBuffer, part: Range<usize>) -> RemoteBuffer {
        RemoteBuffer { offset: at.offset + part.start, len: part.len(), ..at }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0xaa; self.len()];
        self.read(0, &mut bytes).expect("within it");
        bytes
    }

    fn fill(&mut self, bytes: &[u8]) {
        self.write(0, bytes).expect("within it");
    }
}

impl kit::End {
    fn pieces(&self, parts: &[&[u8]]) -> Vec<Region> {
        parts.iter().map(|part| self.region(part)).collect()
    }

    fn post(&mut self, descriptor: Descriptor, fenced: bool) {
        self.vi.post_send(if fenced { descriptor.fenced() } else { descriptor }).expect("a post is taken");
    }
}

fn finished(completion: Completion) -> FinishedPost {
    let status = match completion.status {
        Status::Done => PostStatus::Done,
        Status::Flushed => PostStatus::Flushed,
        _ => PostStatus::Failed,
    };
    let descriptor = completion.descriptor.expect("posted with a descriptor");
    let parts = regions(descriptor).into_iter().map(|region| region.to_vec()).collect();
    FinishedPost { status, length: completion.length, parts }
}

impl super::End for kit::End {
    type Place = Window;

    fn max_segments(&self) -> usize {
        self.nic.attributes().max_segments
    }

    fn post_receive(&mut self, rooms: &[usize]) {
        let pieces = rooms.iter().map(|room| self.nic.region(*room, self.ptag).expect("a region"));
        let descriptor = Descriptor::new(pieces.collect::<Vec<_>>());
        self.vi.post_receive(descriptor).expect("a receive is taken");
    }

    fn post_send_of(&mut self, parts: &[&[u8]], fenced: bool) {
        let descriptor = Descriptor::new(self.pieces(parts));
        self.post(descriptor, fenced);
    }

    fn post_write(&mut self, parts: &[&[u8]], to: RemoteBuffer, fenced: bool) {
        let descriptor = Descriptor::rdma_write(self.pieces(parts), to);
        self.post(descriptor, fenced);
    }

    fn post_read(&mut self, rooms: &[usize], from: RemoteBuffer, fenced: bool) {
        let pieces: Vec<Region> = rooms.iter().map(|room| self.region(&vec![0xcc; *room])).collect();
        self.post(Descriptor::rdma_read(pieces, from), fenced);
    }

    fn request_by(&mut self, deadline: Deadline) -> Option<FinishedPost> {
        if deadline.passed() { self.vi.send_done() } else { self.vi.send_wait(deadline).ok() }.map(finished)
    }

    fn receive_by(&mut self, deadline: Deadline) -> Option<FinishedPost> {
        if deadline.passed() { self.vi.receive_done() } else { self.vi.receive_wait(deadline).ok() }
            .map(finished)
    }

    fn place(&self, bytes: &[u8], access: Access) -> Window {
        let rights = match access {
            Access::Read => Rights::READ,
            Access::Write => Rights::WRITE,
            Access::Both => Rights::BOTH,
        };
        let mut window = self.nic.window_for(bytes.len(), self.ptag, rights).expect("a window");
        window.write(0, bytes).expect("within it");
        window
    }

    fn scribble(&self, len: usize) {
        drop(self.region(&vec![0xee; len]));
    }

    fn disconnect(&mut self) {
        self.vi.disconnect();
    }

    fn is_connected(&self) -> bool {
        self.vi.state() == State::Connected
    }
}
