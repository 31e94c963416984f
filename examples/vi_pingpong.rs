//! A ping-pong between two virtual interfaces, without mailboxes: µDECK for programmers who know verbs or VIPL.
//!
//! ```sh
//! cargo run --release --example vi_pingpong              # both ends in this process, on one NIC
//! deckrun -n 2 target/release/examples/vi_pingpong       # an end per rank
//! ```
//!
//! | VIPL | verbs | here |
//! |---|---|---|
//! | `VipOpenNic` | `ibv_open_device` | `udeck::open_nic`, or the world's own: `World::nic` |
//! | `VipCreatePtag` | `ibv_alloc_pd` | `Nic::ptag` |
//! | `VipRegisterMem` | `ibv_reg_mr` | `Nic::region`: memory is born registered, posting moves it |
//! | `VipCreateVi` | `ibv_create_qp` | `Vi::new` |
//! | `VipCreateCQ` | `ibv_create_cq` | `Cq::new`; VIs are attached to it when they connect |
//! | `VipNSGetHostByName` | | `NameService::net_address`; a listener publishes its NIC first |
//! | `VipConnectWait`, `Accept` | `rdma_get_request`, `rdma_accept` | `Listener::wait`, `Request::accept` |
//! | `VipConnectRequest` | `rdma_connect` | `Vi::connect` |
//! | `VipPostSend`, `VipPostRecv` | `ibv_post_send`, `ibv_post_recv` | `Vi::post_send`, `Vi::post_receive` |
//! | `VipSendDone`, `VipRecvDone` | | `Vi::send_done`, `Vi::receive_done`: the work-queue model |
//! | `VipCQDone`, `VipCQWait` | `ibv_poll_cq`, `ibv_get_cq_event` | `Cq::poll`, `Cq::wait`: *which* queue has news |
//!
//! Two differences: a completion returns the descriptor by value, and so no code can touch memory in flight;
//! and `Cq::poll` names a work queue, as VIA's does, where verbs would return the completion itself.

use std::time::{Duration, Instant};

use udeck::names::{Job, NameService};
use udeck::via::{
    Completion, Cq, Deadline, Descriptor, Listener, NetAddress, Nic, Ptag, Region, Segment, Source, Status,
    Vi, ViAttributes,
};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The name under which the listening end is found.
const HOST: &str = "answerer";
const DOOR: &[u8] = b"vi_pingpong";
const CONTEXT: u64 = 42;
const TURNS: u32 = 1000;

/// A message is sent from two segments, and received into two with another boundary.
const HEAD: usize = 16;
const BODY: usize = 4096;
const LENGTH: usize = HEAD + BODY;

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
            let answering = scope.spawn(move || answer(nic, &listener));
            ask(nic, &names.net_address(HOST, 0, DOOR)?)?;
            answering.join().expect("the answering end panicked")
        })?,
        (_, 0) => ask(nic, &names.net_address(HOST, 0, DOOR)?)?, // waits until it is published
        (_, 1) => answer(nic, &publish()?)?,
        _ => {} // two are enough for a ping-pong
    }
    world.barrier()?;
    Ok(world.finish()?)
}

fn ask(nic: &Nic, peer: &NetAddress) -> Result {
    let mut end = End::new(nic)?;
    end.post_receive()?; // before the peer can send: a message without a descriptor breaks the connection
    let queue = end.cq.handle();
    end.vi.connect(peer, &queue, &queue, b"ping", soon())?;
    for model in [Model::WorkQueue, Model::CompletionQueue] {
        let started = Instant::now();
        for turn in 0..TURNS {
            end.send(turn)?;
            end.receive(model, turn)?;
        }
        let micros = started.elapsed().as_secs_f64() * 1e6 / f64::from(2 * TURNS);
        println!(
            "{model:?}: {TURNS} round trips of {LENGTH} bytes, {micros:.2} us one way, written and checked"
        );
    }
    Ok(())
}

fn answer(nic: &Nic, listener: &Listener) -> Result {
    let mut end = End::new(nic)?;
    end.post_receive()?;
    let request = listener.wait(soon())?;
    assert_eq!(request.private_data(), b"ping");
    let queue = end.cq.handle();
    request.accept(&mut end.vi, &queue, &queue, b"pong")?;
    for model in [Model::WorkQueue, Model::CompletionQueue] {
        for turn in 0..TURNS {
            end.receive(model, turn)?;
            end.send(turn)?;
        }
    }
    // Dropping the VI disconnects; earlier sends still arrive.
    Ok(())
}

/// Ways in which a program learns of an arrival.
#[derive(Clone, Copy, Debug)]
enum Model {
    /// The program polls its one VI.
    WorkQueue,
    /// The program polls a queue that watches any number of VIs, and then the VI that the queue names.
    CompletionQueue,
}

struct End {
    nic: Nic,
    ptag: Ptag,
    cq: Cq,
    vi: Vi,
    /// Regions of the last send, to be used again.
    idle: Option<[Region; 2]>,
}

impl End {
    fn new(nic: &Nic) -> Result<Self> {
        // Memory and VI carry the same tag; VIs with other tags cannot be used with this memory.
        let ptag = nic.ptag();
        let attributes = ViAttributes { context: CONTEXT, ..ViAttributes::new(ptag) };
        Ok(End { nic: nic.clone(), ptag, cq: Cq::new(nic)?, vi: Vi::new(nic, attributes)?, idle: None })
    }

    /// Posts a receive that scatters: the first `BODY` bytes go to one segment, the last `HEAD` to the other.
    fn post_receive(&mut self) -> Result {
        let segments = [self.nic.region(BODY, self.ptag)?, self.nic.region(HEAD, self.ptag)?];
        self.vi.post_receive(Descriptor::new(segments)).map_err(|(error, _)| error)?;
        Ok(())
    }

    /// Posts a send that gathers head and body, with the turn as immediate data.
    fn send(&mut self, turn: u32) -> Result {
        let mut regions = match self.idle.take() {
            Some(regions) => regions,
            None => [self.nic.region(HEAD, self.ptag)?, self.nic.region(BODY, self.ptag)?],
        };
        for (position, place) in regions.iter_mut().flat_map(|region| region.iter_mut()).enumerate() {
            *place = byte(turn, position);
        }
        let descriptor = Descriptor::new(regions).immediate(turn);
        self.vi.post_send(descriptor).map_err(|(error, _)| error)?;
        Ok(())
    }

    /// Receives the message of this turn and checks it; then takes the completion of the send before it, which
    /// must be over: its answer is here.
    fn receive(&mut self, model: Model, turn: u32) -> Result {
        let completion = match model {
            Model::WorkQueue => self.vi.receive_wait(soon())?,
            Model::CompletionQueue => self.next_named()?,
        };
        assert_eq!((completion.status, completion.length), (Status::Done, LENGTH));
        assert_eq!(completion.immediate, Some(turn));
        let descriptor = completion.descriptor.map_err(|id| format!("{id} was not posted here"))?;
        let bytes = descriptor.segments().iter().flat_map(Segment::bytes);
        assert!(bytes.copied().eq((0..LENGTH).map(|at| byte(turn, at))), "turn {turn}: other bytes came");
        self.vi.post_receive(descriptor).map_err(|(error, _)| error)?;

        while let Some(sent) = self.vi.send_done() {
            assert_eq!(sent.status, Status::Done);
            self.idle = sent.descriptor.ok().and_then(regions);
        }
        Ok(())
    }

    fn next_named(&mut self) -> Result<Completion> {
        loop {
            // A queue that is named may have nothing: then wait again.
            let entry = self.cq.wait(soon(), || false).ok_or("no news within a minute")?;
            assert_eq!(entry.context, CONTEXT, "the only VI on this completion queue");
            if entry.source == Source::Receive
                && let Some(completion) = self.vi.receive_done()
            {
                return Ok(completion);
            }
        }
    }
}

/// Returns the two regions of a send.
fn regions(descriptor: Descriptor) -> Option<[Region; 2]> {
    let regions: Vec<Region> = descriptor.into_segments().into_iter().map(Segment::into_region).collect();
    regions.try_into().ok()
}

/// Returns the byte at `position` of this turn's message.
fn byte(turn: u32, position: usize) -> u8 {
    (position as u32).wrapping_mul(31).wrapping_add(turn) as u8
}

/// Returns the deadline of a wait: every wait has one.
fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}
