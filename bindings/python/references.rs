//! References to an array that is posted: they tell whether its memory can move, or is to be copied.
//!
//! Everything that has an array's address (a view, an iterator, a tensor, a call of another thread) holds a reference to the array, as a variable does.
//! The call has one, or its caller for it ([`crate::content::Method`]), and one variable of the function that calls is looked for. If these are all, nothing else
//! can have the address.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::numpy::Array;

/// References to an array that a call of ours makes or needs.
#[derive(Clone, Copy)]
pub struct Explained {
    count: isize,
    /// Whether one more may be that of a variable.
    variable: bool,
}

impl Explained {
    /// Only these references, and no variable's.
    pub fn exactly(count: isize) -> Self {
        Explained { count, variable: false }
    }

    /// That of a call which was given the array: the stack's, or that of a tuple or another container of arguments.
    pub fn by_call() -> Self {
        Explained { count: 1, variable: true }
    }

    /// With so many more, which are held here.
    pub fn and(self, held: isize) -> Self {
        Explained { count: self.count + held, ..self }
    }

    /// Whether these are all references to an array that a call was given.
    pub fn all(self, array: &Array<'_>) -> bool {
        let more = || array.references() - self.count;
        match more() {
            ..=0 => true,
            // Looking may run the collector, and with it other threads.
            1 => self.variable && is_variable(array.object()).unwrap_or(false) && more() == 1,
            _ => false,
        }
    }
}

/// Whether it is a variable of the function that has called the library, beside the call's reference.
fn is_variable(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    /// Whether the stack has a reference of its own to what was in a local variable. From version 3.14 on it borrows that of the variable.
    static STACK_OWNS: PyOnceLock<bool> = PyOnceLock::new();
    static GET_FRAME: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    /// The frame of a function, whose local variables are in no dictionary.
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
        // Up to version 3.12 it stays with the frame, and would keep what it has.
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
