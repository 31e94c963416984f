//! Short messages: they travel inside their descriptors and are kept by value.

use std::fmt::Debug;

/// A few bytes, by value.
#[derive(Clone, Copy)]
pub struct Inline {
    words: [u64; Inline::WORDS],
    len: u8,
}

impl Inline {
    const WORDS: usize = 6;
    /// Upper bound of the bytes.
    pub const CAPACITY: usize = Inline::WORDS * 8;

    /// No bytes.
    pub const EMPTY: Inline = Inline { words: [0; Inline::WORDS], len: 0 };

    /// Makes one of the first `len` bytes of `words`, at most [`Inline::CAPACITY`].
    #[inline]
    pub fn new(words: [u64; Inline::WORDS], len: usize) -> Self {
        Inline { words, len: len.min(Inline::CAPACITY) as u8 }
    }

    /// Makes one of `head` followed by `body`, which together fit.
    #[inline]
    pub fn gather(head: &[u8], body: &[u8]) -> Self {
        let mut inline = Inline { words: [0; Inline::WORDS], len: (head.len() + body.len()) as u8 };
        let bytes: &mut [u8] = bytemuck::bytes_of_mut(&mut inline.words);
        bytes[..head.len()].copy_from_slice(head);
        bytes[head.len()..head.len() + body.len()].copy_from_slice(body);
        inline
    }

    /// Makes one of `bytes` alone, word by word: quicker for the few bytes that most short messages have.
    #[inline(always)]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut words = [0; Inline::WORDS];
        let (whole, rest) = bytes.as_chunks::<8>();
        for (word, chunk) in words.iter_mut().zip(whole) {
            *word = u64::from_ne_bytes(*chunk);
        }
        if !rest.is_empty()
            && let Some(word) = words.get_mut(whole.len())
        {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            *word = u64::from_ne_bytes(last);
        }
        Inline::new(words, bytes.len())
    }

    /// Sets the bytes as [`Inline::new`] does, in place.
    #[inline]
    pub fn set(&mut self, words: [u64; Inline::WORDS], len: usize) {
        self.words = words;
        self.len = len.min(Inline::CAPACITY) as u8;
    }

    /// Copies `other`. Most messages need only two of the words.
    #[inline]
    pub fn copy_from(&mut self, other: &Inline) {
        self.len = other.len;
        let (first, rest) = self.words.split_at_mut(2);
        first.copy_from_slice(&other.words[..2]);
        if other.len > 16 {
            rest.copy_from_slice(&other.words[2..]);
        }
    }

    /// The bytes, 8-byte aligned.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::bytes_of(&self.words)[..self.len as usize]
    }

    /// Number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte; 0 or a former byte if there are none.
    #[inline]
    pub fn first(&self) -> u8 {
        self.words[0].to_ne_bytes()[0]
    }

    /// The words that hold the bytes.
    #[inline]
    pub fn words(&self) -> &[u64] {
        &self.words[..(self.len as usize).div_ceil(8)]
    }
}

impl Debug for Inline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02x?}", self.bytes())
    }
}

/// A short message that arrived, one of several ([`ViEndpoint::receive_short_run`](super::ViEndpoint::receive_short_run)).
#[derive(Clone, Copy, Debug)]
pub struct ShortArrival {
    /// Immediate data of the message.
    pub immediate: Option<u32>,
    /// Header and body.
    pub message: Inline,
}

impl ShortArrival {
    /// An empty place for one message.
    pub const NONE: ShortArrival = ShortArrival { immediate: None, message: Inline::EMPTY };
}
