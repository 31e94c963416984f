//! Recorded form of an event, until it is written.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};

use crate::names::span_name;

/// Stands for an event without a rank: the thread's rank is used.
pub(crate) const NO_RANK: u32 = u32::MAX;

/// A value of an argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    /// Length of a text, in bytes; the texts lie one after another.
    Text(u32),
}

/// Form of an event in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A span of time from `start` to `end`.
    Slice,
    /// A moment at `start`.
    Instant,
}

/// An arrow that ends, or begins, at an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrow {
    None,
    /// An arrow with this id begins here.
    Out(u64),
    /// An arrow with this id ends here.
    In(u64),
    /// No arrow: the event is no slice of its thread, which does other work meanwhile. It has this number.
    Apart(u64),
}

/// A recorded event. Its arguments are the next `arguments` of the buffer's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub shape: Shape,
    pub arrow: Arrow,
    pub start: u64,
    pub end: u64,
    pub rank: u32,
    pub arguments: u32,
    pub name: &'static str,
    pub category: &'static str,
}

/// Arguments, and the texts among them, one after another.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arguments {
    pub values: Vec<(&'static str, Value)>,
    pub texts: String,
}

impl Arguments {
    pub fn text(&mut self, name: &'static str, text: &str) {
        self.texts.push_str(text);
        self.values.push((name, Value::Text(text.len() as u32)));
    }

    pub fn clear(&mut self) {
        self.values.clear();
        self.texts.clear();
    }

    /// Takes newer values, which replace values of the same name: a span may set a field repeatedly.
    pub fn update(&mut self, newer: &Arguments) {
        let old = std::mem::take(self);
        let mut texts = old.texts.as_str();
        for &(name, value) in &old.values {
            let (text, rest) =
                texts.split_at(if let Value::Text(length) = value { length as usize } else { 0 });
            texts = rest;
            if newer.values.iter().all(|(known, _)| *known != name) {
                self.texts.push_str(text);
                self.values.push((name, value));
            }
        }
        self.append(newer);
    }

    pub fn append(&mut self, other: &Arguments) {
        self.values.extend_from_slice(&other.values);
        self.texts.push_str(&other.texts);
    }
}

/// Visitor of an event's fields: times, rank, arrow and span's name of our own events, and arguments.
pub(crate) struct Fields<'a> {
    pub to: &'a mut Arguments,
    /// Whether the event is ours. In other events, the fields for times, rank and arrow count as arguments.
    pub ours: bool,
    pub start: u64,
    pub end: u64,
    pub rank: u32,
    pub arrow: Arrow,
    /// Name of a span of the program's own.
    pub span: Option<&'static str>,
}

impl<'a> Fields<'a> {
    pub fn new(to: &'a mut Arguments, ours: bool) -> Self {
        Fields { to, ours, start: 0, end: 0, rank: NO_RANK, arrow: Arrow::None, span: None }
    }

    fn is_own(&mut self, name: &str, value: u64) -> bool {
        if !self.ours {
            return false;
        }
        match name {
            "start_ns" => self.start = value,
            "end_ns" => self.end = value,
            "rank" => self.rank = value as u32,
            "flow_out" => self.arrow = Arrow::Out(value),
            "flow_in" => self.arrow = Arrow::In(value),
            "apart" => self.arrow = Arrow::Apart(value),
            _ => return false,
        }
        true
    }
}

impl Visit for Fields<'_> {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if !self.is_own(field.name(), value) {
            self.to.values.push((field.name(), Value::Unsigned(value)));
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.to.values.push((field.name(), Value::Signed(value)));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.to.values.push((field.name(), Value::Float(value)));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.to.values.push((field.name(), Value::Bool(value)));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if self.ours && field.name() == "span" {
            self.span = Some(span_name(value));
        } else {
            self.to.text(field.name(), value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let before = self.to.texts.len();
        let _ = write!(self.to.texts, "{value:?}");
        let length = self.to.texts.len() - before;
        self.to.values.push((field.name(), Value::Text(length as u32)));
    }
}
