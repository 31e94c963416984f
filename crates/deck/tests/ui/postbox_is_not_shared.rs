// A postbox may move to another thread, but threads cannot share it: each thread has its own.

use udeck_deck::Postbox;

/// Accepts only types that threads may share.
trait Shared {}
#[diagnostic::do_not_recommend]
impl<T: Sync> Shared for T {}

fn check<T: Send + Shared>() {}

fn main() {
    check::<Postbox<f64>>();
}
