//! The trace of a job (`DECK_TRACE`), beside a program's own use of the `tracing` crate.
//!
//! A program without a subscriber of its own does not need this: [`crate::init`] installs one if a trace is
//! wanted, and the program's own spans and events are in the file, too. A program with a subscriber adds
//! [`layer`].

use tracing_subscriber::Layer;
use tracing_subscriber::registry::LookupSpan;

/// Returns a layer for the program's own subscriber: the program's spans and events stand beside µDECK's in the
/// trace. Without `DECK_TRACE` the layer takes no event and costs nothing.
///
/// The trace has the program's spans and events of the level `DEBUG` and above. Add the layer beside others,
/// and give the others their filters: a filter of the whole subscriber would keep events from the trace, too.
///
/// ```
/// use tracing_subscriber::prelude::*;
///
/// # fn main() -> udeck::Result {
/// tracing_subscriber::registry().with(udeck::trace::layer()).init();
/// let world = udeck::init()?;
/// {
///     let _solving = tracing::info_span!("solve", cells = 1000).entered();
///     // … messages
/// }
/// world.finish()
/// # }
/// ```
pub fn layer<S>() -> impl Layer<S> + Send + Sync + 'static
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    layer_if(std::env::var_os(udeck_trace::VARIABLE).is_some_and(|path| !path.is_empty()))
}

/// Does as [`layer`], for a program that sets [`crate::Config::trace`] itself; `on` is true if it does.
pub fn layer_if<S>(on: bool) -> impl Layer<S> + Send + Sync + 'static
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    udeck_trace::layer(on)
}
