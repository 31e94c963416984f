//! The process that survives all others of its job: rank 0.
//!
//! `survivor posts|retrieves PROTOCOL` names the victims' role. The survivor prints `ready`, exchanges messages with rank 1 until
//! that is lost, then with rank 2, and so on, all in one world. For each victim it prints `lost N` as soon as it knows, and
//! `clean N` when all resources held for that rank are released: descriptors, mappings, blocks. Any other outcome is a failure.

use std::{
    error::Error,
    thread,
    time::{Duration, Instant},
};
use udeck::{Error as DeckError, Mailbox, Postbox, Protocol, World};
use udeck_jobs::holdings::Holdings;
use udeck_jobs::traffic::{self, Incoming, Outgoing, Role, TOO_MANY};

/// Deadline of every call of the library: it only ends a hang.
const LIMIT: Duration = Duration::from_secs(60);

/// Number of messages between two flushes: the receiver has to wake a poster that waits for the last of them.
const FLUSHED: u64 = 16;

struct Survivor {
    world: World,
    protocol: Protocol,
    /// Mailbox to which victims post.
    mailbox: Mailbox<u64>,
    /// Mailbox of this process's own messages, with its postbox.
    own: (Mailbox<u64>, Postbox<u64>),
    /// Holdings of this process before it met any victim.
    baseline: Holdings,
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [role, protocol] = &words[..] else { return Err("survivor posts|retrieves PROTOCOL".into()) };
    let role: Role = role.parse()?;
    let world = udeck::init()?;
    let mailbox: Mailbox<u64> = world.mailbox("survivor")?;
    // The expectation includes victims that die before they have a postbox, or never have one.
    mailbox.expect(0..world.size());
    let own = (world.mailbox("own")?, world.postbox("own")?);
    traffic::to_itself(&world, &own.0, &own.1, 0)?;
    let baseline = Holdings::of(&world);
    println!("ready");
    let survivor = Survivor { protocol: protocol.parse()?, mailbox, own, baseline, world };
    for victim in 1..survivor.world.size() {
        survivor.outlive(role, victim).map_err(|why| format!("rank {victim}: {why}"))?;
    }
    drop((survivor.mailbox, survivor.own));
    match survivor.world.finish() {
        // Messages were announced to dead ranks; of each postbox only its latest call could have reported it.
        Err(error) if role == Role::Retrieves && is_about_victims(&error) => Ok(()),
        other => Ok(other?),
    }
}

fn is_about_victims(error: &DeckError) -> bool {
    match error {
        DeckError::Undelivered { rank, .. } => *rank >= 1,
        DeckError::Multiple(errors) => errors.iter().all(is_about_victims),
        _ => false,
    }
}

impl Survivor {
    fn outlive(&self, role: Role, victim: usize) -> Result<(), String> {
        let mut incoming = Incoming::default();
        match role {
            Role::Posts => self.retrieve_until_lost(victim, &mut incoming)?,
            Role::Retrieves => self.post_until_lost(victim)?,
        }
        traffic::to_itself(&self.world, &self.own.0, &self.own.1, victim as u64)?;
        self.settle(&mut incoming)?;
        println!("clean {victim}");
        Ok(())
    }

    fn retrieve_until_lost(&self, victim: usize, incoming: &mut Incoming) -> Result<(), String> {
        let loss = loop {
            match self.mailbox.retrieve_timeout(LIMIT) {
                Ok(message) => incoming.check(&message)?,
                Err(error) => break error,
            }
        };
        is_loss_of(victim, loss)?;
        println!("lost {victim}");
        Ok(())
    }

    fn post_until_lost(&self, victim: usize) -> Result<(), String> {
        let loss = match Outgoing::new(&self.world, &format!("victim-{victim}"), self.protocol) {
            Ok(outgoing) => self.post_all(outgoing, victim)?,
            // The victim died after it had accepted the first connection, and its name is already gone: the mailbox
            // knows the reason.
            Err(DeckError::NoSuchMailbox { .. }) => self.loss_of(victim)?,
            // The victim died while it accepted the connection.
            Err(error) => error,
        };
        is_loss_of(victim, loss)?;
        println!("lost {victim}");
        Ok(())
    }

    /// Error of the mailbox about a victim, after its errors about earlier ones.
    fn loss_of(&self, victim: usize) -> Result<DeckError, String> {
        loop {
            match self.mailbox.retrieve_timeout(LIMIT) {
                Err(DeckError::PeerLost { rank, .. }) if rank != victim => {}
                Err(error) => return Ok(error),
                Ok(_) => return Err("a message that nobody posted".into()),
            }
        }
    }

    /// Posts until a post fails for good.
    fn post_all(&self, mut outgoing: Outgoing, victim: usize) -> Result<DeckError, String> {
        while outgoing.posted() < TOO_MANY {
            let posted = outgoing.post(&self.world).and_then(|()| {
                if outgoing.posted().is_multiple_of(FLUSHED) { outgoing.flush() } else { Ok(()) }
            });
            match posted {
                Ok(()) => {}
                // The undelivered messages were only announced earlier: they are reported once per postbox,
                // before the loss itself.
                Err(DeckError::Undelivered { rank, .. }) if rank == victim => {}
                Err(error) => return Ok(error),
            }
        }
        Err(format!("it took {TOO_MANY} messages"))
    }

    /// Waits until nothing of a lost rank is left. The launcher may have reported its end before the connection did.
    /// Messages that it posted before may arrive until then, and must be right.
    fn settle(&self, incoming: &mut Incoming) -> Result<(), String> {
        let start = Instant::now();
        loop {
            // The mailbox is polled, as by a program that continues to use it.
            match self.mailbox.try_retrieve() {
                Ok(None) => {}
                Ok(Some(message)) => incoming.check(&message)?,
                Err(error) => return Err(format!("after its loss: {error}")),
            }
            let now = Holdings::of(&self.world);
            if now == self.baseline {
                return Ok(());
            }
            if start.elapsed() > LIMIT {
                return Err(format!("left behind: {}", now.changes_since(&self.baseline)));
            }
            thread::yield_now();
        }
    }
}

fn is_loss_of(victim: usize, error: DeckError) -> Result<(), String> {
    match error {
        DeckError::PeerLost { rank, .. } if rank == victim => Ok(()),
        error => Err(format!("instead of its loss: {error}")),
    }
}
