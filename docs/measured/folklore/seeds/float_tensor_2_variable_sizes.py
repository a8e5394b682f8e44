"""Why is Colab PRO running out of GPU memory when allocating a float tensor? Example 2.

Mended: the last three lines of the function are indented by two columns, which Python refuses; they are indented by four.
"""

import torch
import gc

def fragmented_memory_allocation():
    for i in range(10):
      size = 100 * (i + 1)
      tensor = torch.randn(size, size, dtype=torch.float32, device="cuda")
      # Explicitly freeing the tensor is not sufficient to solve fragmenation,
      # The memory itself might be held by the allocator.
      del tensor
      gc.collect()  # Force garbage collection, might not help in this specific situation
      # Although free, it might leave smaller memory regions blocked

    # Final allocation, might fail due to fragmentation
    b = torch.rand(1000, 1000, 100, device='cuda')
    print("Allocation successful")

fragmented_memory_allocation()
