//! C interface: the structures of `libibverbs.so.1` and `librdmacm.so.1`, and the loading of these libraries when
//! the program runs.
//!
//! Types have the library's names in Rust's spelling (`ibv_send_wr` is [`SendWr`]), and its fields' names. They
//! follow `infiniband/verbs.h` of rdma-core, whose binary interface has not changed since `IBVERBS_1.1`. Of objects
//! that the library makes, only the first fields are declared: they are never made, copied or measured here.

pub mod attributes;
pub mod cm;
pub mod cm_library;
pub mod codes;
pub mod library;
pub mod objects;
pub mod work;

pub use attributes::*;
pub use cm_library::CmLibrary;
pub use library::Library;
pub use objects::*;
pub use work::*;
