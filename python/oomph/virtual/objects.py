"""Python objects that ranks send to each other, where each runs without the others.

What a rank sends is kept in a folder, and a rank that runs after it receives that. From one that has not run yet comes what this
rank would send itself: pipelines tell each other the shapes of what they pass on, and those are mostly the same.
"""

import functools
import inspect
import os
import pickle
import zlib
from collections import Counter


class Objects:
    """The functions of torch.distributed that take objects, for one rank. ``folder`` is shared by all of a world."""

    def __init__(self, torch, rank, folder, facts):
        self.torch, self.rank, self.folder, self.facts = torch, rank, folder, facts
        self.distributed = torch.distributed.distributed_c10d
        self.counts = Counter()
        self.last_sent = None

    def replace(self):
        for name in ("send_object_list", "recv_object_list", "broadcast_object_list", "scatter_object_list", "gather_object"):
            original = getattr(self.distributed, name, None)
            if original is not None:
                ours = self.for_members(original, getattr(self, name)(original))
                setattr(self.distributed, name, ours)
                setattr(self.torch.distributed, name, ours)

    def for_members(self, original, ours):
        """PyTorch has its own word for who calls for a group that it is not in."""
        place = list(inspect.signature(original).parameters).index("group")

        @functools.wraps(original)
        def called(*args, **kwargs):
            group = args[place] if len(args) > place else kwargs.get("group")
            return (original if self.distributed._rank_not_in_group(group) else ours)(*args, **kwargs)

        return called

    # -- what is kept

    def path(self, kind, source, target, group):
        """Of the next message of its kind between these two."""
        ranks = zlib.crc32(repr(self.distributed.get_process_group_ranks(self.group(group))).encode())
        key = f"{kind}-{ranks:08x}-{source}-{target}"
        self.counts[key] += 1
        return os.path.join(self.folder, f"{key}-{self.counts[key]}")

    def keep(self, path, objects):
        os.makedirs(self.folder, exist_ok=True)
        with open(path + ".part", "wb") as file:
            pickle.dump(objects, file)
        os.replace(path + ".part", path)

    def kept(self, path, source, otherwise):
        """What was sent, or what there is instead."""
        try:
            with open(path, "rb") as file:
                return pickle.load(file)
        except FileNotFoundError:
            self.facts["too_early"] = True
            note = f"rank {source} had not run before rank {self.rank}: an object that it sends was taken to be what rank {self.rank} has"
            if note not in self.facts["notes"]:
                self.facts["notes"].append(note)
            return otherwise

    def take_memory(self, objects, group, device):
        """As it is taken to receive them: their lengths, and then their bytes."""
        if device is None:
            # Older versions have no word for it.
            device_of = getattr(self.distributed, "_get_object_coll_device", None) or self.distributed._get_pg_default_device
            device = device_of(self.group(group))
            device = self.torch.device("cuda", self.torch.cuda.current_device()) if "cuda" in str(device) else device
        lengths = self.torch.empty(len(objects), dtype=self.torch.long, device=device)
        self.torch.empty(sum(len(pickle.dumps(one)) for one in objects), dtype=self.torch.uint8, device=device)
        del lengths

    def group(self, group):
        return group if group is not None else self.distributed._get_default_group()

    def whole(self, rank, of_group, group):
        """A rank of the world, given as such or as one of the group."""
        if rank is not None or of_group is None:
            return rank
        return self.distributed.get_global_rank(self.group(group), of_group)

    # -- the functions

    def send_object_list(self, original):
        def send_object_list(object_list, dst=None, group=None, device=None, group_dst=None, **kwargs):
            target = self.whole(dst, group_dst, group)
            original(object_list, target, group, device, **kwargs)
            self.last_sent = list(object_list)
            self.keep(self.path("sent", self.rank, target, group), self.last_sent)

        return send_object_list

    def recv_object_list(self, original):
        def recv_object_list(object_list, src=None, group=None, device=None, group_src=None, **kwargs):
            source = self.whole(src, group_src, group)
            otherwise = self.last_sent if self.last_sent is not None and len(self.last_sent) == len(object_list) else object_list
            object_list[:] = self.kept(self.path("sent", source, self.rank, group), source, otherwise)
            self.take_memory(object_list, group, device)
            return source

        return recv_object_list

    def broadcast_object_list(self, original):
        def broadcast_object_list(object_list, src=None, group=None, device=None, group_src=None):
            source = self.whole(src, group_src, group)
            source = 0 if source is None else source
            path = self.path("broadcast", source, "all", group)
            if source == self.rank:
                original(object_list, source, group, device)
                self.keep(path, list(object_list))
            else:
                object_list[:] = self.kept(path, source, object_list)
                self.take_memory(object_list, group, device)

        return broadcast_object_list

    def scatter_object_list(self, original):
        def scatter_object_list(scatter_object_output_list, scatter_object_input_list=None, src=None, group=None, group_src=None):
            source = self.whole(src, group_src, group)
            source = 0 if source is None else source
            path, place = self.path("scattered", source, "all", group), self.distributed.get_group_rank(self.group(group), self.rank)
            if source == self.rank:
                self.keep(path, list(scatter_object_input_list))
                scatter_object_output_list[0] = scatter_object_input_list[place]
            else:
                objects = self.kept(path, source, None)
                scatter_object_output_list[0] = objects[place] if objects is not None else None
            self.take_memory(scatter_object_output_list, group, None)

        return scatter_object_list

    def gather_object(self, original):
        def gather_object(obj, object_gather_list=None, dst=None, group=None, group_dst=None):
            if object_gather_list is not None:
                # Every other rank has what this one has.
                object_gather_list[:] = [obj] * len(object_gather_list)
                self.take_memory(object_gather_list, group, None)
            else:
                self.take_memory([obj], group, None)

        return gather_object
