"""Python objects that ranks send to each other, where each runs without the others.

PyTorch's own functions run, so that they take what they take of the card and of NCCL; what they would have received is put in
its place. What a rank sends is kept (``sent`` in the run's folder), and a rank that runs after it receives that. Of a rank that was not run,
one in the same place of another group stands in. Where there is none, what is received is what this
rank would send itself: stages of a pipeline tell each other the shapes of what they pass on, and those are mostly the same.
What was received, and what was not known, is written down: who starts the ranks runs those again that would receive something else by now.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import pickle
import zlib
from collections import Counter

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType
    from typing import Any

    from torch.distributed import ProcessGroup

    from .child import Run

    # One of PyTorch's functions, with what it was given.
    Call = Callable[[], Any]

# Larger messages are not kept: what is sent once may be a whole model.
LARGEST = 256 << 20


class Objects:
    """The functions of torch.distributed that take objects, for one rank."""

    def __init__(self, torch: ModuleType, rank: int, run: Run) -> None:
        self.torch, self.rank, self.run = torch, rank, run
        # Of the ranks that have run, a folder each; and what this run sends.
        self.messages = run.task.get("messages") or os.path.join(run.task["folder"], "messages")
        self.folder = os.path.join(run.task["folder"], "sent")
        self.distributed = torch.distributed.distributed_c10d
        self.counts: Counter[tuple[str, int]] = Counter()
        self.last_sent: bytes | None = None
        self.received: list[dict[str, Any]] = []

    def replace(self) -> None:
        if not hasattr(self.distributed, "_tensor_to_object"):
            return
        for name in ("send_object_list", "recv_object_list", "broadcast_object_list", "scatter_object_list", "gather_object"):
            original = getattr(self.distributed, name, None)
            if original is not None:
                ours = self.around(original, getattr(self, name))
                setattr(self.distributed, name, ours)
                setattr(self.torch.distributed, name, ours)

    def around(self, original: Callable[..., Any], ours: Callable[[Call, dict[str, Any], ProcessGroup], Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def called(*args: Any, **kwargs: Any) -> Any:
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

    def name(self, kind: str, source: int, target: int | str | None, group: ProcessGroup) -> str:
        """Of the next message of its kind between these two: by their places in the group, and how its ranks lie to each other."""
        ranks = self.distributed.get_process_group_ranks(group)
        place = lambda rank: ranks.index(rank) if rank in ranks else rank
        shape = zlib.crc32(repr([one - ranks[0] for one in ranks]).encode())
        # Two groups may have the same ranks, or lie alike: each counts for itself.
        key = f"{kind}-{shape:08x}-{place(source)}-{place(target)}"
        self.counts[key, ranks[0]] += 1
        return f"{key}-{self.counts[key, ranks[0]]}"

    def keep(self, name: str, objects: Iterable[Any]) -> bytes | None:
        kept = pickle.dumps(list(objects))
        if len(kept) > LARGEST:
            self.note(f"rank {self.rank} sends objects of {len(kept) >> 20} MiB: the others do not get them")
            return None
        try:
            os.makedirs(self.folder, exist_ok=True)
            with open(os.path.join(self.folder, f"{name}.{hashlib.sha256(kept).hexdigest()[:16]}"), "wb") as file:
                file.write(kept)
        except OSError as error:
            self.note(f"what rank {self.rank} sends could not be kept for the others: {error.strerror}")
        return kept

    def found(self, name: str, source: int) -> str | None:
        """The file of a message: of its sender, or of one in the same place of another group."""
        with contextlib.suppress(OSError):
            ranks = sorted((int(one) for one in os.listdir(self.messages) if one.isdigit()), key=lambda rank: (rank != source, rank))
            for rank in ranks:
                folder = os.path.join(self.messages, str(rank))
                for one in os.listdir(folder):
                    if one.rpartition(".")[0] == name:
                        return os.path.join(folder, one)
        return None

    def kept(self, name: str, source: int, otherwise: bytes | list[Any], waits: bool = True) -> Any:
        """What was sent, or a copy of what there is instead."""
        file, objects = self.found(name, source), None
        if file is not None:
            try:
                with open(file, "rb") as opened:
                    objects = pickle.load(opened)
            except OSError:
                # Another run of its sender takes its place just now.
                file = None
            except Exception:
                # Whatever it is of: a class that only its sender can import is as good as nothing.
                pass
        if waits:
            self.received.append({"source": source, "name": name, "digest": file and file.rpartition(".")[2]})
        if objects is not None:
            return objects
        # After the wanted steps a run may end before it sends what others wait for.
        if waits and self.run.phases.began is None:
            self.note(f"what rank {source} sends to rank {self.rank} is not known: it was taken to be what rank {self.rank} has")
        return pickle.loads(otherwise) if isinstance(otherwise, bytes) else pickle.loads(pickle.dumps(otherwise))

    def note(self, text: str) -> None:
        if text not in self.run.facts["notes"]:
            self.run.facts["notes"].append(text)

    def global_rank(self, rank: int | None, of_group: int | None, group: ProcessGroup) -> int | None:
        """A rank of the world, given as such or as one of the group."""
        if rank is not None or of_group is None:
            return rank
        return self.distributed.get_global_rank(group, of_group)

    @contextlib.contextmanager
    def delivering(self, objects: Iterable[Any], **numbers: Iterable[Any]) -> Iterator[None]:
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

    def filling(self, original: Callable[..., Any], values: list[Any]) -> Callable[..., Any]:
        def filled(given: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(given, *args, **kwargs)
            value = values.pop(0) if values else None
            if value is not None:
                tensors = given if isinstance(given, list) else [given]
                tensors = [getattr(one, "tensor", one) for one in tensors]
                for tensor, one in zip(tensors, value if len(tensors) > 1 else [value]):
                    tensor.copy_(self.torch._VF.tensor(one, dtype=tensor.dtype).reshape(tensor.shape))
            return result

        return filled

    # -- the functions: how PyTorch is run, what it was given, and the group

    def send_object_list(self, run: Call, given: dict[str, Any], group: ProcessGroup) -> Any:
        result = run()
        target = self.global_rank(given.get("dst"), given.get("group_dst"), group)
        self.last_sent = self.keep(self.name("sent", self.rank, target, group), given["object_list"])
        return result

    def recv_object_list(self, run: Call, given: dict[str, Any], group: ProcessGroup) -> Any:
        source, wanted = self.global_rank(given.get("src"), given.get("group_src"), group), given["object_list"]
        if source is None:
            return run()
        mine = self.last_sent if self.last_sent is not None and len(pickle.loads(self.last_sent)) == len(wanted) else wanted
        objects = self.kept(self.name("sent", source, self.rank, group), source, mine)
        sizes = self.sizes(objects)
        with self.delivering(objects, recv=[sizes], batch_isend_irecv=[sizes]):
            return run()

    def broadcast_object_list(self, run: Call, given: dict[str, Any], group: ProcessGroup) -> None:
        source = self.global_rank(given.get("src"), given.get("group_src"), group) or 0
        name = self.name("broadcast", source, "all", group)
        if source == self.rank:
            run()
            self.keep(name, given["object_list"])
            return
        objects = self.kept(name, source, given["object_list"])
        with self.delivering(objects, broadcast=[self.sizes(objects)]):
            run()

    def scatter_object_list(self, run: Call, given: dict[str, Any], group: ProcessGroup) -> None:
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

    def gather_object(self, run: Call, given: dict[str, Any], group: ProcessGroup) -> Any:
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

    def sizes(self, objects: Iterable[Any]) -> list[int]:
        return [len(pickle.dumps(one)) for one in objects]
