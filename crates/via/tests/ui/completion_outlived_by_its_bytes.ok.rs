// The bytes of a received message can be read as long as the completion that gave it back exists.

use udeck_via::Completion;

fn received(completion: Completion) -> u8 {
    let descriptor = completion.descriptor.as_ref().unwrap();
    let bytes = descriptor.segments()[0].bytes().to_vec();
    drop(completion);
    bytes[0]
}

fn main() {}
