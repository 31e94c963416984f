//! The functions of `vipl.h`.

mod connections;
mod cqs;
mod management;
mod memory;
mod nics;
mod queues;
mod vis;

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::engine::{NICS, NicState};
use super::handle::Handle;
use super::types::VipReturn;

/// The open NICs. A panic that belongs to no NIC is reported at each of them.
static OPEN: Mutex<Vec<Weak<NicState>>> = Mutex::new(Vec::new());

type Outcome = Result<(), VipReturn>;

/// Runs a call's body. A panic in it ends here, as an error of the call and a catastrophic one of the library.
#[inline]
fn call(name: &'static str, body: impl FnOnce() -> Outcome) -> VipReturn {
    let code = crate::boundary::call(PANICKED, || match body() {
        Ok(()) => VipReturn::SUCCESS,
        Err(code) => code,
    });
    if code == PANICKED { panicked(name) } else { code }
}

/// Marks a panic; no call returns it.
const PANICKED: VipReturn = VipReturn(u32::MAX);

#[cold]
fn panicked(name: &'static str) -> VipReturn {
    // A handler of the program's may do anything.
    crate::boundary::call((), || {
        let why =
            format!("{name} panicked, which is a mistake in µDECK; what it was to do may be done in part");
        let open: Vec<_> = OPEN.lock().iter().filter_map(Weak::upgrade).collect();
        if open.is_empty() {
            super::error::tell(name, &why);
        }
        open.iter().for_each(|nic| nic.failed(&why));
    });
    VipReturn::ERROR_RESOURCE
}

fn nic(handle: Handle) -> Result<Arc<NicState>, VipReturn> {
    NICS.get(handle).flatten().ok_or(VipReturn::INVALID_PARAMETER)
}

/// Writes a result.
///
/// # Safety
/// NULL, or valid for writing.
#[inline]
unsafe fn put<T>(to: *mut T, value: T) -> Outcome {
    if to.is_null() {
        return Err(VipReturn::INVALID_PARAMETER);
    }
    // SAFETY: not NULL, so valid.
    unsafe { to.write(value) };
    Ok(())
}

/// Reads an argument.
///
/// # Safety
/// NULL, or valid for reading.
#[inline]
unsafe fn take<T: Copy>(from: *const T) -> Result<T, VipReturn> {
    if from.is_null() {
        return Err(VipReturn::INVALID_PARAMETER);
    }
    // SAFETY: not NULL, so valid.
    Ok(unsafe { from.read() })
}

/// # Errors
/// `INVALID_PARAMETER`: the pointer is NULL.
#[inline]
fn some<T>(to: *mut T) -> Outcome {
    if to.is_null() { Err(VipReturn::INVALID_PARAMETER) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_of_the_call() {
        assert_eq!(call("VipOfTheTest", || panic!("on purpose")), VipReturn::ERROR_RESOURCE);
        assert_eq!(call("VipOfTheTest", || Err(VipReturn::NO_MATCH)), VipReturn::NO_MATCH);
        assert_eq!(call("VipOfTheTest", || Ok(())), VipReturn::SUCCESS);
    }
}
