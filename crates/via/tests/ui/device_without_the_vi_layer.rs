// Only the VI layer tells a device which memory peers may write: it knows whether there is a slice of that memory.

use udeck_via::{MemHandle, Nic, Ptag};

fn expose(nic: &Nic, ptag: Ptag) -> MemHandle {
    nic.device().expose(0, 64, ptag).unwrap()
}

fn main() {}
