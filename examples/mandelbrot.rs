//! The Mandelbrot set by a task farm: rank 0 hands out tiles of the picture, and a worker that has computed one
//! gets the next: a fast rank computes more of them. Shows messages between two threads of the same rank: rank
//! 0 computes, too.
//!
//! ```sh
//! cargo run --release --example mandelbrot
//! deckrun -n 4 target/release/examples/mandelbrot --width 3200 --output set.png
//! ```
//!
//! Rank 0 checks some of the tiles, which it computes again, and the area of the set.

use std::{error::Error, fs::File, io::BufWriter, ops::Range, path::PathBuf, thread, time::Instant};

use clap::Parser;
use indicatif::ProgressBar;
use udeck::World;

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Paints the Mandelbrot set in tiles, which rank 0 hands out.
#[derive(Parser)]
struct Options {
    /// Pixels from left to right; from top to bottom there are three quarters of that
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(100..))]
    width: u32,
    /// Iterations after which a point counts as one of the set
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u16).range(200..))]
    limit: u16,
    /// The picture that rank 0 writes
    #[arg(long, default_value = "mandelbrot.png")]
    output: PathBuf,
}

/// The edge of a tile, in pixels.
const TILE: usize = 64;
/// Number of tiles that a worker has in hand: with two, the next one is there when one is done.
const IN_HAND: usize = 2;
/// One of this number of tiles is computed again.
const SAMPLE: usize = 10;
/// The left edge of the picture in the complex plane, and its width: the whole set is inside.
const LEFT: f64 = -2.2;
const SPAN: f64 = 3.0;
/// The set's area, as published.
const AREA: f64 = 1.5066;

fn main() -> Result {
    let options = Options::parse();
    let world = udeck::init()?;
    let width = options.width as usize;
    let picture = Picture { width, height: width * 3 / 4, limit: options.limit };
    if world.rank() > 0 {
        work(&world, &picture)?;
    } else {
        // Handing out is mostly waiting, and so this rank computes as well, on a second thread: both share the
        // world.
        let pixels = thread::scope(|threads| -> udeck::Result<_> {
            let worker = threads.spawn(|| work(&world, &picture));
            let pixels = hand_out(&world, &picture)?;
            worker.join().expect("the worker panicked")?;
            Ok(pixels)
        })?;
        picture.check(&pixels);
        picture.write(&pixels, &options)?;
    }
    Ok(world.finish()?)
}

/// Computes tiles until there are no more.
fn work(world: &World, picture: &Picture) -> udeck::Result {
    let orders = world.mailboxes::<u32>("orders")?;
    let results = world.postbox::<u16>("results")?;
    for order in orders.iter() {
        let order = order?;
        let Some(&tile) = order.first() else { break }; // an empty message: there is no more
        // The pixels are computed in the message itself, which is moved. Its tag is the number of the tile.
        let mut pixels = world.buf_reused::<u16>(picture.tile_len(tile))?;
        picture.compute(tile, &mut pixels);
        results.post(pixels.with_tag(tile))?;
    }
    Ok(())
}

/// Hands out all tiles, and assembles the results.
fn hand_out(world: &World, picture: &Picture) -> udeck::Result<Vec<u16>> {
    let results = world.mailbox::<u16>("results")?;
    results.expect(1..world.size()); // so that a wait is told if one of them dies
    let workers = world.postboxes::<u32>("orders")?; // one for each rank

    let (started, bar) = (Instant::now(), ProgressBar::new(picture.tiles().len() as u64));
    let mut waiting = picture.tiles();
    for worker in workers.iter().cycle().take(workers.len() * IN_HAND) {
        if let Some(tile) = waiting.next() {
            worker.post(&[tile])?;
        }
    }
    let mut pixels = vec![0; picture.width * picture.height];
    let mut done = vec![0; workers.len()];
    for result in results.iter().take(picture.tiles().len()) {
        let result = result?;
        // The next order is posted first: the worker does not wait.
        if let Some(tile) = waiting.next() {
            workers[result.source()].post(&[tile])?;
        }
        picture.place(result.tag(), &result, &mut pixels);
        done[result.source()] += 1;
        bar.inc(1);
    }
    bar.finish_and_clear();
    for worker in &workers {
        worker.post(&[][..])?;
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("{} tiles in {seconds:.2} s; of each rank: {done:?}", picture.tiles().len());
    Ok(pixels)
}

/// The picture to paint. A pixel is the number of iterations after which its point has diverged, up to `limit`.
struct Picture {
    width: usize,
    height: usize,
    limit: u16,
}

impl Picture {
    fn tiles(&self) -> Range<u32> {
        0..(self.width.div_ceil(TILE) * self.height.div_ceil(TILE)) as u32
    }

    /// Returns the rows and columns of a tile. Tiles at the right and the lower edge may be smaller.
    fn area(&self, tile: u32) -> (Range<usize>, Range<usize>) {
        let across = self.width.div_ceil(TILE);
        let (top, left) = (tile as usize / across * TILE, tile as usize % across * TILE);
        (top..self.height.min(top + TILE), left..self.width.min(left + TILE))
    }

    fn tile_len(&self, tile: u32) -> usize {
        let (rows, columns) = self.area(tile);
        rows.len() * columns.len()
    }

    fn compute(&self, tile: u32, pixels: &mut [u16]) {
        let (rows, columns) = self.area(tile);
        let points = rows.flat_map(|row| columns.clone().map(move |column| (row, column)));
        for (pixel, (row, column)) in pixels.iter_mut().zip(points) {
            *pixel = self.iterations(row, column);
        }
    }

    /// Returns how often z² + c can be taken before z diverges.
    fn iterations(&self, row: usize, column: usize) -> u16 {
        let step = SPAN / self.width as f64;
        let (real, imaginary) =
            (LEFT + step * (column as f64 + 0.5), step * (row as f64 + 0.5 - self.height as f64 / 2.0));
        let (mut x, mut y) = (0.0, 0.0);
        for iteration in 0..self.limit {
            if x * x + y * y > 4.0 {
                return iteration;
            }
            (x, y) = (x * x - y * y + real, 2.0 * x * y + imaginary);
        }
        self.limit
    }

    /// Copies a tile to its place among all pixels.
    fn place(&self, tile: u32, pixels: &[u16], all: &mut [u16]) {
        let (rows, columns) = self.area(tile);
        for (row, pixels) in rows.zip(pixels.chunks(columns.len())) {
            all[row * self.width..][columns.clone()].copy_from_slice(pixels);
        }
    }

    fn check(&self, pixels: &[u16]) {
        let mut again = pixels.to_vec();
        for tile in self.tiles().step_by(SAMPLE) {
            let mut computed = vec![0; self.tile_len(tile)];
            self.compute(tile, &mut computed);
            self.place(tile, &computed, &mut again);
        }
        assert!(again == pixels, "a tile is not what it is when it is computed again");
        println!("{} tiles are the same when computed again", self.tiles().step_by(SAMPLE).len());

        let inside = pixels.iter().filter(|&&pixel| pixel == self.limit).count();
        let area = inside as f64 * (SPAN / self.width as f64).powi(2);
        println!("the area of the set is about {area:.3}; known is {AREA:.3}");
        assert!((area - AREA).abs() < 0.1, "the area is not what it should be");
    }

    fn write(&self, pixels: &[u16], options: &Options) -> Result {
        // The set is black. Outside of it, the colour changes more slowly with more iterations.
        let colour = |&pixel: &u16| match pixel {
            pixel if pixel == self.limit => 0,
            pixel => 1 + (f64::from(pixel).sqrt() * 24.0) as u32 % 255,
        };
        let pixels: Vec<u8> = pixels.iter().map(|pixel| colour(pixel) as u8).collect();
        let file = BufWriter::new(File::create(&options.output)?);
        let mut picture = png::Encoder::new(file, self.width as u32, self.height as u32);
        picture.set_color(png::ColorType::Indexed);
        picture.set_palette(palette());
        picture.write_header()?.write_image_data(&pixels)?;
        println!("the picture is {}", options.output.display());
        Ok(())
    }
}

/// Makes 256 colours: black, and a circle of others.
fn palette() -> Vec<u8> {
    let colour = |index: u32| {
        let angle = f64::from(index) / 255.0 * std::f64::consts::TAU;
        [0.0, 0.7, 1.4].map(|shift| (127.5 - 127.5 * (angle + shift).cos()) as u8)
    };
    [0; 3].into_iter().chain((1..256).flat_map(colour)).collect()
}
