//! The scribbler, for shared memory: writes into the memory that the rogue's process shares with others, bypassing its library,
//! and sends arbitrary messages on its links.
//!
//! The scribbler works on the rogue's own thread, between two calls, so nothing is unmapped under it. It does not write others'
//! windows and landing memory: a peer that has them mapped is trusted with these (SAFETY.md).

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{SocketType, sockopt};
use rustix::process::{PidfdFlags, PidfdGetfdFlags};
use udeck_sys::segment::{self, Mapping, PeerAccess};
use udeck_sys::socket;

use crate::random::Random;

/// Layout of a connection's control segment, from `transports/shm/layout.rs`.
const CONTROL: usize = 12_288;
const CELLS: usize = 64;
const LINES: usize = 8192;
const LINE: usize = 1024;
/// Byte offset of a board's windows, from `transports/shm/board.rs`.
const WINDOWS: usize = 1_310_720;
/// Number of bare connections that are kept.
const KEPT: usize = 4;

pub struct Scribbler {
    memory: File,
    itself: OwnedFd,
    /// Inodes of the rogue's own boards.
    boards: Vec<String>,
    /// Control segments of connections that are unknown to the rogue's library.
    bare: Vec<Mapping>,
    requests: u32,
}

/// A piece of memory that the rogue shares, at its mapped address.
struct Place<'a>(&'a File, u64);

impl Place<'_> {
    fn read(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        let _ = self.0.read_exact_at(&mut word, self.1 + at as u64);
        u64::from_ne_bytes(word)
    }

    fn write(&self, at: usize, word: u64) {
        let _ = self.0.write_all_at(&word.to_ne_bytes(), self.1 + at as u64);
    }

    fn write_half(&self, at: usize, half: u32) {
        let _ = self.0.write_all_at(&half.to_ne_bytes(), self.1 + at as u64);
    }
}

impl Scribbler {
    /// Starts before the rogue meets other ranks: the boards that exist are its own.
    pub fn new() -> Self {
        let memory = File::options().read(true).write(true).open("/proc/self/mem").expect("its own memory");
        let pid = rustix::process::getpid();
        let itself = rustix::process::pidfd_open(pid, PidfdFlags::empty()).expect("itself");
        let boards = mapped("udeck-board").into_iter().map(|(_, inode)| inode).collect();
        Scribbler { memory, itself, boards, bare: Vec::new(), requests: 1 << 20 }
    }

    pub fn step(&mut self, random: &mut Random) {
        for _ in 0..=random.below(12) {
            match random.below(20) {
                0..13 => self.control(random),
                13..15 => self.board(random),
                15..18 => self.request(random),
                18 => self.datagram(random),
                _ => {
                    if random.one_in(6) {
                        self.odd_request(random);
                    }
                }
            }
        }
    }

    fn control(&mut self, random: &mut Random) {
        let mapped = mapped("udeck-control");
        if mapped.is_empty() {
            return;
        }
        let place = Place(&self.memory, mapped[random.below(mapped.len())].0);
        let direction = random.below(2);
        let line = LINES + direction * LINE;
        match random.below(16) {
            0 => place.write(random.below(CONTROL / 8) * 8, random.value()),
            // The other side's read position: a little wrong, or arbitrary.
            1 | 2 => {
                let at = line + random.pick(&[0, 128]);
                let near = (place.read(at) as u32).wrapping_add(random.below(70) as u32).wrapping_sub(3);
                place.write_half(at, if random.one_in(3) { random.value() as u32 } else { near });
            }
            3 => place.write_half(line + 4, random.below(3) as u32),
            // A token that is given back.
            4 | 5 => {
                let lap = 1 + random.below(3) as u32;
                let entry = if random.one_in(4) {
                    random.value() as u32
                } else {
                    lap << 16 | random.below(66) as u32
                };
                place.write_half(line + 256 + random.below(64) * 4, entry);
            }
            6 => place.write_half(line + 512 + random.below(2) * 4, random.below(4) as u32),
            7 => place.write(line + 512 + 8 * random.below(8), random.value()),
            _ => cell(&place, direction, random),
        }
    }

    fn board(&mut self, random: &mut Random) {
        let mapped = mapped("udeck-board");
        if mapped.is_empty() {
            return;
        }
        let (base, inode) = &mapped[random.below(mapped.len())];
        let place = Place(&self.memory, *base);
        if self.boards.contains(inode) && random.one_in(2) {
            // The first windows are preferred, because they are allocated first.
            let window = if random.one_in(2) { random.below(4) } else { random.below(512) };
            place.write(WINDOWS + window * 64 + random.below(8) * 8, random.value());
        } else {
            let doorbell = if random.one_in(2) { random.below(8) } else { random.below(2048) };
            place.write(doorbell * 640 + random.below(80) * 8, random.value());
        }
    }

    /// Sends a sound request, with a segment that only the scribbler writes: the mailbox sees its cells.
    fn request(&mut self, random: &mut Random) {
        let Ok((fd, control)) = segment::create("udeck-control", CONTROL, PeerAccess::Write) else { return };
        self.requests += 1;
        let private = if random.one_in(8) { random.value() as u32 } else { 0 };
        let request = request(self.requests, random, private);
        if self.say(random, &request, &[fd.as_fd()]) {
            self.bare.push(control);
        }
        if self.bare.len() > KEPT {
            let at = random.below(self.bare.len());
            self.bare.swap_remove(at);
        }
    }

    /// Sends a request with something that is no control segment, or with several.
    fn odd_request(&mut self, random: &mut Random) {
        self.requests += 1;
        let request = request(self.requests, random, 0);
        let fds: Vec<OwnedFd> = (0..random.below(4)).filter_map(|_| odd_descriptor(random)).collect();
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        self.say(random, &request, &fds);
    }

    fn datagram(&mut self, random: &mut Random) {
        let mut datagram = match random.below(4) {
            0 => request(random.value() as u32, random, 0),
            1 => {
                let len = random.below(200);
                random.bytes(len)
            }
            kind => {
                // The answer goes to nobody, or to a rank that has asked.
                let mut answer = vec![4 + kind as u8];
                answer.extend((random.below(8) as u32).to_le_bytes());
                let len = random.below(40);
                answer.extend(random.bytes(len));
                answer
            }
        };
        if !random.one_in(4) {
            random.spoil(&mut datagram);
        }
        // A goodbye and a broken link are rare: nothing comes after them.
        if matches!(datagram.first(), Some(1..=4 | 8 | 9)) && !random.one_in(8) {
            datagram[0] = 5 + random.below(3) as u8;
        }
        datagram.truncate(4096);
        self.say(random, &datagram, &[]);
    }

    /// Sends a datagram on one of the rogue's links.
    fn say(&self, random: &mut Random, datagram: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        let links = self.links();
        if links.is_empty() {
            return false;
        }
        socket::send(links[random.below(links.len())].as_fd(), datagram, fds).unwrap_or(false)
    }

    /// Sockets of the rogue's library, except those that wait for callers.
    fn links(&self) -> Vec<OwnedFd> {
        let Ok(all) = fs::read_dir("/proc/self/fd") else { return Vec::new() };
        all.flatten()
            .filter(|entry| {
                fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
            })
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter_map(|fd| rustix::process::pidfd_getfd(&self.itself, fd, PidfdGetfdFlags::empty()).ok())
            .filter(|fd| sockopt::socket_type(fd).is_ok_and(|kind| kind == SocketType::SEQPACKET))
            .filter(|fd| sockopt::socket_acceptconn(fd).is_ok_and(|listens| !listens))
            .collect()
    }
}

/// Writes the next cell of a direction, or an old one, with possible and impossible contents.
fn cell(place: &Place<'_>, direction: usize, random: &mut Random) {
    let base = direction * CELLS * 64;
    let laps: Vec<u32> = (0..CELLS).map(|at| place.read(base + at * 64) as u32).collect();
    let last = laps.iter().copied().max().unwrap_or(0);
    let at = base + last as usize % CELLS * 64;
    let before = base + (last as usize + CELLS - 1) % CELLS * 64;
    let lap = if random.one_in(30) { random.value() as u32 } else { last.wrapping_add(1) };
    match random.below(8) {
        // The previous contents are repeated, a little different.
        0 | 1 => {
            (1..8).for_each(|word| place.write(at + word * 8, place.read(before + word * 8)));
            if random.one_in(2) {
                place.write(at + 8 * (1 + random.below(7)), random.value());
            }
            place.write(at, place.read(before) & !0xffff_ffff | u64::from(lap));
        }
        // The last cell is changed, which may not have been read.
        2 => place.write(before + 8 * (1 + random.below(7)), random.value()),
        _ => {
            let kinds = if random.one_in(10) { 6 } else { 3 };
            let kind = 1 + random.below(kinds) as u8;
            let (count, head) = match kind {
                1 => (8 + random.below(41) as u8, 0),
                _ => (1 + u8::from(random.one_in(10)), 8 * random.below(5) as u8),
            };
            let odd = random.one_in(12);
            let [count, head] = [count, head].map(|byte| if odd { random.word() as u8 } else { byte });
            let meta = u32::from_le_bytes([kind, count, head, random.below(4) as u8]);
            place.write(at + 8, (random.below(70) as u64) << 32 | random.below(1000) as u64);
            // The header of a mailbox's message follows `crates/deck/wire.rs`; that of a lent one stands behind offset
            // and length.
            let part = if random.one_in(2) { random.below(20) as u64 } else { 0 };
            let said = (1 + random.below(14) as u64) | (part << 32);
            let (offset, len) = (random.below(64) as u64 * 64, random.below(5000) as u64);
            let words = match kind {
                1 => [said, random.value(), random.word(), random.word(), random.word(), random.word()],
                _ => [offset, len, said, random.value(), random.word(), random.word()],
            };
            for (word, value) in (2..).zip(words) {
                let value = if random.one_in(20) { random.value() } else { value };
                place.write(at + word * 8, value);
            }
            place.write(at, u64::from(meta) << 32 | u64::from(lap));
        }
    }
}

/// A request to a mailbox, as one of its postboxes, in the format of `transports/shm/peer_socket_wire.rs`.
fn request(id: u32, random: &mut Random, pair: u32) -> Vec<u8> {
    let mut request = vec![5];
    let doorbells =
        [0; 4].map(|_: u32| if random.one_in(4) { random.value() as u32 } else { random.below(8) as u32 });
    let postbox = random.below(3) as u32;
    let tag = |random: &mut Random| if random.one_in(3) { 0 } else { random.value() as u32 };
    request.extend([id].iter().chain(&doorbells).flat_map(|word| word.to_le_bytes()));
    request.push(if pair != 0 { 2 } else { random.pick(&[1, 1, 1, 0, 2, 3]) });
    request.extend([tag(random), tag(random)].iter().flat_map(|word| word.to_le_bytes()));
    request.extend(8_u16.to_le_bytes());
    request.extend([postbox, pair].iter().flat_map(|word| word.to_le_bytes()));
    request.extend(2_u16.to_le_bytes());
    request.extend(b"in");
    request
}

fn odd_descriptor(random: &mut Random) -> Option<OwnedFd> {
    let memory = |len: u64, seals: SealFlags, flags: MemfdFlags| {
        let fd = rustix::fs::memfd_create("odd", MemfdFlags::CLOEXEC | flags).ok()?;
        rustix::fs::ftruncate(&fd, len).ok()?;
        let _ = rustix::fs::fcntl_add_seals(&fd, seals);
        Some(fd)
    };
    let sealed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let size = CONTROL as u64;
    match random.below(10) {
        0 => memory(size, SealFlags::empty(), MemfdFlags::ALLOW_SEALING),
        1 => memory(size, SealFlags::SHRINK, MemfdFlags::ALLOW_SEALING),
        2 => memory(size, sealed | SealFlags::WRITE, MemfdFlags::ALLOW_SEALING),
        3 => memory(size, sealed | SealFlags::FUTURE_WRITE, MemfdFlags::ALLOW_SEALING),
        4 => memory(random.value() >> 20, sealed, MemfdFlags::ALLOW_SEALING),
        5 => memory(2 << 20, sealed, MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB),
        6 => File::open("/dev/null").ok().map(OwnedFd::from),
        7 => File::open("/proc/self").ok().map(OwnedFd::from),
        8 => std::io::pipe().ok().map(|(reader, _)| OwnedFd::from(reader)),
        _ => std::os::unix::net::UnixStream::pair().ok().map(|(one, _)| OwnedFd::from(one)),
    }
}

/// Addresses where memory of this name is mapped, with its inode.
fn mapped(name: &str) -> Vec<(u64, String)> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let path = format!("/memfd:{name} ");
    maps.lines()
        .filter(|line| line.contains(&path) && line.contains(" rw-s "))
        .filter_map(|line| {
            let start = u64::from_str_radix(line.split('-').next()?, 16).ok()?;
            Some((start, line.split_whitespace().nth(4)?.to_owned()))
        })
        .collect()
}
