//! The message that both ways carry, and how they fail.

pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Its bytes.
pub const SMALL: usize = 8;
