// The VI layer gives memory back when an endpoint says so: the implementer promises that it is true.

use udeck_via::mem::{Block, RemoteBuffer};
use udeck_via::transport::{Arrival, TransferStatus, PostedBuffer, Owner, ViEndpoint, Refused};

#[derive(Debug)]
struct Keeper(Vec<Block>);

unsafe impl ViEndpoint for Keeper {
    fn send(&mut self, _: Option<u32>, _: &[u8], _: &[u8]) -> Result<(), Refused> {
        Ok(())
    }
    fn lend(&mut self, _: Option<u32>, _: &[u8], _: &[(u64, usize)], held: PostedBuffer) -> Result<(), (Refused, PostedBuffer)> {
        let PostedBuffer::Block(block) = held else { return Err((Refused::Busy, held)) };
        self.0.push(block);
        Ok(())
    }
    fn rdma_write(
        &mut self,
        _: &[(u64, usize)],
        _: RemoteBuffer,
        _: Option<u32>,
        held: PostedBuffer,
    ) -> Result<Option<TransferStatus>, (Refused, PostedBuffer)> {
        Err((Refused::Unsupported, held))
    }
    fn receive(&mut self) -> Result<Option<Arrival>, Refused> {
        Ok(None)
    }
    fn poll_completion(&mut self) -> Option<(u64, TransferStatus)> {
        None
    }
    fn keep(&mut self, _: u64, owner: Owner) -> Result<(), Owner> {
        Err(owner)
    }
    fn request_send_notify(&mut self) {}
    fn unread(&mut self) -> Result<u32, Refused> {
        Ok(0)
    }
    fn close(&mut self, _: Option<&str>) {}
    fn leave(&mut self) {}
}

fn main() {}
