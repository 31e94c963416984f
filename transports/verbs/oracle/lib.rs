//! Shared code of the oracle's tests: descriptions of structures, and the C compiler's answers about them.
//!
//! README.md says why there is an oracle and how it is asked.

mod compiler;
pub mod ours;
pub mod standins;

#[cfg(feature = "bindgen")]
pub mod bindgens;

pub use compiler::{Verdict, ask, compile};

use std::collections::BTreeMap;

/// Definitions of the transport, by their files.
#[path = "../ffi"]
pub mod ffi {
    pub mod attributes;
    pub mod cm;
    pub mod codes;
    pub mod objects;
    pub mod work;
}

/// A structure under its C name.
#[derive(Debug)]
pub struct Layout {
    /// Name without `struct`.
    pub name: &'static str,
    pub size: usize,
    pub align: usize,
    /// All fields are described; otherwise only the first ones, as for objects that the library makes and for
    /// structures that have grown.
    pub whole: bool,
    pub fields: Vec<Field>,
}

/// A field, under the text that follows the `.` in C.
#[derive(Debug)]
pub struct Field {
    pub name: String,
    /// The field lies directly in the structure.
    pub outer: bool,
    pub place: Place,
}

/// Place of a field, in bytes from the structure's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub offset: usize,
    pub size: usize,
    /// Alignment. The C compiler is not asked for it.
    pub align: usize,
}

/// Describes a Rust type; `= "…"` gives a field's name in C where it has another.
#[macro_export]
macro_rules! layout {
    ($whole:ident $rust:ty as $c:literal { $( $($part:ident).+ $(= $other:literal)? ),* $(,)? }) => {{
        let object = std::mem::MaybeUninit::<$rust>::uninit();
        let object = object.as_ptr();
        $crate::Layout {
            name: $c,
            size: size_of::<$rust>(),
            align: align_of::<$rust>(),
            whole: stringify!($whole) == "whole",
            fields: vec![$({
                let name = stringify!($($part).+).replace(' ', "");
                let outer = !name.contains('.');
                $(let name = $other.to_owned();)?
                let offset = std::mem::offset_of!($rust, $($part).+);
                // SAFETY: The place is named, not read.
                #[allow(unused_unsafe)]
                let (size, align) = $crate::extent(unsafe { &raw const (*object).$($part).+ });
                $crate::Field { name, outer, place: $crate::Place { offset, size, align } }
            }),*],
        }
    }};
}

/// Size and alignment of the pointer's target.
pub fn extent<T>(_: *const T) -> (usize, usize) {
    (size_of::<T>(), align_of::<T>())
}

/// Lists the differences between `layouts` and `verdict`, as text.
pub fn differences(layouts: &[Layout], verdict: &Verdict) -> Vec<String> {
    let mut found = Vec::new();
    for layout in layouts {
        let name = layout.name;
        match verdict.structures.get(name) {
            None => found.push(format!("{name}: the oracle does not know it")),
            Some(theirs) if layout.whole && *theirs != (layout.size, layout.align) => {
                found.push(format!(
                    "{name}: size and alignment {theirs:?}, ours {:?}",
                    (layout.size, layout.align)
                ));
            }
            // The known first fields may need less alignment, but never more.
            Some(theirs) if theirs.0 < layout.size || theirs.1 < layout.align => {
                found.push(format!("{name}: {theirs:?}, our front has {:?}", (layout.size, layout.align)));
            }
            Some(_) => {}
        }
        for field in &layout.fields {
            let ours = (field.place.offset, field.place.size);
            match verdict.fields.get(&(name.to_owned(), field.name.clone())) {
                Some(theirs) if *theirs == ours => {}
                theirs => {
                    found.push(format!("{name}.{}: offset and size {theirs:?}, ours {ours:?}", field.name))
                }
            }
        }
        found.extend(gaps(layout));
    }
    found
}

/// Lists fields that the description lacks, as far as bytes show it: only alignment may lie between two described ones.
fn gaps(layout: &Layout) -> Vec<String> {
    let outer = layout.fields.iter().filter(|field| field.outer);
    let outer: BTreeMap<usize, &Field> = outer.map(|field| (field.place.offset, field)).collect();
    let mut found = Vec::new();
    let mut end = 0usize;
    for (offset, field) in outer {
        if offset != end.next_multiple_of(field.place.align) {
            found.push(format!(
                "{}: something lies before {} at {offset}, {end} is next",
                layout.name, field.name
            ));
        }
        end = offset + field.place.size;
    }
    if end.next_multiple_of(layout.align) != layout.size {
        found.push(format!("{}: something lies behind {end}, it has {} bytes", layout.name, layout.size));
    }
    found
}

/// Returns the lines `pub const NAME: type = EXPRESSION;` of a Rust file: the header's names, and the expressions,
/// which are valid in C, too. `prefix` gives the prefix of a module's names; `None` if there is none.
pub fn constants_of(file: &str, prefix: impl Fn(&str) -> Option<&str>) -> Vec<(String, String)> {
    let mut module = "";
    let mut found = Vec::new();
    for line in file.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("pub mod ") {
            module = name.trim_end_matches([' ', '{']);
        }
        let Some((name, rest)) = line.strip_prefix("pub const ").and_then(|rest| rest.split_once(": "))
        else {
            continue;
        };
        let (_, value) = rest.split_once(" = ").expect("a constant on one line");
        let name = prefix(module).map_or_else(|| name.to_owned(), |prefix| format!("{prefix}_{name}"));
        found.push((name, value.trim_end_matches(';').replace('_', "")));
    }
    found
}
