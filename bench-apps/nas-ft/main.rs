//! The NAS FT benchmark over µDECK's mailboxes.
//!
//! The program has NPB 3.3's algorithm and output, other communication, and runs on any number of ranks, not only powers of
//! two. The global transposes of a 3-D FFT show an all-to-all exchange of large messages in an application, and NPB's
//! checksums prove that every byte arrived. The numerical core (`solver`, `transform` and the files that they use) does not
//! know the library; `mailboxes` connects the two.
//! use) does not know the library; `mailboxes` connects the two.

mod block;
mod checksums;
mod classes;
mod columns;
mod division;
mod exchange;
mod failure;
mod layout;
mod lines;
mod mailboxes;
mod memory;
mod options;
mod profile;
mod random;
mod report;
mod solver;
mod transform;
mod transforms;

use clap::Parser;
use exchange::Links;
use failure::FtError;
use indicatif::{ProgressBar, ProgressStyle};
use layout::Layout;
use mailboxes::{Gather, Peers, Plan};
use num_complex::Complex64;
use options::{BadOrder, Options, Order};
use profile::Profile;
use report::{Payload, Summary};
use solver::Solver;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;
use udeck::{Protocol, World};

/// Exit code: the checksums were wrong.
const UNSUCCESSFUL: u8 = 1;
/// Exit code: there was no result.
const FAILED: u8 = 2;

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(text) = options.generate.text::<Options>() {
        // A reader that closes the pipe early has read all that it wanted.
        let _ = io::stdout().write_all(text.as_bytes());
        return ExitCode::SUCCESS;
    }
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(UNSUCCESSFUL),
        Err(failure) => {
            // The line is written in one call, so that ranks' lines stay whole: the first rank to end takes the
            // others with it.
            let _ = io::stderr().write_all(format!("nas-ft: {failure}\n").as_bytes());
            ExitCode::from(FAILED)
        }
    }
}

/// Runs the whole program. Returns whether the run was successful, as far as this rank knows: rank 0 compares.
fn run(options: &Options) -> Result<bool, FtError> {
    let world = udeck::init()?;
    let successful = benchmark(&world, options, &mut io::stdout().lock())?;
    world.finish()?;
    Ok(successful)
}

/// Runs NPB's main program, or the loop of transforms; rank 0 prints to `out`.
fn benchmark(world: &World, options: &Options, out: &mut impl Write) -> Result<bool, FtError> {
    // Refusals that are the same at all ranks come before anything that waits for others.
    let layout = Layout::new(options.class.grid(), world.rank(), world.size(), options.layout)?;
    let plans = [plan(&layout, true, options)?, plan(&layout, false, options)?];
    let words = Gather::connect(world, "words")?;
    let transposes = if layout.is_slab() { 1 } else { 2 };
    let memory = memory::report(layout.state_points(), layout.spectrum_points(), transposes);
    if let Some(reports) = words.all(&memory)? {
        if options.transforms.is_none() {
            report::header(out, options.class, &layout)?;
        }
        report::memory(out, &reports)?;
        memory::check(&reports)?;
    }
    world.barrier()?;
    let limit = options.profile.then(memory::copy_rate);
    let [across, along] = plans.map(|plan| Peers::connect(world, plan));
    let mut links = Links { across: across?, along: along? };
    let (successful, profile) = match options.transforms {
        Some(rounds) => transforms::run(world, options.class, layout, rounds, &mut links, out)?,
        None => npb(world, options, layout, &mut links, out)?,
    };
    if let Some(limit) = limit {
        let own = [profile.to_words(), vec![limit as u64]].concat();
        if let Some(ranks) = words.all(&own)? {
            report::profile(out, &ranks)?;
        }
    }
    out.flush()?;
    Ok(successful)
}

/// Runs NPB's main program. Returns whether the run was successful, as far as this rank knows, and the time of
/// each phase.
fn npb(
    world: &World,
    options: &Options,
    layout: Layout,
    links: &mut Links<Peers<'_>>,
    out: &mut impl Write,
) -> Result<(bool, Profile), FtError> {
    let class = options.class;
    // The two starts have one transform each, and so has each step.
    let transforms = 2 + class.iterations();
    let moved = layout.moved_points();
    let sums_of_ranks = Gather::connect(world, "sums")?;
    let (before, given) = (world.stats().bytes_posted, links.across.given() + links.along.given());
    let mut solver = Solver::new(layout, options.alpha);
    // The first start is untimed, as in NPB, so that all memory has been touched (the messages' memory, too).
    solver.start(links)?;
    *solver.profile() = Profile::default();
    world.barrier()?;

    let start = Instant::now();
    solver.start(links)?;
    let progress = progress(world, class.iterations());
    let mut sums = Vec::new();
    for iteration in 1..=class.iterations() {
        let part = solver.step(links)?;
        // The parts are added in the order of ranks, so that repeated runs give the same bits.
        if let Some(parts) = sums_of_ranks.all(&[part])? {
            let sum = parts.into_iter().flatten().sum();
            progress.suspend(|| report::checksum(out, iteration, sum))?;
            sums.push(sum);
        }
        progress.inc(1);
    }
    let verified = class.verify(&sums);
    let time = start.elapsed();
    progress.finish_and_clear();

    let checksums = if world.rank() == 0 { 0 } else { class.iterations() * size_of::<Complex64>() };
    // A group's messages are not counted as the program's, so they are added.
    let by_groups = links.across.given() + links.along.given() - given;
    let posted = world.stats().bytes_posted - before - checksums as u64 + by_groups;
    let profile = solver.profile().clone();
    let Some(posted) = Gather::connect(world, "posted")?.all(&[posted])? else { return Ok((true, profile)) };
    let posted = posted.iter().flatten().sum();
    report::verification(out, class, verified)?;
    report::summary(out, &Summary { class, ranks: world.size(), time, verified })?;
    report::payload(out, &Payload { posted, transforms, moved })?;
    Ok((verified, profile))
}

/// Plan of the exchange of one transpose.
fn plan<'a>(layout: &'a Layout, across: bool, options: &Options) -> Result<Plan<'a>, BadOrder> {
    let grid = layout.grid();
    let (name, group, axes) = match across {
        true => ("across", &layout.across, [grid.nx, grid.ny]),
        false => ("along", &layout.along, [grid.ny, grid.nz]),
    };
    let members = group.ranks.len();
    // In the first transpose pieces are cut in z, in the second one in y or z.
    let cuts = grid.ny.min(grid.nz) / layout.along.ranks.len();
    let ranks = members * if across { layout.along.ranks.len() } else { layout.across.ranks.len() };
    let block_bytes = grid.points() * size_of::<Complex64>() / ranks / members;
    debug_assert!(axes.iter().all(|points| *points >= members), "everybody has a part");
    let steps = options.order.steps(group.me, members)?;
    let (protocol, collective) = (options.protocol, options.order == Order::Group);
    if collective && protocol != Protocol::Auto {
        return Err(BadOrder::Protocol { protocol });
    }
    Ok(Plan { name, group, steps, collective, protocol, block_bytes, cuts })
}

/// Progress bar on standard error, if that is a terminal.
fn progress(world: &World, iterations: usize) -> ProgressBar {
    if world.rank() != 0 {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("iteration {pos} of {len} {wide_bar} {eta} left")
        .expect("a valid template");
    ProgressBar::new(iterations as u64).with_style(style)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    /// Runs on ranks that are threads, with class S by default; asserts every rank's result and the lines that rank
    /// 0 prints.
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
        // In this run, data to a peer and data from it differ in length.
        runs(6, &["--class", "W"], true, SUCCESSFUL);
    }

    /// There are 64 x 64 x 64 points of 16 bytes, and 8 transposes. In each, 1/2 goes to the other of 2 ranks,
    /// 3/4 to the others of 4. Three ranks keep 21, 21 and 22 of 64 in y and in z.
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

    /// Checks that the ranks refuse the arguments before anything is exchanged.
    fn refused(ranks: usize, arguments: &[&str], expected: fn(&FtError) -> bool) {
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
        refused(3, &["--order", "hypercube"], |failure| matches!(failure, FtError::Order(_)));
        refused(2, &["--order", "group", "--protocol", "eager"], |failure| {
            matches!(failure, FtError::Order(_))
        });
    }

    #[test]
    fn more_ranks_than_planes_are_refused_in_slabs() {
        refused(33, &["--class", "W", "--layout", "slab"], |failure| matches!(failure, FtError::Ranks(_)));
    }

    #[test]
    fn pencils_give_npbs_checksums_by_every_protocol_that_sends_in_order_or_at_once() {
        runs(4, &["--layout", "pencil"], true, &["Processor array     :          2x  2"]);
        runs(6, &["--layout", "pencil", "--order", "triangle"], true, SUCCESSFUL);
        runs(6, &["--layout", "pencil", "--order", "group"], true, SUCCESSFUL);
        runs(3, &["--order", "group"], true, SUCCESSFUL);
        runs(4, &["--layout", "pencil", "--protocol", "handshake"], true, SUCCESSFUL);
    }

    #[test]
    fn transforms_there_and_back_give_the_input() {
        for ranks in [1, 3] {
            runs(ranks, &["--transforms", "2"], true, &[]);
        }
        runs(4, &["--transforms", "1", "--layout", "pencil", "--profile"], true, &[]);
    }
}
