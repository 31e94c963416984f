//! Code that the tests of several packages share. It uses none of the workspace's packages, so that each of them may use it.
//! (`tests/common` has what the umbrella's tests share.)

pub mod hostile;
pub mod pairs;
mod ports;
pub mod processes;

pub use hostile::Hostile;
pub use ports::free_port;
