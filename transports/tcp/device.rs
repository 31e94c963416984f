//! The NIC.

use std::fmt;
use std::sync::Arc;

use udeck_via::transport::{Connected, Device, Hello, OnRequest, Owner, Queues, Waiter};
use udeck_via::{
    Arena, Caps, Deadline, Error, MemHandle, Memory as _, NetAddress, NicAttributes, Ptag, Result, Rights,
};
