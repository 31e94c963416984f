//! Service points.

use std::fmt;

use super::error::{Error, Result};
use super::evd::Evd;
use super::ia::{Ia, ServiceAddress};
use super::id::{self, ServiceId};
use crate::core::code::{Code, Sub};
use crate::core::service::ServicePoint;

/// A public service point: who asks for a connection there comes to its dispatcher as a [`ConnectionRequest`](super::ConnectionRequest)
/// (`DAT_PSP`). Dropped, it listens no more.
pub struct Psp {
    id: ServiceId,
    point: ServicePoint,
    evd: Evd,
}

/// Qualifiers that [`Psp::any`] takes.
const FREE: std::ops::RangeInclusive<u64> = 49152..=65535;

impl Psp {
    /// Listens at that qualifier of this host (`dat_psp_create`).
    ///
    /// # Errors
    /// [`Error::QualifierInUse`]; [`Error::Unavailable`]: the directory cannot be reached.
    pub fn new(qualifier: u64, evd: &Evd) -> Result<Psp> {
        const CALL: &str = "dat_psp_create";
        let number = id::next();
        let mut point = ServicePoint::new(evd.ia().core().clone(), qualifier, evd.core(), None);
        match point.listen(number as usize, 0) {
            Ok(()) => Ok(Psp { id: ServiceId(number), point, evd: evd.clone() }),
            Err(Code::CONN_QUAL_IN_USE) => Err(Error::QualifierInUse { call: CALL, qualifier }),
            Err(code) if code == Code::INSUFFICIENT_RESOURCES.of(Sub::ResourceDevice) => {
                Err(Error::unavailable(CALL, "the NIC or the directory refuses it; stderr says why"))
            }
            Err(code) => Err(Error::parameter(CALL, format!("refused with {:#010x}", code.0))),
        }
    }

    /// Listens at a qualifier that nobody has, of 49152 to 65535 (`dat_psp_create_any`).
    ///
    /// # Errors
    /// [`Error::QualifierInUse`]: all are in use; [`Error::Unavailable`].
    pub fn any(evd: &Evd) -> Result<Psp> {
        let (first, last) = (*FREE.start(), *FREE.end());
        let count = last - first + 1;
        let start = u64::from(std::process::id()) % count;
        for nth in 0..count {
            match Psp::new(first + (start + nth) % count, evd) {
                Err(Error::QualifierInUse { .. }) => {}
                other => return other,
            }
        }
        Err(Error::QualifierInUse { call: "dat_psp_create_any", qualifier: last })
    }

    /// Which one it is: requests name it.
    pub fn id(&self) -> ServiceId {
        self.id
    }

    /// The qualifier (`dat_psp_query`).
    pub fn qualifier(&self) -> u64 {
        self.point.qualifier
    }

    /// Its adapter.
    pub fn ia(&self) -> &Ia {
        self.evd.ia()
    }

    /// Where it is, by its NIC: for whoever gets it from the program.
    pub fn address(&self) -> ServiceAddress {
        let nic = self.ia().nic().attributes().address.clone();
        ServiceAddress::Nic { nic, qualifier: self.qualifier() }
    }
}

impl Drop for Psp {
    fn drop(&mut self) {
        if !udeck::via::is_forked() {
            self.point.close();
        }
    }
}

impl fmt::Debug for Psp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psp({}, {:?})", self.qualifier(), self.ia())
    }
}
