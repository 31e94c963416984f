//! Settings `DECK_VERBS_…`: device, port and address, and retries. Settings that are not given are detected or have
//! a default.

use std::fmt::Display;
use std::str::FromStr;

use udeck_via::{Error, Result};

use crate::connection::RECEIVES;

/// How queue pairs are connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connect {
    /// iWARP through rdma_cm, which is its only way; InfiniBand and RoCE by the bootstrap.
    #[default]
    Auto,
    /// By parameters that both sides exchange beside the admission.
    Bootstrap,
    /// Through rdma_cm: `librdmacm.so.1`.
    Cm,
}

/// Settings from the environment, or from the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `DECK_VERBS_DEVICE`: name of the device, such as `mlx5_0`; otherwise the first device with an active port.
    pub device: Option<String>,
    /// `DECK_VERBS_PORT`: number of the port, from 1; otherwise the first active one.
    pub port: Option<u8>,
    /// `DECK_VERBS_GID`: index of the source address in the port's table; otherwise that of the address to which the
    /// NIC is bound, RoCE v2 before v1.
    pub gid: Option<u32>,
    /// `DECK_VERBS_PKEY`: index of the partition key in the port's table.
    pub pkey: u16,
    /// `DECK_VERBS_SL`: service level, 0 to 15.
    pub sl: u8,
    /// `DECK_VERBS_TCLASS`: traffic class (RoCE: DSCP in the upper six bits).
    pub traffic_class: u8,
    /// `DECK_VERBS_MTU`: upper bound of a packet's payload in bytes: 256, 512, 1024, 2048 or 4096; otherwise the port's.
    pub mtu: Option<u32>,
    /// `DECK_VERBS_TIMEOUT`: a packet without an answer is sent again after 4.096 µs x 2^this; 1 to 31.
    pub timeout: u8,
    /// `DECK_VERBS_RETRY`: number of retransmissions, 0 to 7.
    pub retry: u8,
    /// `DECK_VERBS_RNR_RETRY`: number of retransmissions when the receiver has no buffer posted; 0 to 6, or 7: for ever.
    pub rnr_retry: u8,
    /// `DECK_VERBS_RECEIVES`: upper bound of the receive buffers of 4 KiB that the NIC's connections share; 0: each
    /// has its own.
    pub receives: u32,
    /// `DECK_VERBS_INLINE`: upper bound of the bytes of a message that are copied into its work request.
    pub inline: u32,
    /// `DECK_VERBS_UC`: 1, unreliable VIs have unreliable queue pairs where the device makes such; 0, they have
    /// reliable ones, as other VIs have.
    pub uc: bool,
    /// `DECK_VERBS_CONNECT`: `auto`, `bootstrap` or `cm`; the same in all processes of a job.
    pub connect: Connect,
}

impl Default for Settings {
    /// Default settings. The timeout is 67 ms, seven times: half a second to a few seconds until a host that is cut
    /// off is noticed. A receiver without a buffer is waited for: it is slow, not dead; its socket tells whether it
    /// is dead.
    fn default() -> Self {
        Settings {
            device: None,
            port: None,
            gid: None,
            pkey: 0,
            sl: 0,
            traffic_class: 0,
            mtu: None,
            timeout: 14,
            retry: 7,
            rnr_retry: 7,
            receives: 1024,
            inline: 128,
            uc: true,
            connect: Connect::Auto,
        }
    }
}

impl Settings {
    /// Reads the settings from the environment.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] names the variable, its value and the valid values.
    pub fn from_env() -> Result<Self> {
        Self::from(|name| std::env::var(name).ok())
    }

    fn from(get: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let usual = Settings::default();
        let mtu = match number(&get, "DECK_VERBS_MTU", 256..=4096)? {
            Some(mtu) if !u32::is_power_of_two(mtu) => {
                return Err(refused("DECK_VERBS_MTU", &mtu.to_string(), "256, 512, 1024, 2048 or 4096"));
            }
            mtu => mtu,
        };
        let receives = match number(&get, "DECK_VERBS_RECEIVES", 0..=1 << 16)? {
            // Fewer buffers would not be enough for one connection.
            Some(few @ 1..RECEIVES) => {
                let expected = format!("0, or a number from {RECEIVES} to 65536");
                return Err(refused("DECK_VERBS_RECEIVES", &few.to_string(), &expected));
            }
            receives => receives.unwrap_or(usual.receives),
        };
        Ok(Settings {
            receives,
            device: get("DECK_VERBS_DEVICE").filter(|name| !name.is_empty()),
            port: number(&get, "DECK_VERBS_PORT", 1..=254)?,
            gid: number(&get, "DECK_VERBS_GID", 0..=255)?,
            pkey: number(&get, "DECK_VERBS_PKEY", 0..=u16::MAX)?.unwrap_or(usual.pkey),
            sl: number(&get, "DECK_VERBS_SL", 0..=15)?.unwrap_or(usual.sl),
            traffic_class: number(&get, "DECK_VERBS_TCLASS", 0..=u8::MAX)?.unwrap_or(usual.traffic_class),
            mtu,
            timeout: number(&get, "DECK_VERBS_TIMEOUT", 1..=31)?.unwrap_or(usual.timeout),
            retry: number(&get, "DECK_VERBS_RETRY", 0..=7)?.unwrap_or(usual.retry),
            rnr_retry: number(&get, "DECK_VERBS_RNR_RETRY", 0..=7)?.unwrap_or(usual.rnr_retry),
            inline: number(&get, "DECK_VERBS_INLINE", 0..=1024)?.unwrap_or(usual.inline),
            uc: number(&get, "DECK_VERBS_UC", 0..=1)?.map_or(usual.uc, |uc: u8| uc == 1),
            connect: connect(&get)?,
        })
    }
}

fn connect(get: &impl Fn(&str) -> Option<String>) -> Result<Connect> {
    const NAME: &str = "DECK_VERBS_CONNECT";
    let text = get(NAME).unwrap_or_default();
    match text.trim() {
        "" | "auto" => Ok(Connect::Auto),
        "bootstrap" => Ok(Connect::Bootstrap),
        "cm" => Ok(Connect::Cm),
        _ => Err(refused(NAME, &text, "auto, bootstrap or cm")),
    }
}

fn number<T: FromStr + PartialOrd + Display>(
    get: &impl Fn(&str) -> Option<String>,
    name: &'static str,
    range: std::ops::RangeInclusive<T>,
) -> Result<Option<T>> {
    let Some(text) = get(name).filter(|text| !text.is_empty()) else { return Ok(None) };
    match text.trim().parse() {
        Ok(number) if range.contains(&number) => Ok(Some(number)),
        _ => Err(refused(name, &text, &format!("a number from {} to {}", range.start(), range.end()))),
    }
}

#[cold]
fn refused(name: &str, text: &str, expected: &str) -> Error {
    Error::InvalidParameter(format!("{name}={text:?}: expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &'static str, value: &'static str) -> Result<Settings> {
        Settings::from(|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn what_is_not_set_is_as_usual() {
        assert_eq!(Settings::from(|_| None).unwrap(), Settings::default());
        assert_eq!(of("DECK_VERBS_PORT", "").unwrap(), Settings::default());
    }

    #[test]
    fn what_is_set_counts() {
        assert_eq!(of("DECK_VERBS_DEVICE", "mlx5_1").unwrap().device.as_deref(), Some("mlx5_1"));
        assert_eq!(of("DECK_VERBS_PORT", "2").unwrap().port, Some(2));
        assert_eq!(of("DECK_VERBS_GID", "0").unwrap().gid, Some(0));
        assert_eq!(of("DECK_VERBS_MTU", "1024").unwrap().mtu, Some(1024));
        assert!(!of("DECK_VERBS_UC", "0").unwrap().uc);
        assert_eq!(of("DECK_VERBS_TIMEOUT", " 18 ").unwrap().timeout, 18);
        assert_eq!(of("DECK_VERBS_CONNECT", "cm").unwrap().connect, Connect::Cm);
    }

    #[test]
    fn nonsense_names_the_variable_and_what_it_may_be() {
        for (name, value, expected) in [
            ("DECK_VERBS_PORT", "0", "from 1 to 254"),
            ("DECK_VERBS_SL", "16", "from 0 to 15"),
            ("DECK_VERBS_MTU", "1500", "1024, 2048"),
            ("DECK_VERBS_RETRY", "many", "from 0 to 7"),
            ("DECK_VERBS_CONNECT", "rdmacm", "auto, bootstrap or cm"),
        ] {
            let error = of(name, value).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(value) && error.contains(expected), "{error}");
        }
    }
}
