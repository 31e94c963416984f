//! The message that both ways carry, and the programs' error type.

pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Bytes of the message.
pub const SMALL: usize = 8;
