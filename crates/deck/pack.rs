//! The layout of packed messages: a sequence of self-describing items.
//!
//! DECK's `pack` and `unpack` work on packed messages. The bytes lie in memory that the message owns
//! (writing) or in memory that came from another process (reading), so this is a codec over plain slices: it
//! allocates nothing, blocks on nothing, and returns items or an error whatever the bytes are.
//!
//! Every item starts at a multiple of eight bytes from the message's start, and is padded to one:
//!
//! ```text
//!  byte 0      1          4              8                                    multiple of 8
//!       +------+----------+--------------+----------------------------+--------+
//!       | type | reserved | count        | count elements             | zeros  |
//!       | u8   | 3 x 0    | u32          | in the order given         |        |
//!       +------+----------+--------------+----------------------------+--------+
//! ```
//!
//! `count` is in elements of the type, or in bytes for a string or a nested message. All numbers are
//! little-endian. No element is wider than eight bytes, so in a buffer that is aligned to eight (the
//! library's are aligned to 64) every slice can be read where it lies, also in nested messages.

use bytemuck::Pod;
use std::fmt;

// Elements are read in place, in the host's byte order, and the layout is little-endian.
#[cfg(target_endian = "big")]
compile_error!("packed messages are read in place: this needs a little-endian target");

/// Bytes of an item's header.
const HEADER: usize = 8;
/// Alignment of items in bytes.
const ALIGN: usize = 8;

/// A type that DECK packs: `i8` (DECK_CHAR), `u8`, `i16`, `u16`, `i32`, `u32`, `i64`, `u64`, `f32`, `f64`.
///
/// Sealed: the codes of these types are part of the message layout.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be packed",
    label = "not a type that messages pack",
    note = "messages pack slices of i8, u8, i16, u16, i32, u32, i64, u64, f32 and f64; strings by `pack_str`, other messages by \
            `pack_message`",
    note = "a struct of plain data is packed as bytes: `message.pack(bytemuck::bytes_of(&value))`, or has a mailbox of its own type"
)]
pub trait PackType: Pod + sealed::SealedElement {}

/// Type of a packed item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum ItemType {
    /// `[i8]`, DECK_CHAR.
    I8 = 1,
    /// `[u8]`.
    U8 = 2,
    /// `[i16]`, DECK_SHORT.
    I16 = 3,
    /// `[u16]`.
    U16 = 4,
    /// `[i32]`, DECK_INT.
    I32 = 5,
    /// `[u32]`.
    U32 = 6,
    /// `[i64]`, DECK_LONG.
    I64 = 7,
    /// `[u64]`.
    U64 = 8,
    /// `[f32]`, DECK_FLOAT.
    F32 = 9,
    /// `[f64]`, DECK_DOUBLE.
    F64 = 10,
    /// UTF-8 text.
    Str = 11,
    /// A packed message, DECK_MSG.
    Message = 12,
}

/// Failure of packing or unpacking. Neither the message nor the unpacking cursor has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// The message has no room for the item.
    #[error(
        "the item needs {needed} bytes with its header but the message has {free} left: create it larger"
    )]
    Full {
        /// Bytes that the item takes, header and padding included.
        needed: usize,
        /// Bytes that the message still has.
        free: usize,
    },
    /// The item has more elements than its header can count.
    #[error("an item holds at most {} elements, not {count}: pack it as several items", u32::MAX)]
    TooLong {
        /// Elements that were to be packed.
        count: usize,
    },
    /// The next item has another type than was asked for.
    #[error("the next item is {found}, not {expected}: unpack in the order and with the types of packing")]
    WrongType {
        /// The type that was asked for.
        expected: ItemType,
        /// The type that was packed.
        found: ItemType,
    },
    /// Every item has been unpacked.
    #[error("the message has no more items: unpack what was packed, or reset the cursor to read it again")]
    End,
    /// The bytes are not a packed message.
    #[error("not a packed message: the item at byte {offset} is damaged, or the sender packed nothing there")]
    Malformed {
        /// Where the item starts, in bytes from the start of its message.
        offset: usize,
    },
    /// The bytes are a packed message, but at their address its elements cannot be read in place.
    #[error("the message lies at an address that is no multiple of {ALIGN}: copy it to an aligned buffer")]
    BadAlignment,
}

/// Appends one item to the `used` bytes of `buf`, and returns the new number of used bytes.
pub(crate) fn append<T: PackType>(buf: &mut [u8], used: usize, items: &[T]) -> Result<usize, PackError> {
    append_item(buf, used, T::TYPE, items.len(), bytemuck::cast_slice(items))
}

/// Appends a string.
pub(crate) fn append_str(buf: &mut [u8], used: usize, text: &str) -> Result<usize, PackError> {
    append_item(buf, used, ItemType::Str, text.len(), text.as_bytes())
}

/// Appends another message's used bytes as one item.
pub(crate) fn append_message(buf: &mut [u8], used: usize, message: &[u8]) -> Result<usize, PackError> {
    append_item(buf, used, ItemType::Message, message.len(), message)
}

/// Returns the item at `cursor` as a slice of `bytes`, and moves the cursor behind it.
///
/// `bytes` is the used part of a message, and may come from any peer.
pub(crate) fn next<'a, T: PackType>(bytes: &'a [u8], cursor: &mut usize) -> Result<&'a [T], PackError> {
    let item = read_item(bytes, *cursor, T::TYPE)?;
    let elements = bytemuck::try_cast_slice(item.data).map_err(|_| PackError::BadAlignment)?;
    *cursor = item.end;
    Ok(elements)
}

/// Returns the string at `cursor`; see [`next`].
pub(crate) fn next_str<'a>(bytes: &'a [u8], cursor: &mut usize) -> Result<&'a str, PackError> {
    let item = read_item(bytes, *cursor, ItemType::Str)?;
    let text = std::str::from_utf8(item.data).map_err(|_| PackError::Malformed { offset: *cursor })?;
    *cursor = item.end;
    Ok(text)
}

/// Returns the bytes of the message nested at `cursor`, to be read with a cursor of their own; see [`next`].
pub(crate) fn next_message<'a>(bytes: &'a [u8], cursor: &mut usize) -> Result<&'a [u8], PackError> {
    let item = read_item(bytes, *cursor, ItemType::Message)?;
    *cursor = item.end;
    Ok(item.data)
}

fn append_item(
    buf: &mut [u8],
    used: usize,
    item_type: ItemType,
    count: usize,
    data: &[u8],
) -> Result<usize, PackError> {
    debug_assert_eq!(used % ALIGN, 0, "`used` comes from an earlier append");
    let count = u32::try_from(count).map_err(|_| PackError::TooLong { count })?;
    let needed = HEADER + data.len().next_multiple_of(ALIGN);
    let room = buf.get_mut(used..).unwrap_or_default();
    let free = room.len();
    let item = room.get_mut(..needed).ok_or(PackError::Full { needed, free })?;

    let (header, rest) = item.split_at_mut(HEADER);
    let (body, padding) = rest.split_at_mut(data.len());
    header.copy_from_slice(&encode_header(item_type, count));
    body.copy_from_slice(data);
    // The buffer may be a recycled one: its old bytes must not reach the receiver.
    padding.fill(0);
    Ok(used + needed)
}

/// An item that was read: its data without padding, and the start of the next item.
struct Item<'a> {
    data: &'a [u8],
    end: usize,
}

/// Reads the item at byte `start`, which must be of type `expected` and lie within `bytes`.
fn read_item(bytes: &[u8], start: usize, expected: ItemType) -> Result<Item<'_>, PackError> {
    let malformed = PackError::Malformed { offset: start };
    let rest = bytes.get(start..).ok_or(malformed)?;
    if rest.is_empty() {
        return Err(PackError::End);
    }
    let (header, body) = rest.split_first_chunk::<HEADER>().ok_or(malformed)?;
    let (found, count) = decode_header(*header).ok_or(malformed)?;
    if found != expected {
        return Err(PackError::WrongType { expected, found });
    }
    let length = usize::try_from(count).ok().and_then(|count| count.checked_mul(found.size()));
    let padded = length.and_then(|length| length.checked_next_multiple_of(ALIGN));
    let (Some(length), Some(padded)) = (length, padded) else { return Err(malformed) };
    let data = body.get(..padded).ok_or(malformed)?;
    Ok(Item { data: &data[..length], end: start + HEADER + padded })
}

fn encode_header(item_type: ItemType, count: u32) -> [u8; HEADER] {
    let [a, b, c, d] = count.to_le_bytes();
    [item_type as u8, 0, 0, 0, a, b, c, d]
}

/// Decodes type and count. `None` if the type is unknown or a reserved byte is not zero.
fn decode_header(header: [u8; HEADER]) -> Option<(ItemType, u32)> {
    let [code, 0, 0, 0, a, b, c, d] = header else { return None };
    Some((ItemType::from_code(code)?, u32::from_le_bytes([a, b, c, d])))
}

impl ItemType {
    const ALL: [ItemType; 12] = [
        Self::I8,
        Self::U8,
        Self::I16,
        Self::U16,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F32,
        Self::F64,
        Self::Str,
        Self::Message,
    ];

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|item_type| *item_type as u8 == code)
    }

    /// Bytes of one counted element.
    fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::Str | Self::Message => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }
}

impl fmt::Display for ItemType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::I8 => "[i8]",
            Self::U8 => "[u8]",
            Self::I16 => "[i16]",
            Self::U16 => "[u16]",
            Self::I32 => "[i32]",
            Self::U32 => "[u32]",
            Self::I64 => "[i64]",
            Self::U64 => "[u64]",
            Self::F32 => "[f32]",
            Self::F64 => "[f64]",
            Self::Str => "a string",
            Self::Message => "a message",
        })
    }
}

mod sealed {
    pub trait SealedElement {
        const TYPE: super::ItemType;
    }
}

macro_rules! pack_types {
    ($($element:ty => $item_type:ident),* $(,)?) => { $(
        impl sealed::SealedElement for $element {
            const TYPE: ItemType = ItemType::$item_type;
        }
        impl PackType for $element {}
    )* };
}
pack_types! {
    i8 => I8, u8 => U8, i16 => I16, u16 => U16, i32 => I32, u32 => U32, i64 => I64, u64 => U64,
    f32 => F32, f64 => F64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A buffer aligned like the library's.
    #[repr(C, align(64))]
    struct Aligned<const N: usize>([u8; N]);

    #[test]
    fn the_layout_is_the_documented_one() {
        let mut buf = Aligned([0xEE_u8; 40]);
        let used = append(&mut buf.0, 0, &[0x0102_i16, -1, 3]).unwrap();
        let used = append_str(&mut buf.0, used, "é").unwrap();
        assert_eq!(used, 32);
        let expected = [
            [3, 0, 0, 0, 3, 0, 0, 0],
            [2, 1, 255, 255, 3, 0, 0, 0],
            [11, 0, 0, 0, 2, 0, 0, 0],
            [0xC3, 0xA9, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(&buf.0[..used], expected.as_flattened(), "header, data and zeroed padding");
        assert_eq!(buf.0[used..], [0xEE; 8], "nothing is written behind the item");
    }

    #[test]
    fn codes_are_distinct_and_sizes_are_the_elements_own() {
        fn check<T: PackType>() {
            assert_eq!(<T as sealed::SealedElement>::TYPE.size(), size_of::<T>());
            assert!(align_of::<T>() <= ALIGN);
        }
        check::<i8>();
        check::<u8>();
        check::<i16>();
        check::<u16>();
        check::<i32>();
        check::<u32>();
        check::<i64>();
        check::<u64>();
        check::<f32>();
        check::<f64>();
        for item_type in ItemType::ALL {
            assert_eq!(ItemType::from_code(item_type as u8), Some(item_type));
        }
        assert_eq!(ItemType::from_code(0), None);
        assert_eq!(ItemType::from_code(13), None);
    }

    #[test]
    fn a_full_message_says_what_is_missing_and_stays_as_it_was() {
        let mut buf = Aligned([0; 32]);
        let used = append(&mut buf.0, 0, &[1_u8]).unwrap();
        assert_eq!(used, 16);
        let before = buf.0;
        assert_eq!(append(&mut buf.0, used, &[1.0, 2.0]), Err(PackError::Full { needed: 24, free: 16 }));
        assert_eq!(buf.0, before);
        assert_eq!(append(&mut buf.0, used, &[1.0]), Ok(32), "an item may fill the message exactly");
        assert_eq!(append::<u8>(&mut buf.0, 32, &[]), Err(PackError::Full { needed: 8, free: 0 }));
        assert_eq!(append::<u8>(&mut buf.0, 40, &[]), Err(PackError::Full { needed: 8, free: 0 }));
    }

    #[test]
    fn a_wrong_type_names_both_and_the_right_one_still_unpacks() {
        let mut buf = Aligned([0; 64]);
        let used = append(&mut buf.0, 0, &[7_i64]).unwrap();
        let mut cursor = 0;
        let wrong = next::<f64>(&buf.0[..used], &mut cursor).unwrap_err();
        assert_eq!(wrong, PackError::WrongType { expected: ItemType::F64, found: ItemType::I64 });
        assert!(wrong.to_string().starts_with("the next item is [i64], not [f64]"), "{wrong}");
        assert!(next_str(&buf.0[..used], &mut cursor).is_err());
        assert_eq!(next::<i64>(&buf.0[..used], &mut cursor), Ok(&[7][..]));
        assert_eq!(next::<i64>(&buf.0[..used], &mut cursor), Err(PackError::End));
    }

    /// Checks bytes that an honest `append` never writes, each with one thing wrong.
    #[test]
    fn damaged_items_are_malformed() {
        let damaged: [(&str, &[u8]); 6] = [
            ("half a header", &[2, 0, 0, 0]),
            ("type zero", &[0, 0, 0, 0, 0, 0, 0, 0]),
            ("unknown type", &[13, 0, 0, 0, 0, 0, 0, 0]),
            ("reserved byte set", &[2, 0, 1, 0, 0, 0, 0, 0]),
            ("count beyond the message", &[2, 0, 0, 0, 9, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]),
            ("missing padding", &[2, 0, 0, 0, 1, 0, 0, 0, 1]),
        ];
        for (what, bytes) in damaged {
            let mut cursor = 0;
            assert_eq!(next::<u8>(bytes, &mut cursor), Err(PackError::Malformed { offset: 0 }), "{what}");
            assert_eq!(cursor, 0, "{what}");
        }
        let not_utf8 = [11, 0, 0, 0, 2, 0, 0, 0, 0xC3, 0x28, 0, 0, 0, 0, 0, 0];
        assert_eq!(next_str(&not_utf8, &mut 0), Err(PackError::Malformed { offset: 0 }));
        assert_eq!(next::<u8>(&[], &mut 8), Err(PackError::Malformed { offset: 8 }), "cursor beyond the end");
    }

    #[test]
    fn the_greatest_count_of_every_type_is_malformed_and_does_not_wrap() {
        fn check<T: PackType + fmt::Debug + PartialEq>() {
            let mut bytes = Aligned([0_u8; 24]);
            bytes.0[..HEADER].copy_from_slice(&encode_header(<T as sealed::SealedElement>::TYPE, u32::MAX));
            assert_eq!(next::<T>(&bytes.0, &mut 0), Err(PackError::Malformed { offset: 0 }));
        }
        check::<u8>();
        check::<u16>();
        check::<f32>();
        check::<f64>();
        let text = encode_header(ItemType::Str, u32::MAX);
        assert_eq!(next_str(&text, &mut 0), Err(PackError::Malformed { offset: 0 }));
    }

    #[test]
    fn a_misaligned_buffer_is_an_error_and_the_cursor_stays() {
        let mut buf = Aligned([0; 32]);
        let used = append(&mut buf.0[1..], 0, &[1_u32]).unwrap();
        let mut cursor = 0;
        assert_eq!(next::<u32>(&buf.0[1..1 + used], &mut cursor), Err(PackError::BadAlignment));
        assert_eq!(cursor, 0);
    }

    /// One packed item. Floats are compared by their bits, since NaN must round-trip too.
    #[derive(Clone, Debug, PartialEq)]
    enum Value {
        I8(Vec<i8>),
        U16(Vec<u16>),
        I32(Vec<i32>),
        U64(Vec<u64>),
        F32(Vec<u32>),
        F64(Vec<u64>),
        Str(String),
        Message(Vec<Value>),
    }

    fn values() -> impl Strategy<Value = Vec<Value>> {
        let leaf = prop_oneof![
            any::<Vec<i8>>().prop_map(Value::I8),
            any::<Vec<u16>>().prop_map(Value::U16),
            any::<Vec<i32>>().prop_map(Value::I32),
            any::<Vec<u64>>().prop_map(Value::U64),
            any::<Vec<u32>>().prop_map(Value::F32),
            any::<Vec<u64>>().prop_map(Value::F64),
            ".*".prop_map(Value::Str),
        ];
        let nested = leaf
            .prop_recursive(3, 24, 4, |value| prop::collection::vec(value, 0..4).prop_map(Value::Message));
        prop::collection::vec(nested, 0..6)
    }

    /// Packs into a buffer that grows until the values fit, which exercises `Full` on the way.
    fn pack(values: &[Value]) -> Vec<u64> {
        let mut words = vec![u64::MAX; 1];
        loop {
            let buf: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
            match values.iter().try_fold(0, |used, value| pack_one(buf, used, value)) {
                Ok(used) => {
                    words.truncate(used / 8);
                    return words;
                }
                Err(PackError::Full { needed, free }) => {
                    assert!(needed > free);
                    words.resize(words.len() * 2, u64::MAX);
                }
                Err(other) => panic!("{other}"),
            }
        }
    }

    fn pack_one(buf: &mut [u8], used: usize, value: &Value) -> Result<usize, PackError> {
        match value {
            Value::I8(items) => append(buf, used, items),
            Value::U16(items) => append(buf, used, items),
            Value::I32(items) => append(buf, used, items),
            Value::U64(items) => append(buf, used, items),
            Value::F32(items) => append(buf, used, bytemuck::cast_slice::<_, f32>(items)),
            Value::F64(items) => append(buf, used, bytemuck::cast_slice::<_, f64>(items)),
            Value::Str(text) => append_str(buf, used, text),
            Value::Message(inner) => append_message(buf, used, bytemuck::cast_slice(&pack(inner))),
        }
    }

    /// Checks that `bytes` hold exactly `values`.
    fn check(bytes: &[u8], values: &[Value]) {
        let mut cursor = 0;
        for value in values {
            match value {
                Value::I8(items) => assert_eq!(next::<i8>(bytes, &mut cursor).unwrap(), items),
                Value::U16(items) => assert_eq!(next::<u16>(bytes, &mut cursor).unwrap(), items),
                Value::I32(items) => assert_eq!(next::<i32>(bytes, &mut cursor).unwrap(), items),
                Value::U64(items) => assert_eq!(next::<u64>(bytes, &mut cursor).unwrap(), items),
                Value::F32(bits) => {
                    let floats = next::<f32>(bytes, &mut cursor).unwrap();
                    assert_eq!(bytemuck::cast_slice::<_, u32>(floats), bits);
                }
                Value::F64(bits) => {
                    let floats = next::<f64>(bytes, &mut cursor).unwrap();
                    assert_eq!(bytemuck::cast_slice::<_, u64>(floats), bits);
                }
                Value::Str(text) => assert_eq!(next_str(bytes, &mut cursor).unwrap(), text),
                Value::Message(inner) => check(next_message(bytes, &mut cursor).unwrap(), inner),
            }
        }
        assert_eq!(next::<u8>(bytes, &mut cursor), Err(PackError::End));
    }

    /// Reads one item as the type numbered `kind`, and asserts that the result lies inside `bytes`.
    fn read_as(kind: u8, bytes: &[u8], cursor: &mut usize) -> Result<(), PackError> {
        fn inside<T>(bytes: &[u8], items: &[T]) {
            let (outer, inner) = (bytes.as_ptr_range(), items.as_ptr_range());
            assert!(outer.start <= inner.start.cast() && inner.end.cast() <= outer.end);
        }
        match kind % 6 {
            0 => next::<u8>(bytes, cursor).map(|items| inside(bytes, items)),
            1 => next::<i16>(bytes, cursor).map(|items| inside(bytes, items)),
            2 => next::<f32>(bytes, cursor).map(|items| inside(bytes, items)),
            3 => next::<i64>(bytes, cursor).map(|items| inside(bytes, items)),
            4 => next_str(bytes, cursor).map(|text| inside(bytes, text.as_bytes())),
            _ => next_message(bytes, cursor).map(|inner| inside(bytes, inner)),
        }
    }

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(values in values()) {
            check(bytemuck::cast_slice(&pack(&values)), &values);
        }

        #[test]
        fn arbitrary_bytes_give_items_or_errors(
            bytes in prop::collection::vec(any::<u8>(), 0..256),
            skip in 0_usize..9,
            kinds in prop::collection::vec(any::<u8>(), 1..16),
            mut cursor in 0_usize..300,
        ) {
            let bytes = bytes.get(skip..).unwrap_or_default();
            for kind in kinds {
                let before = cursor;
                match read_as(kind, bytes, &mut cursor) {
                    Ok(()) => prop_assert!(before < cursor && cursor <= bytes.len()),
                    Err(_) => prop_assert_eq!(cursor, before),
                }
            }
        }

        /// Changes a few bytes of a valid message: arbitrary bytes seldom pass the first check.
        #[test]
        fn damaged_messages_give_items_or_errors(
            values in values(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
            kinds in prop::collection::vec(any::<u8>(), 1..32),
        ) {
            let mut words = pack(&values);
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
            for (index, byte) in damage {
                if !bytes.is_empty() {
                    let at = index.index(bytes.len());
                    bytes[at] = byte;
                }
            }
            let mut cursor = 0;
            for kind in kinds {
                let before = cursor;
                if read_as(kind, bytes, &mut cursor).is_err() {
                    prop_assert_eq!(cursor, before);
                }
                prop_assert!(cursor <= bytes.len());
            }
        }
    }
}
