//! Worked examples, in MiB: what the rules come to.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::addresses::Order;

const MIB: u64 = 1 << 20;

fn torch(conf: &str, memory: Memory) -> Torch {
    let conf = Conf::parse(conf, Version::NEWEST).unwrap();
    Torch::new(conf, Version::NEWEST, memory, Addresses::made_up(Order::Up))
}

fn alloc(torch: &mut Torch, mib: u64) -> Handle {
    torch.malloc(Request::of(mib * MIB)).unwrap()
}

fn reserved(torch: &Torch) -> u64 {
    torch.usage().reserved.now / MIB
}

#[test]
fn segments_are_reused_for_less_but_not_joined_for_more() {
    for (conf, small, large) in [("", 128, 256), ("expandable_segments:True", 140, 140)] {
        let mut torch = torch(conf, Memory::UNLIMITED);
        let blocks: Vec<Handle> = (0..8).map(|_| alloc(&mut torch, 16)).collect();
        assert_eq!(reserved(&torch), small, "{conf}");
        for block in blocks {
            torch.free(block);
        }
        for _ in 0..4 {
            alloc(&mut torch, 32);
        }
        assert_eq!(reserved(&torch), large, "{conf}");
    }
}

#[test]
fn a_rest_of_up_to_one_mib_stays_with_its_block() {
    for (conf, second) in [("", 15 * MIB), ("expandable_segments:True", 14 * MIB + MIB / 2)] {
        let mut torch = torch(conf, Memory::UNLIMITED);
        alloc(&mut torch, 5);
        torch.malloc(Request::of(14 * MIB + MIB / 2)).unwrap();
        assert_eq!(torch.usage().allocated.now, 5 * MIB + second, "{conf}");
        assert_eq!(reserved(&torch), 20, "{conf}");
    }
}

#[test]
fn holes_between_live_blocks_do_not_join() {
    for (conf, expected) in [("", 96), ("expandable_segments:True", 100)] {
        let mut torch = torch(conf, Memory::UNLIMITED);
        let blocks: Vec<Handle> = (0..4).map(|_| alloc(&mut torch, 16)).collect();
        torch.free(blocks[0]);
        torch.free(blocks[2]);
        alloc(&mut torch, 32);
        assert_eq!(reserved(&torch), expected, "{conf}");
    }
}

#[test]
fn max_split_size_with_expandable_segments_grows_without_bound() {
    // pytorch/pytorch#123548: a block that lives one round longer than the others, on 16 GiB.
    let grown = |conf: &str| {
        let mut torch = torch(conf, Memory::of(16 << 30));
        let mut kept: Option<Handle> = None;
        for _ in 0..21 {
            let round: Vec<Handle> = (0..4).map(|_| alloc(&mut torch, 60)).collect();
            let stays = alloc(&mut torch, 2);
            for block in round.into_iter().chain(kept.replace(stays)) {
                torch.free(block);
            }
        }
        reserved(&torch)
    };
    assert_eq!(grown(""), 260);
    assert_eq!(grown("expandable_segments:True"), 260);
    assert_eq!(grown("max_split_size_mb:128"), 260);
    assert_eq!(grown("expandable_segments:True,max_split_size_mb:128"), 5100);
}

#[test]
fn a_block_that_came_back_while_waiting_is_not_looked_for() {
    // pytorch/pytorch#189504: the cache is emptied, which brings back a block that fits, but only the device is asked. A small
    // block keeps the segment from going back.
    let mut torch = torch("", Memory::of(80 * MIB));
    let large = alloc(&mut torch, 80);
    torch.free(large);
    let waits = alloc(&mut torch, 40);
    let _stays = alloc(&mut torch, 20);
    torch.free_later(waits);
    assert!(torch.malloc(Request::of(40 * MIB)).is_err());
    // It was there: who asks again gets it, without a retry.
    let retries = torch.usage().retries;
    assert!(torch.malloc(Request::of(40 * MIB)).is_ok());
    assert_eq!(torch.usage().retries, retries);
}

#[test]
fn a_threshold_for_garbage_does_nothing_without_a_limit() {
    let reserved_after = |memory: Memory| {
        let mut torch = torch("garbage_collection_threshold:0.5", memory);
        let block = alloc(&mut torch, 60);
        torch.free(block);
        alloc(&mut torch, 100);
        (reserved(&torch), torch.usage().retries)
    };
    assert_eq!(reserved_after(Memory::UNLIMITED), (160, 0));
    let limited = Memory { limit: Some(200 * MIB), ..Memory::UNLIMITED };
    assert_eq!(reserved_after(limited), (160, 0)); // 60 of 200 is below the threshold when the 100 are asked for
    let tighter = Memory { limit: Some(110 * MIB), ..Memory::UNLIMITED };
    assert_eq!(reserved_after(tighter), (100, 0)); // given back before room is looked for, so without a retry
}
