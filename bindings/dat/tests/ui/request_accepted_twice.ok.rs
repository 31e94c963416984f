// A connection request is answered once.

use udeck_dat::{ConnectionRequest, Ep};

fn accept(first: &Ep, second: &Ep, request: ConnectionRequest) -> bool {
    let _ = first.accept(request, b"");
    second.reset().is_ok()
}

fn main() {
    let _ = accept;
}
