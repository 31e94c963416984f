// A revoked window is no window any more.

use udeck_via::{Deadline, Window};

fn settle(window: Window, deadline: Deadline) -> usize {
    let settled = window.revoke(deadline).unwrap();
    settled.len() - window.len()
}

fn main() {}
