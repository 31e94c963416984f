//! TCP without a library: the limit of messages over TCP between the two cores. Two threads spin on the two ends of one
//! connection over the loopback device.

use std::{
    hint,
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    time::Duration,
};

use super::bare::BareEnd;

impl BareEnd for TcpStream {
    const WARM_UP_LIMIT: Duration = Duration::MAX;

    fn send(&mut self, data: &[u8]) -> io::Result<()> {
        send(self, data)
    }

    fn receive(&mut self, data: &mut [u8]) -> io::Result<bool> {
        receive(self, data)
    }
}

/// Both ends of a new connection over the loopback device, which never block.
///
/// # Errors
/// Errors of the system.
pub fn connection() -> io::Result<[TcpStream; 2]> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    for end in [&near, &far] {
        end.set_nodelay(true)?;
        end.set_nonblocking(true)?;
    }
    Ok([near, far])
}

/// Sends all data; spins while the socket is full.
pub fn send(stream: &mut TcpStream, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        match stream.write(data) {
            Ok(written) => data = &data[written..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Spins until all data have arrived. Returns `false` if the connection has ended.
pub fn receive(stream: &mut TcpStream, mut data: &mut [u8]) -> io::Result<bool> {
    while !data.is_empty() {
        match stream.read(data) {
            Ok(0) => return Ok(false),
            Ok(read) => data = &mut data[read..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        commands::peers::{
            bare::micros,
            request::{Column, PeerTest},
        },
        experiment::plan::Payload,
    };

    #[test]
    fn sockets_take_time() {
        let cpus = udeck::sys::usable_cpus();
        let cores = [cpus[0], *cpus.last().expect("this runs somewhere")];
        for test in [PeerTest::Latency, PeerTest::Stream] {
            for bytes in [8, 100_000] {
                let column = Column { test, ranks: 2, payload: Payload::Untouched, bytes };
                let ends = connection().expect("a connection");
                assert!(micros(&column, ends, cores).expect("sockets") > 0.0);
            }
        }
    }
}
