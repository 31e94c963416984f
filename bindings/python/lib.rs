//! µDECK for Python: the extension module of the package `udeck`, whose Python files lie in `udeck/`.
//!
//! | file | what it is |
//! |---|---|
//! | `world`, `mailbox`, `postbox`, `group` | the classes of the same names |
//! | `arrays` | arrays of collective calls |
//! | `objects` | collective calls of objects and of arrays of any length |
//! | `request` | collective calls that return at once |
//! | `select` | waiting at several mailboxes at once |
//! | `shared` | arrays in memory that the ranks of a host share |
//! | `slot` | a mailbox or postbox that threads and tasks share |
//! | `handle` | the library's world, which all objects of a job share |
//! | `message` | a received message, as a view of its memory |
//! | `memory` | arrays in registered memory, and how they become messages |
//! | `references` | whether anything else can reach the memory of an array |
//! | `content` | contents of posts: arrays, and objects with their buffers; and how calls receive them |
//! | `arguments` | arguments of calls, with errors that name them |
//! | `wire` | how an array or object is described behind its bytes |
//! | `numpy` | numpy's C interface, as far as it is needed |
//! | `reduction` | operators on elements of numpy's types |
//! | `tasks` | retrieving and posting in tasks of asyncio |
//! | `wait` | waits: without the interpreter's lock, and ended by signals |
//! | `errors` | errors as exceptions |
//!
//! Two rules hold everywhere. No call waits while it holds the interpreter's lock: a call tries first, and releases the lock if
//! the attempt was not enough. No thread waits for the interpreter's lock while it holds a lock of this module, except to check
//! for signals during a wait. Therefore a thread that holds the interpreter's lock only *tries* to take a lock of this module.

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]
#![allow(missing_docs, reason = "classes are documented for Python, in their docstrings")]

mod arguments;
mod arrays;
mod content;
mod errors;
mod group;
mod handle;
mod mailbox;
mod memory;
mod message;
mod numpy;
mod objects;
mod postbox;
mod reduction;
mod references;
mod request;
mod select;
mod shared;
mod slot;
mod tasks;
mod wait;
mod wire;
mod world;

use pyo3::prelude::*;

/// The compiled part of the package udeck: use `import udeck`.
#[pymodule]
fn _udeck(module: &Bound<'_, PyModule>) -> PyResult<()> {
    numpy::load(module.py())?;
    module.add_class::<world::World>()?;
    module.add_class::<mailbox::Mailbox>()?;
    module.add_class::<postbox::Postbox>()?;
    let postbox = module.py().get_type::<postbox::Postbox>();
    content::add_method::<postbox::Post>(&postbox)?;
    content::add_method::<postbox::PostAsync>(&postbox)?;
    module.add_class::<group::Group>()?;
    module.add_class::<request::Request>()?;
    module.add_class::<message::Message>()?;
    module.add_class::<shared::SharedArray>()?;
    module.add_class::<shared::SharedLock>()?;
    module.add_class::<tasks::Task>()?;
    module.add_class::<tasks::Bell>()?;
    module.add_function(wrap_pyfunction!(world::init, module)?)?;
    module.add_function(wrap_pyfunction!(select::select, module)?)?;
    module.add("ArrayLayout", numpy::layout(module.py())?)?;
    module.add_function(wrap_pyfunction!(numpy::set_classes, module)?)?;
    module.add_function(wrap_pyfunction!(memory::expose, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
