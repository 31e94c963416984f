//! A rank that was admitted as itself, and claims to be another one in every possible way.

use udeck::via::auth::{Keys, SealedTicket};
use udeck::via::{Cq, Deadline, NetAddress, Receive, Reliability, Vi, ViAttributes};
use udeck::{NicOptions, World};
use udeck_boot::Client;

use crate::common::LONG;
use crate::random::Random;

/// Contents of its posts where it is admitted. No other rank posts them.
pub const FORGED: &[u8] = b"forged by rank 3";
/// Kind of a short message, from `crates/deck/wire.rs`.
const EAGER: u8 = 1;

pub struct Poser {
    transport: &'static str,
    client: Client,
    to: NetAddress,
}

impl Poser {
    pub fn new(transport: &'static str, client: Client, victim: &World) -> Self {
        // The lookup also brings the proof of this rank's identity.
        client.lookup("in", false, Deadline::after(LONG).instant()).expect("it is registered");
        let host = victim.nic().attributes().address.clone();
        Poser { transport, client, to: NetAddress { host, discriminator: b"in".to_vec() } }
    }

    /// Connects as an arbitrary rank, to an arbitrary rank, with the keys that it has.
    pub fn claim(&mut self, random: &mut Random) {
        let (secret, key) = (self.client.welcome().secret, self.client.welcome().key);
        let claimed = random.pick(&[0, 1, 1, 2, u32::MAX, random.clone().value() as u32]);
        let keys = match random.below(4) {
            0 => self.client.keys(),
            1 => Keys::from(secret),
            // The poser makes tickets of its own, otherwise its own library would refuse.
            _ => {
                let keys = Keys::of_rank(secret, claimed, key);
                (0..2).for_each(|callee| {
                    keys.learn(callee, &SealedTicket::new((claimed, &key), (callee, &key)))
                });
                keys
            }
        };
        let mut options = NicOptions::new(keys);
        options.arena = Some(4 << 20);
        let Ok(nic) = udeck::open_nic(&format!("{}0", self.transport), &options) else { return };
        let mut attributes = ViAttributes::new(nic.ptag());
        // Usually everything else is as its library would send it.
        let odd = random.one_in(4);
        let pair = if random.one_in(3) { 1 + random.below(2) as u32 } else { 0 };
        attributes.peer = if odd { random.pick(&[Some(0), None, Some(1)]) } else { Some(0) };
        let is_data = if odd { random.one_in(2) } else { pair > 0 };
        attributes.reliability = if is_data { Reliability::Reception } else { Reliability::Delivery };
        attributes.receive = Receive::Lent;
        let (Ok(cq), Ok(mut vi)) = (Cq::new(&nic), Vi::new(&nic, attributes)) else { return };
        // The introduction has postbox and pair; in earlier versions a rank came before them.
        let words = [claimed, random.below(3) as u32, pair];
        let words = &words[usize::from(!odd || random.one_in(2))..];
        let private: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let queue = cq.handle();
        if vi.connect(&self.to, &queue, &queue, &private, Deadline::after(LONG)).is_ok() {
            let _ = vi.send_inline(Some(0), &[EAGER, 0, 0, 0, 0, 0, 0, 0], FORGED);
        }
    }
}
