# cause: outlier_batch
# from: common
# what: one panorama of 9000 x 6000 pixels among ordinary photographs, without a limit on the size
import torch
import torch.nn as nn
import torch.nn.functional as F


SIZES = [(1200, 900), (1024, 768), (800, 1200), (1280, 960), (1024, 1024), (9000, 6000), (1200, 800), (900, 900)]


def limited(width, height, longest=None):  #! def limited(width, height, longest=1600):
    if longest is None or max(width, height) <= longest:
        return width, height
    ratio = longest / max(width, height)
    return int(width * ratio), int(height * ratio)


def read_photograph(size):
    width, height = limited(*size)
    return torch.rand(1, 3, height, width, device="cuda")  #?


class Saliency(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU())
        self.down2 = nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, 2, 1), nn.ReLU())
        self.out = nn.Conv2d(64, 1, 1)

    def forward(self, x):
        return self.out(self.down2(self.down1(x)))  #?


def main():
    model = Saliency().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for number, size in enumerate(SIZES):
        photograph = read_photograph(size)
        predicted = model(photograph)  #?
        target = torch.rand_like(predicted)
        loss = F.binary_cross_entropy_with_logits(predicted, target)
        optimizer.zero_grad()
        loss.backward()  #?
        optimizer.step()
        print(number, size, loss.item())


main()
