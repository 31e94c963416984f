// A VI may move to another thread, and is not shared.

use udeck_via::Vi;

/// Types that several threads may use at once.
trait Shared {}
#[diagnostic::do_not_recommend]
impl<T: Sync> Shared for T {}

fn check<T: Send>() {}

fn main() {
    check::<Vi>();
}
