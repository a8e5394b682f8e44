# cause: none
# from: common
# what: healthy training with autocast and a gradient scaler, a running mean of the detached loss and a best value
import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        widths = [3, width, 2 * width, 4 * width, 8 * width]
        self.stages = nn.Sequential(*(
            nn.Sequential(nn.Conv2d(i, o, 3, 2, 1), nn.BatchNorm2d(o), nn.ReLU(), nn.Conv2d(o, o, 3, 1, 1), nn.ReLU())
            for i, o in zip(widths, widths[1:])
        ))
        self.head = nn.Linear(8 * width, 200)

    def forward(self, x):
        return self.head(self.stages(x).mean((2, 3)))


def main():
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    mean, best = torch.zeros((), device="cuda"), float("inf")
    for step in range(8):
        images = torch.rand(128, 3, 224, 224, device="cuda")
        labels = torch.randint(0, 200, (128,), device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        mean = 0.9 * mean + 0.1 * loss.detach()
        best = min(best, loss.item())
    print(mean.item(), best)


main()
