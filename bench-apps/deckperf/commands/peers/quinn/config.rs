//! Configuration of quinn: the same as of the UDP transport (`transports/udp/tls.rs`), for two processes of one host.
//!
//! The key of the server is a raw public key (RFC 7250), which the client accepts: both ends are this program's.

use std::{fs, io, sync::Arc};

use quinn_proto::{
    ClientConfig, Endpoint, EndpointConfig, MtuDiscoveryConfig, ServerConfig, TransportConfig, VarInt,
    congestion::CubicConfig,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use ring::{rand::SystemRandom, signature::Ed25519KeyPair};
use rustls::{
    DigitallySignedStruct, Error, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring as ring_provider, verify_tls13_signature_with_raw_key},
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime},
    server::AlwaysResolvesServerRawPublicKeys,
    sign::CertifiedKey,
};

/// Server name that TLS needs; nobody checks it.
pub const NAME: &str = "peer";
const ALPN: &[u8] = b"deckperf";
/// Longest datagram that is tried, as UDP payload in bytes; below it, the bytes that IPv6 and UDP add.
const LONGEST: usize = 65_000;
const IP_AND_UDP: usize = 40 + 8;
/// Most bytes that wait to be sent or acknowledged, and that may be unread.
const WINDOW: u32 = 16 << 20;
const LEAST_WINDOW: u32 = 64 << 10;

/// Makes an endpoint that accepts connections, over a socket that holds `capacity` bytes of datagrams.
///
/// # Errors
/// The system has no random numbers.
pub fn endpoint(capacity: usize) -> io::Result<Endpoint> {
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(LONGEST as u16).map_err(io::Error::other)?;
    let mut server = ServerConfig::with_crypto(Arc::new(server_crypto()?));
    server.migration(false).transport_config(Arc::new(transport(capacity)));
    Ok(Endpoint::new(Arc::new(config), Some(Arc::new(server)), true, None))
}

/// Configuration of the side that connects.
///
/// # Errors
/// TLS refuses the configuration.
pub fn client(capacity: usize) -> io::Result<ClientConfig> {
    let provider = Arc::new(provider());
    let mut crypto = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyKey(provider)))
        .with_no_client_auth();
    crypto.alpn_protocols = vec![ALPN.to_vec()];
    crypto.resumption = Resumption::disabled();
    let mut config =
        ClientConfig::new(Arc::new(QuicClientConfig::try_from(crypto).map_err(io::Error::other)?));
    config.transport_config(Arc::new(transport(capacity)));
    Ok(config)
}

fn transport(capacity: usize) -> TransportConfig {
    let mtu: Option<usize> =
        fs::read_to_string("/sys/class/net/lo/mtu").ok().and_then(|text| text.trim().parse().ok());
    let longest = mtu.unwrap_or(1500).saturating_sub(IP_AND_UDP).clamp(1200, LONGEST);
    let window = (capacity as u32).clamp(LEAST_WINDOW, WINDOW);
    let mut search = MtuDiscoveryConfig::default();
    search.upper_bound(longest as u16);
    let mut congestion = CubicConfig::default();
    congestion.initial_window((16 * longest as u64).min(window.into()));
    let mut config = TransportConfig::default();
    config
        .stream_receive_window(VarInt::from_u32(window))
        .receive_window(VarInt::from_u32(window))
        .send_window(u64::from(WINDOW))
        .initial_mtu(longest as u16)
        .congestion_controller_factory(Arc::new(congestion))
        .mtu_discovery_config(Some(search))
        // Between two batches nobody polls, so there is no idle timeout.
        .max_idle_timeout(None);
    config
}

/// Cryptography with AES-128 first: it is the only cipher that both transports use where the processor has instructions for it.
fn provider() -> CryptoProvider {
    use ring_provider::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256};
    #[cfg(target_arch = "x86_64")]
    let has_aes = std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    let has_aes = std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let has_aes = false;
    let mut cipher_suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256];
    if !has_aes {
        cipher_suites.reverse();
    }
    CryptoProvider { cipher_suites, ..ring_provider::default_provider() }
}

fn server_crypto() -> io::Result<QuicServerConfig> {
    let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
        .map_err(|_| io::Error::other("the system has no random numbers"))?;
    let key = PrivatePkcs8KeyDer::from(key.as_ref().to_vec());
    let key = ring_provider::sign::any_eddsa_type(&key).map_err(io::Error::other)?;
    let public = key.public_key().ok_or_else(|| io::Error::other("a key without a public half"))?;
    let certificate = CertificateDer::from(public.as_ref().to_vec());
    let key = Arc::new(CertifiedKey::new(vec![certificate], key));
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.send_tls13_tickets = 0;
    QuicServerConfig::try_from(config).map_err(io::Error::other)
}

/// Verifier that accepts every key whose owner signs the hand-shake.
#[derive(Debug)]
struct AnyKey(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyKey {
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
        let algorithms = &self.0.signature_verification_algorithms;
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
