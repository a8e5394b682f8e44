//! Temporary.
#![allow(missing_docs)]
use std::time::Duration;
#[derive(Clone, Copy, Debug)]
pub struct Buffer { pub lower: u64, pub upper: u64, pub size: u64 }
pub struct Limits<'a> { pub time: Duration, pub good_enough: u64, pub progress: &'a mut dyn FnMut(u64) -> bool }
#[derive(Clone, Debug)]
pub struct Placement { pub offsets: Vec<u64>, pub height: u64, pub lower_bound: u64, pub optimal: bool, pub method: &'static str }
pub fn pack(buffers: &[Buffer], _limits: Limits) -> Placement {
    let mut at = 0;
    let offsets = buffers.iter().map(|b| { let o = at; at += b.size; o }).collect();
    Placement { offsets, height: at, lower_bound: 0, optimal: false, method: "stacked" }
}
