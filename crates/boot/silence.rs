//! Detection of a silent host on a TCP connection.

use std::{io, net::TcpStream, time::Duration};

use rustix::net::sockopt;

/// Interval between keepalive probes on an idle connection.
const PROBE: Duration = Duration::from_secs(1);

/// Makes the kernel end a connection whose other side gives no sign of life for this time (at least a second).
///
/// # Errors
/// The kernel's.
pub fn detect_silence(stream: &TcpStream, detect: Duration) -> io::Result<()> {
    let probes = detect.as_secs().clamp(1, 127) as u32;
    sockopt::set_tcp_keepidle(stream, PROBE)?;
    sockopt::set_tcp_keepintvl(stream, PROBE)?;
    sockopt::set_tcp_keepcnt(stream, probes)?;
    // The user timeout applies if data are unacknowledged; the kernel then also uses it instead of the number
    // of probes. The kernel checks it when it sends a probe, which may be one interval late.
    let unanswered = detect.saturating_sub(PROBE).max(detect / 2);
    sockopt::set_tcp_user_timeout(stream, u32::try_from(unanswered.as_millis()).unwrap_or(u32::MAX))?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}
