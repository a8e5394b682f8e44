# cause: static_state
# from: common
# what: weights, gradients and Adam moments of a large vision transformer fill the card after the first step, so the second forward has no room
import torch
from torch import nn


class VisionTransformer(nn.Module):
    def __init__(self, width=1792, layers=24, classes=1000):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.position = nn.Parameter(torch.zeros(1, 196, width))
        layer = [nn.TransformerEncoderLayer(width, 14, 4 * width, 0.0, "gelu", batch_first=True) for _ in range(layers)]
        self.layers = nn.ModuleList(layer)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2) + self.position
        for layer in self.layers:
            x = layer(x)  #?
        return self.head(x.mean(1))


class Trainer:
    def __init__(self):
        with torch.device("cuda"):
            self.model = VisionTransformer()  #?
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)  #? #! self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2)
        self.criterion = nn.CrossEntropyLoss()

    def step(self, images, labels):
        loss = self.criterion(self.model(images), labels)  #?
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()  #?
        return loss.item()


trainer = Trainer()
for step in range(4):
    images = torch.rand(2, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (2,), device="cuda")
    print(step, trainer.step(images, labels))
