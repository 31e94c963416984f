// A completion queue may move to another thread, and is not shared.

use udeck_via::Cq;

/// Types that several threads may use at once.
trait Shared {}
#[diagnostic::do_not_recommend]
impl<T: Sync> Shared for T {}

fn check<T: Send + Shared>() {}

fn main() {
    check::<Cq>();
}
