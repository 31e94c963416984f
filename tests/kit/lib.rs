//! Code that the tests of several packages share. It uses the lowest of the workspace's packages only, so that the others may use it.
//! (`tests/common` has what the umbrella's tests share.)

pub mod hostile;
pub mod pairs;
mod ports;
pub mod processes;

pub use hostile::Hostile;
pub use ports::free_port;
