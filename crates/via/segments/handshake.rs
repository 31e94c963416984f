//! Hand-shake of two ranks: both prove which rank they are before one asks for a segment. See `wire.rs` for the order.
//!
//! Without I/O: datagrams that came are put in, datagrams to send come out. The proofs are over everything both have said,
//! with a nonce of each side; the asker's proof covers its request, too.

use crate::auth::{Claim, Keys, Nonce, Pair, Proof};

use crate::segments::wire::{Datagram, Shape, VERSION};

const PROTOCOL: &[u8] = b"segments";
const ASKER: &[u8] = b"asker";
const MAKER: &[u8] = b"maker";

/// The asker's side, once it has said `Meet`.
pub(crate) struct Asker {
    pair: Pair,
    nonce: Nonce,
}

impl Asker {
    /// Makes the asker, and its first datagram.
    pub fn new(pair: Pair, nonce: Nonce) -> (Asker, Datagram) {
        let meet = Datagram::Meet { version: VERSION, nonce, claim: pair.claim().encode() };
        (Asker { pair, nonce }, meet)
    }

    /// Checks the maker's proof, and returns the request to send.
    ///
    /// # Errors
    /// Why the maker's proof is wrong, in words.
    pub fn ask(self, answer: Datagram, shape: &Shape) -> Result<Datagram, String> {
        let Datagram::Prove { nonce, proof } = answer else { return Err(unexpected(answer)) };
        let parts = [&VERSION.to_le_bytes()[..], &self.nonce, &nonce];
        if !self.pair.check(&proof, PROTOCOL, MAKER, &parts) {
            return Err(self.pair.why_wrong_callee());
        }
        let proof = prove_ask(&self.pair, &self.nonce, &nonce, shape);
        Ok(Datagram::Ask { proof, shape: shape.clone() })
    }
}

/// The maker's side.
pub(crate) enum Maker {
    Meets(Keys, Nonce),
    Asked { pair: Pair, theirs: Nonce, ours: Nonce },
    Over,
}

/// Next action of the maker.
#[derive(Debug)]
pub(crate) enum Step {
    Say(Datagram),
    /// The caller proved to be this rank, and asks for this segment.
    Wanted(u32, Shape),
}

impl Maker {
    /// # Errors
    /// Why the connection ends, in words.
    pub fn input(&mut self, datagram: Datagram) -> Result<Step, String> {
        match (std::mem::replace(self, Maker::Over), datagram) {
            (Maker::Meets(keys, ours), Datagram::Meet { version, nonce, claim }) => {
                if version != VERSION {
                    return Err(format!(
                        "it speaks version {version}, this process {VERSION}: build both from one"
                    ));
                }
                let claim = Claim::decode(claim);
                let pair = keys.answer(claim).map_err(|wrong| wrong.to_string())?;
                let parts = [&VERSION.to_le_bytes()[..], &nonce, &ours];
                let proof = pair.prove(PROTOCOL, MAKER, &parts);
                *self = Maker::Asked { pair, theirs: nonce, ours };
                Ok(Step::Say(Datagram::Prove { nonce: ours, proof }))
            }
            (Maker::Asked { pair, theirs, ours }, Datagram::Ask { proof, shape }) => {
                let expected = prove_ask(&pair, &theirs, &ours, &shape);
                let caller = pair.caller().filter(|_| crate::auth::is_same(&proof, &expected));
                caller.map(|rank| Step::Wanted(rank, shape)).ok_or_else(|| pair.why_wrong_caller())
            }
            (_, other) => Err(unexpected(other)),
        }
    }
}

fn prove_ask(pair: &Pair, asker: &Nonce, maker: &Nonce, shape: &Shape) -> Proof {
    let shape = postcard::to_allocvec(shape).expect("numbers and texts can be written");
    pair.prove(PROTOCOL, ASKER, &[&VERSION.to_le_bytes(), asker, maker, &shape])
}

fn unexpected(datagram: Datagram) -> String {
    match datagram {
        Datagram::Refused { why } => why,
        _ => "it broke the hand-shake".into(),
    }
}
