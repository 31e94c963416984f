//! Names of an enum's values, as clap derives them: the same on the command line, in orders, and in output.

use clap::ValueEnum;

/// An enum whose values have names.
pub trait Named: ValueEnum {
    /// Name of this value.
    fn name(&self) -> String {
        self.to_possible_value().expect("no value is skipped").get_name().to_owned()
    }

    /// The value of this name.
    fn of_name(name: &str) -> Option<Self> {
        Self::from_str(name, false).ok()
    }
}

impl<T: ValueEnum> Named for T {}
