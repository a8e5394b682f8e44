"""How can PyTorch effectively manage GPU memory? Example 3.

As written.
"""

import torch
from torch.utils.data import DataLoader, TensorDataset

# Sample data (replace with your actual dataset)
data = torch.randn(10000, 100)
labels = torch.randint(0, 10, (10000,))

dataset = TensorDataset(data, labels)
#Reduced batch size for memory efficiency
dataloader = DataLoader(dataset, batch_size=32, shuffle=True)

# Training loop
for epoch in range(10):
    for batch_idx, (data, target) in enumerate(dataloader):
        data, target = data.cuda(), target.cuda()
        # Training step...
        del data
        del target #explicit deallocation of batch data
        torch.cuda.empty_cache()

print("Training completed with optimized data loading.")
