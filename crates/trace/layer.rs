//! Recording of events and spans: a layer of `tracing-subscriber`.
//!
//! The library's own events carry their beginning and end: a message costs one event and not a span, which
//! would be four calls and an allocation. All others are treated as `tracing` does: a span is a slice for each
//! time that a thread is inside, an event is a moment.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::span::{Attributes, Id};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Filter, Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

use crate::part::buffer;
use crate::record::{Arguments, Arrow, Fields, Record, Shape};
use crate::{CALLS, MESSAGES, SPANS, now};

/// Whether a layer of ours is part of the program's subscriber.
static IS_THERE: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The spans that the thread is inside of, the innermost last, each with the time of its entry.
    static INSIDE: RefCell<Vec<(Id, u64)>> = const { RefCell::new(Vec::new()) };
}

/// Records events and spans for the trace.
#[derive(Debug)]
pub struct TraceLayer {
    /// Whether this is the only layer: an event that it does not take is then disabled.
    alone: bool,
}

/// Filter of the trace's events and spans.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    on: bool,
}

impl Wanted {
    /// Tells whether the trace has an event: all of the library's, and others of the level `DEBUG` and above,
    /// except those of the network library (`quinn`).
    fn takes(self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        let is_ours = [MESSAGES, CALLS, SPANS].contains(&target);
        self.on && (is_ours || (*metadata.level() <= Level::DEBUG && !target.starts_with("quinn")))
    }
}

impl<S> Filter<S> for Wanted {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.takes(metadata)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.takes(metadata) { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(if self.on { LevelFilter::TRACE } else { LevelFilter::OFF })
    }
}

/// Returns a layer for a subscriber of the program's own: its spans and events appear in the trace beside the
/// library's. If `on` is false the layer takes no event, and costs nothing.
pub fn layer<S>(on: bool) -> impl Layer<S> + Send + Sync + 'static
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    IS_THERE.fetch_or(on, Ordering::Relaxed);
    TraceLayer { alone: false }.with_filter(Wanted { on })
}

/// Installs a subscriber that only traces, if the program has none. Returns `false` if the program has one
/// without our layer.
pub fn install() -> bool {
    if IS_THERE.load(Ordering::Relaxed) {
        return true;
    }
    let subscriber = tracing_subscriber::registry().with(TraceLayer { alone: true });
    let installed = tracing::subscriber::set_global_default(subscriber).is_ok();
    IS_THERE.fetch_or(installed, Ordering::Relaxed);
    installed
}

/// Recorded arguments of a span.
struct SpanArguments(Arguments);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for TraceLayer {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        let wanted = !self.alone || Wanted { on: true }.takes(metadata);
        if wanted { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let ours = [MESSAGES, SPANS].contains(&metadata.target());
        let at = if ours { 0 } else { now() };
        buffer::note(|arguments| {
            let mut fields = Fields::new(arguments, ours);
            event.record(&mut fields);
            let Fields { start, end, rank, arrow, span, .. } = fields;
            let (shape, start) = if ours { (Shape::Slice, start) } else { (Shape::Instant, at) };
            // An event of ours without an end is a moment.
            let shape = if ours && end == 0 { Shape::Instant } else { shape };
            let (name, category) = (span.unwrap_or_else(|| name_of(metadata)), metadata.target());
            Record { shape, arrow, start, end: end.max(start), rank, arguments: 0, name, category }
        });
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut arguments = Arguments::default();
        attributes.record(&mut Fields::new(&mut arguments, false));
        span.extensions_mut().insert(SpanArguments(arguments));
    }

    fn on_record(&self, id: &Id, values: &tracing::span::Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut newer = Arguments::default();
        values.record(&mut Fields::new(&mut newer, false));
        if let Some(SpanArguments(arguments)) = span.extensions_mut().get_mut() {
            arguments.update(&newer);
        }
    }

    fn on_enter(&self, id: &Id, _: Context<'_, S>) {
        let _ = INSIDE.try_with(|inside| inside.borrow_mut().push((id.clone(), now())));
    }

    /// Slices of a thread lie inside each other. A span that is left before one that was entered later cuts the
    /// later one in two.
    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        let end = now();
        let _ = INSIDE.try_with(|inside| {
            let mut inside = inside.borrow_mut();
            let Some(at) = inside.iter().rposition(|(entered, _)| entered == id) else { return };
            for (id, start) in inside[at..].iter().rev() {
                slice(&context, id, (*start, end));
            }
            inside.remove(at);
            let since = if at < inside.len() { now() } else { end };
            inside[at..].iter_mut().for_each(|(_, start)| *start = since);
        });
    }
}

/// Records that a thread was inside of a span.
fn slice<S: Subscriber + for<'a> LookupSpan<'a>>(
    context: &Context<'_, S>,
    id: &Id,
    (start, end): (u64, u64),
) {
    let Some(span) = context.span(id) else { return };
    let metadata = span.metadata();
    let ours = metadata.target() == CALLS;
    buffer::note(|arguments| {
        let mut rank = crate::record::NO_RANK;
        if let Some(SpanArguments(recorded)) = span.extensions().get() {
            arguments.append(recorded);
            let said = recorded.values.iter().find(|(name, _)| ours && *name == "rank");
            if let Some((_, crate::record::Value::Unsigned(said))) = said {
                rank = *said as u32;
            }
        }
        let (name, category) = (metadata.name(), metadata.target());
        Record { shape: Shape::Slice, arrow: Arrow::None, start, end, rank, arguments: 0, name, category }
    });
}

/// Returns an event's name. One without a name of its own is named after its place in the sources: its words
/// are an argument.
fn name_of(metadata: &'static Metadata<'static>) -> &'static str {
    let name = metadata.name();
    if name.starts_with("event ") { metadata.target() } else { name }
}
