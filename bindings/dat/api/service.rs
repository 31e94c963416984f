//! Service points, public and reserved.

use std::fmt;

use super::ep::Ep;
use super::error::{Error, Result};
use super::evd::Evd;
use super::ia::{Ia, ServiceAddress};
use super::id::{self, EpId, ServiceId};
use crate::core::code::{Code, Sub};
use crate::core::service::{self, ServicePoint};
use crate::core::state::EpEvent;

/// A public service point: connection requests to its qualifier come to its dispatcher as [`ConnectionRequest`](super::ConnectionRequest)s
/// (`DAT_PSP`). A dropped service point listens no more.
pub struct Psp {
    id: ServiceId,
    point: ServicePoint,
    evd: Evd,
}

impl Psp {
    /// Listens at this qualifier of this host (`dat_psp_create`).
    ///
    /// # Errors
    /// [`Error::QualifierInUse`]; [`Error::Unavailable`]: the directory cannot be reached.
    pub fn new(qualifier: u64, evd: &Evd) -> Result<Psp> {
        const CALL: &str = "dat_psp_create";
        let number = id::next();
        let mut point = ServicePoint::new(evd.ia().core().clone(), qualifier, evd.core(), None);
        let listening = point.listen(number as usize, 0);
        listening.map_err(|code| refused(CALL, qualifier, code))?;
        Ok(Psp { id: ServiceId(number), point, evd: evd.clone() })
    }

    /// Listens at a free qualifier of 49152 to 65535 (`dat_psp_create_any`).
    ///
    /// # Errors
    /// [`Error::QualifierInUse`]: all are in use; [`Error::Unavailable`].
    pub fn any(evd: &Evd) -> Result<Psp> {
        let mut last = 0;
        for qualifier in service::free_qualifiers() {
            match Psp::new(qualifier, evd) {
                Err(Error::QualifierInUse { .. }) => last = qualifier,
                other => return other,
            }
        }
        Err(Error::QualifierInUse { call: "dat_psp_create_any", qualifier: last })
    }

    /// The number of this service point, which its requests carry.
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

    /// The address of the service point, by its NIC. The program passes it on.
    pub fn address(&self) -> ServiceAddress {
        address(self.ia(), self.qualifier())
    }
}

fn address(ia: &Ia, qualifier: u64) -> ServiceAddress {
    ServiceAddress::Nic { nic: ia.nic().attributes().address.clone(), qualifier }
}

#[cold]
fn refused(call: &'static str, qualifier: u64, code: Code) -> Error {
    match code {
        Code::CONN_QUAL_IN_USE => Error::QualifierInUse { call, qualifier },
        code if code == Code::INSUFFICIENT_RESOURCES.of(Sub::ResourceDevice) => {
            Error::unavailable(call, "the NIC or the directory refuses it; stderr says why")
        }
        code => Error::parameter(call, format!("refused with {:#010x}", code.0)),
    }
}

/// A reserved service point: it takes one connection request, for one end point (`DAT_RSP`). Later requests are refused.
///
/// The end point is [`Reserved`](super::EpState::Reserved) until the request comes, and [`TentativePending`](super::EpState::TentativePending) until it is
/// answered: it alone [accepts](Ep::accept) it. A refusal makes it reserved again. Dropped, the service point listens no more, and frees an end point
/// that is still reserved; a request that has come stays, and can be answered.
pub struct Rsp {
    id: ServiceId,
    point: ServicePoint,
    evd: Evd,
    ep: EpId,
}

impl Rsp {
    /// Listens at this qualifier of this host, for this end point (`dat_rsp_create`). The request comes to the dispatcher.
    ///
    /// # Errors
    /// [`Error::InvalidState`] unless the end point is unconnected; [`Error::InvalidParameter`]: end point and dispatcher are of two adapters;
    /// [`Error::QualifierInUse`]; [`Error::Unavailable`]: the directory cannot be reached.
    pub fn new(qualifier: u64, evd: &Evd, ep: &Ep) -> Result<Rsp> {
        const CALL: &str = "dat_rsp_create";
        if !ep.ia().is(evd.ia()) {
            return Err(Error::parameter(CALL, "end point and dispatcher are of two adapters"));
        }
        ep.reserve(CALL, EpEvent::Reserved)?;
        let number = id::next();
        let mut point = ServicePoint::new(evd.ia().core().clone(), qualifier, evd.core(), Some(ep.slot()));
        match point.listen(number as usize, 0) {
            Ok(()) => Ok(Rsp { id: ServiceId(number), point, evd: evd.clone(), ep: ep.id() }),
            Err(code) => {
                let _ = ep.reserve(CALL, EpEvent::Unreserved); // undoes the reservation
                Err(refused(CALL, qualifier, code))
            }
        }
    }

    /// The number of this service point, which its request carries.
    pub fn id(&self) -> ServiceId {
        self.id
    }

    /// The qualifier (`dat_rsp_query`).
    pub fn qualifier(&self) -> u64 {
        self.point.qualifier
    }

    /// The end point that the service point is for.
    pub fn ep(&self) -> EpId {
        self.ep
    }

    /// Its adapter.
    pub fn ia(&self) -> &Ia {
        self.evd.ia()
    }

    /// The address of the service point, by its NIC. The program passes it on.
    pub fn address(&self) -> ServiceAddress {
        address(self.ia(), self.qualifier())
    }
}

impl Drop for Rsp {
    fn drop(&mut self) {
        if !udeck::via::is_forked() {
            self.point.close();
        }
    }
}

impl fmt::Debug for Rsp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rsp({}, for {:?}, {:?})", self.qualifier(), self.ep, self.ia())
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
