"""How can PyTorch effectively manage GPU memory? Example 1.

As written.
"""

import torch

# Allocate a large tensor
x = torch.randn(1024, 1024, 1024, device='cuda')

# Perform some computation
y = x.sin()

# Explicitly delete tensors after use
del x
del y

# Encourage memory release from cache
torch.cuda.empty_cache()

print("Memory potentially freed")
