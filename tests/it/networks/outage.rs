//! An outage: the network is down during a connect over TCP or UDP, and comes back. The test runs in a network namespace of its
//! own, where it removes an address and its route; where namespaces are unavailable, it is skipped, and says so.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::Command;
use std::time::Duration;

use udeck::via::{Cq, Deadline, Error, Listener, NetAddress, Nic, Receive, Reliability, Vi, ViAttributes};

const INSIDE: &str = "UDECK_TEST_INSIDE";

const A: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

#[test]
fn a_call_bears_an_outage() {
    if std::env::var_os(INSIDE).is_some() {
        ip("link set lo up");
        for at in [A, B] {
            ip(&format!("addr add {at}/32 dev lo"));
        }
        outage([A, B].map(tcp));
        outage([A, B].map(udp));
        return;
    }
    let alone =
        |options: &str| Command::new("unshare").args([options, "ip", "link", "set", "lo", "up"]).output();
    let works = |options: &&str| alone(options).is_ok_and(|output| output.status.success());
    let Some(options) = ["-n", "-rn"].into_iter().find(works) else {
        return println!("skipped: no network namespace can be made here (unshare, ip)");
    };
    let this = std::env::current_exe().unwrap();
    let arguments =
        [this.to_str().unwrap(), "--exact", "networks::outage::a_call_bears_an_outage", "--nocapture"];
    let output = Command::new("unshare").arg(options).args(arguments).env(INSIDE, "1").output().unwrap();
    let words = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
}

fn tcp(at: Ipv4Addr) -> Nic {
    let (memory, bind) = (udeck_tcp::Source::Fresh(8 << 20), SocketAddrV4::new(at, 0).into());
    udeck_tcp::open(udeck_tcp::Options { memory, bind, ..udeck_tcp::Options::new([7; 32]) }).unwrap()
}

fn udp(at: Ipv4Addr) -> Nic {
    let (memory, bind) = (udeck_udp::Source::Fresh(8 << 20), SocketAddrV4::new(at, 0).into());
    udeck_udp::open(&udeck_udp::Options { memory, bind, ..udeck_udp::Options::new([7; 32]) }).unwrap()
}

fn outage([a, b]: [Nic; 2]) {
    let listener = Listener::new(&b, b"outage").unwrap();
    let to = NetAddress { host: b.attributes().address.clone(), discriminator: b"outage".to_vec() };
    let soon = || Deadline::after(Duration::from_secs(60));
    ip(&format!("addr del {B}/32 dev lo"));
    let (cq, mut vi) = ends(&a);
    let short = Deadline::after(Duration::from_millis(100));
    let late = vi.connect(&to, &cq.handle(), &cq.handle(), b"", short).unwrap_err();
    assert!(matches!(&late, Error::Timeout { what, .. } if what.contains("network")), "{late}");
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let (cq, mut vi) = ends(&a);
            vi.connect(&to, &cq.handle(), &cq.handle(), b"", soon())
        });
        // This time is enough for some attempts, and shorter than the silence that ends a connection.
        std::thread::sleep(Duration::from_millis(500));
        ip(&format!("addr add {B}/32 dev lo"));
        let request = listener.wait(soon()).expect("it asks again");
        let (cq, mut vi) = ends(&b);
        request.accept(&mut vi, &cq.handle(), &cq.handle(), b"").expect("it still asks");
        asking.join().unwrap().expect("it is answered");
    });
}

fn ends(nic: &Nic) -> (Cq, Vi) {
    let mut attributes = ViAttributes::new(nic.ptag());
    (attributes.reliability, attributes.receive) = (Reliability::Delivery, Receive::Lent);
    (Cq::new(nic).unwrap(), Vi::new(nic, attributes).unwrap())
}
