//! MPI and µDECK in one program: both see the same ranks, and each passes a message on.
//!
//! ```text
//! mpirun -n 4 target/release/examples/with_mpi          (Open MPI)
//! ```
//!
//! The MPI library is loaded at run time: the program is built without it. A program that is linked with MPI
//! calls it as usual. The order matters: `MPI_Init`, `udeck::init`, …, `finish`, `MPI_Finalize`.

#![allow(unsafe_code, reason = "MPI's C functions")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::process::ExitCode;

type Init = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char) -> c_int;
type Finalize = unsafe extern "C" fn() -> c_int;
type Ask = unsafe extern "C" fn(*const c_void, *mut c_int) -> c_int;

/// Open MPI's library: the functions that this example needs.
struct Mpi {
    init: Init,
    finalize: Finalize,
    comm_rank: Ask,
    comm_size: Ask,
    world: *const c_void,
}

impl Mpi {
    fn load() -> Result<Mpi, String> {
        // SAFETY: a C string. Open MPI's plug-ins need its symbols, therefore RTLD_GLOBAL.
        let library = unsafe { libc::dlopen(c"libmpi.so.40".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if library.is_null() {
            return Err("libmpi.so.40 is not here: install Open MPI 4 or 5".into());
        }
        let symbol = |name: &CStr| {
            // SAFETY: the library stays loaded.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            if found.is_null() { Err(format!("libmpi.so.40 has no {name:?}")) } else { Ok(found) }
        };
        // SAFETY: Open MPI's functions of these names have these types (mpi.h).
        unsafe {
            Ok(Mpi {
                init: std::mem::transmute::<*mut c_void, Init>(symbol(c"MPI_Init")?),
                finalize: std::mem::transmute::<*mut c_void, Finalize>(symbol(c"MPI_Finalize")?),
                comm_rank: std::mem::transmute::<*mut c_void, Ask>(symbol(c"MPI_Comm_rank")?),
                comm_size: std::mem::transmute::<*mut c_void, Ask>(symbol(c"MPI_Comm_size")?),
                world: symbol(c"ompi_mpi_comm_world")?,
            })
        }
    }

    fn init(&self) -> Result<(usize, usize), String> {
        let (mut rank, mut size) = (-1, -1);
        // SAFETY: MPI takes NULL for both (MPI 2 and later); the communicator is MPI_COMM_WORLD, the places are ours.
        let codes = unsafe {
            [
                (self.init)(std::ptr::null_mut(), std::ptr::null_mut()),
                (self.comm_rank)(self.world, &mut rank),
                (self.comm_size)(self.world, &mut size),
            ]
        };
        if codes != [0; 3] {
            return Err(format!("MPI_Init, MPI_Comm_rank, MPI_Comm_size returned {codes:?}"));
        }
        Ok((rank as usize, size as usize))
    }

    fn finalize(&self) {
        // SAFETY: initialised, and nothing of MPI is under way.
        unsafe { (self.finalize)() };
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::var_os("OMPI_COMM_WORLD_SIZE").is_none() {
        println!("Open MPI's mpirun has not started this program: try `mpirun -n 4 with_mpi`");
        return Ok(());
    }
    let mpi = Mpi::load()?;
    let (rank, size) = mpi.init()?;
    let world = udeck::init()?;
    if (world.rank(), world.size()) != (rank, size) {
        return Err(format!("MPI: {rank} of {size}; µDECK: {} of {}", world.rank(), world.size()).into());
    }
    println!("rank {rank} of {size} in MPI and in µDECK; rank {} says hello", pass_on(&world)?);
    world.finish()?;
    mpi.finalize();
    Ok(())
}

/// Sends this rank's number to the next rank, and returns the one that comes.
fn pass_on(world: &udeck::World) -> udeck::Result<u64> {
    let inbox = world.mailboxes::<u64>("ring")?;
    let next = world.postbox_of::<u64>("ring", (world.rank() + 1) % world.size())?;
    next.post(&[world.rank() as u64])?;
    let heard = inbox.retrieve()?[0];
    world.barrier()?;
    Ok(heard)
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("with_mpi: {error}");
            ExitCode::FAILURE
        }
    }
}
