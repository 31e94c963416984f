//! A loop of 3-D transforms, to compare with FFT libraries (`peers/fftw.c` is its twin).

use crate::classes::Class;
use crate::exchange::Links;
use crate::failure::FtError;
use crate::layout::Layout;
use crate::mailboxes::{Gather, Peers};
use crate::profile::Profile;
use crate::report::{self, Times};
use crate::solver;
use crate::transform::Transform;
use num_complex::Complex64;
use std::io::Write;
use std::time::{Duration, Instant};
use udeck::World;

/// Largest allowed error: values are between 0 and 1, and rounding errors far smaller.
const TOLERANCE: f64 = 1e-10;

/// Runs the loop. Returns whether the input came back, as far as this rank knows, and the time of each phase.
pub fn run(
    world: &World,
    class: Class,
    layout: Layout,
    rounds: u32,
    links: &mut Links<Peers<'_>>,
    out: &mut impl Write,
) -> Result<(bool, Profile), FtError> {
    let mut state = vec![Complex64::ZERO; layout.state_points()];
    let mut spectrum = vec![Complex64::ZERO; layout.spectrum_points()];
    solver::fill_initial(&layout, &mut state);
    let input = state.clone();
    let scale = 1.0 / class.grid().points() as f64;
    let mut transform = Transform::new(layout);
    let mut times = Times::default();
    // The first round only touches the memory, and is not timed.
    for round in 0..=rounds {
        if round == 1 {
            transform.profile = Profile::default();
        }
        world.barrier()?;
        let start = Instant::now();
        transform.forward(links, &state, &mut spectrum)?;
        world.barrier()?;
        let middle = Instant::now();
        transform.inverse(links, &spectrum, None, &mut state)?;
        world.barrier()?;
        let end = Instant::now();
        state.iter_mut().for_each(|point| *point *= scale);
        if round > 0 {
            let seconds = |from: Instant, to: Instant| Duration::as_secs_f64(&(to - from));
            times.forward.push(seconds(start, middle));
            times.inverse.push(seconds(middle, end));
        }
    }
    let error = state.iter().zip(&input).map(|(point, before)| (point - before).norm()).fold(0.0, f64::max);
    let Some(errors) = Gather::connect(world, "errors")?.all(&[error])? else {
        return Ok((true, transform.profile));
    };
    let error = errors.into_iter().flatten().fold(0.0, f64::max);
    report::transforms(out, class, world.size(), times, error)?;
    Ok((error <= TOLERANCE, transform.profile))
}
