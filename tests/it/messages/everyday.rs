//! Everyday calls: arrays, vectors and tags, and the copies of each way to post and to retrieve.

use crate::common::{SHORT, alone, patterned};
use udeck::bytemuck::{Pod, Zeroable};
use udeck::{Error, ExternalBuf, Message, Packed, Postbox, Protocol, WithTag};

#[test]
fn arrays_vectors_and_buffers_are_posted_as_slices_are() {
    let world = alone(8 << 20);
    let (inbox, out) = (world.mailbox::<f32>("in").unwrap(), world.postbox("in").unwrap());
    let (array, vec, boxed) = ([1.0, 2.0], vec![3.0; 1000], vec![4.0].into_boxed_slice());
    let buf = world.buf(3).unwrap().with_tag(9);
    out.post(&array).unwrap();
    out.post(&vec).unwrap();
    out.post(&boxed).unwrap();
    out.post(&buf).unwrap();
    out.post(&vec[..2]).unwrap();
    out.try_post(&[5.0]).unwrap();
    out.post_nonblocking(&vec).unwrap().wait().unwrap();
    let wanted: [(&[f32], u32); 7] =
        [(&array, 0), (&vec, 0), (&boxed, 0), (&buf, 9), (&[3.0; 2], 0), (&[5.0], 0), (&vec, 0)];
    for (elements, tag) in wanted {
        let received = inbox.retrieve().unwrap();
        assert_eq!((&*received, received.tag()), (elements, tag));
    }
}

#[test]
fn a_copy_has_the_tag_that_it_is_given() {
    let world = alone(8 << 20);
    let (inbox, out) = (world.mailbox::<u64>("in").unwrap(), world.postbox::<u64>("in").unwrap());
    let long = vec![7; 1000];
    out.post([1].with_tag(1)).unwrap();
    out.post(long.with_tag(u32::MAX)).unwrap();
    out.post_timeout(long.with_tag(3), SHORT).unwrap();
    for (len, tag) in [(1, 1), (1000, u32::MAX), (1000, 3)] {
        let mut to = [0; 1000];
        let got = inbox.retrieve_into(&mut to).unwrap();
        assert_eq!((got.len, got.source, got.tag), (len, 0, tag));
    }
    drop(inbox);
    let failed = out.post(long.with_tag(3)).unwrap_err();
    assert!(matches!(failed.error, Error::MailboxGone { .. }), "{}", failed.error);
}

/// The message is moved, like one that this rank made.
#[test]
fn a_received_message_is_posted_on_with_another_tag() {
    let world = alone(8 << 20);
    let (inbox, out) = (world.mailbox::<u64>("in").unwrap(), world.postbox::<u64>("in").unwrap());
    out.post_with(Protocol::RdmaRead, world.buf_from(0..1000).unwrap().with_tag(1)).unwrap();
    let received = inbox.retrieve().unwrap();
    let (place, copied) = (received.as_ptr(), world.stats().bytes_copied);
    let received = received.with_tag(7);
    assert_eq!((received.tag(), received.as_ptr()), (7, place));
    out.post_with(Protocol::HandOff, received).unwrap();
    let received = inbox.retrieve().unwrap();
    assert!(received.iter().copied().eq(0..1000));
    assert_eq!((received.tag(), world.stats().bytes_copied), (7, copied));
}

/// The message keeps its memory and tag; more elements than it has do not lengthen it.
#[test]
fn a_buffer_is_shortened_in_place() {
    let world = alone(8 << 20);
    let (inbox, out) = (world.mailbox::<u32>("in").unwrap(), world.postbox::<u32>("in").unwrap());
    for (len, to) in [(1000, 700), (1000, 3), (1000, 0), (5, 5), (5, 6), (0, 0)] {
        let mut buf = world.buf_from(0..len).unwrap().with_tag(len);
        let place = buf.as_ptr();
        buf.truncate(to as usize);
        assert_eq!(buf.as_ptr(), place);
        out.post(buf).unwrap();
        let received = inbox.retrieve().unwrap();
        assert!(received.iter().copied().eq(0..len.min(to)), "{len} to {to}");
        assert_eq!(received.tag(), len);
    }
    assert_eq!(world.buf::<u32>(1000).unwrap().len(), 1000, "its memory is whole again");
}

/// An iterator makes a message, whether or not it says how many elements it has.
#[test]
fn an_iterator_makes_a_message() {
    /// Yields `has` elements, and says `says`.
    struct Elements(std::ops::Range<u32>, usize);
    impl Iterator for Elements {
        type Item = u32;
        fn next(&mut self) -> Option<u32> {
            self.0.next()
        }
        fn size_hint(&self) -> (usize, Option<usize>) {
            (self.1, Some(self.1))
        }
    }
    let world = alone(8 << 20);
    assert_eq!(&*world.buf_from([7_u8; 5]).unwrap(), [7; 5]);
    assert_eq!(&*world.buf_from((0..10_u32).filter(|n| n % 3 == 0)).unwrap(), [0, 3, 6, 9]);
    assert_eq!(world.buf_from(std::iter::empty::<u64>()).unwrap().len(), 0);
    assert_eq!(&*world.buf_from(Elements(0..3, 5)).unwrap(), [0, 1, 2], "fewer than it says");
    assert_eq!(&*world.buf_from(Elements(0..5, 3)).unwrap(), [0, 1, 2], "more than it says");
    assert!(matches!(world.buf_from(0..1_u64 << 40), Err(Error::TooLarge { .. })));
    assert!(matches!(world.buf_from(std::iter::repeat(1_u64)), Err(Error::TooLarge { .. })));
    assert!(matches!(world.buf_from(std::iter::from_fn(|| Some(1_u64))), Err(Error::TooLarge { .. })));
    assert!(matches!(world.buf_from(std::iter::repeat(())), Err(Error::BadPayload { .. })));
}

/// `?` works in a function that returns any error: the error does not hold a reference to a copied slice.
#[test]
fn a_post_that_fails_is_an_error_as_any_other() {
    fn post(out: &Postbox<u64>) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let local = vec![1, 2];
        out.post(&local[..])?;
        out.post(&local)?;
        out.post(&[3])?;
        Ok(out.post(local.with_tag(4))?)
    }
    let world = alone(8 << 20);
    let (inbox, out) = (world.mailbox::<u64>("in").unwrap(), world.postbox::<u64>("in").unwrap());
    post(&out).unwrap();
    drop(inbox);
    let error = post(&out).unwrap_err();
    assert!(error.to_string().contains("in"), "{error}");
}

/// The derive finds the crate through `udeck`, as in a program that does not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
#[bytemuck(crate = "udeck::bytemuck")]
struct Particle {
    place: [f64; 3],
    charge: i64,
}

#[test]
fn a_struct_of_the_programs_own_travels() {
    let world = alone(8 << 20);
    let (inbox, out) = (world.mailbox::<Particle>("in").unwrap(), world.postbox("in").unwrap());
    let particle = Particle { place: [0.5, 1.5, 2.5], charge: -1 };
    out.post(&[particle; 100]).unwrap();
    assert_eq!(*inbox.retrieve().unwrap(), [particle; 100]);
}

#[test]
fn items_of_a_packed_message_are_held_side_by_side() {
    let world = alone(8 << 20);
    let (inbox, out) = (world.mailbox::<Packed>("in").unwrap(), world.postbox("in").unwrap());
    let pack = |message: &mut Message| -> udeck::Result {
        message.pack(&[1_i64, 2])?.pack(&[0.5_f32])?.pack_str("text")?;
        Ok(())
    };
    let (mut inner, mut message) = (world.message(100).unwrap(), world.message(300).unwrap());
    pack(&mut inner).unwrap();
    pack(&mut message).unwrap();
    message.pack_message(&inner).unwrap();
    let (before, after) = (message.unpack::<i64>().unwrap(), message.unpack::<f32>().unwrap());
    assert_eq!((before, after), (&[1, 2][..], &[0.5][..]));
    out.post(message).unwrap();

    let received = inbox.retrieve().unwrap();
    let (numbers, reals) = (received.unpack::<i64>().unwrap(), received.unpack::<f32>().unwrap());
    assert!(received.unpack::<i64>().is_err(), "a string comes next");
    let text = received.unpack_str().unwrap();
    let nested =
        received.unpack_message(|inner| Ok((inner.unpack::<i64>()?, inner.unpack::<f32>()?))).unwrap();
    assert_eq!((numbers, reals, text), (&[1, 2][..], &[0.5][..], "text"));
    assert_eq!(nested, (numbers, reals));
    received.reset();
    assert_eq!(received.unpack::<i64>().unwrap().as_ptr(), numbers.as_ptr());
}

/// The copies are those of the book's table, on one host, for more than 40 bytes.
#[test]
fn each_idiom_copies_what_the_book_says() {
    const LEN: usize = 100_000;
    let world = alone(16 << 20);
    let (inbox, out) = (world.mailbox::<u8>("in").unwrap(), world.postbox::<u8>("in").unwrap());
    let mut memory = vec![0; LEN];
    let mut copies = |post: &dyn Fn(), into: bool| {
        let before = world.stats().bytes_copied;
        post();
        if into {
            inbox.retrieve_into(&mut memory).unwrap();
        } else {
            inbox.retrieve().unwrap();
        }
        (world.stats().bytes_copied - before) as usize / LEN
    };
    let (slice, shared) = (vec![1; LEN], patterned::<u8>(&world, 1, 4 * LEN).unwrap().share());
    let buf = || out.post(patterned(&world, 1, LEN).unwrap()).unwrap();
    assert_eq!(copies(&buf, false), 0, "a buf, and retrieve");
    assert_eq!(copies(&buf, true), 1, "a buf, and retrieve_into");
    assert_eq!(copies(&|| out.post(&slice).unwrap(), false), 1, "a slice, and retrieve");
    assert_eq!(copies(&|| out.post(&slice).unwrap(), true), 2, "a slice, and retrieve_into");
    assert_eq!(copies(&|| out.post(shared.part(LEN..2 * LEN)).unwrap(), false), 0, "a part of a shared buf");
    let external = || out.post(ExternalBuf::new(slice.clone())).unwrap();
    assert_eq!(copies(&external, false), 1, "a vector that is moved");
}
