//! Bounds that every post is checked against.

use crate::attributes::NicAttributes;
use crate::error::Error;

/// A NIC's bounds of descriptors, close at hand: asking the device costs a call per post.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub segments: usize,
    /// Upper bound of a message, in bytes.
    pub transfer: usize,
    /// Upper bound of a message that travels inside its descriptor, in bytes.
    pub inline: usize,
    /// Upper bound of descriptors on one queue.
    pub descriptors: usize,
}

impl Limits {
    pub fn of(nic: &NicAttributes) -> Self {
        Limits {
            segments: nic.max_segments,
            transfer: nic.max_transfer,
            inline: nic.max_inline,
            descriptors: nic.max_descriptors_per_queue,
        }
    }

    /// The error of a post that exceeds a bound: if the descriptor itself exceeds none, the queue is full.
    #[cold]
    pub fn exceeded(&self, segments: usize, total: usize) -> Error {
        let Limits { segments: most_segments, transfer, descriptors, .. } = self;
        if segments > *most_segments {
            let what = format!("{segments} segments in a descriptor, at most {most_segments}");
            return Error::InvalidParameter(what);
        }
        if total > *transfer {
            return Error::InvalidParameter(format!("{total} bytes, at most {transfer} travel"));
        }
        let bound = format!("{descriptors} descriptors, until send_done takes some");
        Error::Full { what: "the send queue", bound: bound.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_the_bound_that_is_exceeded() {
        let limits = Limits { segments: 3, transfer: 100, inline: 10, descriptors: 8 };
        let named = |segments, total| limits.exceeded(segments, total).to_string();
        assert!(named(4, 100).contains("4 segments"), "{}", named(4, 100));
        assert!(named(3, 101).contains("101 bytes"), "{}", named(3, 101));
        assert!(
            matches!(limits.exceeded(3, 100), Error::Full { .. }),
            "both bounds are kept: the queue is full"
        );
    }
}
