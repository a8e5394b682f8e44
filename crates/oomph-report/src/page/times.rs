//! When events were, in few corners of a line.

use super::columns::Column;
use super::data;
use super::packer::Packer;
use crate::exports::Clock;

/// Times have a resolution of this share of the recording, or of so many points of a line.
const FINEST_TIME: u64 = 1_000_000;
const MOST_TIMES: usize = 40_000;

/// When events were: the corners of a line that is off by at most `within` microseconds. What is longer than a rounding error, a pause
/// above all, makes a corner.
pub(super) fn times(packer: &mut Packer, clock: &Clock) -> Option<(data::Times, data::Column)> {
    if !clock.real || clock.of_events().is_empty() {
        return None;
    }
    let mut within = clock.end() / FINEST_TIME;
    let mut corners = corners(clock.of_events(), within);
    while corners.len() > MOST_TIMES {
        within = 2 * within.max(1);
        corners = self::corners(clock.of_events(), within);
    }
    let (mut column, mut event, mut micros) = (Column::default(), 0, 0);
    for &(at, when) in &corners {
        column.unsigned((at - event) as u64);
        column.unsigned(when - micros);
        column.row();
        (event, micros) = (at, when);
    }
    Some((data::Times { within }, packer.put("times", &column)))
}

/// The fewest points of a rising sequence, found from left to right, between which straight lines are off by at most `within`.
fn corners(values: &[u64], within: u64) -> Vec<(usize, u64)> {
    let Some((&start, &end)) = values.first().zip(values.last()) else { return Vec::new() };
    let mut corners = vec![(0, start)];
    let (mut from, mut lowest, mut highest) = ((0, start), f64::NEG_INFINITY, f64::INFINITY);
    for (index, &value) in values.iter().enumerate().skip(1) {
        let run = |at: usize| (at - from.0) as f64;
        let slope = |value: f64| (value - from.1 as f64) / run(index);
        // A line that ends here must pass all points since the last corner.
        if slope(value as f64) < lowest || slope(value as f64) > highest {
            from = (index - 1, values[index - 1]);
            corners.push(from);
            (lowest, highest) = (f64::NEG_INFINITY, f64::INFINITY);
        }
        let run = (index - from.0) as f64;
        lowest = lowest.max((value as f64 - within as f64 - from.1 as f64) / run);
        highest = highest.min((value as f64 + within as f64 - from.1 as f64) / run);
    }
    if values.len() > 1 {
        corners.push((values.len() - 1, end));
    }
    corners
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a reader of the corners would say of every value.
    fn between(corners: &[(usize, u64)], at: usize) -> f64 {
        let next = corners.partition_point(|&(index, _)| index < at).max(1).min(corners.len() - 1);
        let ((from, low), (to, high)) = (corners[next - 1], corners[next]);
        low as f64 + (high - low) as f64 * (at - from) as f64 / (to - from) as f64
    }

    #[test]
    fn a_pause_is_where_it_was() {
        // Three microseconds an event, and a minute's sleep in the middle.
        let values: Vec<u64> =
            (0..450_000).map(|i| 3 * i + if i > 210_030 { 60_000_000 } else { 0 }).collect();
        let corners = corners(&values, 60);
        assert!(corners.len() <= 4, "{}", corners.len());
        for (at, &value) in values.iter().enumerate() {
            assert!((between(&corners, at) - value as f64).abs() <= 60.0, "event {at}");
        }
    }

    #[test]
    fn lines_between_corners_are_within_what_is_said() {
        let mut state = 7_u64;
        let mut value = 0;
        let values: Vec<u64> = (0..50_000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                value += match state >> 60 {
                    0 => 5_000,
                    few => few,
                };
                value
            })
            .collect();
        for within in [0, 1, 50, 100_000] {
            let corners = corners(&values, within);
            for (at, &value) in values.iter().enumerate() {
                assert!(
                    (between(&corners, at) - value as f64).abs() <= within as f64 + 1e-3,
                    "{within}: {at}"
                );
            }
        }
        assert_eq!(corners(&[5], 1), [(0, 5)]);
        assert_eq!(corners(&[], 1), []);
    }
}
