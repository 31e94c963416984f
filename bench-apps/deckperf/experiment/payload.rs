//! Writing and reading a whole message, eight bytes at a time so that both loops vectorise.
//!
//! The sum is compared with a closed form that the reader knows without the data. So neither loop can be
//! optimised away, and no figure of messages that arrived damaged is printed.

/// Writes `seed`, `seed + 1`, ... into the words of `data`, and the low byte of `seed` into the remaining bytes.
pub fn write(data: &mut [u8], seed: u64) {
    let mut words = data.chunks_exact_mut(8);
    let mut value = seed;
    for word in &mut words {
        word.copy_from_slice(&value.to_ne_bytes());
        value = value.wrapping_add(1);
    }
    words.into_remainder().fill(seed as u8);
}

/// The wrapping sum of the words and of the remaining bytes.
pub fn sum(data: &[u8]) -> u64 {
    let words = data.chunks_exact(8);
    let tail: u64 = words.remainder().iter().map(|&byte| u64::from(byte)).sum();
    words
        .map(|word| u64::from_ne_bytes(word.try_into().expect("chunks_exact(8) yields 8 bytes")))
        .fold(tail, u64::wrapping_add)
}

/// The value of [`sum`] for `len` bytes that [`write()`] wrote with `seed`.
pub fn expected_sum(len: usize, seed: u64) -> u64 {
    let (words, tail) = (len as u64 / 8, len as u64 % 8);
    let ramp = words * words.saturating_sub(1) / 2;
    words.wrapping_mul(seed).wrapping_add(ramp).wrapping_add(tail * (seed & 0xff))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closed_form_is_the_sum_of_what_was_written() {
        for len in (0..70).chain([4093, 4096, 4099]) {
            for seed in [0, 1, 255, 0x1234_5678_9abc_def0, u64::MAX - 3] {
                let mut data = vec![0xee; len];
                write(&mut data, seed);
                assert_eq!(sum(&data), expected_sum(len, seed), "{len} bytes, seed {seed}");
            }
        }
    }

    #[test]
    fn one_wrong_byte_changes_the_sum() {
        let mut data = vec![0; 4099];
        write(&mut data, 7);
        for at in [0, 8, 4095, 4096, 4098] {
            data[at] ^= 1;
            assert_ne!(sum(&data), expected_sum(4099, 7), "byte {at}");
            data[at] ^= 1;
        }
    }
}
