"""What the lines of a cell hold of RAM: measured while it runs, shown under it."""

from __future__ import annotations

from types import TracebackType

from oomph._ram_held import Measured, Piece, table
from oomph._recorders import RecordingError
from oomph.notebook._show import say, show_table

_TITLE = "oomph: RAM of this cell, held at its peak, of what was allocated since it began"


class RamOfCell:
    """Around the running of a cell. A cell that fails is shown too; one that cannot be measured runs all the same."""

    def __init__(self, file: str, cell: str) -> None:
        self.source = list(enumerate(cell.rstrip().splitlines(), 1))
        self.piece = Piece.of(file, (number for number, _ in self.source))
        self._measured: Measured | None = None

    def __enter__(self) -> RamOfCell:
        measured = Measured()
        try:
            measured.start()
            self._measured = measured
        except RecordingError as error:
            say(f"oomph: this cell is not measured: {error}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._measured is None:
            return
        try:
            held = self._measured.stop([self.piece])
        except RecordingError as why:
            say(f"oomph: this cell is not measured: {why}")
            return
        # A forked child that comes here has nothing to show.
        if held is not None:
            show_table([_TITLE, *table(held, self.piece, self.source)])
