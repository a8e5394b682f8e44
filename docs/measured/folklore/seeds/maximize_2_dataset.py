"""How can I maximize GPU memory usage in Google Colab? Example 2.

Mended: 96 items instead of 1,000,000, which are 4 TiB of random numbers.
"""

import torch
from torch.utils.data import DataLoader, Dataset

class MyDataset(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, idx):
        # Generate data on-demand, avoiding loading the entire dataset at once.
        # Replace this with your data generation logic.
        data = torch.randn(1024,1024)
        label = torch.randint(0,10,(1,))
        return data, label

dataset = MyDataset(96)  # Large dataset
dataloader = DataLoader(dataset, batch_size=32)

for batch in dataloader:
    # Process data in batches, minimizing memory usage.
    data, labels = batch
    # ... process data ...
    del data, labels # crucial to release batch memory
