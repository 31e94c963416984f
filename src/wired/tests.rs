//! Two connections, joined by pipes that cut the streams where a test likes.

mod announced;
mod apart;
mod costs;
mod ends;
mod hostile;
mod pair;
mod random;
mod threads;
