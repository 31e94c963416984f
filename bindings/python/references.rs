//! References to a posted array: they tell whether its memory can move, or must be copied.
//!
//! Everything that has an array's address (a view, an iterator, a tensor, a call of another thread) holds a reference to the
//! array, as a variable does. The call holds one, or its caller for it ([`crate::content::Method`]); another one may belong to
//! one variable of the calling function. If these are all references, nothing else can have the address.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::numpy::Array;

/// References to an array that the binding's own calls hold or expect.
#[derive(Clone, Copy)]
pub struct KnownReferences {
    count: isize,
    /// Whether one more reference may belong to a variable.
    variable: bool,
}

impl KnownReferences {
    /// Expects only these references, and no variable.
    pub fn exactly(count: isize) -> Self {
        KnownReferences { count, variable: false }
    }

    /// Expects the reference of a call that was given the array: of the stack, of a tuple, or of another container
    /// of arguments.
    pub fn by_call() -> Self {
        KnownReferences { count: 1, variable: true }
    }

    /// Adds references that the caller of this function holds.
    pub fn and(self, held: isize) -> Self {
        KnownReferences { count: self.count + held, ..self }
    }

    /// Whether the expected references are all that exist to the array of a call.
    pub fn all(self, array: &Array<'_>) -> bool {
        let more = || array.references() - self.count;
        match more() {
            ..=0 => true,
            // The examination may run the collector, and with it other threads.
            1 => self.variable && is_variable(array.object()).unwrap_or(false) && more() == 1,
            _ => false,
        }
    }
}

/// Whether the object is a variable of the function that called the library, beside the call's reference.
fn is_variable(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    /// Whether the stack holds its own reference to the value of a local variable. From version 3.14 on it borrows the
    /// variable's.
    static STACK_OWNS: PyOnceLock<bool> = PyOnceLock::new();
    static GET_FRAME: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    /// Flag of a function whose local variables are in no dictionary.
    const OPTIMIZED: u32 = 1;
    let py = object.py();
    // Functions of this module have no frame.
    let frame = GET_FRAME.import(py, "sys", "_getframe")?.call0()?;
    let locals = frame.getattr(intern!(py, "f_locals"))?;
    let code = frame.getattr(intern!(py, "f_code"))?;
    if code.getattr(intern!(py, "co_flags"))?.extract::<u32>()? & OPTIMIZED == 0 {
        return has(&locals, object);
    }
    let is_local = *STACK_OWNS.get_or_init(py, || py.version_info() < (3, 14)) && has(&locals, object)?;
    if let Ok(copy) = locals.cast::<PyDict>() {
        // Up to version 3.12 this dictionary stays with the frame, and would keep the references in it.
        copy.clear();
    }
    Ok(is_local || has(&frame.getattr(intern!(py, "f_globals"))?, object)?)
}

fn has(names: &Bound<'_, PyAny>, object: &Bound<'_, PyAny>) -> PyResult<bool> {
    if let Ok(names) = names.cast_exact::<PyDict>() {
        return Ok(names.iter().any(|(_, value)| value.is(object)));
    }
    for value in names.call_method0(intern!(names.py(), "values"))?.try_iter()? {
        if value?.is(object) {
            return Ok(true);
        }
    }
    Ok(false)
}
