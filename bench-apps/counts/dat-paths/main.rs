//! Goes through uDAPL's paths of a short message over shared memory, for `cargo xtask counts`, which runs it under callgrind.
//!
//! The calls are those that a program in C makes: through the provider's table, which each handle points to. One thread drives both end
//! points, so nobody waits. The adapters' own threads glance once a millisecond.

#![allow(unsafe_code, reason = "it calls as a program in C does")]

mod c;
mod counted;

use std::ffi::c_void;
use std::hint::black_box;
use std::ptr::{null, null_mut};

use c::{Event, Handle, Region, Table, Triplet};
use counts::Result;

/// Bytes of a message.
const SMALL: u32 = 8;
/// Microseconds that a connection may take.
const LIMIT: u32 = 60_000_000;

const CONNECTION_REQUEST: u32 = 0x02001;
const ESTABLISHED: u32 = 0x04001;
/// `DAT_EVD_CR_FLAG | DAT_EVD_CONNECTION_FLAG`, and `DAT_EVD_DTO_FLAG`.
const CONNECTIONS: u32 = 0x50;
const WORK: u32 = 0x20;
/// `DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG`.
const LOCAL: u32 = 0x11;
/// `DAT_MEM_TYPE_VIRTUAL`.
const VIRTUAL: u32 = 0;
/// `DAT_CLOSE_ABRUPT_FLAG`.
const ABRUPT: u32 = 0;

fn main() -> Result {
    let rounds = counts::rounds()?;
    let table = udeck_dat::provider_table("udeck-counts", "shm").ok_or("there is a transport shm")?;
    let [here, there] = [End::new(table.cast())?, End::new(table.cast())?];
    connect(&here, &there)?;
    messages(&here, &there, rounds)?;
    here.close()?;
    there.close()
}

fn done(call: &str, code: u32) -> Result {
    if code == 0 { Ok(()) } else { Err(format!("{call}: {code:#010x}").into()) }
}

/// Like [`done`], for a call that makes an object.
fn made(call: &str, make: impl FnOnce(*mut Handle) -> u32) -> Result<Handle> {
    let mut handle = 0;
    done(call, make(&mut handle))?;
    Ok(handle)
}

/// An end point on an adapter of its own, as in a process of its own, and the dispatchers of its events.
struct End {
    table: *const Table,
    ia: Handle,
    pz: Handle,
    sends: Handle,
    receives: Handle,
    connections: Handle,
    ep: Handle,
}

impl End {
    fn new(table: *const Table) -> Result<End> {
        let (name, mut asynchronous) = (c"udeck-counts", 0);
        // SAFETY: the provider's table; all arguments are places of ours, and handles that calls have given. So everywhere below.
        let ia = made("dat_ia_open", |out| unsafe {
            c::ia_open(table, name.as_ptr(), 8, &mut asynchronous, out)
        })?;
        let evd = |streams| {
            // SAFETY: as above.
            made("dat_evd_create", |out| unsafe { c::evd_create(table, ia, 64, 0, streams, out) })
        };
        let (sends, receives, connections) = (evd(WORK)?, evd(WORK)?, evd(CONNECTIONS)?);
        // SAFETY: as above.
        let pz = made("dat_pz_create", |out| unsafe { c::pz_create(table, ia, out) })?;
        let ep = made("dat_ep_create", |out| {
            // SAFETY: as above.
            unsafe { c::ep_create(table, ia, pz, receives, sends, connections, null(), out) }
        })?;
        Ok(End { table, ia, pz, sends, receives, connections, ep })
    }

    /// Waits for the connection's next event, which has to be `wanted`.
    fn wait(&self, wanted: u32) -> Result<Event> {
        let (mut event, mut more) = (Event::default(), 0);
        // SAFETY: as above.
        let code = unsafe { c::evd_wait(self.table, self.connections, LIMIT, 1, &mut event, &mut more) };
        done("dat_evd_wait", code)?;
        if event.number == wanted {
            Ok(event)
        } else {
            Err(format!("event {:#x}, not {wanted:#x}", event.number).into())
        }
    }

    /// Registers memory that is never freed.
    fn register(&self, memory: *mut [u8; SMALL as usize]) -> Result<Triplet> {
        let End { table, ia, pz, .. } = *self;
        let region = Region { address: memory.cast_const().cast(), beside: 0 };
        let (len, none, mut context) = (SMALL.into(), null_mut(), 0);
        made("dat_lmr_create", |out| {
            // SAFETY: as above.
            unsafe {
                c::lmr_create(
                    table,
                    ia,
                    VIRTUAL,
                    region,
                    len,
                    pz,
                    LOCAL,
                    0,
                    out,
                    &mut context,
                    null_mut(),
                    none,
                    none,
                )
            }
        })?;
        Ok(Triplet { address: memory.expose_provenance() as u64, len: SMALL, context })
    }

    /// Closes the adapter, which ends the other objects.
    fn close(&self) -> Result {
        // SAFETY: as above.
        done("dat_ia_close", unsafe { c::ia_close(self.table, self.ia, ABRUPT) })
    }
}

fn connect(here: &End, there: &End) -> Result {
    let table = here.table;
    let mut qualifier = 0;
    made("dat_psp_create_any", |out| {
        // SAFETY: as above.
        unsafe { c::psp_create_any(table, there.ia, &mut qualifier, there.connections, 0, out) }
    })?;
    // The `sockaddr_in` of this host.
    let address = [u64::from_ne_bytes([2, 0, 0, 0, 127, 0, 0, 1]), 0];
    let address: *const c_void = address.as_ptr().cast();
    // SAFETY: as above; the address is read in the call.
    let code = unsafe { c::ep_connect(table, here.ep, address, qualifier, LIMIT, 0, null(), 0, 0) };
    done("dat_ep_connect", code)?;
    let request = there.wait(CONNECTION_REQUEST)?;
    // SAFETY: as above: the event of a request names it.
    let code = unsafe { c::cr_accept(table, request.data[3] as Handle, there.ep, 0, null()) };
    done("dat_cr_accept", code)?;
    there.wait(ESTABLISHED)?;
    here.wait(ESTABLISHED)?;
    Ok(())
}

/// Sends one message at a time, and polls the empty queue after each.
fn messages(here: &End, there: &End, rounds: usize) -> Result {
    // Never freed, so the library may touch them as long as it is there.
    let [from, into] = [(); 2].map(|()| Box::into_raw(Box::new([0; SMALL as usize])));
    let (send, receive) = (here.register(from)?, there.register(into)?);
    let mut event = Event::default();
    for round in 0..rounds as u64 {
        // SAFETY: valid, and nobody else touches it while nothing is posted with it.
        unsafe { from.write(round.to_ne_bytes()) };
        // SAFETY: handles that calls have given, and registered memory.
        unsafe {
            counted::dat_post_recv(there.ep, black_box(&receive));
            counted::dat_post_send(here.ep, black_box(&send));
            counted::dat_evd_dequeue(here.sends, &mut event);
            assert_eq!((event.data[0], event.data[1]), (here.ep as u64, 1), "the send is over");
            counted::dat_evd_dequeue_received(there.receives, &mut event);
            assert_eq!((event.data[0], event.data[1]), (there.ep as u64, 2), "a message has come");
            counted::dat_evd_dequeue_empty(there.receives, &mut event);
        }
        // SAFETY: the receive is over, so nobody touches it.
        assert_eq!(unsafe { into.read() }, round.to_ne_bytes());
    }
    Ok(())
}
