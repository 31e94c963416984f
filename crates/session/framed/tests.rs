//! Two connections, joined by pipes that cut the streams where a test likes.

mod announced;
mod costs;
mod ends;
mod expected;
mod hostile;
mod pair;
mod random;
mod short;
mod threads;
mod unreliable;
