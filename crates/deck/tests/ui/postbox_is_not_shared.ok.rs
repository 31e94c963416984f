//! A postbox may move to another thread, and is not shared: threads have one each.

use udeck_deck::Postbox;

/// What threads may use at once.
trait Shared {}
#[diagnostic::do_not_recommend]
impl<T: Sync> Shared for T {}

fn check<T: Send>() {}

fn main() {
    check::<Postbox<f64>>();
}
