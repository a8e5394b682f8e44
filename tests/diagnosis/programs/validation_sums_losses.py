# cause: no_grad_missing
# from: pytorch/pytorch#5210
# what: the validation after each epoch runs with gradients and sums the losses
import torch
from torch import nn
from torchvision.models import resnet18

device = torch.device("cuda")
criterion = nn.CrossEntropyLoss()


def make_batches(count, batch_size=64, size=224):
    for _ in range(count):
        images = torch.randn(batch_size, 3, size, size, device=device)
        labels = torch.randint(0, 100, (batch_size,), device=device)
        yield images, labels


def train_epoch(model, optimizer, batches):
    model.train()
    running = 0.0
    for images, labels in batches:
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        running += loss.item()
    return running


#! @torch.no_grad()
def validate(model, batches):
    model.eval()
    total, count = 0, 0
    for images, labels in batches:
        output = model(images)  #?
        loss = criterion(output, labels)
        total += loss  #? #! total += loss.item()
        count += 1
    return total / count


model = resnet18(num_classes=100).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
for epoch in range(2):
    train_loss = train_epoch(model, optimizer, make_batches(5))
    val_loss = validate(model, make_batches(20))
    print(f"epoch {epoch}: train {train_loss:.3f} val {float(val_loss):.3f}")
