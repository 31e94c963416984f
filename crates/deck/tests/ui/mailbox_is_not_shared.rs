// A mailbox may move to another thread, but threads cannot share it.

use udeck_deck::Mailbox;

/// Accepts only types that threads may share.
trait Shared {}
#[diagnostic::do_not_recommend]
impl<T: Sync> Shared for T {}

fn check<T: Send + Shared>() {}

fn main() {
    check::<Mailbox<f64>>();
}
