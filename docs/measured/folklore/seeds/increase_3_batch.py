"""How can I increase CUDA GPU memory in Google Colab? Example 3.

As written.
"""

import torch
import torch.nn as nn
import torch.optim as optim

# Sample network with small weights
class SimpleNet(nn.Module):
    def __init__(self):
        super(SimpleNet, self).__init__()
        self.fc1 = nn.Linear(784, 128)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = x.view(x.size(0), -1) # Flatten the input
        x = self.fc1(x)
        x = self.relu(x)
        x = self.fc2(x)
        return x

model = SimpleNet().cuda() # load the model to the cuda device
optimizer = optim.Adam(model.parameters(), lr=0.001)
criterion = nn.CrossEntropyLoss()

# Generate mock data for training
batch_size = 16  # reduced batch size for memory management
input_dim = 784
num_classes = 10
num_epochs = 5
num_batches = 10

for epoch in range(num_epochs):
    for batch_idx in range(num_batches):
        inputs = torch.randn(batch_size, input_dim).cuda()
        labels = torch.randint(0, num_classes, (batch_size,)).cuda()

        optimizer.zero_grad() # Zero out the gradients
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward() # Compute the gradients
        optimizer.step() # Update the parameters
        print(f"Epoch {epoch+1}/{num_epochs}, Batch {batch_idx+1}/{num_batches}, Loss: {loss.item():.4f}")
