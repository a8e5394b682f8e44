//! PyTorch's random numbers on the CPU, passed over without being made.
//!
//! Initialising the weights of a model on the CPU takes seconds, and their values do not matter. That so many numbers
//! were drawn does: what the program draws afterwards (lengths, an order of samples) may steer it. PyTorch's generator
//! is MT19937; this moves its state on as if numbers had been drawn.

/// Words of the generator's state.
const WORDS: usize = 624;
const MIDDLE: usize = 397;
/// Where `torch.get_rng_state()` has what: the numbers left before the next twist, the next word, the words.
const LEFT: usize = 8;
const NEXT: usize = 16;
const STATE: usize = 24;
/// How long it is.
pub const LENGTH: usize = 5056;

/// Makes the next words of all. A model draws hundreds of millions: in three stretches, each of which reads only what is there before it begins,
/// so that the compiler makes several words at once.
fn twist(state: &mut [u32; WORDS]) {
    const REACH: usize = WORDS - MIDDLE;
    let mix = |high: u32, low: u32| {
        let word = (high & 0x8000_0000) | (low & 0x7fff_ffff);
        (word >> 1) ^ ((low & 1).wrapping_neg() & 0x9908_b0df)
    };
    let old = *state;
    let fill = |new: &mut [u32], far: &[u32], from: usize| {
        let (highs, lows) = (old.iter().skip(from), old.iter().skip(from + 1));
        for (((new, far), high), low) in new.iter_mut().zip(far).zip(highs).zip(lows) {
            *new = far ^ mix(*high, *low);
        }
    };
    let (first, rest) = state.split_at_mut(REACH);
    let (second, third) = rest.split_at_mut(REACH);
    fill(first, &old[MIDDLE..], 0);
    fill(second, first, REACH);
    fill(third, second, 2 * REACH);
    // The last word is followed by the first of the new ones.
    if let (Some(last), Some(far), Some(next)) =
        (third.last_mut(), second.get(MIDDLE - 1 - REACH), first.first())
    {
        *last = far ^ mix(old[WORDS - 1], *next);
    }
}

/// Moves a saved state on by so many draws of 32 bits. False if it is not a state.
pub fn advance(saved: &mut [u8; LENGTH], mut draws: u64) -> bool {
    let number = |at: usize, saved: &[u8; LENGTH]| -> u32 {
        saved.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
    };
    let (mut left, mut next) = (u64::from(number(LEFT, saved)), u64::from(number(NEXT, saved)));
    if !(1..=WORDS as u64).contains(&left) || next > WORDS as u64 {
        return false;
    }
    let mut state = [0u32; WORDS];
    for (index, word) in state.iter_mut().enumerate() {
        *word = number(STATE + 8 * index, saved);
    }
    while draws > 0 {
        let ready = left - 1;
        if draws <= ready {
            left -= draws;
            next += draws;
            break;
        }
        draws -= ready + 1;
        twist(&mut state);
        (left, next) = (WORDS as u64, 1);
    }
    let mut put = |at: usize, value: u32| {
        if let Some(place) = saved.get_mut(at..at + 4) {
            place.copy_from_slice(&value.to_le_bytes());
        }
    };
    put(LEFT, left as u32);
    put(NEXT, next as u32);
    for (index, word) in state.iter().enumerate() {
        put(STATE + 8 * index, *word);
    }
    true
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;

    /// MT19937 as its authors seed it.
    fn seeded(seed: u32) -> [u8; LENGTH] {
        let mut saved = [0u8; LENGTH];
        let mut word = seed;
        for index in 0..WORDS {
            if index > 0 {
                word = 1_812_433_253u32.wrapping_mul(word ^ (word >> 30)).wrapping_add(index as u32);
            }
            saved[STATE + 8 * index..STATE + 8 * index + 4].copy_from_slice(&word.to_le_bytes());
        }
        saved[LEFT] = 1;
        saved
    }

    fn draw(saved: &mut [u8; LENGTH]) -> u32 {
        assert!(advance(saved, 1));
        let next = u64::from_le_bytes(saved[NEXT..NEXT + 8].try_into().unwrap_or_default()) as usize - 1;
        let mut word =
            u32::from_le_bytes(saved[STATE + 8 * next..STATE + 8 * next + 4].try_into().unwrap_or_default());
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    #[test]
    fn the_ten_thousandth_number_of_the_standard_seed_is_the_standards() {
        let mut saved = seeded(5489);
        assert_eq!(draw(&mut saved), 3_499_211_612);
        assert!(advance(&mut saved, 9_998));
        assert_eq!(draw(&mut saved), 4_123_659_995);
    }

    #[test]
    fn many_steps_are_one_leap() {
        let (mut one, mut other) = (seeded(7), seeded(7));
        for _ in 0..2000 {
            draw(&mut one);
        }
        assert!(advance(&mut other, 2000));
        assert_eq!(one, other);
        assert!(!advance(&mut [0; LENGTH], 1), "left is 0");
    }
}
