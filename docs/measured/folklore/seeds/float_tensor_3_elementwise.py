"""Why is Colab PRO running out of GPU memory when allocating a float tensor? Example 3.

As written.
"""

import torch

def cache_based_allocation_fail():
    x = torch.rand(1000, 1000, device='cuda')
    y = x + 0.1  # Operations can sometimes implicitly create cached tensors
    z = y * 0.5
    w = z / 2.0 # More operations causing more intermediate data
    del x,y,z,w # Deleting original references might not clear cache

    # even with the prior deletion, the cache might still hold onto data,
    # leading to OOM error when we allocate b
    b = torch.rand(1000, 1000, 100, device='cuda')
    print("Allocation successful")

cache_based_allocation_fail()
