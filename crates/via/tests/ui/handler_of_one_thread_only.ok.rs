// A listener's handler runs on the transport's thread: it holds nothing that is bound to ours.

use udeck_via::{Listener, Nic, Result};

fn listen(nic: &Nic) -> Result<Listener> {
    let count = std::sync::Arc::new(0);
    Listener::with_handler(nic, b"door", move |_request| drop(count.clone()))
}

fn main() {}
