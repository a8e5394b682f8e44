"""How can PyTorch effectively manage GPU memory? Example 2.

As written.
"""

import torch

model = torch.nn.Linear(1000, 10).cuda()
input_tensor = torch.randn(1, 1000).cuda()

# Inference without gradient calculation
with torch.no_grad():
    output = model(input_tensor)
    # Further operations with the output...

print("Inference completed without gradient computation.")
