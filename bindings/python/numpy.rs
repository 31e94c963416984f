//! numpy's C interface, as far as the module needs it: inspecting arrays, and making views of memory.
//!
//! The entries and structures here are those of numpy's stable ABI, the same in all versions from 1.21 to 2.x. They are found when the
//! module is loaded, so a build needs no numpy, and one wheel serves all versions. (`docs/decisions` says why not another crate.)
#![allow(unsafe_code, reason = "numpy's C interface")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use pyo3::exceptions::{PyImportError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyType;
use pyo3::{ffi, intern};

/// `PyArrayObject_fields`, up to the last field in use. The head of an object has the same size in all interpreters that load a
/// module of the stable ABI: a count and a type.
#[repr(C)]
struct Fields {
    count: isize,
    class: *mut ffi::PyTypeObject,
    data: *mut u8,
    nd: c_int,
    dims: *mut isize,
    strides: *mut isize,
    base: *mut ffi::PyObject,
    descr: *mut DescrFields,
    flags: c_int,
}

const _: () = assert!(
    std::mem::size_of::<ffi::PyObject>() == std::mem::offset_of!(Fields, data),
    "interpreters without a GIL are not supported"
);

/// `PyArray_Descr`, the part that numpy 1 and 2 have in common.
#[repr(C)]
struct DescrFields {
    count: isize,
    class: *mut ffi::PyTypeObject,
    scalar: *mut ffi::PyTypeObject,
    kind: c_char,
    letter: c_char,
    byte_order: c_char,
    flags: c_char,
    type_number: c_int,
}

const C_CONTIGUOUS: c_int = 0x1;
const ALIGNED: c_int = 0x100;
const WRITEABLE: c_int = 0x400;

/// Bytes of an element, by numpy's number of its type; 0: a type that is not sent by number.
const SIZES: [u8; 24] = [1, 1, 1, 2, 2, 4, 4, 8, 8, 8, 8, 4, 8, 16, 8, 16, 32, 0, 0, 0, 0, 0, 0, 2];
pub const FLOAT64: u8 = 12;
pub const UINT8: u8 = 2;

/// Bytes of an element of a type that has a number.
#[inline]
pub fn size_of_number(number: u8) -> Option<usize> {
    SIZES.get(usize::from(number)).filter(|size| **size > 0).map(|size| usize::from(*size))
}

type DescrFromType = unsafe extern "C" fn(c_int) -> *mut ffi::PyObject;
type CopyInto = unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> c_int;
type SetBaseObject = unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> c_int;
type NewFromDescr = unsafe extern "C" fn(
    *mut ffi::PyTypeObject,
    *mut ffi::PyObject,
    c_int,
    *const isize,
    *const isize,
    *mut c_void,
    c_int,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;

struct Api {
    class: *mut ffi::PyTypeObject,
    descr_from_type: DescrFromType,
    copy_into: CopyInto,
    new_from_descr: NewFromDescr,
    set_base_object: SetBaseObject,
}

// SAFETY: functions, and a type that lives as long as the process.
unsafe impl Send for Api {}
// SAFETY: as above; nothing here changes.
unsafe impl Sync for Api {}

static API: OnceLock<Api> = OnceLock::new();

/// Finds numpy.
///
/// # Errors
/// numpy is not installed, or its version is unknown to this module.
pub fn load(py: Python<'_>) -> PyResult<()> {
    let module = py
        .import("numpy._core._multiarray_umath")
        .or_else(|_| py.import("numpy.core._multiarray_umath"))
        .map_err(|error| PyImportError::new_err(format!("udeck needs numpy (pip install numpy): {error}")))?;
    let capsule = module.getattr("_ARRAY_API")?;
    // SAFETY: the attribute is numpy's capsule, without a name; anything else makes the call fail.
    let table =
        unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()) }.cast::<*mut c_void>();
    if table.is_null() {
        return Err(PyErr::fetch(py));
    }
    // SAFETY: the table has hundreds of entries, of which numpy's ABI fixes these, with these types.
    let (version, api) = unsafe {
        let entry = |at: usize| *table.add(at);
        let version: unsafe extern "C" fn() -> c_uint = std::mem::transmute(entry(0));
        let api = Api {
            class: entry(2).cast(),
            descr_from_type: std::mem::transmute::<*mut c_void, DescrFromType>(entry(45)),
            copy_into: std::mem::transmute::<*mut c_void, CopyInto>(entry(50)),
            new_from_descr: std::mem::transmute::<*mut c_void, NewFromDescr>(entry(94)),
            set_base_object: std::mem::transmute::<*mut c_void, SetBaseObject>(entry(282)),
        };
        (version(), api)
    };
    if !matches!(version >> 24, 1 | 2) {
        let why = format!("numpy's ABI is {version:#x}; udeck knows versions 1 and 2: install another numpy");
        return Err(PyImportError::new_err(why));
    }
    API.get_or_init(|| api);
    Ok(())
}

fn api() -> &'static Api {
    API.get().expect("the module was loaded")
}

/// Class of arrays in message memory, and class of such an array after its post (`udeck/_array.py`). Both live as long as the
/// process.
static MOVABLE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(std::ptr::null_mut());
static POSTED: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(std::ptr::null_mut());

/// Sets the classes of arrays in message memory and of posted arrays.
///
/// # Errors
/// Objects of the two classes have different layouts.
#[pyfunction]
pub fn set_classes(movable: &Bound<'_, PyType>, posted: &Bound<'_, PyType>) -> PyResult<()> {
    for layout in ["__basicsize__", "__dictoffset__", "__weakrefoffset__"] {
        if movable.getattr(layout)?.ne(posted.getattr(layout)?)? {
            return Err(PyImportError::new_err(format!("udeck: the classes of arrays differ in {layout}")));
        }
    }
    // The collector puts a head of its own in front of each object of the classes that it tracks.
    let is_collected =
        |class: &Bound<'_, PyType>| PyResult::Ok(class.getattr("__flags__")?.extract::<u64>()? & (1 << 14));
    if is_collected(movable)? != is_collected(posted)? {
        return Err(PyImportError::new_err(
            "udeck: Python's collector tracks only one of the two array classes",
        ));
    }
    MOVABLE.store(movable.clone().into_ptr().cast(), Ordering::Release);
    POSTED.store(posted.clone().into_ptr().cast(), Ordering::Release);
    Ok(())
}

/// Makes the base of the class of posted arrays: its objects have the layout of numpy's arrays, but are none. Therefore no C
/// function takes a posted array for an array, which would have no elements.
///
/// # Errors
/// The interpreter has no memory.
pub fn layout(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: numpy's class is a type.
    let array = unsafe { Bound::from_borrowed_ptr(py, api().class.cast()) };
    let (size, weak) =
        (array.getattr("__basicsize__")?.extract()?, array.getattr("__weakrefoffset__")?.extract()?);
    let mut members = [ffi::PyMemberDef::default(); 2];
    members[0] = ffi::PyMemberDef {
        name: c"__weaklistoffset__".as_ptr(),
        type_code: ffi::Py_T_PYSSIZET,
        offset: weak,
        flags: ffi::Py_READONLY,
        doc: std::ptr::null(),
    };
    let slot = |slot, pfunc| ffi::PyType_Slot { slot, pfunc };
    let mut slots = [
        slot(ffi::Py_tp_dealloc, release as *mut c_void),
        slot(ffi::Py_tp_traverse, traverse as *mut c_void),
        slot(ffi::Py_tp_new, refuse_new as *mut c_void),
        slot(GET_BUFFER, refuse_buffer as *mut c_void),
        slot(ffi::Py_tp_members, members.as_mut_ptr().cast()),
        ffi::PyType_Slot::default(),
    ];
    let mut spec = ffi::PyType_Spec {
        name: c"udeck._udeck.ArrayLayout".as_ptr(),
        basicsize: size,
        itemsize: 0,
        flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_BASETYPE | ffi::Py_TPFLAGS_HAVE_GC) as c_uint,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: the slots are functions of these types. The interpreter copies all of it but the name and the functions, which are static.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&mut spec)) }
}

/// `Py_bf_getbuffer`, which the stable ABI has from 3.11 on, and specifications from 3.9 on.
const GET_BUFFER: c_int = 1;

/// Deallocates a posted array as an array of its former class.
unsafe extern "C" fn release(object: *mut ffi::PyObject) {
    let movable = MOVABLE.load(Ordering::Acquire);
    // SAFETY: only arrays of the class `movable` come to be of a class with this function, and the interpreter calls it for the last reference. The object
    // counts as a reference to its class. A class made by a program has the slot, which takes such an object.
    unsafe {
        set_class(object, movable);
        let release = ffi::PyType_GetSlot(movable, ffi::Py_tp_dealloc);
        std::mem::transmute::<*mut c_void, ffi::destructor>(release)(object);
    }
}

unsafe extern "C" fn traverse(
    object: *mut ffi::PyObject,
    visit: ffi::visitproc,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the collector calls it for an object, with a function that takes its class.
    unsafe { visit(ffi::Py_TYPE(object).cast(), argument) }
}

unsafe extern "C" fn refuse_new(
    _: *mut ffi::PyTypeObject,
    _: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the interpreter calls it, attached; the text is a C string.
    unsafe { ffi::PyErr_SetString(ffi::PyExc_TypeError, c"arrays are posted by Postbox.post()".as_ptr()) };
    std::ptr::null_mut()
}

unsafe extern "C" fn refuse_buffer(_: *mut ffi::PyObject, _: *mut c_void, _: c_int) -> c_int {
    // SAFETY: the interpreter calls it, attached.
    already_posted_error(unsafe { Python::assume_attached() }).restore(unsafe { Python::assume_attached() });
    -1
}

/// The error of using an array that was posted.
#[cold]
pub fn already_posted_error(py: Python<'_>) -> PyErr {
    let refuse = || py.import("udeck._array")?.getattr("refuse")?.call0();
    refuse().map_or_else(|error| error, |_| PyTypeError::new_err("the array was posted"))
}

/// # Safety
/// Objects of both classes have the same layout, the collector's head included, and count as references to them.
unsafe fn set_class(object: *mut ffi::PyObject, class: *mut ffi::PyTypeObject) {
    // SAFETY: our contract.
    unsafe {
        ffi::Py_INCREF(class.cast());
        let before = std::mem::replace(&mut (*object.cast::<Fields>()).class, class);
        ffi::Py_DECREF(before.cast());
    }
}

/// Target of the data pointer of an array without elements.
static NOTHING: AtomicU64 = AtomicU64::new(0);

/// An array's state before it was posted.
pub struct Before {
    data: *mut u8,
    dims: Vec<isize>,
    flags: c_int,
}

/// An array of numpy.
#[derive(Clone)]
pub struct Array<'py>(Bound<'py, PyAny>);

impl<'py> Array<'py> {
    /// Returns the object as an array, if it is one.
    #[inline]
    pub fn of(object: &Bound<'py, PyAny>) -> Option<Self> {
        // SAFETY: both are types; the interpreter is attached.
        let is_array = unsafe {
            let class = ffi::Py_TYPE(object.as_ptr());
            class == api().class || ffi::PyType_IsSubtype(class, api().class) != 0
        };
        is_array.then(|| Array(object.clone()))
    }

    /// Whether the object was an array that has been posted.
    #[inline]
    pub fn is_posted_object(object: &Bound<'py, PyAny>) -> bool {
        // SAFETY: it is an object.
        unsafe { ffi::Py_TYPE(object.as_ptr()) == POSTED.load(Ordering::Relaxed) }
    }

    /// Whether the array is of numpy's own class.
    #[inline]
    pub fn is_plain(&self) -> bool {
        // SAFETY: it is an object.
        unsafe { ffi::Py_TYPE(self.0.as_ptr()) == api().class }
    }

    pub fn object(&self) -> &Bound<'py, PyAny> {
        &self.0
    }

    pub fn into_object(self) -> Bound<'py, PyAny> {
        self.0
    }

    #[inline]
    fn fields(&self) -> *mut Fields {
        self.0.as_ptr().cast()
    }

    /// Address of the first element.
    #[inline]
    pub fn data(&self) -> *mut u8 {
        // SAFETY: it is an array, and lives.
        unsafe { (*self.fields()).data }
    }

    #[inline]
    pub fn dims(&self) -> &[isize] {
        // SAFETY: it is an array, and has so many dimensions; nobody changes them while the interpreter is attached here.
        unsafe {
            match (*self.fields()).nd {
                0 => &[],
                nd => std::slice::from_raw_parts((*self.fields()).dims, nd as usize),
            }
        }
    }

    #[inline]
    fn flags(&self) -> c_int {
        // SAFETY: it is an array.
        unsafe { (*self.fields()).flags }
    }

    #[inline]
    pub fn is_contiguous(&self) -> bool {
        self.flags() & C_CONTIGUOUS != 0
    }

    #[inline]
    pub fn is_aligned(&self) -> bool {
        self.flags() & ALIGNED != 0
    }

    #[inline]
    pub fn is_writeable(&self) -> bool {
        self.flags() & WRITEABLE != 0
    }

    /// numpy's number of the element type, if elements of this type are the same in all ranks: numbers in this machine's
    /// byte order.
    #[inline]
    pub fn type_number(&self) -> Option<u8> {
        // SAFETY: it is an array, and has a type.
        let (number, order) = unsafe {
            let descr = (*self.fields()).descr;
            ((*descr).type_number, (*descr).byte_order as u8)
        };
        let number = u8::try_from(number).ok().filter(|number| size_of_number(*number).is_some())?;
        matches!(order, b'=' | b'|').then_some(number)
    }

    /// Element type of the array.
    pub fn dtype(&self) -> Bound<'py, PyAny> {
        // SAFETY: it is an array, and has a type, which is an object.
        unsafe { Bound::from_borrowed_ptr(self.0.py(), (*self.fields()).descr.cast()) }
    }

    /// Bytes of an element.
    #[inline]
    pub fn item_size(&self) -> PyResult<usize> {
        match self.type_number().and_then(size_of_number) {
            Some(size) => Ok(size),
            None => size_of(&self.dtype()),
        }
    }

    /// Bytes of all elements.
    #[inline]
    pub fn len_bytes(&self) -> PyResult<usize> {
        Ok(self.dims().iter().fold(self.item_size()?, |bytes, dim| bytes * *dim as usize))
    }

    /// Object that keeps the array's memory, unless the array owns it.
    pub fn base(&self) -> Option<Bound<'py, PyAny>> {
        // SAFETY: it is an array; its base is an object or NULL.
        unsafe { Bound::from_borrowed_ptr_or_opt(self.0.py(), (*self.fields()).base) }
    }

    /// The array of which this array is a view.
    #[inline]
    pub fn base_array(&self) -> Option<Array<'py>> {
        // SAFETY: as above.
        let base = unsafe { (*self.fields()).base };
        if base.is_null() { None } else { self.base().as_ref().and_then(Array::of) }
    }

    /// Reference count of the array.
    pub fn references(&self) -> isize {
        // SAFETY: it is an object.
        unsafe { ffi::Py_REFCNT(self.0.as_ptr()) as isize }
    }

    #[inline]
    pub fn make_read_only(&self) {
        // SAFETY: it is an array, and was just made.
        unsafe { (*self.fields()).flags &= !WRITEABLE };
    }

    /// Copies the elements of `from`, which has the same shape and type.
    pub fn copy_from(&self, from: &Array<'py>) -> PyResult<()> {
        // SAFETY: both are arrays.
        match unsafe { (api().copy_into)(self.0.as_ptr(), from.0.as_ptr()) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(self.0.py())),
        }
    }

    /// Removes elements and memory from the array, and changes its class to that of posted arrays. Only for an
    /// array of `World.empty`.
    pub fn mark_posted(&self) -> Before {
        debug_assert!(self.is_movable());
        let fields = self.fields();
        // SAFETY: it is an array of one class of two whose objects have the same layout (`set_classes`). It has so many dimensions.
        unsafe {
            let before = Before { data: (*fields).data, dims: self.dims().to_vec(), flags: (*fields).flags };
            for dim in 0..(*fields).nd as usize {
                *(*fields).dims.add(dim) = 0;
            }
            (*fields).data = NOTHING.as_ptr().cast();
            (*fields).flags &= !WRITEABLE;
            set_class(self.0.as_ptr(), POSTED.load(Ordering::Acquire));
            before
        }
    }

    /// Restores an array that was not posted.
    pub fn unmark_posted(&self, before: Before) {
        debug_assert!(self.is_posted());
        let fields = self.fields();
        // SAFETY: as above. A method that was bound before may have given it other dimensions and memory (`__setstate__`): these stay.
        unsafe {
            if (*fields).data != NOTHING.as_ptr().cast() || (*fields).nd as usize != before.dims.len() {
                return;
            }
            for (dim, before) in before.dims.iter().enumerate() {
                *(*fields).dims.add(dim) = *before;
            }
            (*fields).data = before.data;
            (*fields).flags = before.flags;
            set_class(self.0.as_ptr(), MOVABLE.load(Ordering::Acquire));
        }
    }

    /// Releases the object that keeps the memory. Only for a posted array, whose data pointer refers to no
    /// memory.
    pub fn forget_base(&self) {
        debug_assert!(self.is_posted());
        // SAFETY: the base is an object or NULL, which an array without one has.
        unsafe {
            let base = std::mem::replace(&mut (*self.fields()).base, std::ptr::null_mut());
            ffi::Py_XDECREF(base);
        }
    }

    /// Whether the array was posted.
    #[inline]
    pub fn is_posted(&self) -> bool {
        Self::is_posted_object(&self.0)
    }

    /// Whether the array is of the class of arrays in message memory.
    #[inline]
    pub fn is_movable(&self) -> bool {
        // SAFETY: it is an object.
        unsafe { ffi::Py_TYPE(self.0.as_ptr()) == MOVABLE.load(Ordering::Relaxed) }
    }
}

/// Bytes of an element of a type.
pub fn size_of(dtype: &Bound<'_, PyAny>) -> PyResult<usize> {
    dtype.getattr(intern!(dtype.py(), "itemsize"))?.extract()
}

/// The element type with this number.
#[inline]
pub fn dtype_of_number(py: Python<'_>, number: u8) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: the call takes any number, and gives a new reference, or fails.
    unsafe { Bound::from_owned_ptr_or_err(py, (api().descr_from_type)(number.into())) }
}

/// numpy's number of an element type, as for [`Array::type_number`].
pub fn number_of_dtype(dtype: &Bound<'_, PyAny>) -> PyResult<Option<u8>> {
    let number: i64 = dtype.getattr(intern!(dtype.py(), "num"))?.extract()?;
    let native: bool = dtype.getattr(intern!(dtype.py(), "isnative"))?.extract()?;
    let number = u8::try_from(number).ok().filter(|number| size_of_number(*number).is_some());
    Ok(number.filter(|_| native))
}

/// A new array with uninitialised memory of its own.
#[inline]
pub fn new<'py>(dtype: Bound<'py, PyAny>, dims: &[isize]) -> PyResult<Array<'py>> {
    // SAFETY: no memory is given.
    unsafe { make(api().class, dtype, dims, std::ptr::null_mut(), 0) }
}

/// An array over memory that `owner` keeps.
///
/// # Safety
/// The memory has the elements of an array of this type and shape, and stays while `owner` lives; if it is `writeable`, nothing else
/// uses it meanwhile.
#[inline]
pub unsafe fn view<'py>(
    dtype: Bound<'py, PyAny>,
    dims: &[isize],
    data: *mut u8,
    writeable: bool,
    owner: Bound<'py, PyAny>,
) -> PyResult<Array<'py>> {
    // SAFETY: our contract.
    unsafe { view_of(api().class, dtype, dims, data, writeable, owner) }
}

/// An array over memory that `owner` keeps, of the class of arrays in message memory.
///
/// # Safety
/// Same as for [`view`].
pub unsafe fn movable_view<'py>(
    dtype: Bound<'py, PyAny>,
    dims: &[isize],
    data: *mut u8,
    owner: Bound<'py, PyAny>,
) -> PyResult<Array<'py>> {
    let class = MOVABLE.load(Ordering::Acquire);
    if class.is_null() {
        return Err(PyImportError::new_err("import udeck, not udeck._udeck"));
    }
    // SAFETY: our contract; the class is a subclass of numpy's.
    unsafe { view_of(class, dtype, dims, data, true, owner) }
}

/// # Safety
/// Same as for [`view`]; `class` is numpy's, or a subclass of it.
#[inline]
unsafe fn view_of<'py>(
    class: *mut ffi::PyTypeObject,
    dtype: Bound<'py, PyAny>,
    dims: &[isize],
    data: *mut u8,
    writeable: bool,
    owner: Bound<'py, PyAny>,
) -> PyResult<Array<'py>> {
    let flags = if writeable { WRITEABLE } else { 0 };
    // SAFETY: our contract.
    let array = unsafe { make(class, dtype, dims, data, flags) }?;
    // SAFETY: it is a new array; the call takes the reference, also when it fails.
    match unsafe { (api().set_base_object)(array.0.as_ptr(), owner.into_ptr()) } {
        0 => Ok(array),
        _ => Err(PyErr::fetch(array.0.py())),
    }
}

/// # Safety
/// The memory, if there is any, is that of an array of this type and shape.
#[inline]
unsafe fn make<'py>(
    class: *mut ffi::PyTypeObject,
    dtype: Bound<'py, PyAny>,
    dims: &[isize],
    data: *mut u8,
    flags: c_int,
) -> PyResult<Array<'py>> {
    let py = dtype.py();
    // numpy determines by itself whether the elements are aligned and in order.
    // SAFETY: the class is that of arrays, whose call this is, or a subclass; it takes the reference to the type; dimensions are as many as it says.
    unsafe {
        let array = (api().new_from_descr)(
            class,
            dtype.into_ptr(),
            dims.len() as c_int,
            dims.as_ptr(),
            std::ptr::null(),
            data.cast(),
            flags,
            std::ptr::null_mut(),
        );
        Ok(Array(Bound::from_owned_ptr_or_err(py, array)?))
    }
}
