//! Buffers that an end has lent, or reads into, and sends of which it waits for the end: under one token each, until they
//! are settled.
//!
//! Below reliable reception a buffer is home the moment its reader is done. On reliable reception its sender waits for
//! a receipt, which travels over the link like any other frame; where nobody waits, none is sent.

use udeck_via::Reliability;
use udeck_via::transport::{Owner, PostedBuffer, TransferStatus};

use crate::connection::{Connection, End, Side};
use crate::frame::{Content, Message};
use crate::world::World;

/// A buffer that is out.
pub struct Loan {
    held: PostedBuffer,
    stage: Stage,
}

/// How far the message of a loan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Not taken by the receiver's program.
    Sent,
    /// The receiver's program reads it.
    Read,
    /// The receiver is done with it, which the sender is yet to learn.
    Acknowledged,
}

impl End {
    /// Notes a loan under a free token.
    pub fn lend(&mut self, held: PostedBuffer) -> Result<u16, PostedBuffer> {
        match self.loans.iter().position(Option::is_none) {
            Some(token) => {
                self.loans[token] = Some(Loan { held, stage: Stage::Sent });
                Ok(token as u16)
            }
            None => Err(held),
        }
    }

    /// Puts `owner` in the place of the caller who was to be told of `number`.
    pub fn keep(&mut self, number: u64, owner: Owner) -> Result<(), Owner> {
        let is_this = |loan: &&mut Loan| matches!(loan.held, PostedBuffer::Caller(other) if other == number);
        match self.loans.iter_mut().flatten().find(is_this) {
            Some(loan) => {
                loan.held = PostedBuffer::Owner(owner);
                Ok(())
            }
            None => Err(owner),
        }
    }
}

impl Connection {
    fn loan(&mut self, lender: Side, token: u16) -> Option<&mut Loan> {
        self.ends[lender].loans.get_mut(usize::from(token))?.as_mut()
    }

    /// Whether the lender of `token` waits for a receipt.
    pub fn owes_receipt(&mut self, lender: Side, token: u16) -> bool {
        self.level == Reliability::Reception
            && self.loan(lender, token).is_some_and(|loan| matches!(loan.held, PostedBuffer::Caller(_)))
    }
}

impl World {
    /// The program at the other end reads the buffer from now on; how many that makes.
    pub fn borrow(&mut self, number: u64, lender: Side, token: u16) -> usize {
        let connection = self.connections.get_mut(&number).expect("just seen");
        if let Some(loan) = connection.loan(lender, token) {
            loan.stage = Stage::Read;
        }
        connection.ends[1 - lender].holds += 1;
        connection.ends[1 - lender].holds
    }

    /// The program at the other end is done with a buffer.
    pub fn give_back(&mut self, number: u64, lender: Side, token: u16, status: TransferStatus) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.ends[1 - lender].holds -= 1;
        match (connection.owes_receipt(lender, token), &connection.lost) {
            (true, None) if !connection.is_abandoned() => {
                self.acknowledge(number, lender, token, status);
                self.run_due();
            }
            (true, Some(_)) => self.settle(number, lender, token, TransferStatus::Lost),
            _ => self.settle(number, lender, token, status),
        }
        self.tidy(number);
        self.news();
    }

    /// Sends the receipt for the message of `token` on its way to its lender.
    pub fn acknowledge(&mut self, number: u64, lender: Side, token: u16, status: TransferStatus) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if let Some(loan) = connection.loan(lender, token) {
            loan.stage = Stage::Acknowledged;
        }
        let content = Content::Receipt { token, status };
        self.launch(number, 1 - lender, Message { immediate: None, content });
    }

    /// The lender of `token` has it back, and knows what became of its message.
    pub fn settle(&mut self, number: u64, lender: Side, token: u16, status: TransferStatus) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let end = &mut connection.ends[lender];
        let Some(loan) = end.loans.get_mut(usize::from(token)).and_then(Option::take) else { return };
        if let PostedBuffer::Caller(caller) = loan.held {
            end.returned.push_back((caller, status));
        }
        let was_read = end.reads.remove(&token).is_some();
        self.bury_held(loan.held);
        if was_read {
            self.pass_fences(number, lender);
        }
        self.tell_of_room(number, lender);
        self.news();
    }

    /// Settles all loans of `lender` that are so far.
    pub fn settle_all(
        &mut self,
        number: u64,
        lender: Side,
        status: TransferStatus,
        is_over: impl Fn(Stage) -> bool,
    ) {
        let Some(connection) = self.connections.get(&number) else { return };
        let loans = connection.ends[lender].loans.iter().enumerate();
        let over = loans.filter(|(_, loan)| loan.as_ref().is_some_and(|loan| is_over(loan.stage)));
        let tokens: Vec<_> = over.map(|(token, _)| token as u16).collect();
        tokens.into_iter().for_each(|token| self.settle(number, lender, token, status));
    }
}
