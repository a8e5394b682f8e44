"""oomph: where did my GPU memory go, why did it run out, and will it fit before I pay for the GPU?

The package carries the command ``oomph``; ``python -m oomph`` runs it where the scripts folder is not on the path.
``oomph.predict`` says what a function takes on a card, without the card.
"""

__all__ = ["Prediction", "PredictionError", "find_oomph", "predict"]

from oomph._find import find_oomph
from oomph._predict import Prediction, PredictionError, predict
