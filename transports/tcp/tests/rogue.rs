//! A rogue peer on a bare socket: it knows the secret, and each test decides what it sends next.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use udeck_session::admission::handshake::{ConnectStep, Connector};
use udeck_session::admission::nonce;
use udeck_session::admission::wire::{Answer, Request};
use udeck_via::transport::Hello;
use udeck_via::{Nic, Reliability};

use super::SECRET;
use crate::core::PROTOCOL;

pub fn call(nic: &Nic) -> TcpStream {
    let at: SocketAddr = String::from_utf8(nic.attributes().address.clone()).unwrap().parse().unwrap();
    TcpStream::connect(at).expect("somebody listens")
}

pub fn hello() -> Hello {
    Hello {
        reliability: Reliability::Delivery,
        writable_ptag: None,
        readable_ptag: None,
        private_data: Vec::new(),
    }
}

/// Requests a connection and gets it.
pub fn connect(nic: &Nic) -> TcpStream {
    let hello = hello();
    let request = Request { discriminator: b"door".to_vec(), hello, parameters: Vec::new() };
    let anybody = udeck_via::auth::Keys::from(SECRET).call(None).unwrap();
    let (mut connector, meet) = Connector::new(anybody, PROTOCOL, nonce().unwrap(), &request);
    let mut socket = call(nic);
    socket.write_all(&meet).unwrap();
    loop {
        let mut words = vec![0; connector.wants()];
        socket.read_exact(&mut words).unwrap();
        match connector.input(&words).unwrap() {
            ConnectStep::Nothing => {}
            ConnectStep::Send(words) => socket.write_all(&words).unwrap(),
            ConnectStep::Answer(Answer::Accepted(..)) => return socket,
            ConnectStep::Answer(other) => panic!("{other:?}"),
        }
    }
}
