//! The NAS FT benchmark over µDECK's mailboxes.
//!
//! NPB 3.3's algorithm and output with the communication replaced (and with any number of ranks, not only powers
//! of two): the global transposes of a 3-D FFT are
//! what an all-to-all exchange of large messages looks like in an application, and NPB's checksums say
//! whether every byte arrived. The numerical core (`solver`, `slab`, `fft`, `random`) does not know the
//! library; `mailboxes` connects the two.

mod checksums;
mod classes;
mod division;
mod fft;
mod mailboxes;
mod options;
mod profile;
mod random;
mod report;
mod slab;
mod solver;
mod transpose;

use clap::Parser;
use mailboxes::{ExchangeError, Peers};
use options::{BadOrder, Options};
use profile::Profile;
use report::{Payload, Summary};
use slab::{BadRanks, Slab};
use solver::Solver;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;
use udeck::World;

/// The checksums were wrong.
const UNSUCCESSFUL: u8 = 1;
/// There was no result.
const FAILED: u8 = 2;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(UNSUCCESSFUL),
        Err(failure) => {
            // In one write, so that ranks' lines stay whole: the first of them to end takes the others with it.
            let _ = io::stderr().write_all(format!("nas-ft: {failure}\n").as_bytes());
            ExitCode::from(FAILED)
        }
    }
}

/// Why a run gave no result.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Ranks(#[from] BadRanks),
    #[error(transparent)]
    Order(#[from] BadOrder),
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error(transparent)]
    Messaging(#[from] udeck::Error),
    #[error("printing the results: {0}")]
    Output(#[from] io::Error),
}

/// The whole program. Whether the run was successful, as far as this rank knows: rank 0 compares.
fn run(options: &Options) -> Result<bool, Failure> {
    let world = udeck::init()?;
    let successful = benchmark(&world, options, &mut io::stdout().lock())?;
    world.finish()?;
    Ok(successful)
}

/// NPB's main program; rank 0 prints to `out`.
fn benchmark(world: &World, options: &Options, out: &mut impl Write) -> Result<bool, Failure> {
    let class = options.class;
    // What all ranks refuse alike comes before anything that waits for others.
    let slab = Slab::new(class.grid(), world.rank(), world.size())?;
    let steps = options.order.steps(world.rank(), world.size())?;
    // One in each of the two starts, and one in each step.
    let transposes = 2 + class.iterations();
    let moved = slab.moved_points();
    if world.rank() == 0 {
        report::header(out, class, world.size())?;
    }

    let mut peers = Peers::connect(world, steps, options.protocol)?;
    let mut solver = Solver::new(slab);
    // As NPB does: once untimed, so that all memory has been touched (the messages' too).
    solver.start(options.alpha, &mut peers)?;
    solver.profile = Profile::default();
    world.barrier()?;

    let start = Instant::now();
    solver.start(options.alpha, &mut peers)?;
    let mut sums = Vec::new();
    for iteration in 1..=class.iterations() {
        let part = solver.step(&mut peers)?;
        if let Some(sum) = peers.sum(part)? {
            report::checksum(out, iteration, sum)?;
            sums.push(sum);
        }
    }
    let verified = class.verify(&sums);
    let time = start.elapsed();

    let Some(posted) = peers.total_swapped_bytes()? else { return Ok(true) };
    report::verification(out, class, verified)?;
    report::summary(out, &Summary { class, ranks: world.size(), time, verified })?;
    report::payload(out, &Payload { posted, transposes, moved })?;
    if options.profile {
        report::profile(out, &solver.profile)?;
    }
    out.flush()?;
    Ok(verified)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use options::Order;

    /// Runs on ranks that are threads, class S unless told; asserts what every rank returns and what rank 0 prints.
    fn runs(ranks: usize, arguments: &[&str], verified: bool, lines: &'static [&'static str]) {
        let options = Options::parse_from([&["nas-ft"], arguments].concat());
        let body = move |world: World| {
            let mut out = Vec::new();
            let successful = benchmark(&world, &options, &mut out).expect("the run comes to an end");
            let out = String::from_utf8(out).expect("the report is text");
            if world.rank() == 0 {
                assert_eq!(successful, verified, "{out}");
                for line in lines {
                    assert!(out.lines().any(|found| found.trim() == *line), "no {line:?} in\n{out}");
                }
            } else {
                assert!(successful, "only rank 0 judges");
                assert_eq!(out, "", "only rank 0 prints");
            }
            world.finish()
        };
        udeck::run_local(ranks, body).expect("all ranks finish");
    }

    const SUCCESSFUL: &[&str] = &["Result verification successful"];

    #[test]
    fn every_order_gives_npbs_checksums() {
        for order in Order::value_variants() {
            let order = order.to_possible_value().expect("no order is hidden");
            for ranks in [1, 2, 4] {
                runs(ranks, &["--order", order.get_name()], true, SUCCESSFUL);
            }
        }
    }

    #[test]
    fn ranks_that_do_not_divide_the_grid_give_npbs_checksums() {
        for ranks in [3, 5, 6, 7] {
            runs(ranks, &[], true, SUCCESSFUL);
        }
        runs(3, &["--order", "triangle"], true, SUCCESSFUL);
        // Here what goes to a peer and what comes from it differ in length.
        runs(6, &["--class", "W"], true, SUCCESSFUL);
    }

    /// 64 x 64 x 64 points of 16 bytes, 8 transposes; of each, 1/2 goes to the other of 2 ranks, 3/4 to the
    /// others of 4. Three ranks keep 21, 21 and 22 of 64 in y and in z.
    #[test]
    fn mailboxes_carry_the_bytes_that_the_decomposition_has() {
        runs(1, &[], true, &["Transposed      = 0 bytes through mailboxes"]);
        runs(2, &[], true, &["Transposed      = 16777216 bytes through mailboxes"]);
        runs(3, &[], true, &["Transposed      = 22364160 bytes through mailboxes"]);
        runs(4, &["--order", "triangle"], true, &["Transposed      = 25165824 bytes through mailboxes"]);
    }

    #[test]
    fn another_alpha_is_unsuccessful() {
        let verdict = &["Result verification failed", "Verification    =             UNSUCCESSFUL"];
        runs(2, &["--alpha", "1.1e-6"], false, verdict);
    }

    /// What the ranks refuse before anything is exchanged.
    fn refused(ranks: usize, arguments: &[&str], expected: fn(&Failure) -> bool) {
        let options = Options::parse_from([&["nas-ft"], arguments].concat());
        let body = move |world: World| {
            let failure = benchmark(&world, &options, &mut io::sink()).expect_err("this cannot run");
            assert!(expected(&failure), "{failure}");
            world.finish()
        };
        udeck::run_local(ranks, body).expect("all ranks finish");
    }

    #[test]
    fn a_hypercube_of_three_is_refused() {
        refused(3, &["--order", "hypercube"], |failure| matches!(failure, Failure::Order(_)));
    }

    #[test]
    fn more_ranks_than_planes_are_refused() {
        refused(33, &["--class", "W"], |failure| matches!(failure, Failure::Ranks(_)));
    }
}
