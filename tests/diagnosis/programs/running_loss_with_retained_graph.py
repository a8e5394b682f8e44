# cause: graph_kept
# from: pytorch/pytorch#17568
# what: running_loss += loss while backward keeps the graph
import torch
from torch import nn
from torchvision.models import resnet34

device = "cuda"
model = resnet34(num_classes=10).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)


def loader(steps):
    for _ in range(steps):
        yield torch.randn(48, 3, 160, 160), torch.randint(0, 10, (48,))


def train(epoch):
    model.train()
    running_loss = 0
    for i, (inputs, targets) in enumerate(loader(30)):
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, targets)
        loss.backward(retain_graph=True)  #? #! loss.backward()
        optimizer.step()
        running_loss += loss  #? #! running_loss += loss.item()
        if i % 10 == 9:
            print(f"[{epoch}, {i + 1}] loss: {running_loss / (i + 1):.3f}")


for epoch in range(1):
    train(epoch)
print("finished")
