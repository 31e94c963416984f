//! `DAT_RETURN`: an error's type in bits 16 to 29, what is wrong in bits 0 to 15.

/// A code as a call returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Code(pub u32);

/// Why a call was not carried out.
pub type Result<T = (), E = Code> = std::result::Result<T, E>;

const ERROR: u32 = 0x8000_0000;

macro_rules! types {
    ($($name:ident = $value:literal),* $(,)?) => {
        impl Code {
            $(#[doc = concat!("`DAT_", stringify!($name), "`")] pub const $name: Code = Code(ERROR | $value << 16);)*
        }
    };
}

types! {
    ABORT = 0x1, CONN_QUAL_IN_USE = 0x2, INSUFFICIENT_RESOURCES = 0x3, INTERNAL_ERROR = 0x4, INVALID_HANDLE = 0x5,
    INVALID_PARAMETER = 0x6, INVALID_STATE = 0x7, LENGTH_ERROR = 0x8, MODEL_NOT_SUPPORTED = 0x9, PROVIDER_NOT_FOUND = 0xa,
    PRIVILEGES_VIOLATION = 0xb, PROTECTION_VIOLATION = 0xc, QUEUE_EMPTY = 0xd, QUEUE_FULL = 0xe, TIMEOUT_EXPIRED = 0xf,
    INVALID_ADDRESS = 0x12, CONN_QUAL_UNAVAILABLE = 0x14, NOT_IMPLEMENTED = 0x3fff,
}

impl Code {
    /// `DAT_SUCCESS`.
    pub const SUCCESS: Code = Code(0);
    /// `DAT_QUEUE_EMPTY` without the error bit: Debian's provider answers `dat_evd_dequeue` so, and programs compare with it. Those
    /// that use `DAT_GET_TYPE`, as they should, see no difference.
    pub const NO_EVENT: Code = Code(0x000d_0000);

    /// Returns the code with this subtype.
    pub const fn of(self, sub: Sub) -> Code {
        Code(self.0 | sub as u32)
    }

    /// `DAT_INVALID_PARAMETER` of the argument with this number, from 1.
    pub const fn argument(nth: u32) -> Code {
        Code(Code::INVALID_PARAMETER.0 | (Sub::InvalidArg1 as u32 + nth - 1))
    }
}

/// `DAT_RETURN_SUBTYPE`, in the order of `dat_error.h`.
#[allow(dead_code, reason = "all of dat_error.h, in its order: the numbers follow from that")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Sub {
    None,
    Interrupted,
    ResourceMemory,
    ResourceDevice,
    ResourceTep,
    ResourceTevd,
    ResourceProtectionDomain,
    ResourceMemoryRegion,
    ResourceErrorHandler,
    ResourceCredits,
    ResourceSrq,
    HandleIa,
    HandleEp,
    HandleLmr,
    HandleRmr,
    HandlePz,
    HandlePsp,
    HandleRsp,
    HandleCr,
    HandleCno,
    HandleEvdCr,
    HandleEvdRequest,
    HandleEvdRecv,
    HandleEvdConn,
    HandleEvdAsync,
    HandleSrq,
    HandleCsp,
    Handle1,
    Handle2,
    Handle3,
    Handle4,
    Handle5,
    Handle6,
    Handle7,
    Handle8,
    Handle9,
    Handle10,
    InvalidArg1,
    InvalidArg2,
    InvalidArg3,
    InvalidArg4,
    InvalidArg5,
    InvalidArg6,
    InvalidArg7,
    InvalidArg8,
    InvalidArg9,
    InvalidArg10,
    EpUnconnected,
    EpActConnPending,
    EpPassConnPending,
    EpTentConnPending,
    EpConnected,
    EpDisconnected,
    EpReserved,
    EpComplPending,
    EpDiscPending,
    EpProviderControl,
    EpNotReady,
    EpRecvWatermark,
    EpPz,
    EpEvdRequest,
    EpEvdRecv,
    EpEvdConnect,
    EpUnconfigured,
    EpUnconfReserved,
    EpUnconfPassive,
    EpUnconfTentative,
    CnoInUse,
    CnoDead,
    EvdOpen,
    EvdEnabled,
    EvdDisabled,
    EvdWaitable,
    EvdUnwaitable,
    EvdInUse,
    EvdConfigNotify,
    EvdConfigSolicited,
    EvdConfigThreshold,
    EvdWaiter,
    EvdAsync,
    IaInUse,
    LmrInUse,
    LmrFree,
    PzInUse,
    PzFree,
    SrqOperational,
    SrqError,
    SrqInUse,
    SrqShutdown,
    PrivilegesRead,
    PrivilegesWrite,
    PrivilegesRdmaRead,
    PrivilegesRdmaWrite,
    ProtectionRead,
    ProtectionWrite,
    ProtectionRdmaRead,
    ProtectionRdmaWrite,
    AddressUnsupported,
    AddressUnreachable,
    AddressMalformed,
}
