# cause: growing_cache
# from: open-edge-platform/anomalib#2913
# what: the memory bank of patch features is concatenated anew for every batch
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import wide_resnet50_2


class PatchExtractor(nn.Module):
    def __init__(self):
        super().__init__()
        net = wide_resnet50_2(weights=None)
        self.stem = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool, net.layer1)
        self.mid, self.deep = net.layer2, net.layer3
        for p in self.parameters():
            p.requires_grad = False

    def forward(self, images: Tensor) -> Tensor:
        middle = self.mid(self.stem(images))
        deep = F.interpolate(self.deep(middle), size=middle.shape[-2:], mode="bilinear")
        patches = F.avg_pool2d(torch.cat([middle, deep], dim=1), 3, 1, 1)
        return patches.permute(0, 2, 3, 1).reshape(-1, patches.shape[1])


class PatchBank(nn.Module):
    def __init__(self):
        super().__init__()
        self.extractor = PatchExtractor().eval()
        self.register_buffer("bank", torch.empty(0, 1536))

    def fit(self, loader) -> None:
        for images in loader:
            patches = self.extractor(images)
            #! patches = patches[torch.randperm(len(patches), device=patches.device)[: len(patches) // 100]]
            self.bank = torch.cat([self.bank, patches])  #?
        print("bank holds", len(self.bank), "patches")

    def score(self, images: Tensor) -> Tensor:
        patches = self.extractor(images)
        nearest = torch.cdist(patches, self.bank).amin(dim=1)
        return nearest.view(len(images), -1).amax(dim=1)


def screws(batches: int, size: int = 320):
    for _ in range(batches):
        yield torch.rand(64, 3, size, size, device="cuda")


model = PatchBank().cuda()
model.fit(screws(20))
print(model.score(next(screws(1))[:8]).shape)
