//! RDMA write between two virtual interfaces: a window, writes that the target does not notice, a write that
//! announces them all, and a handle whose window is revoked.
//!
//! ```sh
//! cargo run --release --example vi_rdma                  # both ends in this process, on one NIC
//! deckrun -n 2 target/release/examples/vi_rdma           # an end per rank
//! ```
//!
//! | VIPL | verbs | here |
//! |---|---|---|
//! | `VipRegisterMem`, `EnableRdmaWrite` | `ibv_reg_mr`, `IBV_ACCESS_REMOTE_WRITE` | `Nic::window` |
//! | address and `VIP_MEM_HANDLE` | address and rkey | `Window::remote`: handle, offset, length |
//! | `EnableRdmaWrite` of the VI | `qp_access_flags` | `ViAttributes::enable_rdma_write` |
//! | `VIP_CONTROL_OP_RDMAWRITE` | `IBV_WR_RDMA_WRITE` | `Descriptor::rdma_write` |
//! | `VIP_CONTROL_IMMEDIATE` | `IBV_WR_RDMA_WRITE_WITH_IMM` | `Descriptor::immediate` |
//! | `VipDeregisterMem` | `ibv_dereg_mr` | `Window::revoke`: waits until nobody writes, gives the memory |
//! | `VIP_STATUS_RDMA_PROT_ERROR` | `IBV_WC_REM_ACCESS_ERR` | `Error::RdmaProtection`; the VI stays connected |
//!
//! A window has no slice: peers may be writing it at any moment. It is copied from, or revoked and then read.

use std::time::Duration;

use udeck::names::{Job, NameService};
use udeck::via::{
    Cq, Deadline, Descriptor, Error, Listener, MemHandle, NetAddress, Nic, Ptag, Region, RemoteBuffer, State,
    Status, Vi, ViAttributes,
};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The name under which the listening end is found.
const HOST: &str = "target";
const DOOR: &[u8] = b"vi_rdma";

/// Number of pieces of the window, which are written one after the other.
const PIECES: usize = 8;
const PIECE: usize = 4096;

/// Immediate data: the messages of the two ends.
const ALL_WRITTEN: u32 = 1;
const REVOKED: u32 = 2;
const STALE_REFUSED: u32 = 3;

fn main() -> Result {
    let world = udeck::init()?;
    let nic = world.nic();
    let names = Job::new(&world);
    let publish = || -> Result<Listener> {
        // The end listens before it publishes its address: no connection attempt comes too early.
        let listener = Listener::new(nic, DOOR)?;
        names.publish(HOST, nic)?;
        Ok(listener)
    };
    match (world.size(), world.rank()) {
        (1, _) => std::thread::scope(|scope| -> Result {
            let listener = publish()?;
            let target = scope.spawn(move || target(nic, &listener));
            writer(nic, &names.net_address(HOST, 0, DOOR)?)?;
            target.join().expect("the target panicked")
        })?,
        (_, 0) => writer(nic, &names.net_address(HOST, 0, DOOR)?)?, // waits until it is published
        (_, 1) => target(nic, &publish()?)?,
        _ => {} // two are enough
    }
    world.barrier()?;
    Ok(world.finish()?)
}

/// Owns the window, and does nothing while it is written.
fn target(nic: &Nic, listener: &Listener) -> Result {
    let ptag = nic.ptag();
    let window = nic.window(PIECES * PIECE, ptag)?;
    // Writes come only over a VI with the window's tag, and only if this VI allows them.
    let mut vi = Vi::new(nic, ViAttributes { enable_rdma_write: true, ..ViAttributes::new(ptag) })?;
    let cq = Cq::new(nic)?;
    // A write with immediate data takes a receive descriptor; one without takes none.
    post_receive(&mut vi)?; // for ALL_WRITTEN
    post_receive(&mut vi)?; // for STALE_REFUSED

    // The handle travels with the answer to the connection request.
    let request = listener.wait(soon())?;
    request.accept(&mut vi, &cq.handle(), &cq.handle(), &encode(window.remote()))?;

    let announced = vi.receive_wait(soon())?;
    assert_eq!((announced.status, announced.immediate), (Status::Done, Some(ALL_WRITTEN)));
    // Data written before the immediate data are in place when it arrives.
    let mut piece = vec![0; PIECE];
    window.read(PIECE, &mut piece)?;
    assert!(piece.iter().all(|&byte| byte == 1), "a copy of the second piece, the window still open");

    // From here on no write succeeds, and the memory is a plain slice.
    let settled = window.revoke(soon())?;
    for (number, piece) in settled.chunks(PIECE).enumerate() {
        assert!(piece.iter().all(|&byte| usize::from(byte) == number), "piece {number}: other bytes came");
    }
    println!("target: {PIECES} pieces of {PIECE} bytes in place, announced by one immediate; window revoked");

    tell(&mut vi, REVOKED)?;
    let end = vi.receive_wait(soon())?;
    assert_eq!(end.immediate, Some(STALE_REFUSED));
    assert_eq!(settled[..PIECE], [0; PIECE], "the late write left no trace");
    Ok(())
}

fn writer(nic: &Nic, peer: &NetAddress) -> Result {
    let ptag = nic.ptag();
    let mut vi = Vi::new(nic, ViAttributes::new(ptag))?;
    let cq = Cq::new(nic)?;
    post_receive(&mut vi)?; // for REVOKED
    let answer = vi.connect(peer, &cq.handle(), &cq.handle(), b"", soon())?;
    let window = decode(&answer)?;

    for number in 0..PIECES {
        let place = RemoteBuffer { offset: window.offset + number * PIECE, len: PIECE, ..window };
        let mut write = Descriptor::rdma_write([filled(nic, ptag, number as u8)?], place);
        if number + 1 == PIECES {
            write = write.immediate(ALL_WRITTEN); // the others arrive unnoticed
        }
        vi.post_send(write).map_err(|(error, _)| error)?;
        let written = vi.send_wait(soon())?;
        assert_eq!((written.status, written.length), (Status::Done, PIECE));
    }

    assert_eq!(vi.receive_wait(soon())?.immediate, Some(REVOKED));
    let stale = Descriptor::rdma_write([filled(nic, ptag, 0xff)?], window);
    let (error, descriptor) = vi.post_send(stale).expect_err("nobody exposes that memory any more");
    assert!(matches!(error, Error::RdmaProtection { .. }), "{error}");
    assert_eq!(vi.state(), State::Connected);
    println!("writer: a stale handle gives: {error}");

    // The refused descriptor came back, with its memory, and the connection can still be used.
    assert_eq!(descriptor.segments()[0].bytes(), [0xff; PIECE]);
    tell(&mut vi, STALE_REFUSED)
}

/// Posts a receive without segments: for immediate data only.
fn post_receive(vi: &mut Vi) -> Result {
    Ok(vi.post_receive(Descriptor::new(Vec::<Region>::new())).map_err(|(error, _)| error)?)
}

/// Sends immediate data, without segments.
fn tell(vi: &mut Vi, what: u32) -> Result {
    let nothing = Descriptor::new(Vec::<Region>::new());
    Ok(vi.post_send(nothing.immediate(what)).map_err(|(error, _)| error)?)
}

/// Makes a registered piece filled with this value.
fn filled(nic: &Nic, ptag: Ptag, value: u8) -> Result<Region> {
    let mut region = nic.region(PIECE, ptag)?;
    region.fill(value);
    Ok(region)
}

/// Encodes a window's handle, offset and length as private data of a connection.
fn encode(window: RemoteBuffer) -> Vec<u8> {
    let words = [u64::from(window.handle.0), window.offset as u64, window.len as u64];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn decode(bytes: &[u8]) -> Result<RemoteBuffer> {
    let word = |at: usize| -> Result<u64> {
        let bytes = bytes.get(8 * at..8 * at + 8).ok_or("the target said too little about its window")?;
        Ok(u64::from_le_bytes(bytes.try_into()?))
    };
    Ok(RemoteBuffer {
        handle: MemHandle(u32::try_from(word(0)?)?),
        offset: usize::try_from(word(1)?)?,
        len: usize::try_from(word(2)?)?,
    })
}

/// Returns the deadline of a wait: every wait has one.
fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}
