//! Runs the examples.

#[path = "../examples/srq_server.rs"]
#[allow(dead_code, reason = "its `main`")]
mod srq_server;

#[test]
fn sixteen_receives_serve_all_clients() {
    for transport in ["shm", "tcp", "udp"] {
        let (answered, receives) = srq_server::run(transport, 5, 50).unwrap();
        assert_eq!((answered, receives), (250, 16), "{transport}: and all come back to the queue");
    }
}
