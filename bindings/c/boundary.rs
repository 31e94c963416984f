//! The boundary from C to Rust: a panic ends here, and becomes an error of the call.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a call's body. A panic becomes the result `broken`: unwinding through C frames is undefined.
#[allow(dead_code, reason = "for the calls of `vipl.h`")]
pub(crate) fn call<R>(broken: R, body: impl FnOnce() -> R) -> R {
    caught(body, |_| broken)
}

/// Runs a call's body. If it panics, `broken` turns the panic's text into the result.
#[inline(always)]
pub(crate) fn caught<R>(body: impl FnOnce() -> R, broken: impl FnOnce(String) -> R) -> R {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(panic) => broken(words(&*panic)),
    }
}

#[cold]
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_with_its_words() {
        assert_eq!(caught(|| panic!("no {}", "way"), |words| words), "no way");
        assert_eq!(caught(|| panic!("plain"), |words| words), "plain");
        assert_eq!((call(7, || panic!("lost")), call(7, || 1)), (7, 1));
    }
}
