"""Small recordings of programs that are hard to have on a test machine: Lightning, torch.compile, DDP, notebooks.

The stacks are those of the real libraries, the allocations few and large. `Program` keeps the books as PyTorch does: a
segment for every size, reused when it is free.
"""

import pickle

MIB = 1 << 20
SITE = "/usr/lib/python3.12/site-packages/"


def frame(file, line, name):
    return {"name": name, "filename": file, "line": line}


def lib(path, line, name):
    return frame(SITE + path, line, name)


CALL = lib("torch/nn/modules/module.py", 1751, "_call_impl")
LINEAR = lib("torch/nn/modules/linear.py", 125, "forward")
APPLY = lib("torch/autograd/function.py", 575, "apply")
TO_DEVICE = lib("torch/nn/modules/module.py", 900, "_apply")
OPTIMIZER = [lib("torch/optim/adamw.py", 220, "step"), lib("torch/optim/optimizer.py", 493, "wrapper")]
ZERO_GRAD = lib("torch/optim/optimizer.py", 970, "zero_grad")


class Program:
    def __init__(self, file="/home/user/train.py"):
        self.file, self.events, self.annotations = file, [], []
        self.segments, self.live, self.stacks = {}, {}, {}
        self.time, self.next_address = 10**15, 0x7F0000000000

    def line(self, number, function="main"):
        return frame(self.file, number, function)

    def _stack(self, frames):
        # PyTorch shares the list of frames between an allocation and its block.
        key = tuple((f["filename"], f["line"], f["name"]) for f in frames)
        return self.stacks.setdefault(key, list(frames))

    def event(self, action, address, size, frames):
        self.time += 10
        key = "device_free" if action == "oom" else "addr"
        entry = {"action": action, key: address, "size": size, "stream": 0, "time_us": self.time}
        self.events.append({**entry, "compile_context": "N/A", "user_metadata": "", "frames": self._stack(frames)})

    def alloc(self, mib, *frames):
        size = int(mib * MIB)
        segment = 2 * MIB if size <= MIB else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        address = next((a for a, s in self.segments.items() if s == segment and a not in self.live), None)
        if address is None:
            address, self.next_address = self.next_address, self.next_address + segment + 64 * MIB
            self.segments[address] = segment
            self.event("segment_alloc", address, segment, frames)
        self.event("alloc", address, size, frames)
        self.live[address] = (size, self._stack(frames))
        return address

    def free(self, address, *frames):
        size, _ = self.live.pop(address)
        self.event("free_requested", address, size, frames)
        self.event("free_completed", address, size, frames)

    def out_of_memory(self, mib, device_free_mib, *frames):
        self.event("oom", device_free_mib * MIB, mib * MIB, frames)

    def annotate(self, name, stage, device=0):
        self.time += 10
        self.annotations.append({"name": name, "stage": stage, "device": device, "time_us": self.time})
        self.time += 10

    def optimizer_step(self, name="AdamW", device=0, body=lambda: None):
        self.annotate(f"Optimizer.step#{name}.step", "START", device)
        body()
        self.annotate(f"Optimizer.step#{name}.step", "END", device)

    def snapshot(self, device=0, forget=0):
        """The snapshot; `forget` leaves out so many of the first events, as a ring buffer does."""
        segments = []
        for address, total in sorted(self.segments.items()):
            blocks = []
            if address in self.live:
                requested, frames = self.live[address]
                size = -(-requested // 512) * 512
                if size > MIB and total - size <= MIB:
                    size = total
                blocks.append({"address": address, "size": size, "requested_size": requested, "state": "active_allocated", "frames": frames})
            else:
                size = 0
            if total > size:
                free = {"address": address + size, "size": total - size, "requested_size": 0, "state": "inactive", "frames": []}
                blocks.append(free)
            kind = "small" if total == 2 * MIB else "large"
            segments.append(
                {
                    "device": device, "address": address, "total_size": total, "allocated_size": 0, "active_size": 0,
                    "requested_size": 0, "stream": 0, "segment_type": kind, "segment_pool_id": (0, 0),
                    "is_expandable": False, "frames": [], "blocks": blocks,
                }
            )  # fmt: skip
        settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "expandable_segments": False}
        traces = [[] for _ in range(device)] + [self.events[forget:]]
        return {
            "segments": segments,
            "device_traces": traces,
            "allocator_settings": settings,
            "external_annotations": self.annotations,
        }

    def dump(self, path, **options):
        path.write_bytes(pickle.dumps(self.snapshot(**options), protocol=4))
        return path


def train(program, *, forward=(LINEAR, CALL), steps=4, outside=(), step=None, leak=lambda index, blocks: []):
    """A plain training loop: parameters, then steps of forward, backward (without stacks) and optimizer."""
    main = program.line(30)
    for _ in range(4):
        program.alloc(12, TO_DEVICE, program.line(10))
    for index in range(steps):

        def body(index=index):
            blocks = [program.alloc(40, *forward, program.line(15, "training_step"), *outside, main) for _ in range(8)]
            kept = leak(index, blocks)
            gradients = []
            for block in reversed(blocks):
                if block not in kept:
                    program.free(block)
                if len(gradients) < 4:
                    gradients.append(program.alloc(12))
            return gradients

        if step is None:
            gradients = body()
            program.optimizer_step()
        else:
            gradients = []
            step(program, lambda: gradients.extend(body()))
        for gradient in gradients:
            program.free(gradient, ZERO_GRAD, program.line(40))
