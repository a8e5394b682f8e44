# cause: batch_too_large
# from: common
# what: a U-Net for segmentation with a batch of 24 tiles of 512 x 512
import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 24  #? #! BATCH = 6


def double_conv(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, classes=4, widths=(32, 64, 128, 256)):
        super().__init__()
        self.down = nn.ModuleList(double_conv(i, o) for i, o in zip((3,) + widths, widths))
        self.up = nn.ModuleList(double_conv(i + o, o) for i, o in zip(widths[:0:-1], widths[-2::-1]))
        self.out = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x):
        skips = []
        for block in self.down:
            x = block(x)  #?
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = skips.pop()
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0)
            x = block(torch.cat([x, skips.pop()], 1))  #?
        return self.out(x)


def main():
    model = UNet().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(3):
        tiles = torch.rand(BATCH, 3, 512, 512, device="cuda")
        truth = torch.randint(0, 4, (BATCH, 512, 512), device="cuda")
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tiles), truth)  #?
        loss.backward()
        optimizer.step()
        print(step, loss.item())


main()
