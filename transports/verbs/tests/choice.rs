//! Choice of the device, or the reason why there is none.

use udeck_via::Error;

use super::{alone, options};
use crate::Settings;

fn refused(settings: Settings) -> String {
    let _alone = alone();
    match crate::open(options(settings)) {
        Err(Error::InvalidParameter(what)) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_does_not_exist_is_answered_by_what_does() {
    let device = refused(Settings { device: Some("mlx5_9".into()), ..Settings::default() });
    assert!(device.contains("mlx5_9") && device.contains("standin0"), "{device}");
    let port = refused(Settings { port: Some(7), ..Settings::default() });
    assert!(port.contains("DECK_VERBS_PORT=7") && port.contains("1 (active)"), "{port}");
    let gid = refused(Settings { gid: Some(9), ..Settings::default() });
    assert!(gid.contains("DECK_VERBS_GID=9") && gid.contains("127.0.0.1, RoCE v2"), "{gid}");
    let pkey = refused(Settings { pkey: 99, ..Settings::default() });
    assert!(pkey.contains("DECK_VERBS_PKEY=99"), "{pkey}");
}

#[test]
fn what_exists_is_used() {
    let _alone = alone();
    let settings =
        Settings { device: Some("standin0".into()), port: Some(1), gid: Some(3), ..Settings::default() };
    let nic = crate::open(options(settings)).unwrap();
    assert_eq!(nic.attributes().name, "verbs0");
}
