//! Time of a rank's phases.

use num_complex::Complex64;
use std::time::{Duration, Instant};

/// Phase of a solver's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Initial state and tables of factors.
    Setup,
    /// Slabs: transforms along x and y.
    Planes,
    /// Pencils: transforms along x.
    X,
    /// Pencils: transforms along y.
    Y,
    /// Transforms along z, and the factors of the time step.
    Z,
    /// Posting blocks, and waiting for those of other ranks. (Packing and unpacking are part of the
    /// transforms.)
    Exchange,
    Checksum,
}

/// Time and memory traffic per phase.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    spent: [Duration; Phase::ALL.len()],
    /// Bytes read and written, each point once for each transform.
    bytes: [u64; Phase::ALL.len()],
}

impl Phase {
    pub const ALL: [Phase; 7] =
        [Self::Setup, Self::Planes, Self::X, Self::Y, Self::Z, Self::Exchange, Self::Checksum];

    pub fn name(self) -> &'static str {
        match self {
            Self::Setup => "setup",
            Self::Planes => "fft x, y",
            Self::X => "fft x",
            Self::Y => "fft y",
            Self::Z => "fft z",
            Self::Exchange => "exchange",
            Self::Checksum => "checksum",
        }
    }
}

impl Profile {
    pub fn start(&self) -> Instant {
        Instant::now()
    }

    /// Adds the time since `start` to a phase, which read or wrote `points` points.
    pub fn stop(&mut self, phase: Phase, start: Instant, points: usize) {
        self.spent[phase as usize] += start.elapsed();
        self.bytes[phase as usize] += (points * size_of::<Complex64>()) as u64;
    }

    pub fn spent(&self, phase: Phase) -> Duration {
        self.spent[phase as usize]
    }

    pub fn bytes(&self, phase: Phase) -> u64 {
        self.bytes[phase as usize]
    }

    /// Encodes the profile for a message: each phase's nanoseconds, then each phase's bytes.
    pub fn to_words(&self) -> Vec<u64> {
        let nanoseconds = self.spent.iter().map(|spent| spent.as_nanos() as u64);
        nanoseconds.chain(self.bytes).collect()
    }

    pub fn from_words(words: &[u64]) -> Self {
        let mut profile = Self::default();
        let (nanoseconds, bytes) = words.split_at(Phase::ALL.len());
        for (phase, (spent, bytes)) in nanoseconds.iter().zip(bytes).enumerate() {
            (profile.spent[phase], profile.bytes[phase]) = (Duration::from_nanos(*spent), *bytes);
        }
        profile
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_bytes_are_added_to_their_own_phase_and_survive_a_message() {
        let mut profile = Profile::default();
        for _ in 0..2 {
            let clock = profile.start();
            while clock.elapsed().is_zero() {}
            profile.stop(Phase::Z, clock, 3);
        }
        let read = Profile::from_words(&profile.to_words());
        for phase in Phase::ALL {
            assert_eq!(read.bytes(phase), if phase == Phase::Z { 96 } else { 0 });
            assert_eq!(read.spent(phase).is_zero(), phase != Phase::Z);
            assert_eq!(read.spent(phase), profile.spent(phase));
        }
    }
}
