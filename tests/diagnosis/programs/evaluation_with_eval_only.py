# cause: no_grad_missing
# from: hszhao/semseg#60
# what: a segmentation is evaluated with model.eval() alone, the dice scores keep the graph
import torch
from torch import nn


def block(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, base=32):
        super().__init__()
        self.down = nn.ModuleList([block(1, base), block(base, 2 * base), block(2 * base, 4 * base)])
        self.middle = block(4 * base, 8 * base)
        self.up = nn.ModuleList([block(12 * base, 4 * base), block(6 * base, 2 * base), block(3 * base, base)])
        self.pool = nn.MaxPool2d(2)
        self.grow = nn.Upsample(scale_factor=2)
        self.out = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
            x = self.pool(x)
        x = self.middle(x)
        for up in self.up:
            x = up(torch.cat([self.grow(x), skips.pop()], dim=1))
        return self.out(x)


def dice(probability, mask):
    overlap = (probability * mask).sum(dim=(1, 2, 3))
    size = probability.sum(dim=(1, 2, 3)) + mask.sum(dim=(1, 2, 3))
    return ((2 * overlap + 1) / (size + 1)).mean()


#! @torch.no_grad()
def evaluate(model, cases):
    model.eval()
    scores = []
    for _ in range(cases):
        image = torch.randn(4, 1, 512, 512, device="cuda")
        mask = (torch.rand(4, 1, 512, 512, device="cuda") > 0.5).float()
        probability = model(image).sigmoid()  #?
        scores.append(dice(probability, mask))  #?
    return torch.stack(scores).mean().item()


model = UNet().cuda()
print("mean dice", evaluate(model, cases=25))
