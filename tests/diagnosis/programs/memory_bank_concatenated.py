# cause: growing_cache
# from: lotus-data/lotus#16
# what: the bank of an anomaly detector is concatenated anew with the patches of each batch
import torch
from torch import nn
from torchvision.models import wide_resnet50_2


class PatchMemory:
    def __init__(self):
        net = wide_resnet50_2()
        self.early = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool, net.layer1, net.layer2).cuda().eval()
        self.late = net.layer3.cuda().eval()
        self.bank = torch.empty(0, 1536, device="cuda")

    def patches(self, images):
        fine = self.early(images)
        coarse = nn.functional.interpolate(self.late(fine), size=fine.shape[-2:])
        return torch.cat([fine, coarse], dim=1).permute(0, 2, 3, 1).flatten(0, 2)

    @torch.no_grad()
    def add(self, images):
        features = self.patches(images)
        #! features = features[::100]
        self.bank = torch.cat([self.bank, features])  #?

    def fit(self, batches):
        for images in batches:
            self.add(images)
        return self


def normal_images(count):
    for _ in range(count):
        yield torch.rand(64, 3, 224, 224, device="cuda")


memory = PatchMemory().fit(normal_images(40))
print("bank", tuple(memory.bank.shape))
