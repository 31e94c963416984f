// Peers may be writing a window at any moment: it is copied out of, never referred to.

use udeck_via::Window;

fn read(window: &Window) {
    let mut byte = [0];
    window.read(0, &mut byte).unwrap();
}

fn main() {}
