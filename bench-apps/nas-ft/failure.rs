//! Errors that end a run.

use crate::layout::BadRanks;
use crate::mailboxes::ExchangeError;
use crate::memory::NotEnough;
use crate::options::BadOrder;
use std::io;

/// Why a run gave no result.
#[derive(Debug, thiserror::Error)]
pub enum FtError {
    #[error(transparent)]
    Ranks(#[from] BadRanks),
    #[error(transparent)]
    Order(#[from] BadOrder),
    #[error(transparent)]
    Memory(#[from] NotEnough),
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error(transparent)]
    Messaging(#[from] udeck::Error),
    #[error("printing the results: {0}")]
    Output(#[from] io::Error),
}
