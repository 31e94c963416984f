//! TLS 1.3 with raw public keys (RFC 7250), and what QUIC is configured with.
//!
//! The side that accepts has a key pair that is made when its NIC is opened and that nobody else knows; the other side takes any
//! key whose owner signs the hand-shake. So TLS alone keeps out who only listens. Who is at the other end is proven above it:
//! both sides prove that they are of the job, by a message authentication code over this session's exporter ([`exporter`]). A
//! man in the middle has two sessions, with two exporters, and can forward no proof from one to the other.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use quinn_proto::congestion::CubicConfig;
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    ClientConfig, Connection, EndpointConfig, MtuDiscoveryConfig, RandomConnectionIdGenerator, ServerConfig,
    TransportConfig, VarInt,
};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring as provider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, Error, SignatureScheme};

use crate::options::Options;

/// What both sides call what they speak. Its version is said in the first control message, so that both can be named.
const ALPN: &[u8] = b"udeck";
/// The name that is asked for; keys carry none.
pub const NAME: &str = "udeck";

/// Bytes of a connection id.
pub const CONNECTION_ID: usize = 8;
/// Streams that a peer may have open: its VIs here, and requests.
const STREAMS: u32 = 4096;
/// Bytes of a peer's streams that nobody has read, at most; and of one that has not proved who it is.
const WINDOW: u32 = 16 << 20;
const LEAST_WINDOW: u32 = 64 << 10;
/// Bytes of datagrams of a peer that nobody has taken, or that wait to be sent.
const DATAGRAMS: usize = 1 << 20;
/// What is free of that when none waits to be sent, and more than when one does.
pub const DATAGRAMS_FREE: usize = DATAGRAMS - 64;
/// Bytes that are sent before anything is known of the path. The search for the path's MTU sends packets of 9,000 bytes: with
/// the usual ten short ones, the first message would wait for their acknowledgement.
const FIRST_WINDOW: u64 = 64 << 10;
/// How a round trip is guessed before one was measured.
const FIRST_RTT: Duration = Duration::from_millis(50);

/// How a NIC's endpoint is set up.
pub struct Setup {
    pub endpoint: EndpointConfig,
    /// Both grant the other side what it needs to prove who it is.
    pub server: ServerConfig,
    pub client: ClientConfig,
    /// What it is granted when it has.
    pub grant: Grant,
}

/// What a peer may have here.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// Streams that it has open.
    pub streams: VarInt,
    /// Bytes of all its streams that nobody has read.
    pub window: VarInt,
}

/// `reset_key`: of stateless resets. `window`: bytes that the kernel holds of what has come. More than that is not asked of a
/// peer at a time: it would be lost, and sent again.
///
/// # Errors
/// The system has no random numbers.
pub fn setup(options: &Options, reset_key: &[u8; 32], window: usize) -> io::Result<Setup> {
    let Options { detect, max_datagram, .. } = *options;
    let provider = Arc::new(provider::default_provider());
    let window = VarInt::from_u32((window as u32).clamp(LEAST_WINDOW, WINDOW));
    let grant = Grant { streams: VarInt::from_u32(STREAMS), window };
    // The caller opens the control stream.
    let [caller, callee] = [1, 0]
        .map(|streams| Grant { streams: VarInt::from_u32(streams), window: VarInt::from_u32(LEAST_WINDOW) });
    let mut server = ServerConfig::with_crypto(Arc::new(accepting(&provider)?));
    server.transport_config(Arc::new(transport(detect, max_datagram, caller, window))).migration(false);
    let mut client = ClientConfig::new(Arc::new(calling(provider).map_err(io::Error::other)?));
    client.transport_config(Arc::new(transport(detect, max_datagram, callee, window)));
    Ok(Setup { endpoint: endpoint(max_datagram, reset_key)?, server, client, grant })
}

/// A process that has the address of one that has died, and the same reset key, answers packets for that one's connections
/// by a stateless reset (RFC 9000, section 10.3), so that their other ends notice. All of the job have the key. A token follows
/// from the key and a connection id, so nobody may guess those: they are all random. (quinn's usual ones have 24 random bits.)
fn endpoint(max_datagram: usize, reset_key: &[u8; 32]) -> io::Result<EndpointConfig> {
    let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, reset_key)));
    config.cid_generator(|| Box::new(RandomConnectionIdGenerator::new(CONNECTION_ID)));
    let longest = max_datagram.clamp(1200, 65527) as u16;
    config.max_udp_payload_size(longest).map_err(io::Error::other)?;
    Ok(config)
}

fn transport(detect: Duration, max_datagram: usize, grant: Grant, stream_window: VarInt) -> TransportConfig {
    let mut search = MtuDiscoveryConfig::default();
    search.upper_bound(max_datagram.clamp(1200, 65527) as u16);
    let mut congestion = CubicConfig::default();
    congestion.initial_window(FIRST_WINDOW);
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(grant.streams)
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(stream_window)
        .receive_window(grant.window)
        .send_window(u64::from(WINDOW))
        .datagram_receive_buffer_size(Some(DATAGRAMS))
        .datagram_send_buffer_size(DATAGRAMS)
        .initial_rtt(FIRST_RTT)
        .congestion_controller_factory(Arc::new(congestion))
        .mtu_discovery_config(Some(search))
        // Whether a silent peer is dead is ours to say: a process that is stopped is not.
        .max_idle_timeout(None)
        .keep_alive_interval(Some(detect / 4));
    config
}

fn accepting(provider: &Arc<CryptoProvider>) -> io::Result<QuicServerConfig> {
    let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
        .map_err(|_| io::Error::other("the system has no random numbers"))?;
    let key = PrivatePkcs8KeyDer::from(key.as_ref().to_vec());
    let key = provider::sign::any_eddsa_type(&key).map_err(io::Error::other)?;
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
    QuicServerConfig::try_from(config).map_err(io::Error::other)
}

fn calling(
    provider: Arc<CryptoProvider>,
) -> Result<QuicClientConfig, Box<dyn std::error::Error + Send + Sync>> {
    let mut config = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyKey(provider)))
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(QuicClientConfig::try_from(config)?)
}

/// Takes every key whose owner signs the hand-shake.
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

/// A number that only the two ends of this TLS session know (RFC 5705, RFC 8446 section 7.5).
pub fn exporter(connection: &Connection) -> [u8; 32] {
    let mut number = [0; 32];
    let exported = connection.crypto_session().export_keying_material(&mut number, b"EXPORTER-udeck", b"");
    exported.expect("32 bytes are not too many, and the hand-shake is over");
    number
}
