//! STUB of the umbrella.
pub use udeck_deck::*;
/// From `deckrun`'s environment, or a world of one.
pub fn init() -> Result<World> { todo!() }
/// `size` worlds in one process, one thread each, for tests: `body` runs once per rank; the first error is returned.
pub fn run_local<F>(size: usize, body: F) -> Result where F: Fn(World) -> Result + Send + Sync + 'static { todo!() }
