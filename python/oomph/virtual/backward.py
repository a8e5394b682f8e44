"""Gives allocations of the backward pass the forward line that caused them.

Autograd's threads have no Python stack, so PyTorch's recording has no line for what they allocate: often a third of all
allocations. Every node of the graph has a number, though, which is known both when the forward pass makes it and when
the backward pass runs it. Forward: number to stack. Backward: time to number. The recording's events have times.

Backward passes run without the mode that watches values: where a mode is active, PyTorch adds gradients up and scatters
them out of place, with copies that it would not make otherwise. A hook on each node reports when it runs instead.
"""

import bisect
import functools
import os
import sys
import time

# The innermost frame of a stack that stands for the backward pass of what follows; explain knows it.
MARK = "<autograd>"

# Before Python 3.13, some versions of PyTorch (2.11) look into the running node for a stack whenever memory is freed, and
# if they find none they forget the error that is on its way: checkpointing stops its recomputation by one. An entry, even
# an empty one, avoids that.
_LOSES_ERRORS = sys.version_info < (3, 13)

MOST_STACKS = 200_000

_HERE = os.path.dirname(os.path.abspath(__file__))
# What PyTorch puts between an operation and a mode.
_AROUND_MODES = ("/torch/_dynamo/eval_frame.py", "/torch/_compile.py", "/torch/utils/_python_dispatch.py")


def is_ours(file):
    return file.startswith(_HERE) or file == "<string>"


def without_ours(frames):
    """A stack, innermost first, as it would be if oomph were not there."""
    if not any(is_ours(frame["filename"]) for frame in frames):
        return frames
    # Wrapped around an optimizer's own step: what is further in is the optimizer's.
    frames = [frame for frame in frames if not (frame.get("name") == "stepping" and is_ours(frame["filename"]))]
    # Outermost is what started the program; innermost are the operation called again, the mode, and its wrapping.
    end = len(frames)
    while end and is_ours(frames[end - 1]["filename"]):
        end -= 1
    start = 0
    for index in range(end):
        if is_ours(frames[index]["filename"]):
            start = index + 1
    while start < end and start and frames[start]["filename"].endswith(_AROUND_MODES):
        start += 1
    return frames[start:end]


class Backward:
    def __init__(self, torch):
        self.stacks = {}
        self.counts = {}
        self.times = []
        self.numbers = []
        self.names = []
        self._node = torch._C._current_autograd_node
        self._number = torch.autograd._get_sequence_nr if hasattr(torch.autograd, "_get_sequence_nr") else torch._C._autograd._get_sequence_nr
        self._gather = torch._C._profiler.gather_traceback
        self._symbolize = torch._C._profiler.symbolize_tracebacks
        self._builds_graph = torch.is_grad_enabled
        self._anomaly = torch.is_anomaly_enabled

    def operation(self):
        """Called before every operation that the mode sees."""
        node = self._node()
        if node is not None:
            # A forward pass that is run again, or a version whose insides `follow` does not know.
            self.reached(node._sequence_nr(), node.name())
        elif self._builds_graph():
            # The node of this operation has just been made, with the number before the next.
            # Operations without a node come to the same number; the first has it.
            number = self._number() - 1
            if number not in self.stacks:
                self.stacks[number] = self._gather(python=True, script=False, cpp=False)

    def remember_counts(self, counts):
        """How many elements the masks of this operation select: its backward pass will count them again."""
        if self._node() is None and self._builds_graph():
            self.counts[self._number() - 1] = counts

    def reached(self, number, name):
        self.times.append(time.time_ns() // 1000)
        self.numbers.append(number)
        self.names.append(name)

    # -- backward passes

    def follow(self, torch, values, library):
        """Takes the mode off while gradients are computed, and puts it back where a forward pass is run again."""
        run = torch.autograd._engine_run_backward

        @functools.wraps(run)
        def engine_run_backward(roots, *args, **kwargs):
            leaves = self.watch(roots, library)
            try:
                with values.off():
                    return run(roots, *args, **kwargs)
            finally:
                for leaf in leaves:
                    gradient = leaf.variable.grad
                    if gradient is not None:
                        values.unlearn(gradient)
                library.oomph_guessed()
                self.trim()

        torch.autograd._engine_run_backward = engine_run_backward
        from torch.utils import checkpoint

        class Recomputes(checkpoint._recomputation_hook):
            def __enter__(self):
                self.again = values.on()
                self.again.__enter__()
                return super().__enter__()

            def __exit__(self, *error):
                try:
                    return super().__exit__(*error)
                finally:
                    self.again.__exit__(None, None, None)

        checkpoint._recomputation_hook = Recomputes

    def watch(self, roots, library):
        """Puts a hook on every node of the graph."""
        leaves = []
        left = [root.grad_fn if hasattr(root, "grad_fn") else getattr(root, "node", None) for root in roots]
        seen = set()
        loses_errors = _LOSES_ERRORS and not self._anomaly()
        while left:
            node = left.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            left.extend(follower for follower, _ in node.next_functions)
            if not node.next_functions:
                # Gradients arrive there; what hooks it has is DistributedDataParallel's business.
                if hasattr(node, "variable"):
                    leaves.append(node)
                continue
            metadata = node.metadata
            if loses_errors:
                metadata.setdefault("traceback_", None)
            if "oomph" not in metadata:
                metadata["oomph"] = True
                node.register_prehook(self.hook(node._sequence_nr(), node.name(), library))
        return leaves

    def trim(self):
        """Graphs that are this old are gone: a long run must not keep a stack of every operation."""
        if len(self.stacks) > MOST_STACKS:
            reached = set(self.numbers)
            newest = sorted(self.stacks)[-MOST_STACKS // 2 :]
            self.stacks = {number: self.stacks[number] for number in {*newest, *(reached & self.stacks.keys())}}

    def hook(self, number, name, library):
        counts = self.counts.get(number)

        def before(gradients):
            self.reached(number, name)
            library.oomph_end_script()
            for count in counts or ():
                library.oomph_script_read(count)

        return before

    def attribute(self, snapshot):
        """Rewrites the snapshot's stacks: without oomph's own frames, and with forward lines."""
        self.name_lines()
        cleaned = {}
        for events in snapshot.get("device_traces", []):
            for event in events:
                frames = event.get("frames")
                if frames is None:
                    continue
                clean = cleaned.get(id(frames))
                if clean is None:
                    own = without_ours(frames)
                    clean = cleaned[id(frames)] = (frames, own)
                event["frames"] = clean[1]
                if not clean[1] and event["action"] in ("alloc", "oom"):
                    event["frames"] = self.forward_of(event.get("time_us", 0))
        for segment in snapshot.get("segments", []):
            for part in (segment, *segment.get("blocks", [])):
                if part.get("frames"):
                    part["frames"] = without_ours(part["frames"])

    def name_lines(self):
        wanted = sorted({number for number in self.numbers if number in self.stacks})
        stacks = self._symbolize([self.stacks[number] for number in wanted]) if wanted else []
        self.lines = dict(zip(wanted, stacks))

    def forward_of(self, moment):
        """The stack for an allocation at this time: of the operation that had begun last."""
        place = bisect.bisect_right(self.times, moment) - 1
        if place < 0:
            return []
        stack = self.lines.get(self.numbers[place])
        if not stack:
            return []
        return [{"name": self.names[place], "filename": MARK, "line": 0}, *without_ours(stack)]
