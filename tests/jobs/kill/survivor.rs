//! The process that outlives all others of its job: rank 0.
//!
//! `survivor posts|retrieves PROTOCOL`: what the others do. It says `ready`, exchanges messages with rank 1 until that is
//! lost, then with rank 2, and so on, all in one world. Of each it says `lost N` as soon as it knows, and `clean N` once all that
//! it had because of that rank is gone: descriptors, mappings, blocks. Anything else is a failure.

use std::{
    error::Error,
    thread,
    time::{Duration, Instant},
};
use udeck::{Error as DeckError, Mailbox, Postbox, Protocol, World};
use udeck_jobs::holdings::Holdings;
use udeck_jobs::traffic::{self, Incoming, Outgoing, Role, TOO_MANY};

/// Ends a hang: no call of the library may take so long.
const LIMIT: Duration = Duration::from_secs(60);

/// Messages between two flushes: the receiver has to wake a poster that waits for the last of them.
const FLUSHED: u64 = 16;

struct Survivor {
    world: World,
    protocol: Protocol,
    /// Where victims post.
    mailbox: Mailbox<u64>,
    /// Where only this process does.
    own: (Mailbox<u64>, Postbox<u64>),
    /// What this process held before it met any.
    baseline: Holdings,
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [role, protocol] = &words[..] else { return Err("survivor posts|retrieves PROTOCOL".into()) };
    let role: Role = role.parse()?;
    let world = udeck::init()?;
    let mailbox: Mailbox<u64> = world.mailbox("survivor")?;
    // Also of victims that die before they have a postbox, or never have one.
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
        // Announced to ranks that died; of each postbox only the latest call could have told.
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
            // It died when it had accepted the first connection, and its name is gone already: the mailbox knows why.
            Err(DeckError::NoSuchMailbox { .. }) => self.loss_of(victim)?,
            // It died while it accepted the connection.
            Err(error) => error,
        };
        is_loss_of(victim, loss)?;
        println!("lost {victim}");
        Ok(())
    }

    /// What the mailbox says of a victim, after what it says of earlier ones.
    fn loss_of(&self, victim: usize) -> Result<DeckError, String> {
        loop {
            match self.mailbox.retrieve_timeout(LIMIT) {
                Err(DeckError::PeerLost { rank, .. }) if rank != victim => {}
                Err(error) => return Ok(error),
                Ok(_) => return Err("a message that nobody posted".into()),
            }
        }
    }

    /// Posts until that fails for good.
    fn post_all(&self, mut outgoing: Outgoing, victim: usize) -> Result<DeckError, String> {
        while outgoing.posted() < TOO_MANY {
            let posted = outgoing.post(&self.world).and_then(|()| {
                if outgoing.posted().is_multiple_of(FLUSHED) { outgoing.flush() } else { Ok(()) }
            });
            match posted {
                Ok(()) => {}
                // What was posted earlier, and announced only: told once per postbox, before the loss itself.
                Err(DeckError::Undelivered { rank, .. }) if rank == victim => {}
                Err(error) => return Ok(error),
            }
        }
        Err(format!("it took {TOO_MANY} messages"))
    }

    /// Waits until nothing is left of a lost rank. The launcher may have told of its end before the connection did; what
    /// it posted before may come until then, and must be right.
    fn settle(&self, incoming: &mut Incoming) -> Result<(), String> {
        let start = Instant::now();
        loop {
            // As a program would that goes on using its mailbox.
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
