//! Loans of an end: buffers that it has lent or reads into, and sends whose completion it waits for. Each has one
//! token until it is settled.
//!
//! Below reliable reception a loan ends the moment its reader is done. With reliable reception its sender waits for
//! a receipt, which travels over the link like any other frame. Where nobody waits, no receipt is sent.

use udeck_via::Reliability;
use udeck_via::transport::{Owner, PostedBuffer, TransferStatus};

use crate::connection::{Connection, End, Side};
use crate::frame::{Content, Message};
use crate::world::World;

/// A buffer that is lent or read into, and the stage of its message.
pub struct Loan {
    held: PostedBuffer,
    stage: Stage,
}

/// Stage of a loan's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The receiver's program has not taken the message.
    Sent,
    /// The receiver's program reads it.
    Read,
    /// The receiver is done with the message, and its receipt is in transit to the sender.
    Acknowledged,
}

impl End {
    /// Stores a loan under a free token. Gives the buffer back if there is none.
    pub fn lend(&mut self, held: PostedBuffer) -> Result<u16, PostedBuffer> {
        match self.loans.iter().position(Option::is_none) {
            Some(token) => {
                self.loans[token] = Some(Loan { held, stage: Stage::Sent });
                Ok(token as u16)
            }
            None => Err(held),
        }
    }

    /// Lets `owner` hold the buffer of the send `number` instead of the caller, who is then not told of its completion.
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
    /// Starts the loan at the other end's program. Returns how many loans that program has.
    pub fn borrow(&mut self, number: u64, lender: Side, token: u16) -> usize {
        let connection = self.connections.get_mut(&number).expect("just seen");
        if let Some(loan) = connection.loan(lender, token) {
            loan.stage = Stage::Read;
        }
        connection.ends[1 - lender].holds += 1;
        connection.ends[1 - lender].holds
    }

    /// Ends the loan at the other end's program.
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

    /// Sends the receipt for the message of `token` to its lender.
    pub fn acknowledge(&mut self, number: u64, lender: Side, token: u16, status: TransferStatus) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if let Some(loan) = connection.loan(lender, token) {
            loan.stage = Stage::Acknowledged;
        }
        let content = Content::Receipt { token, status };
        self.launch(number, 1 - lender, Message { immediate: None, content });
    }

    /// Settles the loan of `token`: its lender has the buffer back, and learns the status of its message.
    pub fn settle(&mut self, number: u64, lender: Side, token: u16, status: TransferStatus) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let end = &mut connection.ends[lender];
        let Some(loan) = end.loans.get_mut(usize::from(token)).and_then(Option::take) else { return };
        if let PostedBuffer::Caller(caller) = loan.held {
            end.returned.push_back((caller, status));
        }
        let was_read = end.reads.remove(&token).is_some();
        self.defer_drop_held(loan.held);
        if was_read {
            self.pass_fences(number, lender);
        }
        self.tell_of_room(number, lender);
        self.news();
    }

    /// Settles all loans of `lender` whose stage satisfies `is_over`.
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
