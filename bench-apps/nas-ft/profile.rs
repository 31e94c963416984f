//! Where a rank's time went.

use std::time::{Duration, Instant};

/// What a solver is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The initial state and the table of decay factors.
    Setup,
    /// Local transforms.
    Fft,
    /// Turning planes into pencils or back: packing, posting, waiting, unpacking.
    Transpose,
    /// The time step in the spectrum.
    Evolve,
}

/// Time per phase.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    spent: [Duration; Phase::ALL.len()],
}

impl Phase {
    pub const ALL: [Phase; 4] = [Self::Setup, Self::Fft, Self::Transpose, Self::Evolve];

    pub fn name(self) -> &'static str {
        match self {
            Self::Setup => "setup",
            Self::Fft => "fft",
            Self::Transpose => "transpose",
            Self::Evolve => "evolve",
        }
    }
}

impl Profile {
    /// Runs `work` and adds its time to `phase`.
    pub fn time<R>(&mut self, phase: Phase, work: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = work();
        self.spent[phase as usize] += start.elapsed();
        result
    }

    pub fn spent(&self, phase: Phase) -> Duration {
        self.spent[phase as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_added_to_its_own_phase() {
        let until_time_passes = || {
            let start = Instant::now();
            while start.elapsed().is_zero() {}
            7
        };
        let mut profile = Profile::default();
        assert_eq!(profile.time(Phase::Fft, until_time_passes), 7);
        let once = profile.spent(Phase::Fft);
        profile.time(Phase::Fft, until_time_passes);
        assert!(Duration::ZERO < once && once < profile.spent(Phase::Fft));
        for phase in [Phase::Setup, Phase::Transpose, Phase::Evolve] {
            assert_eq!(profile.spent(phase), Duration::ZERO, "{}", phase.name());
        }
    }
}
