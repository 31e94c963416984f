//! Check whether a library can be loaded, for reports to the user: nothing of it is called.

use std::{
    ffi::{CStr, CString, c_void},
    ptr,
};

/// Path of the file that is loaded for a library of this name (`libibverbs.so.1`). The library is then unloaded.
///
/// # Errors
/// The loader's words.
pub fn library(name: &str) -> Result<String, String> {
    let name = CString::new(name).map_err(|error| error.to_string())?;
    // SAFETY: a C string. The library's own initialisers run, as they would in a program that uses it.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if handle.is_null() {
        // SAFETY: the text is this thread's, until its next call of the loader.
        let words = unsafe { libc::dlerror() };
        // SAFETY: the pointer is not null, so it is a C string.
        let words =
            (!words.is_null()).then(|| unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned());
        return Err(words.unwrap_or_else(|| "the loader does not say why".into()));
    }
    let path = path_of(handle);
    // SAFETY: the handle is open, and used no more.
    unsafe { libc::dlclose(handle) };
    Ok(path.unwrap_or_else(|| "loaded, from a place that the loader does not say".into()))
}

/// The head of a loader's record of a library (`struct link_map`, link.h).
#[repr(C)]
struct LinkMap {
    address: usize,
    name: *const libc::c_char,
}

fn path_of(handle: *mut c_void) -> Option<String> {
    let mut record: *const LinkMap = ptr::null();
    // SAFETY: an open handle, and a place for the pointer that this request returns.
    let failed = unsafe { libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut record).cast()) };
    if failed != 0 || record.is_null() {
        return None;
    }
    // SAFETY: a record that lives as long as the handle is open; its name is a C string, perhaps an empty one.
    let name = unsafe { CStr::from_ptr((*record).name) };
    Some(name.to_string_lossy().into_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::library;

    #[test]
    fn a_library_is_found_where_it_lies_or_said_to_be_missing() {
        let missing = library("libno-such-thing.so.7").unwrap_err();
        assert!(missing.contains("libno-such-thing.so.7"), "{missing}");
        assert!(library("a\0b").is_err());
        // Every dynamic program has this library.
        if let Ok(path) = library("libc.so.6") {
            assert!(path.starts_with('/') && path.contains("libc"), "{path}");
        }
    }
}
