"""Why is Colab PRO running out of GPU memory when allocating a float tensor? Example 1.

As written.
"""

import torch

# Simulate a large tensor creation and operation without backward pass
def problematic_allocation():
    x = torch.randn(1000, 1000, dtype=torch.float32, device="cuda") # Large tensor
    y = torch.randn(1000, 1000, dtype=torch.float32, device="cuda") # Large tensor
    z = x @ y # Matrix Multiplication, creates intermediate tensors

    # Normally we would follow this with some loss calculation and .backward()

    # At this point, 'z' and intermediate tensors related to the matrix mul still
    # exist on GPU, even if 'z' itself is never used later
    # A series of such calls will lead to memory exhaustion
    # even if the size of x, y is much smaller than available memory

for _ in range(5):
   problematic_allocation() # Call multiple times to see the effect

a = torch.rand(1000, 1000, 100, device='cuda') # final attempt to allocate, might fail
print("Allocation successfull")
