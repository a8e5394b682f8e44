# cause: none
# from: common
# what: an ordinary training that needs about seventy per cent of the card, with losses kept as numbers
import torch
import torch.nn.functional as F
import torchvision


def evaluate(model):
    model.eval()
    correct = 0
    with torch.no_grad():
        for _ in range(2):
            images = torch.rand(100, 3, 256, 256, device="cuda")
            labels = torch.randint(0, 100, (100,), device="cuda")
            correct += (model(images).argmax(1) == labels).sum().item()
    model.train()
    return correct / 200


model = torchvision.models.resnet50(num_classes=100).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
for epoch in range(2):
    for step in range(4):
        images = torch.rand(84, 3, 256, 256, device="cuda")
        labels = torch.randint(0, 100, (84,), device="cuda")
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    print(epoch, sum(history) / len(history), evaluate(model))
