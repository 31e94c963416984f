//! TLS 1.3 with raw public keys (RFC 7250), and the configuration of QUIC.
//!
//! The server has a key pair that is made when its NIC is opened. The client accepts any key whose owner signs the
//! handshake. So TLS alone keeps out only eavesdroppers. Identity is proven above TLS: both sides prove that they
//! are of the job, by a message authentication code over this session's exporter ([`exporter`]). A man in the middle
//! has two sessions, with two exporters, and can forward no proof from one to the other.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn_proto::congestion::CubicConfig;
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    AckFrequencyConfig, ClientConfig, Connection, EndpointConfig, MtuDiscoveryConfig,
    RandomConnectionIdGenerator, ServerConfig, TransportConfig, VarInt,
};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring as ring_provider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, Error, SignatureScheme};

use crate::options::Options;
use crate::path_mtu::LEAST_DATAGRAM;
use crate::send_meter::MeteredFactory;

/// ALPN protocol. Its version is in the [`crate::wire::AuthMessage`], so that an error can name both sides' versions.
const ALPN: &[u8] = b"udeck";
/// Server name of the TLS handshake. Raw public keys carry none.
pub const NAME: &str = "udeck";

/// Bytes of a connection id.
pub const CONNECTION_ID: usize = 8;
/// Upper bound of the streams that a peer may have open: its VIs and its requests.
const MAX_STREAMS: u32 = 4096;
/// Upper bound of the flow control window of a peer's connection, in bytes; below, that of an unauthenticated peer.
const WINDOW: u32 = 16 << 20;
const UNAUTHENTICATED_WINDOW: u32 = 64 << 10;
/// Bytes of QUIC's buffer for received datagrams, and of its buffer for unsent ones.
const DATAGRAMS: usize = 1 << 20;
/// Longest datagram to a peer on this host, as UDP payload in bytes.
const HOST_DATAGRAM: usize = 65_000;
/// Upper bound of a datagram in QUIC (RFC 9000, section 18.2).
const MOST_DATAGRAM: usize = 65_527;
/// Bytes of an IPv6 header and of a UDP header.
const IP_AND_UDP: usize = 40 + 8;
/// Free space of the send buffer above which no datagram waits in it.
pub const DATAGRAMS_FREE: usize = DATAGRAMS - 64;
/// Bytes that are sent before the path is known. The search for the path's MTU sends packets of 9,000 bytes: with
/// the usual ten short ones, the first message would wait for their acknowledgement.
const INITIAL_WINDOW: u64 = 64 << 10;
/// Number of packets that a peer on another host may receive before it has to acknowledge them
/// (draft-ietf-quic-ack-frequency). With QUIC's usual 1 it sends a packet for every two of ours, which may be as
/// short as 1,200 bytes.
const UNACKNOWLEDGED: u32 = 9;
/// Assumed round trip time before one was measured.
const INITIAL_RTT: Duration = Duration::from_millis(50);

/// Configuration of a NIC's endpoint.
pub struct TlsSetup {
    pub endpoint: EndpointConfig,
    /// Server's configuration. Server and client grant an unauthenticated peer only what it needs to authenticate itself.
    pub server: ByPath<Arc<ServerConfig>>,
    pub client: ByPath<ClientConfig>,
    /// Limits of an authenticated peer.
    pub proven_limits: TransportLimits,
}

/// Limits of a peer.
#[derive(Clone, Copy, Debug)]
pub struct TransportLimits {
    /// Upper bound of the streams that it may have open.
    pub streams: VarInt,
    /// Flow control window in bytes: unread bytes of all its streams.
    pub window: VarInt,
}

/// Makes the configuration. `reset_key` is the key of stateless resets. `window` is the number of received bytes
/// that the kernel holds. A peer may not send more at a time: the rest would be lost, and sent again.
///
/// # Errors
/// The system has no random numbers.
pub fn setup(options: &Options, reset_key: &[u8; 32], window: usize) -> io::Result<TlsSetup> {
    let Options { detect, max_datagram, .. } = *options;
    let metered = options.levels.is_some();
    let provider = Arc::new(provider());
    let window = VarInt::from_u32((window as u32).clamp(UNAUTHENTICATED_WINDOW, WINDOW));
    let proven_limits = TransportLimits { streams: VarInt::from_u32(MAX_STREAMS), window };
    // The client opens the control stream.
    let [server_limits, client_limits] = [1, 0].map(|streams| TransportLimits {
        streams: VarInt::from_u32(streams),
        window: VarInt::from_u32(UNAUTHENTICATED_WINDOW),
    });
    let network = PathMtu {
        initial: LEAST_DATAGRAM,
        longest: max_datagram,
        initial_window: INITIAL_WINDOW,
        unacknowledged: Some(UNACKNOWLEDGED),
    };
    let host = PathMtu::of_loopback().unwrap_or(network);
    let longest = network.longest.max(host.longest);
    let mut server = ServerConfig::with_crypto(Arc::new(server_crypto(&provider)?));
    server.migration(false);
    let server = ByPath::new([network, host], |mtu| {
        let mut config = server.clone();
        config.transport_config(Arc::new(transport((detect, metered), mtu, server_limits, window)));
        Arc::new(config)
    });
    let client = ClientConfig::new(Arc::new(client_crypto(provider).map_err(io::Error::other)?));
    let client = ByPath::new([network, host], |mtu| {
        let mut config = client.clone();
        config.transport_config(Arc::new(transport((detect, metered), mtu, client_limits, window)));
        config
    });
    Ok(TlsSetup { endpoint: endpoint(longest, reset_key)?, server, client, proven_limits })
}

/// Returns the cryptography, with AES-128 first where the processor has instructions for AES, and ChaCha20 first
/// elsewhere.
fn provider() -> CryptoProvider {
    use ring_provider::cipher_suite::{
        TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
    };
    let mut cipher_suites =
        vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
    if !has_aes() {
        cipher_suites.rotate_right(1);
    }
    CryptoProvider { cipher_suites, ..ring_provider::default_provider() }
}

/// Whether the processor has instructions for AES. ring uses them.
pub fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

/// Lengths of datagrams on a path, in bytes.
#[derive(Clone, Copy, Debug)]
struct PathMtu {
    /// Length with which QUIC begins.
    initial: usize,
    /// Longest length that QUIC searches for.
    longest: usize,
    /// Bytes that are sent before the path is known: several datagrams.
    initial_window: u64,
    /// Number of packets that the peer may receive before it has to acknowledge them; `None`: the usual number.
    unacknowledged: Option<u32>,
}

impl PathMtu {
    /// Returns the lengths on the loopback device. They are known and need not be searched for. If the MTU shrinks,
    /// QUIC notices (black hole detection). Datagrams are so long that few acknowledgements are sent; fewer of them
    /// make a short message's round trip 5 % longer.
    fn of_loopback() -> Option<Self> {
        let mtu: usize = std::fs::read_to_string("/sys/class/net/lo/mtu").ok()?.trim().parse().ok()?;
        let longest = mtu.saturating_sub(IP_AND_UDP).clamp(LEAST_DATAGRAM, HOST_DATAGRAM);
        Some(PathMtu { initial: longest, longest, initial_window: 16 * longest as u64, unacknowledged: None })
    }
}

/// Configurations for peers on other hosts and on this one, which differ in the longest datagram.
#[derive(Clone)]
pub struct ByPath<T> {
    network: T,
    host: T,
}

impl<T> ByPath<T> {
    fn new([network, host]: [PathMtu; 2], make: impl Fn(PathMtu) -> T) -> Self {
        ByPath { network: make(network), host: make(host) }
    }

    /// Returns the configuration for a connection between these addresses. Packets to an address of this host take
    /// the loopback device.
    pub fn get(&self, local: SocketAddr, remote: SocketAddr) -> &T {
        if remote.ip().is_loopback() || remote.ip() == local.ip() { &self.host } else { &self.network }
    }
}

/// Makes the endpoint's configuration. A process that has the address of a dead one, and the same reset key, answers
/// packets for the dead process's connections by a stateless reset (RFC 9000, section 10.3), so that their other
/// ends notice. All processes of the job have the key. A token follows from the key and a connection id, so nobody
/// may guess connection ids: they are all random. (quinn's usual ones have 24 random bits.)
fn endpoint(max_datagram: usize, reset_key: &[u8; 32]) -> io::Result<EndpointConfig> {
    let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, reset_key)));
    config.cid_generator(|| Box::new(RandomConnectionIdGenerator::new(CONNECTION_ID)));
    let longest = max_datagram.clamp(LEAST_DATAGRAM, MOST_DATAGRAM) as u16;
    config.max_udp_payload_size(longest).map_err(io::Error::other)?;
    Ok(config)
}

/// Makes the transport configuration. `metered` says whether a [`crate::send_meter::SendMeter`] counts the sent bytes.
fn transport(
    (detect, metered): (Duration, bool),
    mtu: PathMtu,
    limits: TransportLimits,
    stream_window: VarInt,
) -> TransportConfig {
    let mut search = MtuDiscoveryConfig::default();
    search.upper_bound(mtu.longest.clamp(LEAST_DATAGRAM, MOST_DATAGRAM) as u16);
    let mut congestion = CubicConfig::default();
    let kernel = stream_window.into_inner();
    congestion.initial_window(mtu.initial_window.min(kernel).max(INITIAL_WINDOW));
    let acks = mtu.unacknowledged.map(|packets| {
        let mut acks = AckFrequencyConfig::default();
        acks.ack_eliciting_threshold(VarInt::from_u32(packets));
        acks
    });
    let mut config = TransportConfig::default();
    config
        .ack_frequency_config(acks)
        .max_concurrent_bidi_streams(limits.streams)
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(stream_window)
        .receive_window(limits.window)
        .send_window(u64::from(WINDOW))
        .datagram_receive_buffer_size(Some(DATAGRAMS))
        .datagram_send_buffer_size(DATAGRAMS)
        .initial_rtt(INITIAL_RTT)
        .initial_mtu(mtu.initial.clamp(LEAST_DATAGRAM, MOST_DATAGRAM) as u16)
        .mtu_discovery_config(Some(search))
        // `Peer::check` judges silence: a stopped process is silent and not lost.
        .max_idle_timeout(None)
        .keep_alive_interval(Some(detect / 4));
    match metered {
        false => config.congestion_controller_factory(Arc::new(congestion)),
        true => config.congestion_controller_factory(Arc::new(MeteredFactory(Arc::new(congestion)))),
    };
    config
}

fn server_crypto(provider: &Arc<CryptoProvider>) -> io::Result<QuicServerConfig> {
    QuicServerConfig::try_from(server_config(provider)?).map_err(io::Error::other)
}

fn server_config(provider: &Arc<CryptoProvider>) -> io::Result<rustls::ServerConfig> {
    let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
        .map_err(|_| io::Error::other("the system has no random numbers"))?;
    let key = PrivatePkcs8KeyDer::from(key.as_ref().to_vec());
    let key = ring_provider::sign::any_eddsa_type(&key).map_err(io::Error::other)?;
    let public = key.public_key().ok_or_else(|| io::Error::other("a key without a public half"))?;
    let certificate = CertificateDer::from(public.as_ref().to_vec());
    let key = Arc::new(CertifiedKey::new(vec![certificate], key));
    let mut config = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn client_crypto(
    provider: Arc<CryptoProvider>,
) -> Result<QuicClientConfig, Box<dyn std::error::Error + Send + Sync>> {
    Ok(QuicClientConfig::try_from(client_config(provider)?)?)
}

fn client_config(provider: Arc<CryptoProvider>) -> Result<rustls::ClientConfig, Error> {
    let mut config = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyKey(provider)))
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Accepts every key whose owner signs the handshake.
#[derive(Debug)]
struct AcceptAnyKey(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyKey {
    fn verify_server_cert(
        &self,
        _key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("QUIC has no TLS 1.2".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(
            message,
            &key,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// Keying material that only the two ends of this TLS session know (RFC 5705, RFC 8446 section 7.5).
pub fn exporter(connection: &Connection) -> [u8; 32] {
    let mut number = [0; 32];
    let exported = connection.crypto_session().export_keying_material(&mut number, b"EXPORTER-udeck", b"");
    exported.expect("32 bytes are not too many, and the hand-shake is over");
    number
}

#[cfg(test)]
mod tests {
    use rustls::CipherSuite;
    use rustls::quic::{ClientConnection, ServerConnection, Version};

    use super::*;

    /// Both sides' lists decide: a cipher that both prefer is chosen.
    #[test]
    fn two_nics_agree_on_the_cipher_that_the_processor_has_instructions_for() {
        let provider = Arc::new(provider());
        let client = Arc::new(client_config(provider.clone()).unwrap());
        let server = Arc::new(server_config(&provider).unwrap());
        let name = ServerName::try_from(NAME).unwrap();
        let mut client = ClientConnection::new(client, Version::V1, name, Vec::new()).unwrap();
        let mut server = ServerConnection::new(server, Version::V1, Vec::new()).unwrap();
        // Bytes that were written before new keys are read before them, too.
        while client.is_handshaking() || server.is_handshaking() {
            let mut flight = Vec::new();
            let keys = client.write_hs(&mut flight).is_some();
            server.read_hs(&flight).unwrap();
            let mut answer = Vec::new();
            let other_keys = server.write_hs(&mut answer).is_some();
            client.read_hs(&answer).unwrap();
            let is_moving = keys || other_keys || !flight.is_empty() || !answer.is_empty();
            assert!(is_moving, "the handshake has stopped");
        }
        let expected = match has_aes() {
            true => CipherSuite::TLS13_AES_128_GCM_SHA256,
            false => CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
        };
        let agreed = [client.negotiated_cipher_suite(), server.negotiated_cipher_suite()];
        assert_eq!(agreed.map(|suite| suite.unwrap().suite()), [expected; 2]);
    }
}
