//! ICMP messages for datagrams that this NIC has sent. The kernel keeps them in the socket's error queue (`IP_RECVERR`).
//!
//! Anybody may send one, and the kernel compares only addresses and ports. One kind is believed: *port unreachable*,
//! from the peer's own host, if it quotes a connection id that an attacker off the path cannot know. QUIC finds the
//! path MTU by itself. All other errors (host or network unreachable, a packet filter's) may be temporary: then only
//! silence shows that a peer is gone.

#![allow(unsafe_code, reason = "system calls that rustix lacks")]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Upper bound of a quoted datagram in bytes: hosts quote no more over IPv4.
pub const QUOTE: usize = 576;
/// Bytes of the buffer for control messages: one of these, with room to spare.
const CONTROL: usize = 256;

/// A port unreachable message. It is believed if it quotes a packet that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortUnreachable {
    /// Destination of the datagram.
    pub to: SocketAddr,
    /// Beginning of the datagram, as far as the message quotes it.
    pub quote: Vec<u8>,
}

/// Takes a message out of the socket's error queue. Returns `None` if there was none, `Some(None)` for a message
/// that is ignored.
pub fn next(socket: BorrowedFd<'_>) -> Option<Option<PortUnreachable>> {
    let mut raw = Raw::default();
    raw.receive(socket).ok()?;
    Some(raw.port_unreachable())
}

/// A message of the error queue, as the kernel gives it.
struct Raw {
    name: [u8; 128],
    name_len: usize,
    control: [u8; CONTROL],
    control_len: usize,
    quote: [u8; QUOTE],
    quote_len: usize,
}

impl Default for Raw {
    fn default() -> Self {
        let (name, control, quote) = ([0; 128], [0; CONTROL], [0; QUOTE]);
        Raw { name, name_len: 0, control, control_len: 0, quote, quote_len: 0 }
    }
}

impl Raw {
    fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let mut piece = libc::iovec { iov_base: self.quote.as_mut_ptr().cast(), iov_len: self.quote.len() };
        // SAFETY: a header of zeros is an empty one.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_name = self.name.as_mut_ptr().cast();
        header.msg_namelen = self.name.len() as _;
        header.msg_iov = &raw mut piece;
        header.msg_iovlen = 1;
        header.msg_control = self.control.as_mut_ptr().cast();
        header.msg_controllen = self.control.len() as _;
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: all buffers that the header points at are ours, and as long as it says.
        let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
        self.quote_len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?.min(QUOTE);
        self.name_len = (header.msg_namelen as usize).min(self.name.len());
        self.control_len = (header.msg_controllen as usize).min(CONTROL);
        Ok(())
    }

    fn port_unreachable(&self) -> Option<PortUnreachable> {
        let to = address(&self.name[..self.name_len])?;
        let (error, offender) = extended_error(&self.control[..self.control_len])?;
        let from = address(offender).map(|from| from.ip());
        // Only the peer's own host knows whether its port is open.
        let is_believed = error.is_closed_port() && from == Some(to.ip());
        is_believed.then(|| PortUnreachable { to, quote: self.quote[..self.quote_len].to_vec() })
    }
}

/// Fields of `struct sock_extended_err` that are needed.
struct ExtendedError {
    origin: u8,
    kind: u8,
    code: u8,
}

impl ExtendedError {
    fn is_closed_port(&self) -> bool {
        let proof_context = (self.origin, self.kind, self.code);
        proof_context == (libc::SO_EE_ORIGIN_ICMP, 3, 3) || proof_context == (libc::SO_EE_ORIGIN_ICMP6, 1, 4)
    }
}

/// Finds the control message of an error. Returns it, and the bytes behind it: the address of the host that sent the
/// ICMP message.
fn extended_error(mut control: &[u8]) -> Option<(ExtendedError, &[u8])> {
    const LEN: usize = size_of::<usize>();
    let align = |len: usize| len.next_multiple_of(LEN);
    let front = align(size_of::<libc::cmsghdr>());
    loop {
        let len = usize::from_ne_bytes(*control.first_chunk()?);
        let level = i32::from_ne_bytes(*control.get(LEN..)?.first_chunk()?);
        let kind = i32::from_ne_bytes(*control.get(LEN + 4..)?.first_chunk()?);
        // This also ends at a control message that is shorter than its own header.
        let data = control.get(front..len)?;
        let matches = matches!(
            (level, kind),
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
        );
        if matches {
            let (error, offender) = data.split_first_chunk::<16>()?;
            let error = ExtendedError { origin: error[4], kind: error[5], code: error[6] };
            return Some((error, offender));
        }
        control = control.get(align(len)..)?;
    }
}

/// Decodes a socket address of the kernel.
fn address(name: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(*name.first_chunk()?);
    let port = u16::from_be_bytes(*name.get(2..)?.first_chunk()?);
    let ip = match i32::from(family) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(*name.get(4..)?.first_chunk::<4>()?)),
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(*name.get(8..)?.first_chunk::<16>()?)),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(ip: [u8; 4], port: u16) -> Vec<u8> {
        let mut name = (libc::AF_INET as u16).to_ne_bytes().to_vec();
        name.extend(port.to_be_bytes());
        name.extend(ip);
        name.resize(16, 0);
        name
    }

    fn told(kind: u8, code: u8, info: u32, by: [u8; 4]) -> Option<PortUnreachable> {
        let mut data = 111u32.to_ne_bytes().to_vec();
        data.extend([libc::SO_EE_ORIGIN_ICMP, kind, code, 0]);
        data.extend(info.to_ne_bytes());
        data.extend([0; 4]);
        data.extend(name(by, 0));
        let front = size_of::<libc::cmsghdr>();
        let mut control = (front + data.len()).to_ne_bytes().to_vec();
        control.extend(libc::IPPROTO_IP.to_ne_bytes());
        control.extend(libc::IP_RECVERR.to_ne_bytes());
        control.extend(data);
        let mut raw = Raw::default();
        let to = name([10, 0, 0, 2], 4000);
        raw.name[..to.len()].copy_from_slice(&to);
        raw.control[..control.len()].copy_from_slice(&control);
        (raw.name_len, raw.control_len, raw.quote_len) = (to.len(), control.len(), 20);
        raw.port_unreachable()
    }

    #[test]
    fn one_thing_is_believed() {
        let host = [10, 0, 0, 2];
        let nobody = told(3, 3, 0, host).expect("a report");
        assert_eq!((nobody.to, nobody.quote.len()), ("10.0.0.2:4000".parse().unwrap(), 20));
        assert_eq!(told(3, 3, 0, [10, 0, 0, 9]), None, "another's word on that port");
        for (kind, code) in [(3, 0), (3, 1), (3, 4), (3, 13), (11, 0), (12, 0), (4, 0)] {
            assert_eq!(told(kind, code, 1400, host), None);
        }
    }

    #[test]
    fn what_is_cut_off_is_no_report() {
        let whole = (24usize.to_ne_bytes().to_vec(), vec![0u8; 40]);
        let bytes = [whole.0, whole.1].concat();
        for len in 0..bytes.len() {
            assert!(extended_error(&bytes[..len]).is_none());
            assert!(address(&bytes[..len]).is_none());
        }
        assert!(extended_error(&[0; 64]).is_none(), "a message without a length is no message");
        assert!(extended_error(&[0xff; 64]).is_none());
    }
}
