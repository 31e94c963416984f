//! Streamed copies: copies longer than the last-level cache, past the caches.
//!
//! An ordinary store first reads the line that it is about to overwrite: a third of a long copy's memory traffic, for
//! nothing. `memcpy` avoids that, but believes the processor's report of its cache size. A virtual machine may report that of
//! the whole host (320 MiB where there are 32), and then `memcpy` never does. Linux knows better.
//!
//! Stores past the caches are made in order, so the first store to each page waits until the page's address is found: in a
//! virtual machine two tables are walked for that, for each 4 KiB. So the next page is touched a page ahead. On a virtual
//! machine (EPYC of Zen 4) 64 MiB to message memory took 5.2 to 6.7 ms by `memcpy`, 3.7 to 4.9 by stores past the caches, 3.3
//! to 4.0 by those of AVX, and 2.6 to 2.9 with the touch. Huge pages, which message memory seldom has, gained nothing beyond
//! that.
//!
//! Copies shorter than the cache are quicker by `memcpy`, and their data are still in the cache when the receiver reads them.

use std::hint::black_box;
use std::sync::OnceLock;

type Memcpy = unsafe extern "C" fn(*mut libc::c_void, *const libc::c_void, usize) -> *mut libc::c_void;

/// Lower bound in bytes of the lengths that [`copy`] is for.
pub const LONG: usize = 8 << 20;
/// Size in bytes of the last-level cache where Linux does not tell it.
const USUAL_CACHE: usize = 32 << 20;

fn is_longer_than_cache(len: usize) -> bool {
    static CACHE: OnceLock<usize> = OnceLock::new();
    let known = || {
        let size = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size");
        size.ok().and_then(|size| bytes_of(&size)).unwrap_or(USUAL_CACHE)
    };
    len >= *CACHE.get_or_init(known)
}

/// Decodes a size as Linux writes it, such as `32768K`.
fn bytes_of(size: &str) -> Option<usize> {
    size.trim().strip_suffix('K')?.parse::<usize>().ok()?.checked_mul(1024)
}

/// Copies `len` bytes, [`LONG`] or more, past the caches if they are longer than the last of these.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, and they do not overlap.
#[cold]
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    if is_longer_than_cache(len) {
        // SAFETY: our contract.
        unsafe { stream(to, from, len) };
    } else {
        // SAFETY: our contract.
        unsafe { memcpy(to, from, len) };
    }
}

/// Copies by the C library.
///
/// # Safety
/// That of [`copy`].
unsafe fn memcpy(to: *mut u8, from: *const u8, len: usize) {
    // The function is opaque, as in `copy_in`.
    let memcpy: Memcpy = black_box(libc::memcpy);
    // SAFETY: our contract.
    unsafe { memcpy(to.cast(), from.cast(), len) };
}

/// Copies past the caches, by the best instructions of this processor.
///
/// # Safety
/// That of [`copy`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn stream(to: *mut u8, from: *const u8, len: usize) {
    let lines: Lines = if std::arch::is_x86_feature_detected!("avx") { lines_by_avx } else { lines_by_sse2 };
    // SAFETY: our contract; the processor has the instructions of `lines`.
    unsafe { stream_by(lines, to, from, len) };
}

/// Copies whole lines (one or more, `len` bytes in all) to a line's beginning.
#[cfg(all(target_arch = "x86_64", not(miri)))]
type Lines = unsafe fn(*mut u8, *const u8, usize);
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LINE: usize = 64;
#[cfg(all(target_arch = "x86_64", not(miri)))]
const PAGE: usize = 4096;

/// Copies past the caches, whole lines by `lines` and the rest by `memcpy`.
///
/// # Safety
/// That of [`copy`], and the processor has the instructions of `lines`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn stream_by(lines: Lines, to: *mut u8, from: *const u8, len: usize) {
    // These stores need whole lines.
    let before = to.align_offset(LINE).min(len);
    let after = before + (len - before) / LINE * LINE;
    // SAFETY: parts of both ranges, as our contract has them; what `lines` gets are whole lines, aligned in `to`.
    unsafe {
        memcpy(to, from, before);
        memcpy(to.add(after), from.add(after), len - after);
        for start in (before..after).step_by(PAGE) {
            lines(to.add(start), from.add(start), PAGE.min(after - start));
        }
        // The fence makes these stores visible before any store that announces them.
        std::arch::asm!("sfence", options(nostack));
    }
}

/// Written in assembler, so that a writer of `from` meanwhile races with machine code only, as with [`super::copy_in`].
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, one line or more and no part of one; `to` is a line's
/// beginning. A fence follows.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn lines_by_sse2(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: reads and writes `len` bytes. The touch of the next page is none if there is no such page. SSE2 is part of x86_64.
    unsafe {
        std::arch::asm!(
            "prefetchnta [{to} + 4096]",
            "2:",
            "movdqu {a}, [{from}]",
            "movdqu {b}, [{from} + 16]",
            "movdqu {c}, [{from} + 32]",
            "movdqu {d}, [{from} + 48]",
            "movntdq [{to}], {a}",
            "movntdq [{to} + 16], {b}",
            "movntdq [{to} + 32], {c}",
            "movntdq [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "sub {left}, 64",
            "jnz 2b",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            left = inout(reg) len => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Copies as [`lines_by_sse2`] does, with half as many instructions.
///
/// # Safety
/// That of [`lines_by_sse2`], and the processor has AVX.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx")]
unsafe fn lines_by_avx(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: as in `lines_by_sse2`. All registers are named, because their upper halves are cleared, for SSE code that may follow.
    unsafe {
        std::arch::asm!(
            "prefetchnta [{to} + 4096]",
            "2:",
            "vmovdqu ymm0, [{from}]",
            "vmovdqu ymm1, [{from} + 32]",
            "vmovntdq [{to}], ymm0",
            "vmovntdq [{to} + 32], ymm1",
            "add {from}, 64",
            "add {to}, 64",
            "sub {left}, 64",
            "jnz 2b",
            "vzeroupper",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            left = inout(reg) len => _,
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
            out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
            out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
            out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
            options(nostack),
        );
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use self::memcpy as stream;

#[cfg(test)]
mod tests {
    use super::*;

    type Copy = unsafe fn(*mut u8, *const u8, usize);

    /// The copies of this machine, and of one without AVX.
    fn copies() -> Vec<Copy> {
        #[allow(unused_mut, reason = "there is one where there is no x86_64")]
        let mut all: Vec<Copy> = vec![stream];
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        all.push(stream_by_sse2);
        all
    }

    /// Copies as [`stream`] does on a processor without AVX.
    ///
    /// # Safety
    /// That of [`copy`].
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe fn stream_by_sse2(to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: our contract; SSE2 is part of x86_64.
        unsafe { stream_by(lines_by_sse2, to, from, len) };
    }

    #[test]
    fn every_byte_is_copied_wherever_it_lies() {
        const ROOM: usize = 10_000;
        let source: Vec<u8> = (0..ROOM).map(|at| (at % 251) as u8).collect();
        for len in [0, 1, 63, 64, 65, 128, 200, 700, 4096, 4160, 9000] {
            for (start, first) in [(0, 0), (1, 0), (0, 7), (63, 1), (17, 40)] {
                for copy in copies() {
                    let mut room = vec![255; ROOM];
                    // SAFETY: both have so many bytes from there on, and are different allocations.
                    unsafe { copy(room[start..].as_mut_ptr(), source[first..].as_ptr(), len) };
                    assert_eq!(
                        room[start..start + len],
                        source[first..first + len],
                        "{len} bytes at {start} and {first}"
                    );
                    assert!(room[..start].iter().chain(&room[start + len..]).all(|byte| *byte == 255));
                }
            }
        }
    }

    #[test]
    fn sizes_are_read_as_linux_writes_them() {
        assert_eq!(bytes_of("32768K\n"), Some(32 << 20));
        assert_eq!(
            [bytes_of(""), bytes_of("K"), bytes_of("12M"), bytes_of("99999999999999999999K")],
            [None; 4]
        );
    }
}
