"""How can I maximize GPU memory usage in Google Colab? Example 3.

Mended: my_model.pt is not there, so a model is made and saved first; torch.load refuses a whole model since PyTorch 2.6 without weights_only=False.
"""

import torch

layers = [layer for _ in range(4) for layer in (torch.nn.Linear(2048, 2048), torch.nn.ReLU())]
torch.save(torch.nn.Sequential(*layers).cuda(), 'my_model.pt')
del layers

with torch.no_grad():
    # Place code that doesn't require gradient calculations here.
    model = torch.load('my_model.pt', weights_only=False)
    large_tensor = torch.randn(2048, 2048, device='cuda')
    output = model(large_tensor)
    del large_tensor #important! Memory is released immediately once no longer needed for inference
    del output
