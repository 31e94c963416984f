//! The trace of a job (`DECK_TRACE`), beside a program's own use of the `tracing` crate.
//!
//! A program that has no subscriber of its own needs nothing of this: [`crate::init`] installs one if a trace is wanted, and whatever
//! the program says by `tracing` is in the file, too. A program that has one adds [`layer`].

use tracing_subscriber::Layer;
use tracing_subscriber::registry::LookupSpan;

/// A layer for the program's own subscriber, so that its spans and events stand beside µDECK's in the trace. Without `DECK_TRACE`
/// it wants nothing and costs nothing.
///
/// The trace has what the program says at the level `DEBUG` and above. Add the layer beside others, and give those their filters, because
/// a filter of the whole subscriber keeps things from the trace, too.
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

/// As [`layer`], for a program that sets [`crate::Config::trace`] itself: `on` says whether it does.
pub fn layer_if<S>(on: bool) -> impl Layer<S> + Send + Sync + 'static
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    udeck_trace::layer(on)
}
