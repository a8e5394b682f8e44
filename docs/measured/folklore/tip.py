"""What a tip is: its words, its experiment, and the condition under which its verdict is right. No experiment is here, and nothing is measured."""

from collections.abc import Callable
from dataclasses import dataclass, field

VERDICTS = ("true", "true, but", "false", "does nothing")
TIPS: dict[str, "Tip"] = {}


class NotHere(Exception):
    """An experiment cannot be made on this machine; the text says why."""


@dataclass(frozen=True)
class Tip:
    """One row. ``shows``, ``times`` and ``headline`` are templates over the numbers: sizes are written as sizes, ``{name:,d}`` as bare numbers.

    ``holds`` says whether the numbers bear the verdict out. ``settings`` are environments by name: the experiment then runs once in each, and
    its numbers begin with that name. ``needs`` is ``gpu``, ``host``, or a package without which it is not run. ``card`` quotes what an
    H200 measured earlier."""

    name: str
    group: str
    says: str
    done: str
    shows: str
    verdict: str
    holds: Callable[[dict], bool]
    why: str
    oomph: str
    experiment: Callable[..., dict]
    times: str = ""
    card: Callable | None = None
    needs: str = "gpu"
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    limit: int = 120
    rank: int = 0
    headline: str = ""

    @property
    def variants(self):
        """The processes that it takes: a name and what is added to the environment."""
        return self.settings or {"": {}}


def tip(**words):
    """Makes a tip of an experiment, named after the function."""

    def add(experiment):
        name = experiment.__name__.replace("_", "-")
        made = Tip(name=name, experiment=experiment, **words)
        if made.verdict not in VERDICTS or name in TIPS:
            raise ValueError(f"{name}: {made.verdict}")
        TIPS[name] = made
        return experiment

    return add
