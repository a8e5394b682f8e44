# cause: one_temporary
# from: pytorch/pytorch#31655
# what: unfold copies a 7 x 7 window of 64 channels for every pixel
import torch
import torch.nn as nn
import torch.nn.functional as F


class LocalSimilarity(nn.Module):
    """Compares each pixel with its neighbours in a window."""

    def __init__(self, window=7):
        super().__init__()
        self.window = window

    def whole(self, x):
        b, c, h, w = x.shape
        around = F.unfold(x, self.window, padding=self.window // 2)  #?
        around = around.view(b, c, self.window**2, h, w)
        return (around * x[:, :, None]).sum(1)  #?

    def shifted(self, x):
        h, w = x.shape[-2:]
        padded = F.pad(x, [self.window // 2] * 4)
        shifts = [(i, j) for i in range(self.window) for j in range(self.window)]
        return torch.stack([(padded[..., i : i + h, j : j + w] * x).sum(1) for i, j in shifts], 1)

    def forward(self, x):
        return self.whole(x)  #? #! return self.shifted(x)


@torch.inference_mode()
def main():
    extract = nn.Conv2d(3, 64, 5, padding=2).cuda()
    similarity = LocalSimilarity()
    for frame in range(3):
        image = torch.rand(3, 3, 720, 1280, device="cuda")
        result = similarity(extract(image))  #?
        print(frame, tuple(result.shape), result.mean().item())


main()
