"""How can Google Colab memory issues be resolved? Example 1.

As written.
"""

import numpy as np

def batch_generator(data, batch_size):
    n_batches = len(data) // batch_size
    for i in range(n_batches):
        start_idx = i * batch_size
        end_idx = start_idx + batch_size
        yield data[start_idx:end_idx]


# Simulate a large dataset
large_data = np.random.rand(1000000, 100)

# Process in batches of 1000
batch_size = 1000
for batch in batch_generator(large_data, batch_size):
    # Process the batch here
    mean = np.mean(batch)
    std = np.std(batch)
    print(f"Batch Mean: {mean}, Batch Std: {std}")
    # Deleting this batch frees up memory
    del batch

# Clear memory after processing.
import gc
gc.collect()
