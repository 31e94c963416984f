// A request is answered once.

use udeck_via::{CqHandle, Request, Vi};

fn answer(request: Request, vis: &mut [Vi; 2], cq: &CqHandle) {
    request.accept(&mut vis[0], cq, cq, b"").unwrap();
}

fn main() {}
