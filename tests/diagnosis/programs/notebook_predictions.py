# cause: tensors_kept
# kind: notebook
# from: SPOClab-ca/dn3#38
# what: the depth maps of all frames are collected on the GPU before they are saved
# %%
import torch
from torch import nn

torch.manual_seed(0)
# %%
class DepthNet(nn.Module):
    def __init__(self, bins=64):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU())
        self.up = nn.Sequential(nn.ConvTranspose2d(64, 32, 2, stride=2), nn.ReLU(), nn.Conv2d(32, bins, 1))

    def forward(self, frames):
        return self.up(self.down(frames))


model = DepthNet().cuda().eval()
# %%
def frame_batches(count):
    for _ in range(count):
        yield torch.rand(8, 3, 480, 640, device="cuda")
# %%
volumes = []
with torch.no_grad():
    for frames in frame_batches(40):
        depth = model(frames).softmax(dim=1)  #?
        volumes.append(depth)  #? #! volumes.append(depth.argmax(dim=1).to(torch.uint8).cpu())
# %%
print("frames:", sum(len(volume) for volume in volumes))
