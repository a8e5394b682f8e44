"""Python objects that ranks send to each other, where each runs without the others.

PyTorch's own functions run, so that they take what they take of the card and of NCCL; what they would have received is put in
its place. What a rank sends is kept, and a rank that runs after it receives that. From one that has not run yet comes what this
rank would send itself: stages of a pipeline tell each other the shapes of what they pass on, and those are mostly the same.
That something was not there is written down: who starts the ranks runs such a one again.
"""

import contextlib
import functools
import inspect
import os
import pickle
import shutil
import zlib
from collections import Counter

# Larger messages are not kept: what is sent once may be a whole model.
LARGEST = 256 << 20


class Objects:
    """The functions of torch.distributed that take objects, for one rank. ``shared`` has a folder for each rank that has run."""

    def __init__(self, torch, rank, shared, facts):
        self.torch, self.rank, self.shared, self.facts = torch, rank, shared, facts
        self.folder = os.path.join(shared, str(rank))
        self.distributed = torch.distributed.distributed_c10d
        self.counts = Counter()
        self.last_sent = None
        # What an earlier run of this rank has sent, this one may not send.
        shutil.rmtree(self.folder, ignore_errors=True)

    def replace(self):
        if not hasattr(self.distributed, "_tensor_to_object"):
            return
        for name in ("send_object_list", "recv_object_list", "broadcast_object_list", "scatter_object_list", "gather_object"):
            original = getattr(self.distributed, name, None)
            if original is not None:
                ours = self.around(original, getattr(self, name))
                setattr(self.distributed, name, ours)
                setattr(self.torch.distributed, name, ours)

    def around(self, original, ours):
        signature = inspect.signature(original)

        @functools.wraps(original)
        def called(*args, **kwargs):
            run = functools.partial(original, *args, **kwargs)
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError:
                # PyTorch has its own word for it; and for who calls for a group that it is not in.
                return run()
            if not self.distributed.is_initialized() or self.distributed._rank_not_in_group(given.get("group")):
                return run()
            return ours(run, given, given.get("group") or self.distributed._get_default_group())

        return called

    # -- what is kept

    def name(self, kind, source, target, group):
        """Of the next message of its kind between these two."""
        ranks = zlib.crc32(repr(self.distributed.get_process_group_ranks(group)).encode())
        key = f"{kind}-{ranks:08x}-{source}-{target}"
        self.counts[key] += 1
        return f"{key}-{self.counts[key]}"

    def keep(self, name, objects):
        kept = pickle.dumps(list(objects))
        if len(kept) > LARGEST:
            self.note(f"rank {self.rank} sends objects of {len(kept) >> 20} MiB: the others do not get them")
            return None
        try:
            os.makedirs(self.folder, exist_ok=True)
            with open(os.path.join(self.folder, name), "wb") as file:
                file.write(kept)
        except OSError as error:
            self.note(f"what rank {self.rank} sends could not be kept for the others: {error.strerror}")
        return kept

    def kept(self, name, source, otherwise, waits=True):
        """What was sent, or a copy of what there is instead."""
        try:
            with open(os.path.join(self.shared, str(source), name), "rb") as file:
                objects = pickle.load(file)
        except OSError:
            objects = None
        if objects is not None:
            return objects
        if waits:
            self.facts["too_early"] = True
            self.note(f"what rank {source} sends to rank {self.rank} is not known: it was taken to be what rank {self.rank} has")
        return pickle.loads(otherwise) if isinstance(otherwise, bytes) else pickle.loads(pickle.dumps(otherwise))

    def note(self, text):
        if text not in self.facts["notes"]:
            self.facts["notes"].append(text)

    def global_rank(self, rank, of_group, group):
        """A rank of the world, given as such or as one of the group."""
        if rank is not None or of_group is None:
            return rank
        return self.distributed.get_global_rank(group, of_group)

    @contextlib.contextmanager
    def delivering(self, objects, **numbers):
        """PyTorch receives objects: calls of functions that are named fill in these numbers, in their order, and what was received are these objects."""
        left = iter(objects)
        replaced = {"_tensor_to_object": lambda *args, **kwargs: next(left)}
        for name, values in numbers.items():
            replaced[name] = self.filling(getattr(self.distributed, name), list(values))
        before = {name: getattr(self.distributed, name) for name in replaced}
        try:
            for name, value in replaced.items():
                setattr(self.distributed, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(self.distributed, name, value)

    def filling(self, original, values):
        def filled(given, *args, **kwargs):
            result = original(given, *args, **kwargs)
            value = values.pop(0) if values else None
            if value is not None:
                tensors = given if isinstance(given, list) else [given]
                tensors = [getattr(one, "tensor", one) for one in tensors]
                for tensor, one in zip(tensors, value if len(tensors) > 1 else [value]):
                    tensor.copy_(self.torch.tensor(one, dtype=tensor.dtype).reshape(tensor.shape))
            return result

        return filled

    # -- the functions: how PyTorch is run, what it was given, and the group

    def send_object_list(self, run, given, group):
        result = run()
        target = self.global_rank(given.get("dst"), given.get("group_dst"), group)
        self.last_sent = self.keep(self.name("sent", self.rank, target, group), given["object_list"])
        return result

    def recv_object_list(self, run, given, group):
        source, wanted = self.global_rank(given.get("src"), given.get("group_src"), group), given["object_list"]
        if source is None:
            return run()
        mine = self.last_sent if self.last_sent is not None and len(pickle.loads(self.last_sent)) == len(wanted) else wanted
        objects = self.kept(self.name("sent", source, self.rank, group), source, mine)
        sizes = self.sizes(objects)
        with self.delivering(objects, recv=[sizes], batch_isend_irecv=[sizes]):
            return run()

    def broadcast_object_list(self, run, given, group):
        source = self.global_rank(given.get("src"), given.get("group_src"), group) or 0
        name = self.name("broadcast", source, "all", group)
        if source == self.rank:
            run()
            self.keep(name, given["object_list"])
            return
        objects = self.kept(name, source, given["object_list"])
        with self.delivering(objects, broadcast=[self.sizes(objects)]):
            run()

    def scatter_object_list(self, run, given, group):
        source = self.global_rank(given.get("src"), given.get("group_src"), group) or 0
        name, place = self.name("scattered", source, "all", group), group.rank()
        if source == self.rank:
            objects = given.get("scatter_object_input_list")
            if objects is None:
                return run()
            self.keep(name, objects)
        else:
            objects = self.kept(name, source, [None] * group.size())
        sizes = self.sizes(objects)
        with self.delivering([objects[place]], broadcast=[max(sizes)], scatter=[None, sizes[place]]):
            run()

    def gather_object(self, run, given, group):
        target = self.global_rank(given.get("dst"), given.get("group_dst"), group) or 0
        mine = pickle.dumps([given["obj"]])
        self.keep(self.name("gathered", self.rank, target, group), [given["obj"]])
        if target != self.rank:
            return run()
        # From ranks that have not run comes what this one has: nobody waits for them.
        ranks = self.distributed.get_process_group_ranks(group)
        objects = [pickle.loads(mine) if one == self.rank else self.kept(self.name("gathered", one, target, group), one, mine, waits=False) for one in ranks]
        objects = [one[0] for one in objects]
        with self.delivering(objects, all_gather=[self.sizes(objects)]):
            return run()

    def sizes(self, objects):
        return [len(pickle.dumps(one)) for one in objects]
