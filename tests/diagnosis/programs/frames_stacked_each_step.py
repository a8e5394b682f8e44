# cause: growing_cache
# from: common
# what: the frames made so far are stacked anew in each step of a video prediction
import torch
from torch import nn


class NextFrame(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv3d(3, width, (3, 3, 3), padding=(0, 1, 1)), nn.ReLU(inplace=True),
            nn.Conv3d(width, 3, (2, 3, 3), padding=(0, 1, 1)),
        )

    def forward(self, clip):
        return self.net(clip[:, :, -4:]).squeeze(2)


@torch.inference_mode()
def roll_out(model, start, steps):
    frames = list(start.unbind(dim=2))
    for _ in range(steps):
        clip = torch.stack(frames, dim=2)  #? #! clip = torch.stack(frames[-4:], dim=2)
        frames.append(model(clip))
        #! frames = frames[-4:]
    return frames


def main():
    model = NextFrame().cuda().eval()
    start = torch.rand(16, 3, 4, 540, 960, device="cuda")
    frames = roll_out(model, start, steps=120)
    print("frames", len(frames))


main()
