//! Names of numbers.

use libc::{c_char, c_int, c_uint};
use std::ffi::CStr;

fn word(words: &[&'static CStr], number: usize) -> *const c_char {
    words.get(number).copied().unwrap_or(c"unknown").as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_wc_status_str(status: c_uint) -> *const c_char {
    const WORDS: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"operation aborted",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    word(&WORDS, status as usize)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_event_type_str(event: c_uint) -> *const c_char {
    const WORDS: [&CStr; 20] = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    word(&WORDS, event as usize)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_node_type_str(node: c_int) -> *const c_char {
    const WORDS: [&CStr; 8] = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    word(&WORDS, usize::try_from(node).unwrap_or(0))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_port_state_str(state: c_uint) -> *const c_char {
    const WORDS: [&CStr; 6] =
        [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    word(&WORDS, state as usize)
}
