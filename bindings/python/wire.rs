//! Layout of a message from Python. The description stands behind the contents, so that these begin at the start of the memory.
//!
//! ```text
//!   array   │ elements, in C order │ dimensions (u64 each, unless there is one) │ its type's text │ room │ foot │
//!   object  │ pickle │ buffers, each at a multiple of 64 │ table │ foot │
//!
//!   foot    │ version u8 │ kind u8 │ type u8 │ dimensions u8 │ bytes between the contents and the foot u32 │
//!   text    │ length u16 │ text │                                               only if `type` is TEXT
//!   table   │ length of the pickle u64 │ (offset u64, length u64) of each buffer │
//! ```
//!
//! All numbers are little endian. The sender may not be this library, and may have sent anything: everything read here is
//! checked here.

use udeck::bytemuck::{self, Pod, Zeroable};

/// A byte of a Python mailbox. It is a type of its own, so that a postbox of another language, which means other contents, is an
/// error.
#[derive(Clone, Copy, Pod, Zeroable)]
#[bytemuck(crate = "udeck::bytemuck")]
#[repr(transparent)]
pub struct PythonValues(u8);

pub const FOOT: usize = 8;
const VERSION: u8 = 0xd1;
const ARRAY: u8 = 0;
const OBJECT: u8 = 1;
/// Marks an element type without a number in numpy: its description follows as text.
pub const TEXT: u8 = 255;
/// Largest number of dimensions of an array: the limit of numpy 1.
pub const MAX_DIMS: usize = 32;
/// Alignment in bytes of an object's buffers.
pub const ALIGN: usize = 64;

/// The parts of a message.
pub enum Content<'a> {
    Array(Array<'a>),
    Object { pickle: &'a [u8], buffers: Vec<&'a [u8]> },
}

/// An array as its message describes it. [`Array::dims`] checks that the shape fits the elements.
pub struct Array<'a> {
    pub elements: &'a [u8],
    pub type_number: u8,
    /// numpy's name of the element type, if the type has no number.
    pub text: &'a str,
    count: usize,
    dims: &'a [u8],
}

/// A message that is damaged, or was not made by Python.
#[derive(Debug)]
pub struct Malformed(pub &'static str);

/// The shape of an array.
#[derive(Clone, Copy)]
pub struct Dims {
    pub count: usize,
    pub of: [isize; MAX_DIMS],
}

impl Dims {
    pub fn as_slice(&self) -> &[isize] {
        &self.of[..self.count]
    }
}

/// Description of an array in a message.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    pub type_number: u8,
    pub text: &'a str,
    pub dims: &'a [isize],
}

impl Head<'_> {
    /// Length of the description in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        FOOT + self.dims_len() + self.text_len()
    }

    #[inline]
    fn dims_len(&self) -> usize {
        if self.dims.len() < 2 { 0 } else { self.dims.len() * 8 }
    }

    #[inline]
    fn text_len(&self) -> usize {
        if self.type_number == TEXT { 2 + self.text.len() } else { 0 }
    }

    /// Writes the description behind the first `elements` bytes of `message`, which has room for it, and may
    /// have more.
    #[inline]
    pub fn write(&self, message: &mut [u8], elements: usize) {
        let between = (message.len() - elements - FOOT) as u32;
        let (head, foot) = message[elements..].split_at_mut(between as usize);
        if between > 0 {
            self.write_between(head);
        }
        foot[..4].copy_from_slice(&[VERSION, ARRAY, self.type_number, self.dims.len() as u8]);
        foot[4..].copy_from_slice(&between.to_le_bytes());
    }

    fn write_between(&self, to: &mut [u8]) {
        let (dims, rest) = to.split_at_mut(self.dims_len());
        for (to, dim) in dims.chunks_exact_mut(8).zip(self.dims) {
            to.copy_from_slice(&(*dim as u64).to_le_bytes());
        }
        if self.type_number == TEXT {
            rest[..2].copy_from_slice(&(self.text.len() as u16).to_le_bytes());
            rest[2..2 + self.text.len()].copy_from_slice(self.text.as_bytes());
        }
    }
}

/// Places of the parts in an object's message.
pub struct Layout {
    pickle: usize,
    /// Place of each buffer: offset and length in bytes.
    pub buffers: Vec<(usize, usize)>,
    table: usize,
    pub len: usize,
}

impl Layout {
    /// Layout for a pickle and buffers of these lengths.
    pub fn new(pickle: usize, lengths: impl Iterator<Item = usize>) -> Self {
        let (mut buffers, mut end) = (Vec::new(), pickle);
        for length in lengths {
            let offset = end.next_multiple_of(ALIGN);
            buffers.push((offset, length));
            end = offset + length;
        }
        let len = end + 8 + 16 * buffers.len() + FOOT;
        Layout { pickle, buffers, table: end, len }
    }

    /// Writes the description.
    ///
    /// # Errors
    /// There are more buffers than can be described.
    pub fn write(&self, message: &mut [u8]) -> Result<(), Malformed> {
        let between = u32::try_from(self.len - FOOT - self.table);
        let between = between.map_err(|_| Malformed("it has too many buffers"))?;
        let table = &mut message[self.table..];
        table[..8].copy_from_slice(&(self.pickle as u64).to_le_bytes());
        for (to, (offset, length)) in table[8..].chunks_exact_mut(16).zip(&self.buffers) {
            to[..8].copy_from_slice(&(*offset as u64).to_le_bytes());
            to[8..].copy_from_slice(&(*length as u64).to_le_bytes());
        }
        let foot = &mut message[self.len - FOOT..];
        foot[..4].copy_from_slice(&[VERSION, OBJECT, 0, 0]);
        foot[4..].copy_from_slice(&between.to_le_bytes());
        Ok(())
    }
}

/// Parses a message.
///
/// # Errors
/// [`Malformed`].
#[inline]
pub fn read(message: &[u8]) -> Result<Content<'_>, Malformed> {
    let Some((rest, &[version, kind, type_number, count, a, b, c, d])) = message.split_last_chunk::<FOOT>()
    else {
        return Err(Malformed("it is too short"));
    };
    if version != VERSION {
        return Err(Malformed("another version of udeck posted it, or a program that is not Python's"));
    }
    let between = u32::from_le_bytes([a, b, c, d]) as usize;
    let start =
        rest.len().checked_sub(between).ok_or(Malformed("its description is longer than the message"))?;
    let (content, between) = rest.split_at(start);
    match kind {
        ARRAY => read_array(content, between, type_number, count.into()).map(Content::Array),
        OBJECT => read_object(content, between),
        _ => Err(Malformed("it is of an unknown kind")),
    }
}

#[inline]
fn read_array<'a>(
    elements: &'a [u8],
    between: &'a [u8],
    type_number: u8,
    count: usize,
) -> Result<Array<'a>, Malformed> {
    if count > MAX_DIMS {
        return Err(Malformed("it has too many dimensions"));
    }
    let dims_len = if count < 2 { 0 } else { count * 8 };
    let (dims, rest) = between.split_at_checked(dims_len).ok_or(Malformed("it lacks dimensions"))?;
    let text = if type_number == TEXT { read_text(rest)? } else { "" };
    Ok(Array { elements, type_number, text, count, dims })
}

fn read_text(from: &[u8]) -> Result<&str, Malformed> {
    let lacking = Malformed("it names no type");
    let Some((&length, rest)) = from.split_first_chunk::<2>() else { return Err(lacking) };
    let text = rest.get(..u16::from_le_bytes(length).into()).ok_or(lacking)?;
    std::str::from_utf8(text).map_err(|_| Malformed("the name of its type is not UTF-8"))
}

fn read_object<'a>(content: &'a [u8], table: &'a [u8]) -> Result<Content<'a>, Malformed> {
    let outside = || Malformed("its table names bytes outside of the message");
    let number = |bytes: &[u8]| {
        let bytes = bytes.try_into().map_err(|_| Malformed("its table is damaged"))?;
        usize::try_from(u64::from_le_bytes(bytes)).map_err(|_| outside())
    };
    let (first, rest) = table.split_at_checked(8).ok_or_else(outside)?;
    let pickle = content.get(..number(first)?).ok_or_else(outside)?;
    let mut buffers = Vec::with_capacity(rest.len() / 16);
    for entry in rest.chunks(16) {
        let (offset, length) = entry.split_at_checked(8).ok_or_else(outside)?;
        let (offset, length) = (number(offset)?, number(length)?);
        let end = offset.checked_add(length).ok_or_else(outside)?;
        buffers.push(content.get(offset..end).ok_or_else(outside)?);
    }
    Ok(Content::Object { pickle, buffers })
}

impl Array<'_> {
    /// Shape of the array. Its number of elements, of `size` bytes each, is checked.
    ///
    /// # Errors
    /// [`Malformed`]: the shape does not fit the elements.
    #[inline]
    pub fn dims(&self, size: usize) -> Result<Dims, Malformed> {
        let mut dims = Dims { count: self.count, of: [0; MAX_DIMS] };
        if self.count == 1 {
            if size == 0 || !self.elements.len().is_multiple_of(size) {
                return Err(Malformed("its length is no whole number of elements"));
            }
            dims.of[0] = (self.elements.len() / size) as isize;
            return Ok(dims);
        }
        let misfit = || Malformed("its shape does not match its number of elements");
        let mut bytes = size;
        for (to, dim) in dims.of.iter_mut().zip(self.dims.chunks_exact(8)) {
            let dim = u64::from_le_bytes(dim.try_into().map_err(|_| misfit())?);
            *to = isize::try_from(dim).map_err(|_| misfit())?;
            bytes = bytes.checked_mul(*to as usize).ok_or_else(misfit)?;
        }
        if bytes == self.elements.len() { Ok(dims) } else { Err(misfit()) }
    }
}

/// Converts bytes to a mailbox's elements.
pub fn values(bytes: &[u8]) -> &[PythonValues] {
    bytemuck::cast_slice(bytes)
}

/// Converts a mailbox's elements to bytes.
pub fn bytes(values: &[PythonValues]) -> &[u8] {
    bytemuck::cast_slice(values)
}

/// Converts the elements of a message under construction to bytes.
pub fn bytes_mut(values: &mut [PythonValues]) -> &mut [u8] {
    bytemuck::cast_slice_mut(values)
}
