"""Write the snapshots of many ranks of one run: all train alike but for three.

    python bench/generate_ranks.py FOLDER [--ranks 512] [--events 20000]

Rank 17 keeps an activation of every fortieth step, rank 300 has half as much again for activations, and rank 400 runs out of memory in its last step;
each rank begins a little later than the one before.
"""

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "python"))
from synthetic import CALL, LINEAR, MIB, TO_DEVICE, ZERO_GRAD, Program

LEAKS, LARGER, DIES = 17, 300, 400


def rank(number: int, events: int) -> Program:
    program = Program()
    program.time += 1000 * number
    main = program.line(30)
    for _ in range(4):
        program.alloc(12, TO_DEVICE, program.line(10))
    size = 60 if number == LARGER else 40
    step = 0
    while len(program.events) < events:
        step += 1
        blocks = [program.alloc(size, LINEAR, CALL, program.line(15, "forward"), main) for _ in range(8)]
        if number == LEAKS and step % 40 == 0:
            blocks.pop(3)
        gradients = []
        for block in reversed(blocks):
            program.free(block)
            if len(gradients) < 4:
                gradients.append(program.alloc(12))
        program.optimizer_step()
        for gradient in gradients:
            program.free(gradient, ZERO_GRAD, program.line(40))
    if number == DIES:
        for _ in range(8):
            program.alloc(size, LINEAR, CALL, program.line(15, "forward"), main)
        program.out_of_memory(4096, 100, LINEAR, CALL, program.line(18, "evaluate"), main)
    return program


def write(folder: pathlib.Path, ranks: int, events: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(ranks):
        rank(number, events).dump(folder / f"rank{number}.pickle")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--events", type=int, default=20_000)
    args = parser.parse_args()
    write(args.folder, args.ranks, args.events)
    size = sum(file.stat().st_size for file in args.folder.iterdir())
    print(f"{args.folder}: {args.ranks} ranks of {args.events:,} events, {size / MIB:,.0f} MiB")


if __name__ == "__main__":
    main()
