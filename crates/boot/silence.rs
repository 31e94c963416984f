//! When a TCP connection counts as over because the other host is silent.

use std::{io, net::TcpStream, time::Duration};

use rustix::net::sockopt;

/// How often an idle connection is asked for a sign of life.
const PROBE: Duration = Duration::from_secs(1);

/// Has the kernel end a connection whose other side gives no sign of life for so long (a second at least).
///
/// # Errors
/// The kernel's.
pub fn detect_silence(stream: &TcpStream, detect: Duration) -> io::Result<()> {
    let probes = detect.as_secs().clamp(1, 127) as u32;
    sockopt::set_tcp_keepidle(stream, PROBE)?;
    sockopt::set_tcp_keepintvl(stream, PROBE)?;
    sockopt::set_tcp_keepcnt(stream, probes)?;
    // This one counts where there is something unanswered; and with it, instead of the number of probes. The kernel looks
    // at it when it sends a probe, which may be one interval late.
    let unanswered = detect.saturating_sub(PROBE).max(detect / 2);
    sockopt::set_tcp_user_timeout(stream, u32::try_from(unanswered.as_millis()).unwrap_or(u32::MAX))?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}
