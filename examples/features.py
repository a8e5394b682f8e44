"""Makes a table of features, keeps samples of it and puts them together: what holds the RAM?

    oomph run --ram examples/features.py
"""

import numpy as np
import pandas as pd


def features(rows: int) -> pd.DataFrame:
    return pd.DataFrame({f"c{number}": np.random.rand(rows) for number in range(20)})


def main() -> None:
    table = features(1_000_000)
    small = table.astype("float32")
    kept = [small.sample(100_000) for _ in range(20)]
    together = pd.concat(kept)
    print(f"{len(together):,} rows")


if __name__ == "__main__":
    main()
